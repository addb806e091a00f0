//! Deliberate faults, which the simulation must detect.
//!
//! Code that must follow a rule calls [`mutant!`](crate::mutant) where a plausible mistake would break the
//! rule. Unless the feature `mutants` is enabled, the result is a constant `false`, and the call is compiled
//! away. With the feature, one fault at a time can be switched on for the thread that runs the simulation, so
//! that one build is sufficient for all faults.
//!
//! The feature also records nonces, because packets do not show whether a key is used twice with the same nonce.
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
    /// The fault that is switched on in this thread.
    static CHOSEN: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
    /// Uses of keys in this thread since the last [`take_sealed`].
    static SEALED: std::cell::RefCell<Vec<Sealed>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// A use of a key and a nonce to seal data.
#[derive(Debug, Clone, Copy)]
pub struct Sealed {
    /// Fingerprint of the key.
    pub key: [u8; 16],
    /// Nonce.
    pub nonce: [u8; 12],
    /// Kind of the sealed data.
    pub what: &'static str,
    /// Number of the sealed data within its kind.
    pub number: u64,
}

impl Sealed {
    /// Kind of a lane's frames, whose key changes with the phase.
    pub const FRAME: &'static str = "frame of a lane";
}

/// Enables the named fault for this thread, and disables all others. `None` disables all.
#[cfg(feature = "mutants")]
pub fn choose(name: Option<&str>) {
    CHOSEN.set(name.map(str::to_owned));
}

/// Records a use of a key. Without the feature `mutants` of this crate, the call is a no-op.
#[inline(always)]
pub fn record_sealed(sealed: impl FnOnce() -> Sealed) {
    #[cfg(feature = "mutants")]
    SEALED.with_borrow_mut(|all| all.push(sealed()));
    #[cfg(not(feature = "mutants"))]
    let _ = sealed;
}

/// Returns the uses of keys in this thread since the last call.
#[cfg(feature = "mutants")]
pub fn take_sealed() -> Vec<Sealed> {
    SEALED.take()
}

/// Returns true if the named fault is enabled. Constant `false` without the feature `mutants` of this crate.
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
    fn only_chosen_mutant_is_active() {
        use super::choose;
        assert!(!mutant!(first));
        choose(Some("first"));
        assert!(!mutant!(second));
        assert!(mutant!(first));
        choose(None);
        assert!(!mutant!(first));
    }
}
