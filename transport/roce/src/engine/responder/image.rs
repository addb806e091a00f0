//! The responder's state as plain words, so that another process can take it over.
//!
//! This module defines the order of the fields. The words are read back as written. Other words result in a state that may
//! answer incorrectly but never panics. Only the fields in use are written, so a responder without saved READs and atomics
//! takes a few dozen words.

use super::saved::{MAX_SAVED, Saved, SavedAnswers};
use super::{Message, Pending, Refusal, ResponderCounters, ResponderState};
use trunkline_verbs::QpNumber;

/// Maximum number of words in an image.
pub const IMAGE_WORDS: usize = HEAD_WORDS + MAX_SAVED * SAVED_WORDS;
/// Number of words for a responder without saved answers.
const HEAD_WORDS: usize = 41;
/// Number of words for a saved READ or atomic.
const SAVED_WORDS: usize = 6;

/// Reads or writes one field after another. The order of the calls is the format.
trait Pass {
    fn u64(&mut self, field: &mut u64);

    fn u32(&mut self, field: &mut u32) {
        let mut word = u64::from(*field);
        self.u64(&mut word);
        *field = u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0);
    }

    fn u8(&mut self, field: &mut u8) {
        let mut word = u64::from(*field);
        self.u64(&mut word);
        *field = u8::try_from(word & 0xff).unwrap_or(0);
    }
}

struct Writer<'a>(&'a mut Vec<u64>);

impl Pass for Writer<'_> {
    fn u64(&mut self, field: &mut u64) {
        self.0.push(*field);
    }
}

/// The words of an image. Missing words read as 0.
struct Reader<'a>(std::slice::Iter<'a, u64>);

impl Reader<'_> {
    fn next(&mut self) -> u64 {
        self.0.next().copied().unwrap_or(0)
    }
}

impl Pass for Reader<'_> {
    fn u64(&mut self, field: &mut u64) {
        *field = self.next();
    }
}

impl ResponderState {
    /// Appends at most [`IMAGE_WORDS`] words.
    pub fn write_image(&self, out: &mut Vec<u64>) {
        // The list is written entry by entry, which avoids an allocation for the copy.
        let mut copy = Self { saved: SavedAnswers::default(), ..*self };
        copy.pass(&mut Writer(out));
        out.push(u64::from(self.saved.depth()));
        out.push(u64::try_from(self.saved.iter().len()).unwrap_or(0));
        for saved in self.saved.iter() {
            out.extend(saved_words(saved));
        }
    }

    /// Returns the state from `words`, with `number` as the QP's number. Responses in progress continue. A waiting placement
    /// does not continue. Its packet is accepted again when the peer repeats it, with the same [`ResponderState::serial`].
    #[must_use]
    pub fn from_image(number: QpNumber, words: &[u64]) -> Self {
        let mut state = Self::new(number);
        let mut reader = Reader(words.iter());
        state.pass(&mut reader);
        state.number = number.get();
        state.pending = Pending::default();
        let mut depth = 0;
        let mut count = 0;
        reader.u8(&mut depth);
        reader.u8(&mut count);
        state.saved.set_depth(depth);
        for _ in 0..usize::from(count).min(MAX_SAVED) {
            state.saved.keep(saved_of(std::array::from_fn(|_| reader.next())));
        }
        state
    }

    fn pass(&mut self, pass: &mut impl Pass) {
        let Self {
            number,
            peer,
            mtu,
            access,
            max_message,
            service,
            phase,
            min_rnr_timer,
            established,
            nak_sent,
            ack_due,
            events,
            failure,
            expected,
            msn,
            acked,
            gap_end,
            serial,
            message,
            pending: _,
            refusal,
            saved: _,
            counters,
        } = self;
        for field in [number, peer, mtu, access, max_message, expected, msn, acked, gap_end] {
            pass.u32(field);
        }
        for field in [service, phase, min_rnr_timer, established, nak_sent, ack_due] {
            pass.u8(field);
        }
        for field in [events, failure] {
            pass.u8(field);
        }
        pass.u64(serial);
        let Message { kind, srq, received, address, rkey, length } = message;
        pass.u8(kind);
        for field in [srq, received, rkey, length] {
            pass.u32(field);
        }
        pass.u64(address);
        let Refusal { due, syndrome, psn } = refusal;
        pass.u8(due);
        pass.u8(syndrome);
        pass.u32(psn);
        pass_counters(counters, pass);
    }
}

