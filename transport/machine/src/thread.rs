//! A thread that drives a machine.

use crate::machine::{Machine, MakeMachine, Turn};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use trunkline_verbs::fork::Process;
use trunkline_verbs::headroom;
use trunkline_verbs::internal_thread::{self, InternalThread, ThreadNumber};

/// Maximum interval between two queries of the remaining time, which may become shorter.
const LOOK: Duration = Duration::from_millis(20);

/// Error returned if a machine's thread panicked. The panic was printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

/// Reason why joining a machine failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotJoined {
    /// The thread panicked. The panic was printed.
    Panicked,
    /// The thread still runs, and nothing waits for it. Values that it uses live as long as the thread.
    Abandoned,
}

/// Handle of a started machine.
#[derive(Debug)]
pub struct Running {
    /// `None` in a simulation.
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    handle: InternalThread<()>,
    /// Disconnected when the machine is dropped, right before the thread ends.
    ended: Receiver<()>,
}

impl Running {
    pub(crate) const fn simulated() -> Self {
        Self { thread: None }
    }

    /// Waits until the machine is done. Returns at once on the machine's own thread, and in a simulation,
    /// where the caller must not wait.
    ///
    /// # Errors
    /// [`Panicked`].
    pub fn join(self) -> Result<(), Panicked> {
        match self.thread {
            Some(Thread { handle, .. }) if !handle.number().is_current() => {
                handle.join().map_err(|_| Panicked)
            }
            _ => Ok(()),
        }
    }

    /// Waits until the machine is done, at most for the time that `left` returns. `left` is called at least
    /// every 20 ms, so that other threads can shorten the time.
    ///
    /// # Errors
    /// The thread panicked or was abandoned.
    pub fn join_within(self, left: impl Fn() -> Duration) -> Result<(), NotJoined> {
        if let Some(thread) = self.thread.as_ref().filter(|thread| !thread.handle.number().is_current()) {
            loop {
                let limit = left();
                if thread.ended.recv_timeout(limit.min(LOOK)) != Err(RecvTimeoutError::Timeout) {
                    break;
                }
                if limit <= LOOK {
                    return Err(NotJoined::Abandoned);
                }
            }
        }
        self.join().map_err(|Panicked| NotJoined::Panicked)
    }

    /// Returns the number of the thread that drives the machine; `None` in a simulation.
    #[must_use]
    pub fn thread_number(&self) -> Option<ThreadNumber> {
        self.thread.as_ref().map(|thread| thread.handle.number())
    }
}

/// Starts a thread that creates a machine and drives it. Returns when the machine is created.
pub(crate) fn start(name: &str, make: MakeMachine) -> io::Result<Running> {
    headroom::check(headroom::STACK)?;
    let (made, outcome) = mpsc::channel();
    let (runs, ended) = mpsc::channel();
    let handle = internal_thread::spawn(name, move || {
        // Dropped when the thread ends, even after a panic.
        let _runs: mpsc::Sender<()> = runs;
        match make() {
            Ok(mut machine) => {
                let _starter_waits = made.send(Ok(()));
                drop(made);
                drive(machine.as_mut());
            }
            Err(error) => drop(made.send(Err(error))),
        }
    })?;
    let died = |_| Err(io::Error::other("it panicked while it was made"));
    outcome.recv().unwrap_or_else(died)?;
    Ok(Running { thread: Some(Thread { handle, ended }) })
}

fn drive(machine: &mut dyn Machine) {
    let process = Process::current();
    loop {
        let turn = machine.turn();
        process.end_if_forked();
        match turn {
            Turn::Again => {}
            Turn::Spin => std::hint::spin_loop(),
            Turn::Yield => std::thread::yield_now(),
            Turn::Sleep(until) => machine.sleep(until),
            Turn::Done => return,
        }
    }
}
