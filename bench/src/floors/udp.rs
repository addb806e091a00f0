//! Datagrams between two sockets on the loopback interface.

use super::{Shape, pause, with_server};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, sendmmsg, setsockopt, sockopt};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Maximum size of a datagram, in bytes. Larger messages are split.
const PIECE: usize = 32 << 10;
/// Maximum number of pieces of a large message in flight. They fit in the default receive buffer of a socket.
const WINDOW: usize = 2;
/// Number of datagrams per system call.
pub(super) const BATCH: usize = 32;
/// Time without a received datagram after which the datagrams in flight count as lost, in nanoseconds.
pub(super) const LOST_NS: u64 = 20_000_000;
/// Interval at which a blocking server checks whether it should stop.
const LOOK: Duration = Duration::from_millis(20);

/// Way of waiting for a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Receive {
    Polling,
    Blocking,
}

/// Sends a message and waits for its echo.
pub(super) fn ping_pong(shape: &Shape, receive: Receive) -> Result<Sample, String> {
    let (client, server) = pair(receive).map_err(|error| error.to_string())?;
    let serve = |stop: &AtomicBool| echo(&server, stop).map_err(|error| error.to_string());
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        let mut buffer = vec![0x5a; PIECE];
        loop {
            pause(shape);
            let began = watch.now_ns();
            round_trip(&client, shape.size, &mut buffer, watch).map_err(|error| error.to_string())?;
            if !recorder.ended(began, watch.now_ns()) {
                return recorder.finish();
            }
        }
    })
}

pub(super) fn pair(receive: Receive) -> io::Result<(UdpSocket, UdpSocket)> {
    let bound = || UdpSocket::bind((Ipv4Addr::LOCALHOST, 0));
    let (client, server) = (bound()?, bound()?);
    client.connect(server.local_addr()?)?;
    server.connect(client.local_addr()?)?;
    for socket in [&client, &server] {
        match receive {
            Receive::Polling => socket.set_nonblocking(true)?,
            Receive::Blocking => socket.set_read_timeout(Some(LOOK))?,
        }
        // A buffer above the system's limit needs a privilege. Without it, the window still fits in the default buffer.
        let _default = setsockopt(socket, sockopt::RcvBufForce, &(4 << 20));
    }
    Ok((client, server))
}

fn echo(socket: &UdpSocket, stop: &AtomicBool) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    while !stop.load(Ordering::Relaxed) {
        if let Some(bytes) = arrived(socket.recv(&mut buffer))? {
            arrived(socket.send(&buffer[..bytes]))?;
        }
    }
    Ok(())
}

fn round_trip(socket: &UdpSocket, size: usize, buffer: &mut [u8], watch: Stopwatch) -> io::Result<()> {
    let pieces = size.div_ceil(PIECE).max(1);
    let (mut sent, mut back, mut last_ns) = (0, 0, watch.now_ns());
    while back < pieces {
        if sent < pieces && sent - back < WINDOW {
            let bytes = PIECE.min(size - sent * PIECE);
            sent += usize::from(arrived(socket.send(&buffer[..bytes]))?.is_some());
        }
        if arrived(socket.recv(buffer))?.is_some() {
            back += 1;
            last_ns = watch.now_ns();
        } else if watch.now_ns() - last_ns > 50 * LOST_NS {
            return Err(io::Error::new(ErrorKind::TimedOut, "a datagram on the loopback interface was lost"));
        }
    }
    Ok(())
}

/// Maps errors for a full socket or missing data to `None`.
fn arrived(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Exchanges datagrams by sendmmsg and recvmmsg. The datagrams in flight fit in the receive buffer of a socket.
pub(super) fn batched(shape: &Shape) -> Result<Sample, String> {
    let (client, server) = pair(Receive::Polling).map_err(|error| error.to_string())?;
    let bytes = shape.size.min(PIECE);
    let pieces = shape.size.div_ceil(PIECE).max(1);
    let window = (shape.outstanding * pieces).min(((128 << 10) / (bytes + 1024)).max(WINDOW));
    let serve = |stop: &AtomicBool| {
        let mut batch = Batch::new(bytes);
        while !stop.load(Ordering::Relaxed) {
            let mut left = batch.receive(&server)?;
            while left > 0 && !stop.load(Ordering::Relaxed) {
                left -= batch.send(&server, left)?;
            }
        }
        Ok(())
    };
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        let (mut batch, mut began) = (Batch::new(bytes), VecDeque::new());
        let (mut last_ns, mut of_message) = (0, 0);
        loop {
            let room = (window - began.len()).min(BATCH);
            if room > 0 {
                let sent = batch.send(&client, room)?;
                began.extend(std::iter::repeat_n(watch.now_ns(), sent));
            }
            let back = batch.receive(&client)?.min(began.len());
            let now = watch.now_ns();
            if back > 0 {
                last_ns = now;
            } else if now - last_ns > LOST_NS {
                began.clear();
                last_ns = now;
            }
            for due in began.drain(..back) {
                of_message = (of_message + 1) % pieces;
                if of_message == 0 && !recorder.ended(due, now) {
                    return recorder.finish();
                }
            }
        }
    })
}

/// Buffers for the datagrams of one system call. All of them have the same size.
struct Batch {
    buffers: Vec<Vec<u8>>,
}

impl Batch {
    fn new(bytes: usize) -> Self {
        Self { buffers: vec![vec![0x5a; bytes]; BATCH] }
    }

    /// Sends up to the given number of datagrams. Returns the number of sent datagrams.
    fn send(&self, socket: &UdpSocket, datagrams: usize) -> Result<usize, String> {
        let datagrams = datagrams.min(BATCH);
        let slices: Vec<_> = self.buffers[..datagrams].iter().map(|buffer| [IoSlice::new(buffer)]).collect();
        let mut headers = MultiHeaders::<SockaddrIn>::preallocate(datagrams, None);
        let to = vec![None; datagrams];
        let sent = sendmmsg(socket.as_raw_fd(), &mut headers, &slices, to, [], MsgFlags::MSG_DONTWAIT);
        counted(sent.map(Iterator::count))
    }

    /// Receives up to one batch of datagrams that have arrived.
    fn receive(&mut self, socket: &UdpSocket) -> Result<usize, String> {
        receive(socket, &mut self.buffers, |_| ())
    }
}

/// Receives datagrams with one recvmmsg. Returns their number, and passes the length of each to the closure.
pub(super) fn receive(
    socket: &UdpSocket,
    buffers: &mut [Vec<u8>],
    mut length: impl FnMut(usize),
) -> Result<usize, String> {
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(buffers.len(), None);
    let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
    let received =
        recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None);
    counted(received.map(|all| all.inspect(|message| length(message.bytes)).count()))
}

/// Maps errors for a full socket or missing data to zero.
fn counted(done: nix::Result<usize>) -> Result<usize, String> {
    match done {
        Err(nix::Error::EAGAIN | nix::Error::EINTR) => Ok(0),
        done => done.map_err(|error| error.to_string()),
    }
}
