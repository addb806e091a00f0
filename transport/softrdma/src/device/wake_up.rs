//! Wake-up of a shard's background machine.
#![forbid(unsafe_code)]

use super::signal::event_fd;
use nix::sys::eventfd::EventFd;
use std::io;
use trunkline_machine::{Runtime, Sleeper, Waker};

/// The handle that wakes a shard's background machine.
#[derive(Debug)]
pub(super) enum WakeUp {
    Descriptor(EventFd),
    /// The waker of a simulation, which has no descriptors.
    Bell(Waker),
}

impl WakeUp {
    /// Creates a handle. Also returns the object that the machine sleeps on in a simulation.
    pub(super) fn new(runtime: &Runtime) -> io::Result<(Self, Option<Sleeper>)> {
        if runtime.is_simulated() {
            let (sleeper, bell) = runtime.sleeper()?;
            return Ok((Self::Bell(bell), Some(sleeper)));
        }
        Ok((Self::Descriptor(event_fd()?), None))
    }

    /// Returns the descriptor that wakes the machine.
    pub(super) fn descriptor(&self) -> &EventFd {
        match self {
            Self::Descriptor(fd) => fd,
            Self::Bell(_) => panic!("nobody waits on a descriptor in a simulation"),
        }
    }

    /// Wakes the machine.
    pub(super) fn wake(&self) {
        match self {
            Self::Bell(bell) => bell.wake(),
            Self::Descriptor(fd) => {
                // Fails only when the counter is full, and then the thread wakes anyway.
                let _full = fd.write(1);
            }
        }
    }
}
