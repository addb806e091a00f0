//! Deliberate faults, by which the simulation proves that it can fail.
//!
//! Code that must hold a rule asks [`mutant!`](crate::mutant) at the place where a plausible mistake would
//! break it. Unless the feature `mutants` is on, the answer is a constant `false`, and nothing of the question
//! is left in the program. With the feature, one fault at a time can be switched on for the thread that runs
//! the simulation, so that a single build serves all of them.
//!
//! ```
//! # use trunkline_machine::mutant;
//! # let mut queue = vec![1];
//! if !mutant!(doc_example) {
//!     queue.push(2);
//! }
//! assert_eq!(queue.len(), 2);
//! ```

#[cfg(feature = "mutants")]
std::thread_local! {
    /// The fault that is on in this thread.
    static CHOSEN: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// Switches a fault on for this thread, and all others off; `None` switches all off.
#[cfg(feature = "mutants")]
pub fn choose(name: Option<&str>) {
    CHOSEN.set(name.map(str::to_owned));
}

/// Returns true if the fault of this name is switched on: `mutant!(name)`. Constant `false` without the
/// feature `mutants` of this crate.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::mutants::is_on(stringify!($name))
    };
}

/// Implementation of [`mutant!`](crate::mutant).
#[must_use]
#[inline(always)]
pub fn is_on(name: &'static str) -> bool {
    #[cfg(feature = "mutants")]
    return CHOSEN.with_borrow(|chosen| chosen.as_deref() == Some(name));
    #[cfg(not(feature = "mutants"))]
    {
        let _ = name;
        false
    }
}

#[cfg(test)]
mod tests {
    #[cfg(feature = "mutants")]
    #[test]
    fn one_fault_is_on_at_a_time() {
        use super::choose;
        assert!(!mutant!(first));
        choose(Some("first"));
        assert!(!mutant!(second));
        assert!(mutant!(first));
        choose(None);
        assert!(!mutant!(first));
    }
}
