//! Handshake frames of sessions that are not up, exchanged between the pollers 0 of two nodes.
//!
//! These frames use no credit, so a peer without posted receives occupies a slot until its session ends. Handshakes
//! therefore have separate slots, and a session posts its next frame only after the previous one is acknowledged. Up to
//! eight further frames wait, which suffices for the longest sequence, a ServerHello and the flight after it.
//!
//! The CM machine begins a handshake when the INI of poller 0 is connected. It creates the outgoing frames and
//! handles the received ones. A session comes up only after all of its frames are acknowledged. A `SessionClosed`
//! follows the destruction of the INI, so the session's slot can then be freed. Sequence numbers are not reused, so
//! that a late completion is ignored.
#![forbid(unsafe_code)]

use super::Transport;
use super::sends::cause_of;
use super::sessions::SessionOfPeer;
use crate::buffer::{Received, SendSlots};
use crate::command::CmCommand;
use crate::trunk::{not_shared, parse_wr_id, too_large, wr_id};
use crate::wire::frame::FrameError;
use crate::wire::handshake::{FRAGMENT, Fragment, HANDSHAKE_FRAME, Part};
use crate::{PeerDown, PeerKey};
use std::collections::{BTreeMap, VecDeque};
use std::slice;
use std::sync::Arc;
use trunkline_verbs::{
    Completion, CompletionStatus, QpNumber, QueuePair, SendData, SendFlags, SendOperation, SendRequest,
    SrqNumber, VerbsError,
};

/// Place in the work request numbers of handshake frames. It is never used in the table of trunks.
const PLACE: usize = (1 << 23) - 1;
/// Maximum number of frames of a session that wait behind the posted one.
const WAITING: usize = 8;

/// The sending half of one session's handshake.
#[derive(Debug)]
struct Sender {
    qp: Arc<dyn QueuePair>,
    srq: SrqNumber,
    /// Sequence number and slot of the posted frame.
    posted: Option<(u32, u32)>,
    waiting: VecDeque<Box<[u8]>>,
    /// Number of acknowledged frames.
    acknowledged: u32,
}

/// Handshakes of all sessions that are not up.
#[derive(Debug)]
pub(super) struct Handshakes {
    /// `None` for pollers other than 0, without handshakes, and without a device.
    slots: Option<SendSlots>,
    senders: BTreeMap<SessionOfPeer, Sender>,
    /// Sessions with a posted frame, by its sequence number.
    posted: BTreeMap<u32, SessionOfPeer>,
    /// Sessions whose next frame is not posted yet.
    ready: VecDeque<SessionOfPeer>,
    /// Sequence number of the next frame.
    next: u32,
}

impl Handshakes {
    pub(super) fn new(slots: Option<SendSlots>) -> Self {
        Self { slots, senders: BTreeMap::new(), posted: BTreeMap::new(), ready: VecDeque::new(), next: 0 }
    }

    /// Returns the number of free slots and of all slots.
    pub(super) fn count(&self) -> (u32, u32) {
        self.slots.as_ref().map_or((0, 0), SendSlots::count)
    }

    /// Returns true if a frame is not acknowledged yet.
    pub(super) fn await_acknowledgement(&self) -> bool {
        !self.posted.is_empty()
    }

    /// Begins the handshake of a session over this INI.
    pub(super) fn begin(&mut self, session: SessionOfPeer, qp: Arc<dyn QueuePair>, srq: SrqNumber) {
        self.end(session);
        self.senders
            .insert(session, Sender { qp, srq, posted: None, waiting: VecDeque::new(), acknowledged: 0 });
    }

    /// Queues a frame of a session. Returns false if too many frames wait. Frames of an ended session are dropped.
    fn queue(&mut self, session: SessionOfPeer, frame: Box<[u8]>) -> bool {
        debug_assert!(frame.len() <= HANDSHAKE_FRAME);
        let Some(sender) = self.senders.get_mut(&session) else { return true };
        if sender.posted.is_none() && sender.waiting.is_empty() {
            self.ready.push_back(session);
        } else if sender.waiting.len() >= WAITING {
            return false;
        }
        sender.waiting.push_back(frame);
        true
    }

    /// Posts the next frames of the ready sessions while slots are free. Returns the first session whose post
    /// failed, and the error.
    fn post(&mut self) -> Option<(SessionOfPeer, VerbsError)> {
        let slots = self.slots.as_mut()?;
        while slots.has_free() {
            let session = self.ready.pop_front()?;
            let Some(sender) = self.senders.get_mut(&session) else { continue };
            let Some((frame, slot)) = sender.waiting.pop_front().zip(slots.take()) else { continue };
            let length = slots.write(slot, 0, &frame);
            let sge = slots.sge(slot, 0, length);
            let (sequence, following) = (self.next, self.next.wrapping_add(1));
            let posted = sender.qp.post_send(&[SendRequest {
                wr_id: wr_id(PLACE, u64::from(sequence)),
                operation: SendOperation::Send,
                data: SendData::Gather(slice::from_ref(&sge)),
                flags: SendFlags::SIGNALED,
                remote_srq: sender.srq,
            }]);
            if let Err(error) = posted {
                slots.put_back(slot);
                return Some((session, error.cause));
            }
            sender.posted = Some((sequence, slot));
            self.posted.insert(sequence, session);
            self.next = following;
        }
        None
    }

