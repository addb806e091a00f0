//! Sending through all trunks, which posts their work, handles send completions, and sends credit frames.
#![forbid(unsafe_code)]

use super::Transport;
use crate::PeerDown;
use crate::provider::SOFTWARE;
use crate::trunk::{Trunk, parse_wr_id};
use trunkline_verbs::{Completion, CompletionStatus};

impl Transport {
    /// Handles a completion of an INI.
    pub(super) fn send_completed(&mut self, completion: &Completion) {
        let (slot, sequence) = parse_wr_id(completion.wr_id);
        let Some(trunk) = self.trunks.get(slot) else {
            #[cfg(feature = "identity")]
            self.handshake_completed(completion);
            return;
        };
        let success = completion.status.is_success();
        if !success && trunk.is_live() {
            tracing::debug!(peer = %trunk.peer(), cause = completion.status.explain(), "trunk broken");
            let cause = match completion.status {
                // The removal of a device flushes its QPs before the device raises its event.
                CompletionStatus::WorkRequestFlushed if trunk.is_without_device() => PeerDown::DeviceRemoved,
                // The session never opened, or this side lacks the path on which the peer opened it.
                status if !trunk.is_open() || status == CompletionStatus::RetryExceeded => {
                    trunk.not_shared().unwrap_or_else(|| cause_of(status))
                }
                status => cause_of(status),
            };
            let cause = self.res.shared.stops.explain(cause, trunk.began(), self.res.time.now());
            let cause =
                trunk.too_large(completion).unwrap_or_else(|| self.maybe_too_large(trunk, completion, cause));
            self.break_trunk(slot, cause);
        }
        if let Some(trunk) = self.trunks.get_mut(slot) {
            trunk.complete(&mut self.res, sequence, success);
        }
    }

    /// Returns [`PeerDown::FullPacketsLost`] in place of `cause` if the failed packet was larger than all delivered
    /// packets. NICs do not report whether the peer still answers.
    fn maybe_too_large(&self, trunk: &Trunk, completion: &Completion, cause: PeerDown) -> PeerDown {
        let is_silent = completion.status == CompletionStatus::RetryExceeded && cause == PeerDown::Died;
        let is_nic = || self.res.shared.device.get().is_some_and(|device| device.provider != SOFTWARE);
        let (_, sequence) = parse_wr_id(completion.wr_id);
        let lost = (is_silent && is_nic()).then(|| trunk.lost_packet_bytes(sequence)).flatten();
        lost.map_or(cause, |bytes| PeerDown::FullPacketsLost { bytes })
    }

    /// Stages and posts the work of the trunks, then sends the credit that was not carried by other frames.
    pub(super) fn push_out(&mut self) {
        self.flush_marked();
        self.copy_in_turn();
        self.announce_credit();
        if !self.res.marked.is_empty() {
            self.flush_marked();
        }
    }

    /// Stages and posts the work of the marked trunks.
    pub(super) fn flush_marked(&mut self) {
        self.last_sent.posted();
        let mut marked = self.res.marked.take();
        for slot in marked.drain(..) {
            self.push_trunk(slot);
        }
        self.res.marked.put_back(marked);
    }

    /// Copies the rest of this turn's part of large messages, trunk by trunk.
    fn copy_in_turn(&mut self) {
        while let Some(slot) = self.res.copies.next_trunk() {
            self.push_trunk(slot);
        }
    }

    fn push_trunk(&mut self, slot: usize) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        if let Err(cause) = trunk.push_out(&mut self.res) {
            self.break_trunk(slot, cause);
        }
    }

    fn announce_credit(&mut self) {
        let mut untold = self.targets.take_untold(&mut self.res.grants);
        for qp in untold.drain(..) {
            let Some(target) = self.targets.get(qp) else { continue };
            if !target.pair().is_some_and(|pair| self.res.grants.must_tell(pair)) {
                continue;
            }
            let ((peer, number), lane) = (target.session(), usize::from(target.poller()));
            let slot = self.peers.trunk(peer);
            let staged = slot
                .and_then(|slot| self.trunks.get_mut(slot))
                .is_some_and(|trunk| trunk.number() == number && trunk.stage_credit(&mut self.res, lane));
            if !staged {
                // Try again when the session is up, or an earlier credit frame is acknowledged.
                self.targets.note_credit_again(qp);
            }
        }
        self.targets.put_back(untold);
    }
}

/// Returns the cause of a peer's loss for the status of a failed completion.
pub(super) fn cause_of(status: CompletionStatus) -> PeerDown {
    use CompletionStatus as S;
    match status {
        S::RemoteInvalidRequest | S::RemoteOperationError | S::BadResponse => {
            PeerDown::Misbehaved("it refused a request that fits the session")
        }
        S::LocalLengthError | S::LocalQpOperationError | S::LocalProtectionError | S::FatalError => {
            PeerDown::DeviceFailed
        }
        // The session's SRQs or keys do not exist, or the peer sent wrong numbers.
        S::RemoteAccessError | S::RemoteInvalidRdRequest | S::RemoteAborted => PeerDown::AccessRefused,
        _ => PeerDown::Died,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answering_peer_is_not_reported_as_silent() {
        use CompletionStatus as S;
        assert_eq!(cause_of(S::RetryExceeded), PeerDown::Died);
        for answer in [S::RemoteAccessError, S::RemoteInvalidRdRequest, S::RemoteAborted] {
            assert_eq!(cause_of(answer), PeerDown::AccessRefused, "{answer:?}");
        }
    }
}
