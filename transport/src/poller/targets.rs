//! The TGTs whose messages may be for this poller, and frames that are ahead of their announcement.
#![forbid(unsafe_code)]

use crate::buffer::Received;
use crate::credit::{GrantId, Grants};
use crate::frame::{FrameError, HEADER, Header, Kind};
use crate::trunk::Resources;
use crate::{Origin, PeerKey, PollerIndex, SessionNumber};
use std::collections::BTreeMap;
use trunkline_verbs::QpNumber;

/// Frames that wait for a session to come up here, per poller of the peer. Its credit allows one
/// message; the rest is room for credit frames.
const HELD: usize = 8;

/// A TGT whose messages may be for us.
#[derive(Debug)]
pub(super) struct Target {
    peer: PeerKey,
    number: u32,
    /// The peer's poller that sends to it.
    poller: u16,
    /// The poller whose SRQ its messages take receives of.
    home: u16,
    /// Its credit; none until it is charged.
    pair: Option<GrantId>,
    /// Frames that arrived before the command that reports the session up.
    held: Vec<Received>,
    /// Its peer broke the rules: nothing of it is looked at until the TGT is destroyed.
    broken: bool,
}

impl Target {
    /// For what a poller of the peer sends in our session of that number. It holds no credit yet: whoever
    /// makes many sessions half must not take it from those that are up.
    pub(super) fn new((peer, number): (PeerKey, u32), poller: u16, home: u16) -> Self {
        Self { peer, number, poller, home, pair: None, held: Vec::new(), broken: false }
    }

    /// Takes its base credit out of the SRQ's depth, if it has none yet: when the session is up, or when the
    /// peer, which may see that first, sends its first message. `None` when the SRQ is too shallow for one more.
    pub(super) fn charge(&mut self, qp: QpNumber, res: &mut Resources) -> Option<GrantId> {
        if self.pair.is_none() {
            self.pair = res.grants.open(res.time.now_ms(), qp, self.home);
        }
        self.pair
    }

    /// The session's name.
    pub(super) fn session(&self) -> (PeerKey, u32) {
        (self.peer, self.number)
    }

    pub(super) fn poller(&self) -> u16 {
        self.poller
    }

    /// Its credit, once it is charged.
    pub(super) fn pair(&self) -> Option<GrantId> {
        self.pair
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Nothing of it is looked at any more.
    pub(super) fn ignore(&mut self) {
        self.broken = true;
    }

    /// Checks a frame and records its credit fields in its `pair`.
    ///
    /// # Errors
    /// How the peer broke the protocol.
    pub(super) fn hear(
        &mut self,
        pair: GrantId,
        res: &mut Resources,
        frame: &Received,
    ) -> Result<Header, FrameError> {
        let header = Header::parse(frame.as_ref())?;
        if header.source != self.poller {
            return Err(FrameError("frame names another poller than its trunk belongs to"));
        }
        if header.target != res.index.0 {
            return Err(FrameError("frame for another poller than it came to"));
        }
        let uses_credit = header.kind != Kind::Credit;
        res.grants
            .hear(pair, res.time.now_ms(), header.want, header.released, uses_credit)
            .map_err(|violation| FrameError(violation.0))?;
        Ok(header)
    }

    /// Keeps a frame that came before we heard that the session is up.
    ///
    /// # Errors
    /// When the peer has sent more than its credit allows before that.
    pub(super) fn hold(&mut self, frame: Received) -> Result<(), FrameError> {
        if self.held.len() >= HELD {
            return Err(FrameError("too much before the session is up"));
        }
        self.held.push(frame);
        Ok(())
    }

    /// The session ends before we heard that it is up: hands on the messages that were kept, because their
    /// sender believes that they arrived.
    pub(super) fn hand_on_held(&mut self, res: &mut Resources) {
        let (session, poller) = (SessionNumber(self.number), PollerIndex(self.poller));
        let from = Origin { peer: self.peer, session, poller };
        for mut frame in self.take_held() {
            if Header::parse(frame.as_ref()).is_ok_and(|header| header.kind == Kind::Eager) {
                frame.advance(HEADER);
                let message = res.receives.message(frame);
                res.events.message(from, message);
            }
        }
    }

    /// The frames that were kept, in order.
    pub(super) fn take_held(&mut self) -> Vec<Received> {
        std::mem::take(&mut self.held)
    }
}

/// All TGTs that a poller knows.
#[derive(Debug, Default)]
pub(super) struct Targets {
    known: BTreeMap<QpNumber, Target>,
    /// Frames of TGTs that are not known yet: a command that is queued may announce them.
    unannounced: Vec<(QpNumber, Received)>,
    /// Targets whose spender may need a credit frame.
    untold: Vec<QpNumber>,
    /// An empty list with room, to change places with `untold`.
    spare: Vec<QpNumber>,
}

impl Targets {
    pub(super) fn knows(&self, qp: QpNumber) -> bool {
        self.known.contains_key(&qp)
    }

