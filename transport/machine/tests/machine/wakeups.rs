//! Doorbell and hand-over under real threads: a lost wake-up leaves the sleeper until the test's bound and
//! fails it.

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use trunkline_machine::rings::doorbell::Doorbell;
    use trunkline_machine::rings::handover::{Duty, Handover};

    #[test]
    fn doorbell_selects_one_ringer_per_sleep() {
        let bell = Doorbell::new();
        assert!(!bell.ring(), "no sleeper");
        bell.prepare();
        assert!(bell.is_sleeping());
        assert!(bell.ring());
        assert!(!bell.ring(), "the first ringer writes the eventfd");
        bell.woken();
        bell.prepare();
        assert!(!bell.woken(), "no ringer");
        bell.prepare();
        assert!(bell.ring());
        assert!(bell.woken(), "the ringer was faster");
        assert!(!bell.is_sleeping());
    }

    #[test]
    fn doorbell_never_leaves_a_sleeper_with_work() {
        let (ringers, rounds) = (2, if cfg!(miri) { 20 } else { 20_000 });
        let bell = Arc::new(Doorbell::new());
        let work = Arc::new(AtomicUsize::new(0));
        let (event, wakeups) = mpsc::channel();
        let threads: Vec<_> = (0..ringers)
            .map(|_| {
                let (bell, work, event) = (Arc::clone(&bell), Arc::clone(&work), event.clone());
                thread::spawn(move || {
                    for _ in 0..rounds {
                        work.fetch_add(1, Ordering::Relaxed);
                        if bell.ring() {
                            event.send(()).unwrap();
                        }
                    }
                })
            })
            .collect();
        let mut done = 0;
        while done < ringers * rounds {
            bell.prepare();
            let now = work.load(Ordering::Relaxed);
            if now == done {
                wakeups.recv_timeout(Duration::from_secs(60)).expect("a ringer saw the sleeper");
                bell.woken();
            } else {
                bell.woken();
                done = now;
            }
        }
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn handover_follows_its_state_diagram() {
        let word = Handover::new();
        assert_eq!(word.background_check(|| false), Duty::TakeOver, "no poller has polled yet");
        assert!(word.poller_entered(), "the background thread has to tick again");
        assert!(!word.poller_entered());
        assert!(!word.is_background());
        assert_eq!(word.background_check(|| false), Duty::Leave);
        assert!(!word.poller_entered(), "it ticks already");
        assert_eq!(word.background_check(|| false), Duty::Leave, "a poller has polled since");
        assert_eq!(word.background_check(|| false), Duty::TakeOver, "no poller has polled for a whole tick");
        assert!(word.is_background());
        assert!(word.poller_entered());
        assert!(word.arm());
        assert!(!word.arm());
        assert_eq!(word.background_check(|| false), Duty::TakeOver, "handed over at once");
        assert!(word.watch(), "the background thread would watch too");
        assert!(!word.watch());
        assert_eq!(word.background_check(|| true), Duty::Watched);
        assert!(!word.poller_entered(), "it ticks already");
        assert!(!word.watch());
        assert_eq!(word.background_check(|| false), Duty::Leave, "the poller was woken");
        assert_eq!(word.background_check(|| false), Duty::TakeOver, "and has stopped");
    }
}
