//! Descriptors with higher numbers than the standard streams.
//!
//! A program may run with standard input, output or error closed. The next descriptor created then gets the
//! stream's number, and the program's output goes there: into a socket, or into a file that all processes of
//! the host share. So all code that keeps a descriptor creates it through [`above_stdio`], or passes it to
//! [`lift`] if it cannot be created twice. The streams stay closed for the program.
#![forbid(unsafe_code)]

use nix::fcntl::{FcntlArg, fcntl};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// The lowest descriptor beyond the standard streams.
const LOWEST: RawFd = 3;

/// Placeholders in the numbers of the standard streams that are closed. Dropping it closes them again.
#[must_use = "the streams are occupied until this is dropped"]
#[derive(Debug)]
pub struct HeldStdio {
    /// Epoll descriptors, since these can be neither read nor written.
    _placeholders: Vec<Epoll>,
}

impl HeldStdio {
    /// Occupies the streams that are closed. Allocates only if there is one.
    ///
    /// # Errors
    /// The error of the system call that creates a placeholder.
    pub fn take() -> io::Result<Self> {
        let mut placeholders = Vec::new();
        // Another thread may close a stream again and again.
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
/// The error of `make`, or of a placeholder.
pub fn above_stdio<T: AsRawFd>(mut make: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let _held = HeldStdio::take()?;
    // Another thread closed a stream in the meantime. Keep this descriptor, so that the next attempt gets
    // another number.
    let mut low = Vec::new();
    loop {
        let made = make()?;
        if made.as_raw_fd() >= LOWEST {
            return Ok(made);
        }
        low.push(made);
    }
}

/// Moves a descriptor above the standard streams, unless it is there already.
///
/// # Errors
/// The error of the system call that copies it.
pub fn lift(made: OwnedFd) -> io::Result<OwnedFd> {
    // Clones from the standard library are above the streams, and closed by exec.
    if made.as_raw_fd() >= LOWEST { Ok(made) } else { made.try_clone() }
}