    pub(super) fn get(&self, qp: QpNumber) -> Option<&Target> {
        self.known.get(&qp)
    }

    pub(super) fn get_mut(&mut self, qp: QpNumber) -> Option<&mut Target> {
        self.known.get_mut(&qp)
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = (QpNumber, &Target)> {
        self.known.iter().map(|(&qp, target)| (qp, target))
    }

    /// Adds a target; returns one that had this number before and was not closed here yet.
    pub(super) fn add(&mut self, qp: QpNumber, target: Target) -> Option<Target> {
        self.known.insert(qp, target)
    }

    /// The targets of a session, in the order of the peer's pollers.
    pub(super) fn of_session(&self, session: (PeerKey, u32)) -> Vec<(u16, QpNumber)> {
        let of_it = self.known.iter().filter(|(_, target)| target.session() == session);
        let mut of_it = of_it.map(|(&qp, target)| (target.poller, qp)).collect::<Vec<_>>();
        of_it.sort_unstable();
        of_it
    }

    /// Removes a target whose QP is destroyed.
    pub(super) fn remove(&mut self, qp: QpNumber) -> Option<Target> {
        self.known.remove(&qp)
    }

    /// Keeps a frame of a TGT that a later command may announce; few of each.
    pub(super) fn keep_unannounced(&mut self, qp: QpNumber, frame: Received) {
        if self.unannounced.iter().filter(|(other, _)| *other == qp).count() < HELD {
            self.unannounced.push((qp, frame));
        }
    }

    /// The frames of a TGT that is announced now, in order.
    pub(super) fn take_unannounced(&mut self, qp: QpNumber) -> impl Iterator<Item = Received> + use<> {
        let kept = std::mem::take(&mut self.unannounced);
        let (of_it, others) = kept.into_iter().partition::<Vec<_>, _>(|(other, _)| *other == qp);
        self.unannounced = others;
        of_it.into_iter().map(|(_, frame)| frame)
    }

    /// Drops frames of TGTs that no queued command announces: they no longer exist, or never did.
    pub(super) fn forget_unannounced(&mut self) {
        self.unannounced.clear();
    }

    /// The spender of this target may need a credit frame.
    pub(super) fn note_credit(&mut self, qp: QpNumber) {
        if self.untold.last() != Some(&qp) {
            self.untold.push(qp);
        }
    }

    /// No credit frame could be sent to the spender yet.
    pub(super) fn note_credit_again(&mut self, qp: QpNumber) {
        if !self.untold.contains(&qp) {
            self.untold.push(qp);
        }
    }

    /// The targets whose spender may need a credit frame, those with new grants included; return the list to
    /// [`Targets::put_back`].
    pub(super) fn take_untold(&mut self, grants: &mut Grants) -> Vec<QpNumber> {
        grants.take_granted(&mut self.untold);
        let spare = std::mem::take(&mut self.spare);
        std::mem::replace(&mut self.untold, spare)
    }

    /// Keeps the room of an emptied list.
    pub(super) fn put_back(&mut self, emptied: Vec<QpNumber>) {
        self.spare = emptied;
    }

    /// Whether a spender may still need a credit frame.
    pub(super) fn is_untold(&self) -> bool {
        !self.untold.is_empty()
    }

    /// The device is released. What was kept for sessions that did not come up is handed on.
    pub(super) fn clear(&mut self, res: &mut Resources) {
        for target in self.known.values_mut() {
            target.hand_on_held(res);
        }
        self.known.clear();
        self.untold.clear();
    }
}
