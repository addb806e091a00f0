//! The TGTs that may receive messages for this poller, and frames that arrive before their TGT is announced.
//!
//! A session that is not up on this poller does not hold credit of the SRQ, but it may already be up on the peer.
//! Each of the peer's pollers may then send its Settings, and sends nothing else before it receives this node's
//! Settings. This *early* frame is copied, so that it occupies neither a receive slot nor a block of short frames.
//! The total size of early frames is bounded.
//!
//! Thousands of honest peers may connect at the same time, each with a frame of some hundred bytes. The longest frame
//! is therefore dropped first, and among frames of equal length the oldest. Sessions are half-open for the time of a
//! handshake, or for seconds if the peer delays it.
#![forbid(unsafe_code)]

use crate::PeerKey;
use crate::buffer::Received;
use crate::credit::{GrantId, Grants};
use crate::trunk::Resources;
use crate::wire::TURN_MESSAGES;
use crate::wire::frame::{FrameError, FrameKind, HANDSHAKE, Header};
use slab::Slab;
use std::collections::BTreeMap;
use trunkline_machine::mutant;
use trunkline_verbs::QpNumber;

/// Number of frames that a peer's poller may send to a poller of this node before an answer. They are its settings, a
/// message for its base credit, and a few frames that grant credit for the one message that this node may send.
const UNANNOUNCED: usize = 8;

/// Maximum number of a target's frames without credit that wait for their peer's turn. An honest peer sends such
/// frames to grant credit, and each grants at least as much as the remaining credit.
const UNCREDITED: u32 = 64;

/// Maximum number of handshake frames through a target. The longest handshake has 11 frames, which are a ClientHello,
/// the flight of the TLS client, and a FAILURE.
#[cfg(feature = "identity")]
const HANDSHAKES: u8 = 12;

/// A TGT that may receive messages for this poller.
#[derive(Debug)]
pub(super) struct Target {
    peer: PeerKey,
    number: u32,
    /// Index of the peer's poller that sends to the target.
    poller: u16,
    /// Index of the local poller whose SRQ supplies the receives.
    home: u16,
    /// Last known place of the target's trunk in the poller's table.
    trunk: Option<usize>,
    /// The pair's credit; `None` until the session is up.
    pair: Option<GrantId>,
    /// Frame that arrived before the command that the session is up.
    early: Option<Received>,
    /// Last round in which messages of the target were handled on arrival, and how many more could be handled in it.
    turn: (u32, u32),
    /// Number of the target's waiting frames that use no credit.
    uncredited: u32,
    /// Number of handshake frames received through the target.
    #[cfg(feature = "identity")]
    handshakes: u8,
    /// True if the peer broke the rules. Its messages are ignored until the TGT is destroyed.
    broken: bool,
}

impl Target {
    /// Creates a target for a peer's poller, in session `number` of this node. It starts without credit, so
    /// that half-open sessions take no credit from established ones.
    pub(super) fn new(peer: PeerKey, number: u32, poller: u16, home: u16) -> Self {
        let turn = (0, TURN_MESSAGES);
        Self {
            peer,
            number,
            poller,
            home,
            trunk: None,
            pair: None,
            early: None,
            turn,
            uncredited: 0,
            #[cfg(feature = "identity")]
            handshakes: 0,
            broken: false,
        }
    }

    /// Counts a frame that waits.
    ///
    /// # Errors
    /// Returns an error if more frames wait than the peer may send.
    pub(super) fn wait(&mut self, grants: &mut Grants, uses_credit: bool) -> Result<(), FrameError> {
        if uses_credit {
            let waits = self.pair.map_or(Ok(()), |pair| grants.wait(pair));
            return waits.map_err(|violation| FrameError::Broken(violation.0));
        }
        if self.uncredited >= UNCREDITED {
            return Err(FrameError::Broken("floods us with credit frames"));
        }
        self.uncredited += 1;
        Ok(())
    }

    /// Stops counting a frame that waited.
    pub(super) fn waited(&mut self, grants: &mut Grants, used_credit: bool) {
        if !used_credit {
            self.uncredited = self.uncredited.saturating_sub(1);
        } else if let Some(pair) = self.pair {
            grants.waited(pair);
        }
    }

    /// Returns the number of messages that may still be handled on arrival in this round.
    pub(super) fn turn_left(&self, round: u32) -> u32 {
        if self.turn.0 == round { self.turn.1 } else { TURN_MESSAGES }
    }

    pub(super) fn set_turn_left(&mut self, round: u32, left: u32) {
        self.turn = (round, left);
    }

