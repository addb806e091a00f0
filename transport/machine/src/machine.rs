//! The trait of machines.

use std::any::Any;
use std::io;
use trunkline_verbs::Time;

/// Outcome of a machine's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turn {
    /// Another turn: there is more to do, or it is half way to sleep.
    Again,
    /// Another turn soon; it found nothing, and has its CPU for itself.
    Spin,
    /// Another turn soon; it found nothing, and others may run first.
    Yield,
    /// Sleep until something that it waits for has come, or until this time. It has announced
    /// so, and looked for work once more since.
    Sleep(Option<Time>),
    /// No further turn: it is over.
    Done,
}

/// The body of a thread, cut into turns.
///
/// Going to sleep takes several turns (arm and announce; look again; sleep), and a scheduler may
/// run any other machine between two of them, as the system's does with threads. A turn never
/// blocks; one whose [`trunkline_verbs::Clock::is_charged`] becomes true ends before it sends
/// anything.
pub trait Machine {
    /// Does a bounded amount of work. After [`Turn::Sleep`] it is called again when the machine was
    /// woken or its time has come; for no reason is allowed, too.
    fn turn(&mut self) -> Turn;

    /// Blocks the calling thread until what the machine waits for has come, or until that time. Called by
    /// threads only, and only with what the last turn returned.
    fn sleep(&mut self, until: Option<Time>);

    /// Returns true if what it waits for has come since it went to sleep. Called by a simulation, in place of
    /// [`Machine::sleep`].
    fn is_woken(&self) -> bool;

    /// Returns true if there is work that it would do now if it were awake. Called by a simulation while the
    /// machine sleeps and nobody is about to wake it: then the answer must be `false`.
    fn is_due(&self) -> bool {
        false
    }

    /// Returns the state that a simulation may count between two turns. Its type
    /// belongs to the machine's crate.
    fn inspect(&self) -> Option<Box<dyn Any>> {
        None
    }
}

/// Makes a machine, on the thread that will drive it: the machine itself need not be `Send`.
pub type MakeMachine = Box<dyn FnOnce() -> io::Result<Box<dyn Machine>> + Send>;
