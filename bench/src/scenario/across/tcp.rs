//! Bulk streams over the kernel's TCP, in the pattern and sizes of the calls with which they are compared.
//!
//! A node accepts streams at its address and port. A stream begins with two lengths: the length of a chunk and the length
//! of the reply to each chunk. The reply is the whole chunk, as in `echo`, or one byte for one-way calls. The caller
//! counts replies, so its rate includes only bytes that have arrived. Sockets block. A stream is closed if its peer is
//! silent for [`LEASE`], and a node serves a limited number of streams.

use super::service::{LEASE, Load};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, Builder};
use std::time::{Duration, Instant};

/// Maximum size of one write, in bytes. Larger payloads are sent in several chunks.
const CHUNK: usize = 64 << 10;
/// Interval at which a caller checks the clock while it receives no replies.
const LOOK: Duration = Duration::from_millis(20);

/// Serves at most `most` streams at this address until the process ends.
///
/// # Errors
/// Returns an error if the address is in use.
pub(super) fn listen(address: SocketAddr, most: usize) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    let serve = move || {
        let open = Arc::new(());
        for stream in listener.incoming() {
            let held = Arc::clone(&open);
            let serve = |stream| {
                Builder::new().spawn(move || {
                    // The caller reports the reason for the end of a stream.
                    let _ended = answer(stream);
                    drop(held);
                })
            };
            // A stream beyond the limit is closed. If descriptors or memory are exhausted, the next attempt is delayed.
            let is_allowed = Arc::strong_count(&open) <= most + 1;
            if stream.and_then(|stream| if is_allowed { serve(stream).map(drop) } else { Ok(()) }).is_err() {
                thread::sleep(LOOK);
            }
        }
    };
    Builder::new().name("tcp".to_owned()).spawn(serve).map(drop)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_read_timeout(Some(LEASE))?;
    stream.set_write_timeout(Some(LEASE))?;
    let mut header = [[0; 4]; 2];
    stream.read_exact(header.as_flattened_mut())?;
    let (chunk, reply) = lengths(header).ok_or(ErrorKind::InvalidData)?;
    // The buffer has room for an incomplete chunk and one further read.
    let mut buffer = vec![0x5a; 2 * CHUNK];
    let mut received = 0;
    loop {
        match stream.read(&mut buffer[..CHUNK])? {
            0 => return Ok(()),
            read => received += read,
        }
        stream.write_all(&buffer[..received / chunk * reply])?;
        received %= chunk;
    }
}

/// Returns the lengths of a chunk and of its reply, or `None` if they are out of range.
fn lengths(header: [[u8; 4]; 2]) -> Option<(usize, usize)> {
    let [chunk, reply] = header.map(|length| usize::try_from(u32::from_le_bytes(length)).unwrap_or(0));
    ((1..=CHUNK).contains(&chunk) && (1..=chunk).contains(&reply)).then_some((chunk, reply))
}

/// Streams to a target before, during and after the measurement. Returns the rate in payloads per second.
///
/// # Errors
/// Returns an error if the target cannot be reached, or if the stream ends early.
pub(super) fn stream(target: SocketAddr, load: &Load, is_stopped: &AtomicBool) -> Result<f64, String> {
    let failed = |error: io::Error| {
        format!(
            "TCP to {target}: {error}; is TCP port {} open there? --no-tcp measures calls only",
            target.port()
        )
    };
    let chunk = usize::try_from(load.bytes).unwrap_or(CHUNK).clamp(1, CHUNK);
    let reply = if load.one_way { 1 } else { chunk };
    let mut stream = TcpStream::connect_timeout(&target, LEASE).map_err(failed)?;
    stream.set_read_timeout(Some(LOOK)).map_err(failed)?;
    for length in [chunk, reply] {
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        stream.write_all(&length.to_le_bytes()).map_err(failed)?;
    }
    let is_over = AtomicBool::new(false);
    let replies_per_s = thread::scope(|scope| {
        let write = || {
            let payload = vec![0x5a; chunk];
            let mut is_open = true;
            while is_open && !is_over.load(Ordering::Relaxed) {
                is_open = (&stream).write_all(&payload).is_ok();
            }
            let _closed = stream.shutdown(Shutdown::Write);
        };
        let counted = Builder::new().spawn_scoped(scope, write);
        let counted = counted.and_then(|_| count(&stream, load, &is_over, is_stopped));
        is_over.store(true, Ordering::Relaxed);
        // After a failure, the shutdown also ends the writer.
        let _closed = stream.shutdown(Shutdown::Both);
        counted
    });
    #[expect(clippy::cast_precision_loss, reason = "at most 2^26")]
    let payloads_per_reply = chunk as f64 / (reply as f64 * load.bytes.max(1) as f64);
    Ok(replies_per_s.map_err(failed)? * payloads_per_reply)
}

