//! Transfers between the ends of a connection, for both the client and the server.

use super::link::{Area, Arrival, Link, OLD_VALUE, SLOTS, WORD, Work, immediate_of};
use super::pattern::fill;
use super::protocol::{ControlMessage, Manner};
use crate::check::{Verdict, check, equal};
use trunkline_verbs::{CompletionOpcode, SendOperation};

/// Values of the word before and after the sequence of atomics.
pub(super) const FIRST_VALUE: u64 = 0xffff_ffff_0000_0007;
pub(super) const LAST_VALUE: u64 = 0x0123_4567_89ab_cdef;

impl Link {
    /// Sends messages of one size, each with a different pattern.
    pub(super) fn send_messages(&mut self, control: &ControlMessage) -> Verdict {
        for index in 0..u64::from(control.count) {
            let seed = control.seed + index;
            // Outstanding sends may still be reading from this memory.
            if control.manner != Manner::Inline {
                self.finish()?;
            }
            fill(&self.memory, Area::Source.offset(), control.size(), seed)?;
            self.send_source(control.size(), seed, control.manner)?;
        }
        self.finish()
    }

    /// Posts the same message several times with one doorbell.
    pub(super) fn send_burst(&mut self, control: &ControlMessage) -> Verdict {
        fill(&self.memory, Area::Source.offset(), control.size(), control.seed)?;
        let (offset, length) = (Area::Source.offset(), control.size());
        let work = Work { operation: SendOperation::Send, offset, length, is_inline: false };
        self.post(&vec![work; usize::from(control.count)])?;
        self.finish()
    }

    /// Receives the messages of `send_messages` (`step` 1) or of `send_burst` (`step` 0). Returns the number of wrong
    /// bytes.
    pub(super) fn take_messages(
        &mut self,
        control: &ControlMessage,
        step: u64,
        starve: bool,
    ) -> Verdict<u64> {
        let mut wrong = 0;
        let mut held: Vec<Arrival> = Vec::new();
        for index in 0..u64::from(control.count) {
            let arrival = self.arrival()?;
            wrong += self.judge(arrival, control.size(), control.seed + index * step, control.manner)?;
            held.push(arrival);
            if !starve || held.len() == SLOTS || index + 1 == u64::from(control.count) {
                held.drain(..).try_for_each(|arrival| self.release(arrival))?;
            }
        }
        Ok(wrong)
    }

    /// WRITEs to the peer's sink.
    pub(super) fn write(&mut self, size: usize, seed: u64, manner: Manner) -> Verdict {
        let sink = self.remote(Area::Sink.offset());
        fill(&self.memory, Area::Source.offset(), size, seed)?;
        let operation = match manner {
            Manner::Immediate => SendOperation::RdmaWriteWithImmediate(sink, immediate_of(seed)),
            Manner::Plain | Manner::Inline => SendOperation::RdmaWrite(sink),
        };
        let is_inline = manner == Manner::Inline;
        self.post(&[Work { operation, offset: Area::Source.offset(), length: size, is_inline }])?;
        self.finish()
    }

    /// Waits for a WRITE with immediate. Returns the number of wrong bytes in the sink.
    pub(super) fn take_write(&mut self, size: usize, seed: u64) -> Verdict<u64> {
        let arrival = self.arrival()?;
        equal("opcode of a receive", arrival.opcode, CompletionOpcode::ReceiveRdmaWithImmediate)?;
        equal("size of a WRITE with immediate", arrival.length, size)?;
        equal("immediate of a WRITE", arrival.immediate, Some(immediate_of(seed)))?;
        self.release(arrival)?;
        self.judge_area(Area::Sink, size, seed)
    }

    /// READs the memory that the peer offers. Returns the number of wrong bytes.
    pub(super) fn read(&mut self, size: usize, seed: u64) -> Verdict<u64> {
        let offer = self.remote(Area::Offer.offset());
        self.do_one(SendOperation::RdmaRead(offer), Area::Landing.offset(), size)?;
        self.finish()?;
        self.judge_area(Area::Landing, size, seed)
    }

    /// Fills the memory that the peer READs.
    pub(super) fn offer(&self, size: usize, seed: u64) -> Verdict {
        fill(&self.memory, Area::Offer.offset(), size, seed)
    }

    /// Changes the peer's word from [`FIRST_VALUE`] to [`LAST_VALUE`] with atomics, and checks each previous value.
    pub(super) fn change_word(&mut self) -> Verdict {
        let remote = self.remote(WORD);
        let added = FIRST_VALUE.wrapping_add(u64::from(u32::MAX));
        let steps = [
            ("fetch-add", SendOperation::FetchAdd { remote, add: u64::from(u32::MAX) }, FIRST_VALUE),
            ("fetch-add of nothing", SendOperation::FetchAdd { remote, add: 0 }, added),
            (
                "compare-swap of another value",
                SendOperation::CompareSwap { remote, compare: FIRST_VALUE, swap: 1 },
                added,
            ),
            ("compare-swap", SendOperation::CompareSwap { remote, compare: added, swap: u64::MAX }, added),
            ("fetch-add across the wrap", SendOperation::FetchAdd { remote, add: 1 }, u64::MAX),
            (
                "compare-swap to the end",
                SendOperation::CompareSwap { remote, compare: 0, swap: LAST_VALUE },
                0,
            ),
        ];
        for (what, operation, old) in steps {
            self.memory.write(OLD_VALUE, &[0x55; 8])?;
            self.do_one(operation, OLD_VALUE, 8)?;
            self.finish()?;
            let found = self.memory.load(OLD_VALUE)?;
            check(found == old, || format!("{what}: the old value was {found:#x} instead of {old:#x}"))?;
        }
        Ok(())
    }

    /// Sets the word at this end, which the peer changes. Returns the previous value.
    pub(super) fn set_word(&self, value: u64) -> Verdict<u64> {
        let old = self.memory.load(WORD)?;
        self.memory.write(WORD, &value.to_ne_bytes())?;
        Ok(old)
    }
}
