//! The numbers of a node's methods.
//!
//! A number is given once and stays for the life of the node: callers use it in place of the method's hash. All
//! pollers share the table, so that a number means the same method at each of them, whatever services they make.

use std::sync::{Mutex, PoisonError};

/// The methods by number: their hashes.
#[derive(Debug, Default)]
pub(crate) struct MethodNumbers(Mutex<Vec<u64>>);

impl MethodNumbers {
    /// The number of the method with this hash, a new one if it has none. `None` when there are no more.
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