    /// Handles the completion of a frame, and returns its session; `None` if the session has ended.
    fn completed(&mut self, sequence: u32) -> Option<SessionOfPeer> {
        let session = self.posted.remove(&sequence)?;
        let sender = self.senders.get_mut(&session)?;
        if let Some(((_, slot), slots)) = sender.posted.take().zip(self.slots.as_mut()) {
            slots.put_back(slot);
        }
        sender.acknowledged = sender.acknowledged.wrapping_add(1);
        if !sender.waiting.is_empty() {
            self.ready.push_back(session);
        }
        Some(session)
    }

    /// Returns the number of acknowledged frames of a session, once all have been posted.
    fn acknowledged(&self, session: SessionOfPeer) -> Option<u32> {
        let sender = self.senders.get(&session).filter(|sender| sender.waiting.is_empty())?;
        Some(sender.acknowledged)
    }

    /// Returns true if frames of a session wait to be posted.
    fn has_waiting(&self, session: SessionOfPeer) -> bool {
        self.senders.get(&session).is_some_and(|sender| !sender.waiting.is_empty())
    }

    /// Ends the handshake of a session that is up, or whose INI is destroyed.
    pub(super) fn end(&mut self, session: SessionOfPeer) {
        let Some(sender) = self.senders.remove(&session) else { return };
        self.ready.retain(|other| *other != session);
        if let Some((sequence, slot)) = sender.posted {
            self.posted.remove(&sequence);
            self.slots.as_mut().into_iter().for_each(|slots| slots.put_back(slot));
        }
    }

    /// Releases the device.
    pub(super) fn close(&mut self) {
        self.senders.clear();
        self.posted.clear();
        self.ready.clear();
        if let Some(mut slots) = self.slots.take() {
            slots.close();
        }
    }
}

impl Transport {
    /// Queues a handshake frame. In a session that is up, it is sent through the trunk like a message. Otherwise, it
    /// is posted once the session's previous frame has completed.
    pub(super) fn send_handshake(&mut self, peer: PeerKey, number: u32, frame: Box<[u8]>) {
        if let Some(trunk) = self.find_trunk(peer, number).and_then(|slot| self.trunks.get_mut(slot)) {
            return trunk.send_handshake(&mut self.res, frame);
        }
        if self.handshakes.queue((peer, number), frame) {
            self.post_handshakes();
        } else {
            self.refuse(peer, number, "it does not take the frames of a handshake");
        }
    }

    fn post_handshakes(&mut self) {
        while let Some(((peer, number), error)) = self.handshakes.post() {
            let removed = error == VerbsError::Gone;
            let cause = if removed { PeerDown::DeviceRemoved } else { PeerDown::DeviceFailed };
            self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
        }
    }

    /// Handles a completion that belongs to no trunk.
    #[cold]
    pub(super) fn handshake_completed(&mut self, completion: &Completion) {
        let (place, sequence) = parse_wr_id(completion.wr_id);
        let sequence = u32::try_from(sequence).ok().filter(|_| place == PLACE);
        let Some(session) = sequence.and_then(|sequence| self.handshakes.completed(sequence)) else { return };
        let (peer, number) = session;
        if !completion.status.is_success() {
            tracing::debug!(%peer, cause = completion.status.explain(), "handshake message not sent");
            let qp = self.handshakes.senders.get(&session).map(|sender| &*sender.qp);
            let is_gone = |qp: &dyn QueuePair| qp.query().is_err_and(|error| error == VerbsError::Gone);
            let cause = match completion.status {
                CompletionStatus::WorkRequestFlushed if qp.is_some_and(is_gone) => PeerDown::DeviceRemoved,
                status => {
                    let named = qp.and_then(|qp| too_large(qp, completion).or_else(|| not_shared(qp)));
                    named.unwrap_or_else(|| cause_of(status))
                }
            };
            // The INI is in ERR, so there are no further completions.
            self.handshakes.end(session);
            self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
        } else if let Some(acknowledged) = self.handshakes.acknowledged(session) {
            self.res.shared.cm.command(CmCommand::HandshakeSent { peer, number, acknowledged });
        }
        self.post_handshakes();
    }

    /// Ends the handshake of a session that is closed. Another session may then use the freed slot.
    pub(super) fn end_handshake(&mut self, peer: PeerKey, number: u32) {
        self.handshakes.end((peer, number));
        self.post_handshakes();
    }

    /// Handles a handshake frame, and passes a copy to the CM machine.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    #[cold]
    pub(super) fn handshake_arrived(&mut self, qp: QpNumber, frame: &Received) -> Result<(), FrameError> {
        let Some(target) = self.targets.get_mut(qp) else { return Ok(()) };
        if self.res.index.0 != 0 || target.poller() != 0 {
            return Err(FrameError::Broken("handshake frame from or to another poller than 0"));
        }
        target.count_handshake()?;
        let (frame, (peer, number)) = (frame.as_ref(), target.session());
        if !(FRAGMENT + 1..=HANDSHAKE_FRAME).contains(&frame.len()) {
            return Err(FrameError::Broken("handshake frame of an invalid length"));
        }
        let answers = |part| matches!(part, Part::Tls | Part::Done);
        if self.handshakes.has_waiting((peer, number)) && answers(Fragment::parse(frame)?.part) {
            return Err(FrameError::Broken("handshake frame that answers a part of a flight"));
        }
        self.res.shared.cm.command(CmCommand::Handshake { peer, number, frame: frame.into() });
        Ok(())
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
