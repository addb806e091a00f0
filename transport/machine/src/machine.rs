//! The trait of machines.

use std::any::Any;
use std::io;
use trunkline_verbs::Time;

/// Outcome of a machine's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Call again. There is more work, or the machine is preparing to sleep.
    Again,
    /// Call again soon. The machine was idle, and no other machine uses its CPU.
    Spin,
    /// Call again soon. The machine was idle, and other machines may run first.
    Yield,
    /// Sleep until an awaited event, or until this time. The machine has announced its sleep, and checked for
    /// work again after that.
    Sleep(Option<Time>),
    /// Do not call again. The machine is done.
    Done,
}

/// The body of a thread, divided into turns.
///
/// A machine goes to sleep in several turns. It announces the sleep, checks for work again, and then sleeps. A scheduler may
/// run other machines between these turns, as an operating system may run other threads. A turn never blocks. If
/// [`trunkline_verbs::Clock::is_charged`] becomes true, the turn ends before it sends anything.
pub trait Machine {
    /// Does a bounded amount of work. After [`Turn::Sleep`], it is called again when the machine is woken or
    /// the time is reached. It may also be called earlier.
    fn turn(&mut self) -> Turn;

    /// Blocks the calling thread until an awaited event, or until `until`, the time that the last turn
    /// returned. Called only by threads.
    fn sleep(&mut self, until: Option<Time>);

    /// Returns true if an awaited event has occurred since the sleep began. Called by a simulation instead of
    /// [`Machine::sleep`].
    fn is_woken(&self) -> bool;

    /// Returns true if the machine would have work if it were awake. Called by a simulation while the machine
    /// sleeps without a pending wake-up. The result must then be `false`.
    fn is_due(&self) -> bool {
        false
    }

    /// Returns the state that a simulation may examine between two turns. The machine's crate defines its
    /// type.
    fn inspect(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// Constructor of a machine. It runs on the thread that drives the machine, so the machine need not be `Send`.
pub type MakeMachine = Box<dyn FnOnce() -> io::Result<Box<dyn Machine>> + Send>;
