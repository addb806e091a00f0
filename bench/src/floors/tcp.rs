//! Messages over a TCP connection. Both ends poll.

use super::{Shape, pause, with_server};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::nanoseconds;
use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

/// Size of one read or write, in bytes.
const CHUNK: usize = 64 << 10;

/// Exchanges messages of one size for replies of another size, with several of them in flight.
pub(super) fn exchange(shape: &Shape) -> Result<Sample, String> {
    let (client, server) = pair().map_err(|error| error.to_string())?;
    // TCP cannot carry an empty message.
    let (size, reply) = (shape.size.max(1), shape.reply.max(1));
    let serve = |stop: &AtomicBool| answer(&server, size, reply, stop).map_err(|error| error.to_string());
    with_server(shape.cores.map(|cores| cores.server), serve, |watch| {
        let mut recorder = Recorder::new(nanoseconds(shape.measured));
        let mut lane = Lane::new(&client);
        let mut began = VecDeque::new();
        loop {
            if began.len() < shape.outstanding {
                pause(shape);
            }
            while began.len() < shape.outstanding {
                began.push_back(watch.now_ns());
                lane.to_write += size;
            }
            lane.turn().map_err(|error| error.to_string())?;
            while lane.read >= reply {
                lane.read -= reply;
                let due = began.pop_front().ok_or("a reply without a message")?;
                if !recorder.ended(due, watch.now_ns()) {
                    return recorder.finish();
                }
            }
        }
    })
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((client, server))
}

fn answer(stream: &TcpStream, size: usize, reply: usize, stop: &AtomicBool) -> io::Result<()> {
    let mut lane = Lane::new(stream);
    while !stop.load(Ordering::Relaxed) {
        lane.turn()?;
        lane.to_write += lane.read / size * reply;
        lane.read %= size;
    }
    Ok(())
}

struct Lane<'a> {
    stream: &'a TcpStream,
    to_write: usize,
    read: usize,
    buffer: Vec<u8>,
}

impl<'a> Lane<'a> {
    fn new(stream: &'a TcpStream) -> Self {
        Self { stream, to_write: 0, read: 0, buffer: vec![0x5a; CHUNK] }
    }

    /// Writes as many bytes as the socket accepts, and reads the available bytes.
    fn turn(&mut self) -> io::Result<()> {
        if self.to_write > 0 {
            let most = self.to_write.min(CHUNK);
            self.to_write -= ready((&mut &*self.stream).write(&self.buffer[..most]))?.unwrap_or(0);
        }
        match ready((&mut &*self.stream).read(&mut self.buffer))? {
            Some(0) => Err(ErrorKind::UnexpectedEof.into()),
            read => {
                self.read += read.unwrap_or(0);
                Ok(())
            }
        }
    }
}

/// Maps `WouldBlock` and `Interrupted` to `None`, which means that the socket is full or that no data is available.
fn ready(done: io::Result<usize>) -> io::Result<Option<usize>> {
    match done {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
        Err(error) => Err(error),
    }
}
