//! Limits of the machine without any middleware, measured in the same run as the calls.
//!
//! | file | what it measures |
//! |---|---|
//! | `line` | a cache line that two cores write in turn, the unit of every comparison |
//! | `eventfd` | threads that sleep in the kernel and wake each other |
//! | `udp` | a datagram there and back, polled or blocking; many at a time by sendmmsg and recvmmsg |
//! | `gso` | bytes in one direction over UDP GSO, received by recvmmsg |
//! | `tcp` | messages of the same sizes over a TCP connection, polled |
//! | `ring` | messages over two SPSC rings, and buffers that one side fills and the other reads in place |
//!
//! The server of each floor is a thread of this process on the server's core. The client is the calling thread.

mod eventfd;
mod gso;
mod line;
mod ring;
mod tcp;
mod udp;

pub(crate) use line::line;

use crate::meter::pin::{self, Cores};
use crate::meter::recorder::Sample;
use crate::meter::stopwatch::Stopwatch;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Settings that a floor shares with the calls compared with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Size of a message, in bytes.
    pub(crate) size: usize,
    pub(crate) reply: usize,
    pub(crate) outstanding: usize,
    pub(crate) pause: Option<Duration>,
    pub(crate) measured: Duration,
    pub(crate) cores: Option<Cores>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Floor {
    /// A cache line that two cores write in turn.
    Line,
    /// An eventfd, between two threads on one core.
    EventfdSameCore,
    /// An eventfd, between two threads on separate cores.
    EventfdCrossCore,
    /// Datagrams, with polling receivers.
    Udp,
    /// Datagrams, with blocking receivers.
    UdpBlocking,
    /// Datagrams, sent and received in batches.
    UdpBatched,
    /// Datagrams that the kernel splits from larger ones.
    UdpGso,
    Tcp,
    Ring,
    /// Buffers that one side fills and the other reads in place.
    Copy,
}

impl Floor {
    /// Returns the name used in tables and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Line => "cache line",
            Self::EventfdSameCore => "eventfd, same core",
            Self::EventfdCrossCore => "eventfd, cross-core",
            Self::Udp => "raw UDP, polling",
            Self::UdpBlocking => "raw UDP, blocking",
            Self::UdpBatched => "sendmmsg/recvmmsg",
            Self::UdpGso => "UDP GSO to recvmmsg",
            Self::Tcp => "TCP, polling",
            Self::Ring => "SPSC ring",
            Self::Copy => "copy in, read in place",
        }
    }

    /// Measures the floor.
    ///
    /// # Errors
    /// Returns an error if a system call fails. It contains the name of the floor.
    pub(crate) fn measure(self, shape: &Shape) -> Result<Sample, String> {
        let measured = match self {
            Self::Line => line(shape.cores, shape.measured),
            Self::EventfdSameCore => eventfd::same_core(shape),
            Self::EventfdCrossCore => eventfd::cross_core(shape),
            Self::Udp => udp::ping_pong(shape, udp::Receive::Polling),
            Self::UdpBlocking => udp::ping_pong(shape, udp::Receive::Blocking),
            Self::UdpBatched => udp::batched(shape),
            Self::UdpGso => gso::stream(shape),
            Self::Tcp => tcp::exchange(shape),
            Self::Ring => ring::exchange(shape),
            Self::Copy => ring::stream(shape),
        };
        measured.map_err(|why| format!("the floor `{}` cannot be measured: {why}", self.name()))
    }
}

/// Runs `measure` while `serve` runs on a separate thread on `core`. The flag tells `serve` to stop.
fn with_server<R>(
    core: Option<usize>,
    serve: impl FnOnce(&AtomicBool) -> Result<(), String> + Send,
    measure: impl FnOnce(Stopwatch) -> Result<R, String>,
) -> Result<R, String> {
    with_sleeping_server(core, serve, measure, || ())
}

/// Like [`with_server`], but for a server that may sleep. Calls `wake` after setting the flag.
fn with_sleeping_server<R>(
    core: Option<usize>,
    serve: impl FnOnce(&AtomicBool) -> Result<(), String> + Send,
    measure: impl FnOnce(Stopwatch) -> Result<R, String>,
    wake: impl FnOnce(),
) -> Result<R, String> {
    let stop = AtomicBool::new(false);
    let (ended, served) = thread::scope(|scope| {
        let server = scope.spawn(|| {
            core.map_or(Ok(()), pin::to)?;
            serve(&stop)
        });
        let ended = measure(Stopwatch::start());
        stop.store(true, Ordering::Relaxed);
        wake();
        (ended, server.join().unwrap_or_else(|_| Err("its server panicked".to_owned())))
    });
    served?;
    ended
}

fn pause(shape: &Shape) {
    if let Some(pause) = shape.pause {
        thread::sleep(pause);
    }
}