fn pass_counters(counters: &mut ResponderCounters, pass: &mut impl Pass) {
    let ResponderCounters {
        packets,
        duplicates,
        out_of_order,
        sequence_naks,
        rnr_naks,
        fatal_naks,
        acks,
        read_responses,
        dropped_state,
        dropped_opcode,
        dropped_duplicate,
        dropped_policy,
    } = counters;
    for field in [packets, duplicates, out_of_order, sequence_naks, rnr_naks, fatal_naks] {
        pass.u64(field);
    }
    for field in [acks, read_responses, dropped_state, dropped_opcode, dropped_duplicate, dropped_policy] {
        pass.u64(field);
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn split(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

/// Bits of a saved entry's last field.
const IS_ATOMIC: u32 = 1;
const IS_ACTIVE: u32 = 2;
const IS_REPLAY: u32 = 4;

fn saved_words(saved: &Saved) -> [u64; SAVED_WORDS] {
    let Saved { is_atomic, is_active, is_replay, first_psn, psns, msn, srq, rkey, address, length, .. } =
        *saved;
    let Saved { start, next, end, old, .. } = *saved;
    let flag = |is_set, bit| if is_set { bit } else { 0 };
    let flags = flag(is_atomic, IS_ATOMIC) | flag(is_active, IS_ACTIVE) | flag(is_replay, IS_REPLAY);
    // An atomic stores the old value, and a READ stores the position in its response.
    let result = if is_atomic { old } else { join(start, next) };
    [join(first_psn, psns), join(msn, srq), join(rkey, length), address, result, join(end, flags)]
}

fn saved_of(words: [u64; SAVED_WORDS]) -> Saved {
    let [psns, numbers, range, address, result, rest] = words;
    let ((first_psn, psns), (msn, srq), (rkey, length)) = (split(psns), split(numbers), split(range));
    let (end, flags) = split(rest);
    let is_atomic = flags & IS_ATOMIC != 0;
    let (start, next) = if is_atomic { (0, 0) } else { split(result) };
    Saved {
        is_atomic,
        is_active: flags & IS_ACTIVE != 0,
        is_replay: flags & IS_REPLAY != 0,
        first_psn,
        psns,
        msn,
        srq,
        rkey,
        address,
        length,
        start,
        next,
        end,
        old: if is_atomic { result } else { 0 },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a state with `depth` saved entries, in which all fields differ.
    fn full(depth: u8) -> ResponderState {
        // Distinct words reveal swapped fields.
        let mut words: Vec<u64> = (1..=u64::try_from(HEAD_WORDS).unwrap()).collect();
        words[HEAD_WORDS - 2] = u64::from(depth);
        words[HEAD_WORDS - 1] = u64::from(depth);
        let mut state = ResponderState::from_image(QpNumber::new(1), &words[..HEAD_WORDS - 1]);
        for index in 0..u32::from(depth) {
            let base = 1_000 * (index + 1);
            let is_atomic = index % 2 == 1;
            state.saved.keep(Saved {
                is_atomic,
                is_active: index % 3 == 0,
                is_replay: index % 5 == 0,
                first_psn: base,
                psns: base + 1,
                msn: base + 2,
                srq: base + 3,
                rkey: base + 4,
                address: u64::from(base) << 32 | 5,
                length: base + 6,
                start: if is_atomic { 0 } else { base + 7 },
                next: if is_atomic { 0 } else { base + 8 },
                end: base + 9,
                old: if is_atomic { u64::MAX - u64::from(base) } else { 0 },
            });
        }
        state
    }

    #[test]
    fn responder_image_round_trips() {
        let state = full(128);
        let mut out = Vec::new();
        state.write_image(&mut out);
        assert_eq!(out.len(), IMAGE_WORDS);
        let again = ResponderState::from_image(QpNumber::new(1), &out);
        assert!(again.saved.iter().eq(state.saved.iter()));
        let mut second = Vec::new();
        again.write_image(&mut second);
        assert_eq!(out, second);
        let same = out[..HEAD_WORDS - 2].iter().zip(1_u64..).filter(|(word, at)| *word == at).count();
        assert_eq!(same, HEAD_WORDS - 2, "a field is missing or read in another's place");
    }

    #[test]
    fn responder_image_without_reads_has_only_head_words() {
        let mut out = Vec::new();
        ResponderState::new(QpNumber::new(7)).write_image(&mut out);
        assert_eq!(out.len(), HEAD_WORDS);
    }

    #[test]
    fn truncated_responder_image_is_accepted() {
        for length in 0..IMAGE_WORDS {
            let words = vec![u64::MAX; length];
            let state = ResponderState::from_image(QpNumber::new(7), &words);
            let mut out = Vec::new();
            state.write_image(&mut out);
            assert_eq!(state.number().get(), 7);
        }
    }
}
