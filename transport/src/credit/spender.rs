//! The sending half of a pair: how many messages may still leave for one remote SRQ.
#![forbid(unsafe_code)]

use super::{AHEAD, BASE, CreditViolation, START, steps};
use trunkline_mutants::mutant;

/// A spender gives credit back that it has not used for this many milliseconds. With the
/// scan interval of the poller it stays within the 100 ms in which idle grants decay.
const IDLE_MS: u64 = 60;
/// No peer grants more than this ahead; a position beyond, or before the last, is nonsense.
const MOST_AHEAD: u32 = 1 << 15;

/// Frames that carry nothing but positions, beyond those that answer messages of ours. They use
/// no credit and so no room that was granted: a peer that floods us with them takes the receives
/// of all others. An honest one sends about one for each message of ours at the very most (when
/// it grants one credit at a time), and some when it releases credit or receives room.
const CREDIT_FRAMES: u64 = 64;

/// Credit of one INI for one remote SRQ.
#[derive(Debug)]
pub(crate) struct Spender {
    granted: u32,
    released: u32,
    sent: u32,
    used_ms: u64,
    /// The least that was available since then, and when that began.
    least: u32,
    least_ms: u64,
    /// Credit frames that may still come, as of the position and the time at which this was
    /// computed.
    allowed: u64,
    allowed_sent: u32,
    allowed_ms: u64,
}

impl Spender {
    /// A fresh pair: the base credit and nothing else.
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            granted: START.wrapping_add(BASE),
            released: 0,
            sent: START,
            used_ms: now_ms,
            least: BASE,
            least_ms: now_ms,
            allowed: CREDIT_FRAMES,
            allowed_sent: START,
            allowed_ms: now_ms,
        }
    }

    /// Returns the number of messages that may leave now.
    pub(crate) fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.sent)
    }

    /// Granted, released and sent, for the count of credits.
    pub(crate) fn positions(&self) -> [u32; 3] {
        [self.granted, self.released, self.sent]
    }

    /// Takes one credit for a message, if there is one.
    pub(crate) fn spend(&mut self, now_ms: u64) -> bool {
        if self.available() == 0 {
            return false;
        }
        if !mutant!(message_uses_no_credit) {
            self.sent = self.sent.wrapping_add(1);
        }
        self.used_ms = now_ms;
        self.least = self.least.min(self.available());
        true
    }

    /// Takes back the credit of a message that was not posted after all.
    pub(crate) fn unspend(&mut self) {
        if self.allowed_sent == self.sent {
            self.allowed_sent = self.allowed_sent.wrapping_sub(1);
        }
        self.sent = self.sent.wrapping_sub(1);
    }

    /// Takes over the grant position of a frame.
    pub(crate) fn hear(&mut self, grant: u16) -> Result<(), CreditViolation> {
        let step = steps(self.granted, grant);
        if step > MOST_AHEAD || self.available().wrapping_add(step) > MOST_AHEAD {
            return Err(CreditViolation("grant position went backwards or leapt"));
        }
        self.granted = self.granted.wrapping_add(step);
        Ok(())
    }

    /// Counts a frame of the peer that carries nothing but positions. Two are allowed for each
    /// message of ours and one for each millisecond, and a few at once.
    pub(crate) fn hear_credit_frame(&mut self, now_ms: u64) -> Result<(), CreditViolation> {
        let sent = u64::from(self.sent.wrapping_sub(self.allowed_sent));
        let waited_ms = now_ms.saturating_sub(self.allowed_ms);
        let allowed = self.allowed.saturating_add(2 * sent).saturating_add(waited_ms).min(CREDIT_FRAMES);
        (self.allowed_sent, self.allowed_ms) = (self.sent, now_ms);
        let left = allowed.checked_sub(1).ok_or(CreditViolation("floods us with credit frames"))?;
        self.allowed = left;
        Ok(())
    }

    /// The position to put into Credit frames.
    pub(crate) fn released(&self) -> u32 {
        self.released
    }

    /// Releases what a pair does not need: all but the base when it is idle, else what it has not used for as long,
    /// but for what a busy one is granted ahead. Returns whether a frame must report it.
    pub(crate) fn release_idle(&mut self, now_ms: u64) -> bool {
        let is_idle = now_ms.saturating_sub(self.used_ms) >= IDLE_MS;
        let mut spare = if is_idle { self.available().saturating_sub(BASE) } else { 0 };
        let is_over = now_ms.saturating_sub(self.least_ms) >= IDLE_MS;
        if is_over {
            spare = spare.max(self.least.saturating_sub(BASE + AHEAD));
        }
        self.released = self.released.wrapping_add(spare);
        if is_over {
            (self.least, self.least_ms) = (self.available(), now_ms);
        } else {
            self.least = self.least.min(self.available());
        }
        spare > 0
    }

    /// Returns the time at which [`Spender::release_idle`] will have something to do.
    pub(crate) fn release_due_ms(&self) -> Option<u64> {
        (self.available() > BASE).then_some(self.used_ms + IDLE_MS)
    }
}
