//! Callers use a short number in place of a method's hash, and it must mean the same method on every poller.
//!
//! A number is assigned once and stays valid for the life of the node. All pollers share the table, whatever
//! services they create.

use std::sync::{Mutex, PoisonError};

/// The hashes of methods by number.
#[derive(Debug, Default)]
pub(crate) struct MethodNumbers(Mutex<Vec<u64>>);

impl MethodNumbers {
    /// Returns the number of the method with this hash, and assigns one if necessary. `None` if no number is left.
    pub(crate) fn of(&self, hash: u64) -> Option<u16> {
        let mut methods = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = methods.iter().position(|method| *method == hash);
        let number =
            u16::try_from(known.unwrap_or(methods.len())).ok().filter(|number| *number < u16::MAX)?;
        if known.is_none() {
            methods.push(hash);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once_and_never_the_one_that_means_none() {
        let numbers = MethodNumbers::default();
        assert_eq!([7, 9, 7, 8].map(|hash| numbers.of(hash)), [Some(0), Some(1), Some(0), Some(2)]);
        numbers.0.lock().unwrap().resize(usize::from(u16::MAX), 0);
        assert_eq!((numbers.of(9), numbers.of(99)), (Some(1), None));
    }
}