    /// Charges the base credit to the SRQ's depth, unless it is already charged. Called when the session is up.
    /// Returns `None` if the SRQ is too shallow for another target.
    pub(super) fn charge(&mut self, qp: QpNumber, res: &mut Resources) -> Option<GrantId> {
        if self.pair.is_none() {
            self.pair = res.grants.open(res.time.now_ms(), qp, self.peer, self.home);
        }
        self.pair
    }

    /// Removes the target's credit, and returns it.
    pub(super) fn uncharge(&mut self) -> Option<GrantId> {
        self.pair.take()
    }

    /// Returns the peer and number of the session.
    pub(super) fn session(&self) -> (PeerKey, u32) {
        (self.peer, self.number)
    }

    pub(super) fn poller(&self) -> u16 {
        self.poller
    }

    /// Returns the last known place of the target's trunk in the poller's table.
    pub(super) fn trunk(&self) -> Option<usize> {
        self.trunk
    }

    pub(super) fn found_trunk(&mut self, place: Option<usize>) {
        self.trunk = place;
    }

    /// Returns the pair's credit, once it is charged.
    pub(super) fn pair(&self) -> Option<GrantId> {
        self.pair
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Marks the target as broken, so that its frames are ignored.
    pub(super) fn ignore(&mut self) {
        self.broken = true;
    }

    /// Parses the header of a frame for this poller.
    ///
    /// # Errors
    /// Returns the rule of the protocol that the peer broke.
    pub(super) fn parse(res: &Resources, frame: &Received) -> Result<Header, FrameError> {
        let header = Header::parse(frame.as_ref())?;
        if u16::from(header.target) != res.index.0 {
            return Err(FrameError::Broken("frame for another poller than it came to"));
        }
        if header.kind == FrameKind::Handshake && !res.shared.limits.handshakes {
            return Err(FrameError::Kind(HANDSHAKE));
        }
        Ok(header)
    }

    /// Records the credit that a frame reports, and the credit that it used.
    ///
    /// # Errors
    /// Returns an error if the frame used or released more credit than was granted.
    pub(super) fn apply_header(
        &self,
        pair: GrantId,
        res: &mut Resources,
        header: &Header,
    ) -> Result<(), FrameError> {
        res.grants
            .apply_header(pair, res.time.now_ms(), header.want, header.released())
            .map_err(|violation| FrameError::Broken(violation.0))
    }

    /// Counts a handshake frame.
    ///
    /// # Errors
    /// Returns an error if the peer has already sent its settings, or more frames than a handshake has.
    #[cfg(feature = "identity")]
    pub(super) fn count_handshake(&mut self) -> Result<(), FrameError> {
        if self.pair.is_some() || self.early.is_some() {
            return Err(FrameError::Broken("handshake frame after its settings"));
        }
        if self.handshakes >= HANDSHAKES {
            return Err(FrameError::Broken("more handshake frames than a handshake has"));
        }
        self.handshakes += 1;
        Ok(())
    }

    /// Returns true if the peer may send a frame of this kind before the session is up on this poller. Only one
    /// Settings frame is allowed.
    fn may_be_early(&self, kind: FrameKind) -> bool {
        self.early.is_none() && kind == FrameKind::Settings
    }
}

/// A poller's table of TGTs.
#[derive(Debug, Default)]
pub(super) struct Targets {
    known: Slab<Target>,
    /// Place of each target.
    places: BTreeMap<QpNumber, usize>,
    /// Last target looked up, since consecutive frames often have the same target.
    recent: Option<(QpNumber, usize)>,
    /// Early frames, by the targets that keep them.
    early: EarlyFrames,
    /// Frames from unknown TGTs, which a queued command may announce.
    unannounced: Vec<(QpNumber, Received)>,
    /// TGTs whose peers have sent more frames than allowed.
    excessive: Vec<QpNumber>,
    /// Targets whose spenders may need a credit frame.
    untold: Vec<QpNumber>,
    /// Empty list that is swapped with `untold`, to reuse its memory.
    spare: Vec<QpNumber>,
}

impl Targets {
    pub(super) fn place(&mut self, qp: QpNumber) -> Option<usize> {
        if let Some((_, place)) = self.recent.filter(|(recent, _)| *recent == qp) {
            return Some(place);
        }
        let place = *self.places.get(&qp)?;
        self.recent = Some((qp, place));
        Some(place)
    }

    pub(super) fn at(&mut self, place: usize) -> Option<&mut Target> {
        self.known.get_mut(place)
    }

    pub(super) fn knows(&self, qp: QpNumber) -> bool {
        self.places.contains_key(&qp)
    }

    pub(super) fn get(&self, qp: QpNumber) -> Option<&Target> {
        self.known.get(*self.places.get(&qp)?)
    }

