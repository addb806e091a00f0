//! The sending half of a pair, which counts the messages that may still be sent to one remote SRQ.
#![forbid(unsafe_code)]

use super::{AHEAD, BASE, CreditViolation, START, steps};
use trunkline_machine::mutant;

/// Time after which a spender releases unused credit, in milliseconds. Together with the scan interval of the poller,
/// it is less than the 100 ms in which idle grants decay.
const IDLE_MS: u64 = 60;
/// Maximum distance of a grant ahead of the spender. A position beyond it or before the previous position is invalid.
const MOST_AHEAD: u32 = 1 << 15;

/// Maximum burst of credit frames from a peer. They use no credit, so a flood of them would take the receives of all
/// other peers. An honest peer sends at most about one per message from this node, and some more when it releases
/// credit or gets free receives.
const CREDIT_FRAMES: u64 = 64;

/// Credit of one INI for one remote SRQ.
#[derive(Debug)]
pub(crate) struct Spender {
    granted: u32,
    released: u32,
    sent: u32,
    used_ms: u64,
    /// Minimum number of available credits since `least_ms`.
    least: u32,
    least_ms: u64,
    /// Number of credit frames that the peer may still send, when `sent` was `allowed_sent` at
    /// `allowed_ms`.
    allowed: u64,
    allowed_sent: u32,
    allowed_ms: u64,
}

impl Spender {
    /// Creates a new pair with only its base credit.
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

    /// Returns the number of messages that may be sent now.
    pub(crate) fn available(&self) -> u32 {
        self.granted.wrapping_sub(self.released).wrapping_sub(self.sent)
    }

    /// Returns the granted, released and sent positions, for the ledger.
    pub(crate) fn positions(&self) -> [u32; 3] {
        [self.granted, self.released, self.sent]
    }

    /// Takes a credit for a message. Returns false if no credit is left.
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

    /// Takes back the credit of a message that was not posted.
    pub(crate) fn unspend(&mut self) {
        if self.allowed_sent == self.sent {
            self.allowed_sent = self.allowed_sent.wrapping_sub(1);
        }
        self.sent = self.sent.wrapping_sub(1);
    }

    /// Applies the grant position of a frame.
    pub(crate) fn apply_grant(&mut self, grant: u16) -> Result<(), CreditViolation> {
        let step = steps(self.granted, grant);
        if step > MOST_AHEAD || self.available().wrapping_add(step) > MOST_AHEAD {
            return Err(CreditViolation("grant position went backwards or leapt"));
        }
        self.granted = self.granted.wrapping_add(step);
        Ok(())
    }

    /// Counts a frame of the peer that carries only positions. The peer may send two for each message from
    /// this node and one for each millisecond, in bursts of at most [`CREDIT_FRAMES`].
    pub(crate) fn apply_credit_frame(&mut self, now_ms: u64) -> Result<(), CreditViolation> {
        let sent = u64::from(self.sent.wrapping_sub(self.allowed_sent));
        let waited_ms = now_ms.saturating_sub(self.allowed_ms);
        let allowed = self.allowed.saturating_add(2 * sent).saturating_add(waited_ms).min(CREDIT_FRAMES);
        (self.allowed_sent, self.allowed_ms) = (self.sent, now_ms);
        let left = allowed.checked_sub(1).ok_or(CreditViolation("floods us with credit frames"))?;
        self.allowed = left;
        Ok(())
    }

    /// Returns the position for Credit frames.
    pub(crate) fn released(&self) -> u32 {
        self.released
    }

    /// Releases credit that the pair does not need. An idle pair keeps the base. A busy pair keeps the base
    /// and the credit granted ahead, and releases further credit not used for [`IDLE_MS`]. Returns true if a
    /// frame must report the release.
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

    /// Returns the time of the next call of [`Spender::release_idle`], in milliseconds; `None` if the pair
    /// holds only the base.
    pub(crate) fn release_due_ms(&self) -> Option<u64> {
        (self.available() > BASE).then_some(self.used_ms + IDLE_MS)
    }
}
