//! Sessions as a poller sees them: coming up, breaking, being taken down in two phases.
//!
//! A trunk that ends first fails what was not posted, then its QP goes to ERR and every posted
//! work request comes back flushed; only when all have, and the CM machine has destroyed the TGTs
//! through which the peer read our memory, are QP and buffers freed and the upper half told.
#![forbid(unsafe_code)]

use super::{Core, Event, Peer, Resources, Target};
use crate::command::{CmCommand, Command, SessionUp};
use crate::credit::Spender;
use crate::frame::{FrameError, Header};
use crate::sizes::{INLINE_BYTES, SEND_QUEUE_DEPTH};
use crate::trunk::{Health, Lane, Outbound, Trunk};
use crate::{PeerDown, PeerEvent, PeerKey, PollerIndex, SendFailure, SendOutcome};
use slab::Slab;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_verbs::{QpModify, QpNumber, QpState, QueuePair};

/// A device that has not flushed a QP after this is not waited for any longer.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            named: false,
            waiting: VecDeque::new(),
            asked: false,
            trunk: None,
            dying: 0,
            pending: None,
            forgotten: false,
        }
    }
}

impl Core {
    /// Performs what other threads asked for; returns whether there was anything.
    pub(super) fn commands(&mut self) -> bool {
        self.commands_within(false)
    }

    /// The same; `taking` completions, what would take more of them waits for the next time, with all
    /// that comes behind it.
    pub(super) fn commands_within(&mut self, taking: bool) -> bool {
        let mut worked = false;
        loop {
            let next = self.deferred.take().or_else(|| self.res.handle.next_command());
            let Some(command) = next else { break };
            if taking && matches!(command, Command::DeviceLost | Command::SessionClosed { .. }) {
                self.deferred = Some(command);
                break;
            }
            worked = true;
            match command {
                Command::TargetAdded { peer, address, number, poller, target } => {
                    self.target_added(peer, address, number, poller, target);
                }
                Command::SessionUp(session) => self.session_up(session),
                Command::SessionClosed { peer, number } => {
                    self.deferred = Some(command);
                    self.take_arrived();
                    self.deferred = None;
                    self.session_closed(peer, number);
                }
                Command::PeerDown { peer, number, cause } => self.peer_down(peer, number, cause),
                Command::Forget { peer } => self.forget(peer),
                Command::DeviceLost => self.device_lost(),
                Command::TakeHandedOn => self.take_handed_on(),
                Command::ReleaseDevice => self.release_device(),
                Command::TakeDevice(device) => self.take_device(*device),
                Command::Shutdown { deadline } => self.begin_shutdown(deadline),
                Command::End => self.end(),
            }
        }
        if !taking {
            // Their TGTs no longer exist, or were never announced.
            self.unknown_target_frames.clear();
        }
        worked
    }

    fn target_added(
        &mut self,
        peer: PeerKey,
        address: SocketAddr,
        number: u32,
        poller: u16,
        target: QpNumber,
    ) {
        self.peers.entry(peer).or_insert_with(|| Peer::new(address));
        let home = self.res.crossings.home_of(poller);
        let Some(pair) = self.res.grants.open(self.res.now_ms, target, home) else {
            let cause = PeerDown::Refused("too many peers for the depth of the SRQ; raise srq_depth");
            self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
            return;
        };
        let new = Target { peer, number, poller, pair, held: Vec::new(), broken: false };
        if let Some(old) = self.targets.insert(target, new) {
            // Its QP is destroyed, or the number would not have come again, but it is not closed here yet.
            self.res.grants.close(old.pair);
        }
        let (of_it, others) =
            std::mem::take(&mut self.unknown_target_frames).into_iter().partition(|(qp, _)| *qp == target);
        self.unknown_target_frames = others;
        for (qp, frame) in of_it {
            self.place(qp, frame);
        }
    }