    pub(super) fn get_mut(&mut self, qp: QpNumber) -> Option<&mut Target> {
        self.known.get_mut(*self.places.get(&qp)?)
    }

    /// Marks a target as broken, so that its frames are ignored.
    pub(super) fn ignore(&mut self, qp: QpNumber) {
        if let Some(target) = self.get_mut(qp) {
            target.ignore();
        }
    }

    /// Iterates over all targets, in the order of their QP numbers.
    pub(super) fn all(&self) -> impl Iterator<Item = (QpNumber, &Target)> {
        self.places.iter().filter_map(|(&qp, &place)| Some((qp, self.known.get(place)?)))
    }

    /// Adds a target. Returns the credit of an earlier target with the same QP number that was not closed here yet.
    pub(super) fn add(&mut self, qp: QpNumber, target: Target) -> Option<GrantId> {
        let credit = self.remove(qp);
        self.places.insert(qp, self.known.insert(target));
        credit
    }

    /// Returns the targets of a session, in the order of the peer's pollers.
    pub(super) fn of_session(&self, session: (PeerKey, u32)) -> Vec<(u16, QpNumber)> {
        let of_it = self.all().filter(|(_, target)| target.session() == session);
        let mut of_it = of_it.map(|(qp, target)| (target.poller, qp)).collect::<Vec<_>>();
        of_it.sort_unstable();
        of_it
    }

    /// Removes a target whose QP is destroyed, with its early frame. Returns its credit.
    pub(super) fn remove(&mut self, qp: QpNumber) -> Option<GrantId> {
        self.early.remove(qp);
        self.recent = None;
        self.known.try_remove(self.places.remove(&qp)?)?.pair
    }

    /// Keeps a frame that arrived before the session was up on this poller. Returns the target whose frame was dropped
    /// to make room. The session of that target must end.
    ///
    /// # Errors
    /// Returns an error if the peer has sent more than it may before the session is up.
    pub(super) fn keep_early(
        &mut self,
        qp: QpNumber,
        kind: FrameKind,
        frame: Received,
    ) -> Result<Option<QpNumber>, FrameError> {
        let Some(&place) = self.places.get(&qp) else { return Ok(None) };
        let Some(target) = self.known.get_mut(place) else { return Ok(None) };
        if !target.may_be_early(kind) {
            return Err(FrameError::Broken("it sent more than its settings before the session is up"));
        }
        let frame = if mutant!(early_frames_keep_their_slots) { frame } else { frame.copied() };
        let outdated = self.early.add(qp, frame.as_ref().len());
        target.early = Some(frame);
        if let Some(outdated) = outdated.and_then(|qp| self.get_mut(qp)) {
            outdated.early = None;
            outdated.ignore();
        }
        Ok(outdated)
    }

    /// Takes the early frame of a target whose session is up.
    pub(super) fn take_early(&mut self, qp: QpNumber) -> Option<Received> {
        self.early.remove(qp);
        self.get_mut(qp)?.early.take()
    }

    /// Returns the size of all early frames, in bytes, and how many of them were not copied.
    pub(super) fn count_early(&self) -> (usize, usize) {
        let frames = || self.known.iter().filter_map(|(_, target)| target.early.as_ref());
        let bytes = frames().map(|frame| frame.as_ref().len()).sum();
        (bytes, frames().filter(|frame| !frame.is_copied()).count())
    }

    /// Keeps a copy of a frame from a TGT that a later command may announce, up to the number of frames that a peer
    /// may send to `pollers` pollers.
    pub(super) fn keep_unannounced(&mut self, qp: QpNumber, frame: Received, pollers: u16) {
        let kept = self.unannounced.iter().filter(|(other, _)| *other == qp).count();
        if kept < UNANNOUNCED * usize::from(pollers) {
            self.unannounced.push((qp, frame.copied()));
        } else if !self.excessive.contains(&qp) {
            self.excessive.push(qp);
        }
    }

    /// Returns the frames from a TGT that is now announced, in order.
    ///
    /// # Errors
    /// Returns an error if the peer has sent more than it may, so that some frames were not kept.
    pub(super) fn take_unannounced(&mut self, qp: QpNumber) -> Result<Vec<Received>, FrameError> {
        let kept = std::mem::take(&mut self.unannounced);
        let (of_it, others) = kept.into_iter().partition::<Vec<_>, _>(|(other, _)| *other == qp);
        self.unannounced = others;
        if self.excessive.contains(&qp) {
            return Err(FrameError::Broken("more frames than it may send before it gets credit"));
        }
        Ok(of_it.into_iter().map(|(_, frame)| frame).collect())
    }

