//! A thread that drives a machine.

use crate::machine::{Machine, MakeMachine, Turn};
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;
use trunkline_verbs::fork::Process;
use trunkline_verbs::headroom;
use trunkline_verbs::internal_thread::{self, InternalThread, ThreadNumber};

/// Longest time between two looks at a time limit that may be shortened.
const LOOK: Duration = Duration::from_millis(20);

/// Panic of a machine's thread, which has been printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

/// Reason why a joined machine has not ended in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotJoined {
    /// The thread panicked; the panic has been printed.
    Panicked,
    /// The thread still runs. Nobody waits for it any more, and the values it uses live as long as it does.
    Abandoned,
}

/// A machine that was started.
#[derive(Debug)]
pub struct Running {
    /// `None` in a simulation.
    thread: Option<Thread>,
}

#[derive(Debug)]
struct Thread {
    handle: InternalThread<()>,
    /// Disconnected when the machine is dropped and nothing but the thread's end remains.
    ended: Receiver<()>,
}

impl Running {
    pub(crate) const fn simulated() -> Self {
        Self { thread: None }
    }

    /// Waits until the machine is done. Returns at once on the machine's own thread, and in a simulation, where
    /// nothing may wait: the scheduler runs the machine to its end.
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

    /// Like [`Running::join`], with a time limit. `left` returns the remaining time, and is asked again at least every
    /// 20 ms, so that other threads can shorten it.
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

/// Starts a thread that makes a machine and drives it. Returns once the machine is made.
pub(crate) fn start(name: &str, make: MakeMachine) -> io::Result<Running> {
    headroom::check(headroom::STACK)?;
    let (made, outcome) = mpsc::channel();
    let (runs, ended) = mpsc::channel();
    let handle = internal_thread::spawn(name, move || {
        // Dropped last, also by a panic.
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

#[cfg(test)]
mod tests {
    use super::Running;
    use crate::{Machine, NotJoined, Runtime, Sleeper, Turn, Waker};
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;
    use trunkline_verbs::Time;

    /// A machine that ends after it was brought three pieces of work.
    struct Worker {
        sleeper: Sleeper,
        work: Arc<AtomicUsize>,
        announced: bool,
    }

    impl Machine for Worker {
        fn turn(&mut self) -> Turn {
            if self.work.load(Ordering::Acquire) >= 3 {
                return Turn::Done;
            }
            if self.announced {
                self.announced = false;
                return Turn::Sleep(None);
            }
            self.sleeper.announce();
            self.announced = true;
            Turn::Again
        }

        fn sleep(&mut self, until: Option<Time>) {
            let _by_descriptors = self.sleeper.sleep(until).unwrap();
            self.sleeper.awake();
        }

        fn is_woken(&self) -> bool {
            self.sleeper.is_woken()
        }
    }

    /// Starts a worker on a separate thread. Returns it, its work, and its waker.
    fn worker() -> (Running, Arc<AtomicUsize>, Waker) {
        let runtime = Runtime::threads();
        let (sleeper, waker) = runtime.sleeper().unwrap();
        let work = Arc::new(AtomicUsize::new(0));
        let brought = Arc::clone(&work);
        let make = Box::new(move || {
            Ok(Box::new(Worker { sleeper, work: brought, announced: false }) as Box<dyn Machine>)
        });
        let running = runtime.spawn("worker", make).unwrap();
        (running, work, waker)
    }

    #[test]
    fn a_thread_sleeps_until_it_is_woken_and_ends_when_its_machine_is_done() {
        let (running, work, waker) = worker();
        for _ in 0..3 {
            work.fetch_add(1, Ordering::Release);
            waker.wake();
        }
        running.join().unwrap();
    }

    #[test]
    fn a_machine_that_does_not_end_in_time_is_abandoned_and_goes_on() {
        let (running, work, waker) = worker();
        assert!(running.thread_number().is_some_and(|number| !number.is_current()));
        assert_eq!(running.join_within(|| Duration::from_millis(5)), Err(NotJoined::Abandoned));
        assert_eq!(Arc::strong_count(&work), 2, "the thread has its own");
        work.store(3, Ordering::Release);
        waker.wake();
        while Arc::strong_count(&work) > 1 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_machine_is_waited_for_until_it_ends_or_panics() {
        struct Ends(bool);
        impl Machine for Ends {
            fn turn(&mut self) -> Turn {
                assert!(self.0, "on purpose");
                Turn::Done
            }
            fn sleep(&mut self, _: Option<Time>) {}
            fn is_woken(&self) -> bool {
                true
            }
        }
        for (in_order, expected) in [(true, Ok(())), (false, Err(NotJoined::Panicked))] {
            let make = Box::new(move || Ok(Box::new(Ends(in_order)) as Box<dyn Machine>));
            let running = Runtime::threads().spawn("ends", make).unwrap();
            assert_eq!(running.join_within(|| Duration::from_secs(60)), expected);
        }
    }

    #[test]
    fn what_a_machine_cannot_be_made_for_reaches_its_starter() {
        let runtime = Runtime::threads();
        let error = runtime.spawn("none", Box::new(|| Err(io::Error::other("no room")))).unwrap_err();
        assert_eq!(error.to_string(), "no room");
        let error = runtime.spawn("none", Box::new(|| panic!("on purpose"))).unwrap_err();
        assert!(error.to_string().contains("panicked"));
    }
}