    fn session_up(&mut self, session: Box<SessionUp>) {
        let peer = self.peers.entry(session.peer).or_insert_with(|| Peer::new(session.address));
        peer.asked = false;
        if peer.dying > 0 || peer.trunk.is_some() {
            peer.pending = Some(session);
        } else {
            self.activate(*session);
        }
    }

    fn activate(&mut self, session: SessionUp) {
        let (peer_key, number) = (session.peer, session.number);
        let epoch = session.epoch;
        let mut targets = self
            .targets
            .iter()
            .filter(|(_, target)| target.peer == peer_key && target.number == number)
            .map(|(&qp, target)| (target.poller, qp))
            .collect::<Vec<_>>();
        targets.sort_unstable();
        if targets.len() != session.srqs.len() {
            // Refused for want of depth above; the session is about to be closed.
            destroy_ini(&self.res, session.qp.as_ref());
            return;
        }
        let trunk = self.make_trunk(session, &targets);
        let Some(peer) = self.peers.get_mut(&peer_key) else { return };
        peer.trunk = Some(trunk);
        let waiting = std::mem::take(&mut peer.waiting);
        let pollers = u16::try_from(targets.len()).unwrap_or(u16::MAX);
        self.res.events.push_back(Event::Peer(peer_key, PeerEvent::Up { epoch, pollers }));
        for message in waiting {
            self.queue(trunk, message);
        }
        self.release_held(peer_key, number, trunk, &targets);
    }

    fn make_trunk(&mut self, session: SessionUp, targets: &[(u16, QpNumber)]) -> usize {
        let res = &mut self.res;
        let lanes = session.srqs.iter().zip(targets).map(|(&srq, (poller, target))| Lane {
            srq,
            spender: Spender::new(res.now_ms),
            pair: self.targets[target].pair,
            queue: VecDeque::new(),
            fins: VecDeque::new(),
            credits_out: 0,
            requests_out: 0,
            counters: res.shared.traffic.lane(session.peer, session.address, res.index, PollerIndex(*poller)),
        });
        let inline = session.qp.capacities().max_inline_data.min(INLINE_BYTES);
        let entry = self.trunks.vacant_entry();
        let slot = entry.key();
        let trunk = Trunk {
            peer: session.peer,
            number: session.number,
            slot,
            lanes: lanes.collect(),
            qp: session.qp,
            health: Health::Live,
            next_lane: usize::from(res.index.0),
            max_message: usize::try_from(session.max_message).unwrap_or(usize::MAX),
            max_frame: usize::try_from(session.max_frame).unwrap_or(usize::MAX),
            max_inline: usize::try_from(inline).unwrap_or(0),
            staged: Vec::new(),
            inline: Vec::new(),
            in_flight: VecDeque::with_capacity(SEND_QUEUE_DEPTH),
            next_sequence: 0,
            unsignaled: 0,
            sources: BTreeMap::new(),
            next_source: 1,
            sinks: Slab::new(),
            waiting_for_memory: VecDeque::new(),
            reading: VecDeque::new(),
            reads_out: 0,
            read_depth: u32::from(session.read_depth.max(1)),
            heard_ms: res.now_ms,
            keepalive_out: false,
            marked: false,
        };
        entry.insert(trunk);
        slot
    }

    /// Frames that came before the session was up here.
    fn release_held(&mut self, peer: PeerKey, number: u32, slot: usize, targets: &[(u16, QpNumber)]) {
        for (poller, qp) in targets {
            let Some(target) = self.targets.get_mut(qp) else { continue };
            for frame in std::mem::take(&mut target.held) {
                let Some(trunk) = self.trunks.get_mut(slot) else { return };
                let result = Header::parse(frame.as_ref())
                    .and_then(|header| trunk.frame(&mut self.res, usize::from(*poller), &header, frame));
                if let Err(FrameError(what)) = result {
                    self.misbehaved(peer, number, what);
                    return;
                }
            }
            self.res.untold.push(*qp);
        }
    }

