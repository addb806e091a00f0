//! The states of the hand-over. Loom models in the crate check them with two threads.

#[cfg(test)]
mod tests {
    use trunkline_machine::rings::handover::{Duty, Handover};

    #[test]
    fn handover_changes_duty_by_poller_activity() {
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
