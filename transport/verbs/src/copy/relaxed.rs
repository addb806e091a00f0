//! Copies with relaxed atomics.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Size of a word, in bytes.
const WORD: usize = size_of::<u64>();

/// Returns the number of leading bytes that are copied one by one, so that the rest is aligned. Miri refuses accesses of
/// different sizes to one location, so with Miri or `relaxed-copies` the result is `length`.
fn head(shared: *const u8, length: usize) -> usize {
    if cfg!(any(miri, feature = "relaxed-copies")) { length } else { shared.align_offset(WORD).min(length) }
}

/// See [`super::read`].
pub(super) unsafe fn read(from: *const u8, into: &mut [MaybeUninit<u8>]) {
    let (head, rest) = into.split_at_mut(head(from, into.len()));
    let (words, tail) = rest.as_chunks_mut::<WORD>();
    let mut at = from.cast_mut();
    let bytes = |bytes: &mut [MaybeUninit<u8>], at: &mut *mut u8| {
        for byte in bytes {
            // SAFETY: the caller's range is as long as `into`; a byte needs no alignment.
            byte.write(unsafe { AtomicU8::from_ptr(*at) }.load(Ordering::Relaxed));
            *at = at.wrapping_add(1);
        }
    };
    bytes(head, &mut at);
    for word in words {
        // SAFETY: as before; after `head` the address is a multiple of the word size, unless there are no words.
        let read = unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Relaxed);
        *word = read.to_ne_bytes().map(MaybeUninit::new);
        at = at.wrapping_add(WORD);
    }
    bytes(tail, &mut at);
}

/// See [`super::between`].
pub(super) unsafe fn between(from: *const u8, to: *mut u8, length: usize) {
    let mut buffer = [MaybeUninit::new(0); 4096];
    for start in (0..length).step_by(buffer.len()) {
        let part = &mut buffer[..(length - start).min(4096)];
        // SAFETY: the part is inside the range that the caller guarantees.
        unsafe { read(from.add(start), part) };
        // SAFETY: the buffer is initialized when it is created, and `read` writes only initialized bytes.
        let part = unsafe { std::slice::from_raw_parts(part.as_ptr().cast(), part.len()) };
        // SAFETY: same as for `read`.
        unsafe { write(part, to.add(start)) };
    }
}

/// See [`super::write`].
pub(super) unsafe fn write(from: &[u8], to: *mut u8) {
    let (head, rest) = from.split_at(head(to, from.len()));
    let (words, tail) = rest.as_chunks::<WORD>();
    let mut at = to;
    let bytes = |bytes: &[u8], at: &mut *mut u8| {
        for byte in bytes {
            // SAFETY: the caller's range is as long as `from`; a byte needs no alignment.
            unsafe { AtomicU8::from_ptr(*at) }.store(*byte, Ordering::Relaxed);
            *at = at.wrapping_add(1);
        }
    };
    bytes(head, &mut at);
    for word in words {
        // SAFETY: as before; after `head` the address is a multiple of the word size, unless there are no words.
        unsafe { AtomicU64::from_ptr(at.cast()) }.store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        at = at.wrapping_add(WORD);
    }
    bytes(tail, &mut at);
}