    /// Puts a message into its lane, or fails it when the peer has no such poller any more.
    pub(super) fn queue(&mut self, slot: usize, message: Outbound) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        let bytes = message.head.len() + message.body.len();
        let cause = if bytes > trunk.max_message {
            PeerDown::Refused("the message is larger than the peer takes")
        } else if let Some(lane) = trunk.choose_lane(message.poller) {
            trunk.lanes[lane].queue.push_back(message);
            self.res.mark(trunk);
            return;
        } else {
            PeerDown::Restarted
        };
        let outcome = SendOutcome::Failed(SendFailure { may_have_arrived: false, cause });
        self.res.events.push_back(Event::Sent(message.token, outcome));
    }

    /// A trunk does not work any more, as seen from here.
    pub(super) fn break_trunk(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        if !trunk.is_live() {
            return;
        }
        let (peer, number) = (trunk.peer, trunk.number);
        self.res.shared.cm.command(CmCommand::Broken { peer, number, cause });
        self.begin_dying(slot, cause);
    }

    /// First phase: nothing new is posted, and what is posted comes back.
    pub(super) fn begin_dying(&mut self, slot: usize, cause: PeerDown) {
        let Some(trunk) = self.trunks.get_mut(slot) else { return };
        if !trunk.is_live() {
            return;
        }
        trunk.health = Health::Dying { since: self.res.now, cause, closed: false, verdict: None };
        trunk.fail_unposted(&mut self.res);
        let error = QpModify { state: Some(QpState::Error), ..QpModify::default() };
        if let Err(error) = trunk.qp.modify(&error) {
            tracing::debug!(%error, "moving a QP to ERR");
        }
        if let Some(peer) = self.peers.get_mut(&trunk.peer)
            && peer.trunk == Some(slot)
        {
            peer.trunk = None;
            peer.dying += 1;
        }
    }

    /// The QPs through which the peer reached us are destroyed, and what came through ours was taken.
    fn session_closed(&mut self, key: PeerKey, number: u32) {
        if let Some(peer) = self.peers.get_mut(&key)
            && peer.pending.as_ref().is_some_and(|session| session.number == number)
            && let Some(session) = peer.pending.take()
        {
            destroy_ini(&self.res, session.qp.as_ref());
        }
        if let Some(slot) = self.find_trunk(key, number) {
            // The reason follows in `PeerDown`; until then the messages' own cause is this.
            self.begin_dying(slot, PeerDown::Died);
        }
        self.begin_closing(key, number);
    }

    /// Nothing of the session comes any more.
    pub(super) fn finish_closing(&mut self, key: PeerKey, number: u32) {
        let gone = |target: &Target| target.peer == key && target.number == number;
        for target in self.targets.values().filter(|target| gone(target)) {
            self.res.grants.close(target.pair);
        }
        self.targets.retain(|_, target| !gone(target));
        let Some(slot) = self.find_trunk(key, number) else { return };
        if let Some(Trunk { health: Health::Dying { closed, .. }, .. }) = self.trunks.get_mut(slot) {
            *closed = true;
        }
        self.bury_if_done(slot);
    }

    fn peer_down(&mut self, key: PeerKey, number: u32, down: PeerDown) {
        if let Some(slot) = self.find_trunk(key, number) {
            if let Some(Trunk { health: Health::Dying { cause, verdict, .. }, .. }) =
                self.trunks.get_mut(slot)
            {
                *verdict = Some(down);
                *cause = down;
            }
            self.bury_if_done(slot);
            return;
        }
        let Some(peer) = self.peers.get_mut(&key) else { return };
        peer.asked = false;
        let outcome = SendOutcome::Failed(SendFailure { may_have_arrived: false, cause: down });
        for message in peer.waiting.drain(..) {
            self.res.events.push_back(Event::Sent(message.token, outcome));
        }
        self.res.events.push_back(Event::Peer(key, PeerEvent::Down { cause: down }));
    }

    pub(super) fn find_trunk(&self, peer: PeerKey, number: u32) -> Option<usize> {
        self.trunks
            .iter()
            .find(|(_, trunk)| trunk.peer == peer && trunk.number == number)
            .map(|(slot, _)| slot)
    }

    /// Second phase for every trunk that is ready for it.
    pub(super) fn bury_dead(&mut self) {
        let dying = self
            .trunks
            .iter()
            .filter(|(_, trunk)| !trunk.is_live())
            .map(|(slot, _)| slot)
            .collect::<Vec<_>>();
        for slot in dying {
            self.bury_if_done(slot);
        }
    }

    /// Second phase: the device is done with everything of the trunk.
    fn bury_if_done(&mut self, slot: usize) {
        let Some(trunk) = self.trunks.get(slot) else { return };
        let Health::Dying { since, closed, verdict: Some(cause), .. } = trunk.health else { return };
        let overdue = self.res.now.saturating_duration_since(since) > FLUSH_LIMIT;
        if !(closed && (trunk.in_flight.is_empty() || overdue)) {
            return;
        }
        if !trunk.in_flight.is_empty() {
            tracing::warn!(left = trunk.in_flight.len(), "the device did not flush a QP in time");
        }
        self.bury(slot, cause);
    }

    /// Frees a trunk, whatever the device still has of it.
    pub(super) fn bury(&mut self, slot: usize, cause: PeerDown) {
        let Some(mut trunk) = self.trunks.try_remove(slot) else { return };
        destroy_ini(&self.res, trunk.qp.as_ref());
        if let Some(last) = trunk.in_flight.back().map(|posted| posted.sequence) {
            while !trunk.in_flight.is_empty() {
                trunk.complete_as_failed(&mut self.res, last);
            }
        }
        let outcome = trunk.failure(true);
        for source in std::mem::take(&mut trunk.sources).into_values() {
            self.res.events.push_back(Event::Sent(source.token, outcome));
        }
        self.res.events.push_back(Event::Peer(trunk.peer, PeerEvent::Down { cause }));
        self.res.marked.retain(|&other| other != slot);
        let Some(peer) = self.peers.get_mut(&trunk.peer) else { return };
        peer.dying -= 1;
        if peer.dying > 0 {
            return;
        }
        if let Some(session) = peer.pending.take() {
            self.activate(*session);
        } else if !peer.waiting.is_empty() {
            self.ask(trunk.peer);
        } else if peer.forgotten {
            self.peers.remove(&trunk.peer);
        }
    }

    /// Asks the CM machine for a session, once.
    pub(super) fn ask(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if !peer.asked {
            peer.asked = true;
            self.res.shared.cm.command(CmCommand::Want { peer: key, address: peer.address });
        }
    }

    fn forget(&mut self, key: PeerKey) {
        let Some(peer) = self.peers.get_mut(&key) else { return };
        if peer.named || !peer.waiting.is_empty() || peer.trunk.is_some() || peer.pending.is_some() {
            return;
        }
        peer.forgotten = true;
        if peer.dying == 0 {
            self.peers.remove(&key);
        }
    }
}

impl Trunk {
    /// What the device never gave back, when it is not waited for any longer.
    fn complete_as_failed(&mut self, res: &mut Resources, last: u64) {
        let sequence = self.in_flight.front().map_or(last, |posted| posted.sequence);
        self.complete(res, sequence, false);
    }
}

/// Destroys an INI that is in ERR or never sent anything.
pub(super) fn destroy_ini(res: &Resources, qp: &dyn QueuePair) {
    if let Err(error) = qp.destroy() {
        tracing::debug!(%error, "destroying an INI");
    }
    res.shared.gauges.ini.fetch_sub(1, Ordering::Relaxed);
}