/// Returns the rate of reply bytes per second in the measured time. Waits until all sent bytes have been answered, so
/// that the next measurement starts with an empty connection.
fn count(
    mut stream: &TcpStream,
    load: &Load,
    is_over: &AtomicBool,
    is_stopped: &AtomicBool,
) -> io::Result<f64> {
    let (began, margin, measured) = (Instant::now(), load.margin(), Duration::from_secs_f64(load.seconds));
    let mut buffer = vec![0; CHUNK];
    let mut received = 0_u64;
    // Start and end of the measurement, each with the number of bytes received before.
    let (mut first, mut last) = (None, None);
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) if is_over.load(Ordering::Relaxed) => break,
            Ok(0) => {
                return Err(io::Error::new(ErrorKind::UnexpectedEof, "the target has closed the stream"));
            }
            Ok(read) => read,
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                ) =>
            {
                0
            }
            Err(error) => return Err(error),
        };
        if is_stopped.load(Ordering::Relaxed) {
            return Err(io::Error::other("the run was stopped"));
        }
        received += read as u64;
        let now = began.elapsed();
        if now >= margin {
            first.get_or_insert((now, received));
        }
        if now >= margin + measured {
            last.get_or_insert((now, received));
        }
        is_over.fetch_or(now >= margin + measured + margin, Ordering::Relaxed);
        if now >= margin + measured + margin + LEASE {
            break;
        }
    }
    let (Some((from, before)), Some((to, after))) = (first, last) else {
        return Err(io::Error::other("the stream has ended before it was measured"));
    };
    #[expect(clippy::cast_precision_loss, reason = "bytes of an hour stay below 2^52")]
    Ok((after - before) as f64 / (to - from).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_testkit::fresh_ip;

    fn listening() -> SocketAddr {
        let address = TcpListener::bind((fresh_ip(), 0)).unwrap().local_addr().unwrap();
        listen(address, 2).unwrap();
        address
    }

    #[test]
    fn replies_are_whole_chunks_or_one_byte_each() {
        let address = listening();
        for (reply, expected) in [(3_u32, 9), (1, 3)] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&[3_u32.to_le_bytes(), reply.to_le_bytes()].concat()).unwrap();
            stream.write_all(&[7; 5]).unwrap();
            stream.write_all(&[7; 6]).unwrap();
            stream.shutdown(Shutdown::Write).unwrap();
            assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), expected);
        }
    }

    #[test]
    fn tcp_lengths_beyond_limits_are_refused() {
        let of = |chunk: u32, reply: u32| lengths([chunk, reply].map(u32::to_le_bytes));
        assert_eq!((of(1, 1), of(65_536, 65_536)), (Some((1, 1)), Some((CHUNK, CHUNK))));
        for wrong in [of(0, 0), of(1, 0), of(1, 2), of(65_537, 1), of(u32::MAX, u32::MAX)] {
            assert_eq!(wrong, None);
        }
    }

    #[test]
    fn streams_above_limit_are_closed() {
        let address = listening();
        let _open = [(); 2].map(|()| TcpStream::connect(address).unwrap());
        let mut excess = TcpStream::connect(address).unwrap();
        // The server may already have closed the stream.
        let _closed = excess.write_all(&[1, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_ne!(excess.read(&mut [0]).ok(), Some(1));
    }
}
