//! A thread that drives a machine.

use crate::machine::{Machine, MakeMachine, Turn};
use std::io;
use std::sync::mpsc;
use std::thread::JoinHandle;

/// A machine's thread panicked; the panic has been printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

/// A machine that was started.
#[derive(Debug)]
pub struct Running {
    /// `None` in a simulation.
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) const fn simulated() -> Self {
        Self { thread: None }
    }

    /// Waits until the machine is done. Returns at once when its own thread asks, and in a simulation,
    /// where nothing may wait: the scheduler runs the machine to its end.
    ///
    /// # Errors
    /// [`Panicked`].
    pub fn join(self) -> Result<(), Panicked> {
        match self.thread {
            Some(thread) if thread.thread().id() != std::thread::current().id() => {
                thread.join().map_err(|_| Panicked)
            }
            _ => Ok(()),
        }
    }
}

/// Starts a thread, has it make its machine, and returns when that is done.
pub(crate) fn start(name: &str, make: MakeMachine) -> io::Result<Running> {
    let (made, outcome) = mpsc::channel();
    #[expect(clippy::disallowed_methods, reason = "the one place that starts threads of machines")]
    let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || match make() {
        Ok(mut machine) => {
            let _starter_waits = made.send(Ok(()));
            drop(made);
            drive(machine.as_mut());
        }
        Err(error) => drop(made.send(Err(error))),
    })?;
    let died = |_| Err(io::Error::other("it panicked while it was made"));
    outcome.recv().unwrap_or_else(died)?;
    Ok(Running { thread: Some(thread) })
}

fn drive(machine: &mut dyn Machine) {
    loop {
        match machine.turn() {
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
    use crate::{Machine, Runtime, Sleeper, Turn};
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use trunkline_verbs::Time;

    /// Sleeps until it was brought so much work.
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
            self.sleeper.sleep(until).unwrap();
            self.sleeper.awake();
        }

        fn is_woken(&self) -> bool {
            self.sleeper.is_woken()
        }
    }

    #[test]
    fn a_thread_sleeps_until_it_is_woken_and_ends_when_its_machine_is_done() {
        let runtime = Runtime::threads();
        let (sleeper, waker) = runtime.sleeper().unwrap();
        let work = Arc::new(AtomicUsize::new(0));
        let brought = Arc::clone(&work);
        let make = Box::new(move || {
            Ok(Box::new(Worker { sleeper, work: brought, announced: false }) as Box<dyn Machine>)
        });
        let running = runtime.spawn("worker", make).unwrap();
        for _ in 0..3 {
            work.fetch_add(1, Ordering::Release);
            waker.wake();
        }
        running.join().unwrap();
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
