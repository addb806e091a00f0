//! A value that one process writes and other processes read, even if the writer was killed at any point.
//!
//! The value has two buffers and a sequence. The writer fills the buffer that is not current, then increments the sequence.
//! A reader copies the buffer that the sequence selects, then checks that the sequence has not changed. A writer that dies
//! while it writes leaves the previous value unchanged. There is one writer at a time; the caller decides which process
//! succeeds a dead writer. The words belong to the caller and are usually in shared memory, so values read from them are
//! untrusted.

use crate::rings::sync::{AtomicU64, Ordering, fence};

/// The words of a published value.
#[derive(Debug, Clone, Copy)]
pub struct Published<'a> {
    sequence: &'a AtomicU64,
    /// Word 0 of each buffer is the number of words that follow.
    buffers: [&'a [AtomicU64]; 2],
}

impl<'a> Published<'a> {
    /// Creates a view of these words. If all are 0, there is no value yet.
    #[must_use]
    pub fn new(sequence: &'a AtomicU64, buffers: [&'a [AtomicU64]; 2]) -> Self {
        Self { sequence, buffers }
    }

    fn buffer(&self, sequence: u64) -> &'a [AtomicU64] {
        self.buffers[usize::from(sequence & 1 != 0)]
    }

    /// Replaces the value. Called by the writer. Returns false, without a change, if the value does not fit.
    pub fn publish(&self, value: &[u64]) -> bool {
        let next = self.sequence.load(Ordering::Relaxed).wrapping_add(1);
        let (Some((length, words)), Ok(count)) =
            (self.buffer(next).split_first(), u64::try_from(value.len()))
        else {
            return false;
        };
        if value.len() > words.len() {
            return false;
        }
        // A reader that reads a word written below also reads the sequence of the previous publication, and
        // so detects that its buffer is being written.
        // SYNC: published-words
        fence(Ordering::Release);
        length.store(count, Ordering::Relaxed);
        for (word, value) in words.iter().zip(value) {
            word.store(*value, Ordering::Relaxed);
        }
        // SYNC: published-sequence
        self.sequence.store(next, Ordering::Release);
        true
    }

    /// Reads the value into `out`, which is cleared first. Returns false if there is no value yet, if the
    /// writer has changed the value during each of `tries` attempts, or if the words are not a valid value.
    pub fn load(&self, out: &mut Vec<u64>, tries: usize) -> bool {
        for _ in 0..tries {
            out.clear();
            // SYNC: published-sequence
            let before = self.sequence.load(Ordering::Acquire);
            let Some((length, words)) = self.buffer(before).split_first() else { return false };
            let length = usize::try_from(length.load(Ordering::Relaxed)).unwrap_or(usize::MAX);
            out.extend(words.iter().take(length).map(|word| word.load(Ordering::Relaxed)));
            // SYNC: published-words
            fence(Ordering::Acquire);
            if self.sequence.load(Ordering::Relaxed) == before {
                return before != 0 && length <= words.len();
            }
        }
        false
    }
}
