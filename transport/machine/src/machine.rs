//! The trait of machines.

use std::any::Any;
use std::io;
use trunkline_verbs::Time;

/// Outcome of a machine's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Call again: there is more to do, or the machine is going to sleep.
    Again,
    /// Call again soon. The machine was idle, and no other machine uses its CPU.
    Spin,
    /// Call again soon. The machine was idle, and others may run first.
    Yield,
    /// Sleep until an awaited event, or until this time. The machine has announced its sleep and then checked
    /// for work once more.
    Sleep(Option<Time>),
    /// Do not call again: the machine is done.
    Done,
}

/// The body of a thread, cut into turns.
///
/// Going to sleep takes several turns (arm and announce; look again; sleep). A scheduler may run any other
/// machine between two of them, as the system may with threads. A turn never blocks. If
/// [`trunkline_verbs::Clock::is_charged`] becomes true, the turn ends before it sends anything.
pub trait Machine {
    /// Does a bounded amount of work. After [`Turn::Sleep`] it is called again when the machine is woken or
    /// the time is reached. Spurious calls are allowed.
    fn turn(&mut self) -> Turn;

    /// Blocks the calling thread until an awaited event, or until this time. Called only by threads, with the
    /// time that the last turn returned.
    fn sleep(&mut self, until: Option<Time>);

    /// Returns true if an awaited event has occurred since the sleep began. Called by a simulation, in place
    /// of [`Machine::sleep`].
    fn is_woken(&self) -> bool;

    /// Returns true if the machine would do work now if it were awake. Called by a simulation while the
    /// machine sleeps without a pending wake-up; the result must then be `false`.
    fn is_due(&self) -> bool {
        false
    }

    /// Returns the state that a simulation may examine between two turns. Its type belongs to the machine's
    /// crate.
    fn inspect(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// Makes a machine, on the thread that will drive it: the machine itself need not be `Send`.
pub type MakeMachine = Box<dyn FnOnce() -> io::Result<Box<dyn Machine>> + Send>;