    /// Drops the frames from TGTs that were not announced by queued commands. Such TGTs are destroyed or never
    /// existed.
    pub(super) fn forget_unannounced(&mut self) {
        self.unannounced.clear();
        self.excessive.clear();
    }

    /// Records that the spender of this target may need a credit frame.
    pub(super) fn note_credit(&mut self, qp: QpNumber) {
        if self.untold.last() != Some(&qp) {
            self.untold.push(qp);
        }
    }

    /// Records that a credit frame could not be sent to the spender yet.
    pub(super) fn note_credit_again(&mut self, qp: QpNumber) {
        if !self.untold.contains(&qp) {
            self.untold.push(qp);
        }
    }

    /// Takes the targets whose spenders may need a credit frame, including targets with new grants. Return the
    /// list to [`Targets::put_back`].
    pub(super) fn take_untold(&mut self, grants: &mut Grants) -> Vec<QpNumber> {
        grants.take_granted(&mut self.untold);
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.untold, spare)
    }

    /// Takes back an empty list, to reuse its memory.
    pub(super) fn put_back(&mut self, emptied: Vec<QpNumber>) {
        self.spare = emptied;
    }

    /// Returns true if a spender may still need a credit frame.
    pub(super) fn is_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// Removes all targets when the device is released.
    pub(super) fn clear(&mut self) {
        self.known.clear();
        self.places.clear();
        self.recent = None;
        self.early = EarlyFrames::default();
        self.untold.clear();
    }
}

/// Maximum size of the early frames that a poller keeps, in bytes. One host can use a quarter of it, with 256
/// connections and a frame on each.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// Targets that have an early frame, with the length of the frame, in the order of arrival.
#[derive(Debug, Default)]
pub(super) struct EarlyFrames {
    of: Vec<(QpNumber, usize)>,
    bytes: usize,
}

impl EarlyFrames {
    /// Adds the frame of a target. If the frames exceed [`MOST_BYTES`], removes a target whose frame must be
    /// dropped, possibly `qp` itself, and returns it.
    pub(super) fn add(&mut self, qp: QpNumber, bytes: usize) -> Option<QpNumber> {
        self.bytes += bytes;
        self.of.push((qp, bytes));
        if self.bytes <= MOST_BYTES {
            return None;
        }
        // `max_by_key` returns the last of equal items, which is the oldest frame here.
        let longest = self.of.iter().rev().max_by_key(|(_, bytes)| *bytes).map(|(qp, _)| *qp)?;
        self.remove(longest);
        Some(longest)
    }

    pub(super) fn remove(&mut self, qp: QpNumber) {
        if let Some(at) = self.of.iter().position(|(other, _)| *other == qp) {
            self.bytes -= self.of.remove(at).1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over RC, a poller that was stopped receives together all frames that a peer has sent through it to other
    /// pollers.
    #[test]
    fn frames_before_announcement_are_kept_in_order_or_their_session_ends() {
        let (qp, other, mut targets) = (QpNumber::new(7), QpNumber::new(8), Targets::default());
        let most = u8::try_from(3 * UNANNOUNCED).unwrap();
        for number in 0..most {
            targets.keep_unannounced(qp, Received::of(&[number]), 3);
            targets.keep_unannounced(other, Received::of(&[number]), 3);
        }
        targets.keep_unannounced(other, Received::of(&[most]), 3);
        let kept = targets.take_unannounced(qp).unwrap();
        let numbers = kept.iter().map(|frame| frame.as_ref()[0]).collect::<Vec<_>>();
        assert_eq!(numbers, (0..most).collect::<Vec<_>>());
        assert!(matches!(targets.take_unannounced(other), Err(FrameError::Broken(_))));
        targets.forget_unannounced();
        assert!(targets.take_unannounced(other).unwrap().is_empty(), "the number may be used again");
    }
}

#[cfg(test)]
mod early_tests {
    use super::*;

    #[test]
    fn longest_and_oldest_early_frame_is_dropped_for_room() {
        let (mut early, long) = (EarlyFrames::default(), MOST_BYTES / 4);
        let qp = QpNumber::new;
        for small in 0..1000 {
            assert_eq!(early.add(qp(small), 100), None);
        }
        for at in 0..3 {
            assert_eq!(early.add(qp(2000 + at), long), None);
        }
        assert_eq!(early.add(qp(3000), long), Some(qp(2000)), "small ones stay");
        assert_eq!(early.add(qp(3001), long + 1), Some(qp(3001)), "it is the longest itself");
        early.remove(qp(2002));
        early.remove(qp(9999));
        assert_eq!(early.add(qp(3002), long), None);
        assert_eq!(early.add(qp(3003), long), Some(qp(2001)));
        assert!(early.bytes <= MOST_BYTES && early.of.len() == 1003);
    }
}
