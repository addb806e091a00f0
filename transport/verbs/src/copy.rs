//! Copies to and from memory that devices and other threads may access at the same time.
//!
//! All copies to and from such memory go through this module. A copy that races with a write may tear, and the copied bytes
//! are then unspecified. Such a race must never be undefined behaviour, because programs without unsafe code can cause it.
//! [`Memory`](crate::Memory) checks the ranges before it copies.
//!
//! | where | how |
//! |---|---|
//! | x86-64 | inline assembly, which is opaque to the compiler |
//! | other processors | relaxed atomics, on words where the shared memory is aligned |
//! | Miri, and sanitizers with the feature `relaxed-copies` | relaxed atomics on bytes |

#[cfg(all(target_arch = "x86_64", not(any(miri, feature = "relaxed-copies"))))]
mod x86_64;

#[cfg(all(target_arch = "x86_64", not(any(miri, feature = "relaxed-copies"))))]
use x86_64 as how;

#[cfg(not(all(target_arch = "x86_64", not(any(miri, feature = "relaxed-copies")))))]
mod relaxed;

#[cfg(not(all(target_arch = "x86_64", not(any(miri, feature = "relaxed-copies")))))]
use relaxed as how;

use std::mem::MaybeUninit;

/// Copies bytes from shared memory, and initializes all of `into`.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes, which others may write meanwhile. `into` does not overlap this range.
pub(crate) unsafe fn read(from: *const u8, into: &mut [MaybeUninit<u8>]) {
    // SAFETY: this function's contract; `into` is exclusive.
    unsafe { how::read(from, into) }
}

/// Copies all of `from` to shared memory.
///
/// # Safety
/// `to` is valid for writes of `from.len()` bytes, which others may read and write meanwhile. `from` does not overlap this
/// range.
pub(crate) unsafe fn write(from: &[u8], to: *mut u8) {
    // SAFETY: this function's contract.
    unsafe { how::write(from, to) }
}

/// Copies `length` bytes from shared memory to shared memory. If the ranges overlap, the written bytes are
/// unspecified.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, which others may read and write meanwhile.
pub(crate) unsafe fn between(from: *const u8, to: *mut u8, length: usize) {
    // SAFETY: this function's contract.
    unsafe { how::between(from, to, length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copy_of_any_length_and_alignment_stays_in_bounds() {
        let source: Vec<u8> =
            (0..10_000_u32).map(|index| index.to_le_bytes()[0] ^ index.to_le_bytes()[1]).collect();
        let step = if cfg!(miri) { 97 } else { 1 };
        for length in (0..700).step_by(step).chain([4095, 4096, 4097, 8192]) {
            for (from, to) in [(0, 0), (1, 0), (0, 3), (7, 5), (16, 31)] {
                let mut target = vec![0xee; length + 64];
                // SAFETY: both ranges are inside their vectors, which are distinct.
                unsafe { write(&source[from..from + length], target.as_mut_ptr().add(to)) };
                assert_eq!(target[to..to + length], source[from..from + length], "{length} bytes");
                assert!(
                    target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 0xee),
                    "{length}"
                );
                let mut back = vec![MaybeUninit::new(0xdd_u8); length + 2];
                // SAFETY: as before.
                unsafe { read(target.as_ptr().add(to), &mut back[1..=length]) };
                // SAFETY: each byte had a value before.
                let back: Vec<u8> = back.into_iter().map(|byte| unsafe { byte.assume_init() }).collect();
                assert_eq!(back[1..=length], source[from..from + length]);
                assert_eq!((back[0], back[length + 1]), (0xdd, 0xdd));
                let mut target = vec![0xee; length + 64];
                // SAFETY: as before.
                unsafe { between(source.as_ptr().add(from), target.as_mut_ptr().add(to), length) };
                assert_eq!(target[to..to + length], source[from..from + length], "{length} bytes");
                assert!(target[..to].iter().chain(&target[to + length..]).all(|byte| *byte == 0xee));
            }
        }
    }
}
