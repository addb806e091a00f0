//! File descriptors with higher numbers than the standard streams.
//!
//! A program may run with standard input, output or error closed. The next descriptor created then gets the number of the
//! closed stream. It may be a socket, or a file shared by all processes of the host, to which the program's output would
//! then go. Therefore code that keeps a descriptor creates it with [`above_stdio`], or passes it to [`lift`] if it cannot be
//! created twice. The streams stay closed for the program.
#![forbid(unsafe_code)]

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// The lowest descriptor beyond the standard streams.
const LOWEST: RawFd = 3;

/// Placeholders for closed standard streams. Dropping this value closes them again.
#[must_use = "the streams are occupied until this is dropped"]
#[derive(Debug)]
pub struct HeldStdio {
    /// Epoll descriptors, which can be neither read nor written.
    _placeholders: Vec<Epoll>,
}

impl HeldStdio {
    /// Occupies the numbers of closed standard streams. Allocates only if one is closed.
    ///
    /// # Errors
    /// The error of the system call that creates a placeholder.
    pub fn take() -> io::Result<Self> {
        let mut placeholders = Vec::new();
        // Bounded, because another thread may close a stream repeatedly.
        while !is_stdio_open() && placeholders.len() < 3 {
            placeholders.push(Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?);
        }
        Ok(Self { _placeholders: placeholders })
    }
}

fn is_stdio_open() -> bool {
    let is_open = |stream: &dyn AsFd| fcntl(stream.as_fd(), FcntlArg::F_GETFD).is_ok();
    is_open(&io::stdin()) && is_open(&io::stdout()) && is_open(&io::stderr())
}

/// Creates a descriptor above the numbers of the standard streams. `make` may be called several times.
///
/// # Errors
/// The error of `make`, or of [`HeldStdio::take`].
pub fn above_stdio<T: AsRawFd>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let _held = HeldStdio::take()?;
    // Descriptors created after another thread closed a stream. They are kept, so that the next attempt gets another number.
    let mut low = Vec::new();
    loop {
        let made = make()?;
        if made.as_raw_fd() >= LOWEST {
            return Ok(made);
        }
        low.push(made);
    }
}

/// Moves a descriptor above the standard streams, unless its number is already above them.
///
/// # Errors
/// The error of the system call that duplicates the descriptor.
pub fn lift(made: OwnedFd) -> io::Result<OwnedFd> {
    // `try_clone` returns a descriptor above the streams, and sets `FD_CLOEXEC`.
    if made.as_raw_fd() >= LOWEST { Ok(made) } else { made.try_clone() }
}
