//! Machines on threads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trunkline_machine::{Machine, NotJoined, Running, Runtime, Sleeper, Turn, Waker};
use trunkline_verbs::Time;

/// A machine that ends after three pieces of work.
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

/// Starts a worker on a separate thread. Returns the thread's handle, the work and the waker.
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
fn thread_sleeps_until_woken_and_ends_with_machine() {
    let (running, work, waker) = worker();
    for _ in 0..3 {
        work.fetch_add(1, Ordering::Release);
        waker.wake();
    }
    running.join().unwrap();
}

#[test]
fn machine_missing_join_deadline_is_abandoned_and_continues() {
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
fn join_waits_until_machine_ends_or_panics() {
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
fn error_of_creating_machine_reaches_its_starter() {
    let runtime = Runtime::threads();
    let error = runtime.spawn("none", Box::new(|| Err(io::Error::other("no room")))).unwrap_err();
    assert_eq!(error.to_string(), "no room");
    let error = runtime.spawn("none", Box::new(|| panic!("on purpose"))).unwrap_err();
    assert!(error.to_string().contains("panicked"));
}
