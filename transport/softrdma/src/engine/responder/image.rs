//! The responder's state as plain words, so that another process can go on where this one ended.
//!
//! Owns the order of the fields. The words are read back as they were written; any other words
//! make a state that may answer nonsense, but never panics. Only what is in use is written: a
//! responder without saved READs and atomics is a few dozen words.

use super::{MAX_SAVED, Message, Pending, Refusal, ResponderCounters, ResponderState, Saved};
use trunkline_verbs::QpNumber;

/// Most words of an image.
pub const IMAGE_WORDS: usize = 42 + MAX_SAVED * 14;

/// Reads or writes one field after the other: the order of the calls is the format.
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

/// Words that are missing are 0.
struct Reader<'a>(std::slice::Iter<'a, u64>);

impl Pass for Reader<'_> {
    fn u64(&mut self, field: &mut u64) {
        *field = self.0.next().copied().unwrap_or(0);
    }
}

impl ResponderState {
    /// Appends at most [`IMAGE_WORDS`] words.
    pub fn write_image(&self, out: &mut Vec<u64>) {
        let mut copy = *self;
        copy.pass(&mut Writer(out));
    }

    /// The state that was written, with `number` as the QP's own. Answers that were under way go
    /// on; a placement that was waiting does not: its packet is taken again when the peer repeats
    /// it, as the same [`ResponderState::serial`].
    #[must_use]
    pub fn from_image(number: QpNumber, words: &[u64]) -> Self {
        let mut state = Self::new(number);
        state.pass(&mut Reader(words.iter()));
        state.number = number.get();
        state.pending = Pending::default();
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
            max_saved,
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
            saved,
            saved_first,
            saved_count,
            counters,
        } = self;
        for field in [number, peer, mtu, access, max_message, expected, msn, acked, gap_end] {
            pass.u32(field);
        }
        for field in [service, phase, max_saved, min_rnr_timer, established, nak_sent, ack_due] {
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
        pass.u8(saved_first);
        pass.u8(saved_count);
        *saved_count = (*saved_count).min(u8::try_from(MAX_SAVED).unwrap_or(u8::MAX));
        for index in 0..usize::from(*saved_count) {
            pass_saved(&mut saved[(usize::from(*saved_first) + index) % MAX_SAVED], pass);
        }
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

fn pass_saved(saved: &mut Saved, pass: &mut impl Pass) {
    let Saved {
        atomic,
        active,
        replay,
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
        old,
    } = saved;
    for field in [atomic, active, replay] {
        pass.u8(field);
    }
    for field in [first_psn, psns, msn, srq, rkey, length, start, next, end] {
        pass.u32(field);
    }
    pass.u64(address);
    pass.u64(old);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        // Words that are all different show a field that is read in another's place.
        let words: Vec<u64> = (1..=u64::try_from(IMAGE_WORDS).unwrap()).collect();
        let state = ResponderState::from_image(QpNumber::new(1), &words);
        let mut out = Vec::new();
        state.write_image(&mut out);
        assert_eq!(out.len(), IMAGE_WORDS);
        let again = ResponderState::from_image(QpNumber::new(1), &out);
        let mut second = Vec::new();
        again.write_image(&mut second);
        assert_eq!(out, second);
        let same = out.iter().zip(&words).filter(|(a, b)| a == b).count();
        assert!(same + 3 >= IMAGE_WORDS, "{same} of {IMAGE_WORDS} words came through");
    }

    #[test]
    fn few_words_without_reads() {
        let mut out = Vec::new();
        ResponderState::new(QpNumber::new(7)).write_image(&mut out);
        assert_eq!(out.len(), IMAGE_WORDS - MAX_SAVED * 14);
    }

    #[test]
    fn missing_words_are_no_harm() {
        for length in 0..IMAGE_WORDS {
            let words = vec![u64::MAX; length];
            let state = ResponderState::from_image(QpNumber::new(7), &words);
            let mut out = Vec::new();
            state.write_image(&mut out);
            assert_eq!(state.number().get(), 7);
        }
    }
}
