//! A queue of events with a descriptor that is readable while the queue is not empty.
//!
//! Owns the queue and its eventfd. Each completion channel, each connection channel and the device's asynchronous
//! events have one. The queue is bounded: events that do not fit are returned to the caller.
#![forbid(unsafe_code)]

use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline_machine::Runtime;
use trunkline_verbs::VerbsError;
use trunkline_verbs::descriptors::above_stdio;

/// A queue of events, with its descriptor.
#[derive(Debug)]
pub(in crate::device) struct Signal<T> {
    events: Mutex<VecDeque<T>>,
    /// `None` in a simulation, where threads do not wait on descriptors.
    fd: Option<EventFd>,
    bound: usize,
}

/// Creates a non-blocking eventfd with the counter 0.
pub(in crate::device) fn event_fd() -> io::Result<EventFd> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    above_stdio(|| Ok(EventFd::from_value_and_flags(0, flags)?))
}

/// Locks a mutex, even if a thread panicked while it held the lock, since the values under these locks are consistent
/// between any two statements.
pub(in crate::device) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T> Signal<T> {
    /// Creates an empty queue for at most `bound` events.
    pub(in crate::device) fn new(runtime: &Runtime, bound: usize) -> Result<Self, VerbsError> {
        let fd = if runtime.is_simulated() { None } else { Some(event_fd()?) };
        Ok(Self { events: Mutex::new(VecDeque::new()), fd, bound })
    }

    /// Adds an event. Returns it if the queue is full.
    pub(in crate::device) fn push(&self, event: T) -> Result<(), T> {
        let mut events = lock(&self.events);
        if events.len() >= self.bound {
            return Err(event);
        }
        events.push_back(event);
        if events.len() == 1 {
            // The write fails only if the counter is full, and then the descriptor is readable already.
            let _full = self.fd.as_ref().map(|fd| fd.write(1));
        }
        Ok(())
    }

    /// Returns true if there is an event, without a system call.
    pub(in crate::device) fn has_event(&self) -> bool {
        !lock(&self.events).is_empty()
    }

    /// Takes the oldest event.
    pub(in crate::device) fn pop(&self) -> Option<T> {
        let mut events = lock(&self.events);
        let event = events.pop_front();
        if event.is_some() && events.is_empty() {
            let _empty = self.fd.as_ref().map(EventFd::read);
        }
        event
    }

    /// Removes and returns the events for which `wanted` returns true, in order.
    pub(in crate::device) fn extract(&self, wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let mut events = lock(&self.events);
        if !events.iter().any(&wanted) {
            return Vec::new();
        }
        let (out, rest): (Vec<T>, VecDeque<T>) = {
            let mut out = Vec::new();
            let mut rest = VecDeque::new();
            for event in events.drain(..) {
                if wanted(&event) {
                    out.push(event);
                } else {
                    rest.push_back(event);
                }
            }
            (out, rest)
        };
        *events = rest;
        if events.is_empty() {
            let _empty = self.fd.as_ref().map(EventFd::read);
        }
        out
    }
}

impl<T> AsFd for Signal<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => panic!("nobody waits on a descriptor in a simulation"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_is_readable_only_while_events_are_queued() {
        let signal = Signal::new(&Runtime::threads(), 2).unwrap();
        let read = || signal.fd.as_ref().unwrap().read();
        assert!(read().is_err());
        signal.push(1).unwrap();
        signal.push(2).unwrap();
        assert_eq!(signal.push(3), Err(3));
        assert_eq!(signal.pop(), Some(1));
        assert_eq!(signal.extract(|event| *event == 2), [2]);
        assert_eq!(signal.pop(), None);
        assert!(read().is_err(), "drained with the last event");
        signal.push(4).unwrap();
        assert!(read().is_ok());
    }
}
