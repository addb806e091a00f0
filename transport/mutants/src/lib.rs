//! Deliberate faults, by which the simulation proves that it can fail.
//!
//! Code that must hold a rule asks [`mutant!`] at the place where a plausible mistake would break it. Unless
//! the feature `active` is on, the answer is a constant `false`, and nothing of the question is left in the
//! program. With the feature, one fault at a time can be switched on for the thread that runs the simulation,
//! so that a single build serves all of them.
//!
//! ```
//! # let mut queue = vec![1];
//! if !trunkline_mutants::mutant!(doc_example) {
//!     queue.push(2);
//! }
//! assert_eq!(queue.len(), 2);
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "active")]
mod chosen;

#[cfg(feature = "active")]
pub use chosen::{choose, is_chosen, was_reached};

/// Returns true if the fault of this name is switched on: `mutant!(name)`. Constant `false` without the
/// feature `active` of this crate.
#[macro_export]
macro_rules! mutant {
    ($name:ident) => {
        $crate::is_on(stringify!($name))
    };
}

/// Implementation of [`mutant!`].
#[must_use]
#[inline(always)]
pub fn is_on(name: &'static str) -> bool {
    #[cfg(feature = "active")]
    return is_chosen(name);
    #[cfg(not(feature = "active"))]
    {
        let _ = name;
        false
    }
}
