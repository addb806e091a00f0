//! Effects of the flights, outcomes and deadlines of sessions' handshakes.
//!
//! TLS verifies and signs here, on the CM machine, never on a poller. Reading a flight takes about 100 µs, and unknown
//! peers determine how many flights arrive, so a turn reads only one.
//!
//! ```text
//! Action::Prove -> begin -> flight -> flight .. -> proof, all frames acknowledged -> Machine::proved
//!                              `-> failure -> the peer has ended the session, or 1 s -> Machine::fail
//! ```
//!
//! Poller 0 posts the outgoing frames and passes on the received frames (`poller/handshakes.rs`). A session comes up
//! only after its frames are acknowledged, because its INI then belongs to a trunk.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::dialling::log_set_up;
use super::endpoints::{FirstConnection, FirstPair};
use super::machine::{Action, FAILURE_LIMIT};
use super::peers::PeerSession;
use super::private_data::{Carried, Features, Hello, SPOKEN, Welcome};
use super::proving::{EARLY_FRAMES, SessionOfPeer, Stage, Start, advance, principal};
use crate::command::Command;
use crate::identity::binding::{Binding, Side};
use crate::identity::exchange::{Proof, Role};
use crate::identity::{EndedBy, HandshakeFailure, Refused};
use crate::trunk::own_settings;
use crate::wire::handshake::{Fragment, Part};
use crate::{EventKind, PeerDown, PeerKey};
use std::sync::atomic::Ordering;
use trunkline_machine::mutant;
use trunkline_verbs::{Gid, SrqNumber, Time};

impl CmMachine {
    /// Begins the handshake of a session whose first pair of connections is complete.
    pub(super) fn begin_handshake(
        &mut self,
        key: PeerKey,
        number: u32,
        deadline: Time,
        actions: &mut Vec<Action>,
    ) {
        let now = self.now();
        let begun = self.endpoints.first_pair(key, number).ok_or(PeerDown::DeviceFailed).and_then(|pair| {
            let (role, binding, srq) = self.bind(key, &pair)?;
            Ok((Start { role, binding, deadline }, pair.qp, srq))
        });
        match begun {
            Ok((start, qp, srq)) => {
                if let Some(own) = &self.shared.identity {
                    own.handshakes_begun.fetch_add(1, Ordering::Relaxed);
                }
                self.shared.pollers[0].command(Command::BeginHandshake { peer: key, number, qp, srq });
                if let Stage::Begins { start: none, .. } = &mut self.proving.get((key, number)).stage {
                    *none = Some(Box::new(start));
                }
                self.queue_handshake((key, number));
            }
            Err(cause) => {
                if let Some(peer) = self.peers.get_mut(key) {
                    peer.machine.fail(now, number, cause, false, actions);
                }
            }
        }
    }

    /// Creates the binding of a session. Also returns this node's role, and the SRQ of the peer's poller 0.
    fn bind(&self, key: PeerKey, pair: &FirstPair) -> Result<(Role, Binding, SrqNumber), PeerDown> {
        let [own, other] = &pair.inis;
        let misbehaved = PeerDown::Misbehaved("its request and its reply differ");
        let ours = side(own, other).ok_or(PeerDown::DeviceFailed)?;
        let theirs = side(other, own).ok_or(misbehaved)?;
        let role = Role::of(ours.session.epoch, theirs.session.epoch)
            .ok_or(PeerDown::Misbehaved("it has the epoch of this node"))?;
        let role = if mutant!(both_sides_are_clients) { Role::Client } else { role };
        let srq = *theirs.srqs.first().ok_or(misbehaved)?;
        let version = SPOKEN.common(theirs.versions).ok_or(misbehaved)?;
        log_set_up(key, ours.session.number, "handshake begun", &format_args!("as TLS {role:?}"));
        let is_client = Role::of(ours.session.epoch, theirs.session.epoch) == Some(Role::Client);
        let binding = Binding {
            version,
            connections: self.endpoints.connections(),
            previous: None,
            sides: if is_client { [ours, theirs] } else { [theirs, ours] },
            settings: own_settings(&self.shared.limits).emit(),
        };
        Ok((role, binding, srq))
    }

    /// Handles a handshake frame that arrived at poller 0.
    pub(super) fn handshake_frame(&mut self, key: PeerKey, number: u32, frame: Box<[u8]>) {
        let Some(peer) = self.peers.get(key).filter(|peer| peer.machine.has(number)) else { return };
        if peer.machine.features(number) != Features::HANDSHAKE {
            return self.fail_handshake(key, number, Refused::Malformed.into());
        }
        let (session, is_up) = ((key, number), peer.machine.is_up_as(number));
        match &mut self.proving.get(session).stage {
            Stage::Begins { early, .. } if early.len() < EARLY_FRAMES => early.push(frame),
            Stage::Runs(exchange) => match exchange.handle(frame) {
                Ok(true) => self.queue_handshake(session),
                Ok(false) => {}
                Err(failure) => return self.handshake_failed(session, failure),
            },
            Stage::Begins { .. } => return self.fail_handshake(key, number, Refused::Malformed.into()),
            // Renewals wait until the session is up, since earlier frames use handshake slots, which the session
            // returns when it comes up.
            Stage::Proved(_) if is_up => return self.renewal_frame(session, frame),
            Stage::Proved(_) => {
                // The peer may be up already, and have new credentials.
                if Fragment::parse(&frame).is_ok_and(|fragment| fragment.part == Part::Renew) {
                    return;
                }
                return self.fail_handshake(key, number, Refused::Malformed.into());
            }
            Stage::Failed(failure) => {
                // The handshake has failed at both nodes.
                let failure = *failure;
                let is_failure = Fragment::parse(&frame).is_ok_and(|fragment| fragment.part == Part::Failure);
                if is_failure {
                    self.fail_handshake(key, number, failure);
                }
                return;
            }
        }
        self.after_flight(session);
    }

    /// Records that the peer has acknowledged handshake frames.
    pub(super) fn handshake_sent(&mut self, key: PeerKey, number: u32, acknowledged: u32) {
        let session = (key, number);
        let Some(handshake) = self.proving.handshakes.get_mut(&session) else { return };
        handshake.acknowledged = acknowledged;
        self.after_flight(session);
    }

    /// Returns this node's cause for ending the handshake of a session, and true if the cause is transient. Called when
    /// the peer ends the session.
    pub(super) fn handshake_cause(&self, key: PeerKey, number: u32) -> Option<(PeerDown, bool)> {
        match self.proving.handshakes.get(&(key, number))?.stage {
            Stage::Failed(failure) => Some((PeerDown::Handshake(failure), failure.cause == Refused::TooMany)),
            _ => None,
        }
    }

    /// Reads one flight. Returns true if other flights wait.
    pub(super) fn prove_next(&mut self) -> bool {
        let Some(session) = self.proving.pop() else { return false };
        let now = self.now();
        let credentials = self.proving.credentials.clone();
        if let (Some(handshake), Some(credentials)) = (self.proving.handshakes.get_mut(&session), credentials)
        {
            handshake.is_queued = false;
            let is_renewal = matches!(handshake.stage, Stage::Proved(_));
            match advance(&mut handshake.stage, &credentials, now) {
                Ok(is_more) => {
                    if is_more {
                        self.queue_handshake(session);
                    }
                    if is_renewal {
                        self.after_renewal(session);
                    } else {
                        self.after_flight(session);
                    }
                }
                Err(failure) if is_renewal => self.renewal_failed(session, failure),
                Err(failure) => self.handshake_failed(session, failure),
            }
        }
        self.proving.has_work()
    }

    /// Ends handshakes whose deadline has passed.
    pub(super) fn tick_handshakes(&mut self, now: Time) {
        if self.proving.next_timer().is_some_and(|at| at <= now) {
            self.proving.prune_renewals();
        }
        while let Some(&(_, session)) = self.proving.timers.first().filter(|(at, _)| *at <= now) {
            self.proving.set_timer(session, None);
            let Some(handshake) = self.proving.handshakes.get_mut(&session) else { continue };
            match &mut handshake.stage {
                Stage::Failed(failure) => {
                    let failure = *failure;
                    self.fail_handshake(session.0, session.1, failure);
                }
                Stage::Runs(exchange) => {
                    if let Err(failure) = exchange.handle_timer(now) {
                        self.handshake_failed(session, failure);
                    }
                }
                Stage::Proved(_) => self.tick_live(session, now),
                Stage::Begins { .. } => {}
            }
        }
    }

    pub(super) fn queue_handshake(&mut self, session: SessionOfPeer) {
        let now = self.now();
        let host = self.shared.hosts.of(session.0);
        let is_wanted = self.peers.get(session.0).is_some_and(|peer| peer.named);
        let is_first = is_wanted || self.peers.has_proved(host, now);
        let is_live = self.proving.live(session).is_some();
        let class = if is_live { 0 } else { 1 + usize::from(!is_first) };
        let handshake = self.proving.get(session);
        let has_begun = match &handshake.stage {
            Stage::Proved(live) => live.exchange.is_some(),
            stage => !matches!(stage, Stage::Begins { .. }),
        };
        if !std::mem::replace(&mut handshake.is_queued, true) {
            self.proving.queues[class].push(host, session, has_begun);
        }
    }

    /// Sends the frames of an exchange, and takes its outcome.
    fn after_flight(&mut self, session: SessionOfPeer) {
        let ((key, number), now, most) = (session, self.now(), self.host_limit());
        let Some(handshake) = self.proving.handshakes.get_mut(&session) else { return };
        let Stage::Runs(exchange) = &mut handshake.stage else { return };
        if let (Some(proven), Some(peer)) = (exchange.proven(), self.peers.get(key)) {
            let (host, pollers) = (self.shared.hosts.of(key), peer.machine.pollers_of(number));
            let refused = if !peer.machine.admits(number, &principal(proven)) {
                Some(Refused::OtherName)
            } else if !peer.named && self.peers.is_full(host, key, pollers, most) {
                Some(Refused::TooMany)
            } else {
                None
            };
            if let Some(cause) = refused {
                let failure = exchange.fail(cause);
                if cause == Refused::OtherName {
                    self.probe_live(key);
                }
                return self.handshake_failed(session, failure);
            }
            exchange.confirm(now);
        }
        while let Some(frame) = exchange.poll_frame() {
            handshake.given = handshake.given.wrapping_add(1);
            self.shared.pollers[0].command(Command::SendHandshake { peer: key, number, frame });
        }
        let has_proved = exchange.has_peer_proved();
        let is_sent = handshake.given == handshake.acknowledged;
        let proof = if is_sent { exchange.take_proof() } else { None };
        let timer = exchange.next_timer();
        if let Some(proof) = proof {
            let (role, binding) = (exchange.role(), exchange.binding().clone());
            return self.handshake_proved(session, role, binding, proof);
        }
        self.proving.set_timer(session, timer);
        if has_proved {
            self.peer_proved(key, number);
        }
    }

    /// Allows a peer that has proved its name to access memory and to open its other connections.
    fn peer_proved(&mut self, key: PeerKey, number: u32) {
        let is_new = self.peers.get(key).is_some_and(|peer| peer.machine.is_unproven(number));
        if !is_new {
            return;
        }
        if let Err(error) = self.endpoints.grant_rights(key, number) {
            tracing::warn!(peer = %key, %error, "memory access not granted to an authenticated peer");
        }
        let (host, now) = (self.shared.hosts.of(key), self.now());
        self.peers.proved(host, now);
        self.drive(key, |machine, _| machine.peer_proved(number));
    }

    fn handshake_proved(&mut self, session: SessionOfPeer, role: Role, binding: Binding, proof: Proof) {
        let ((key, number), now) = (session, self.now());
        if let Err(cause) = self.judged(&proof.proven) {
            return self.fail_handshake(key, number, cause.into());
        }
        self.peer_proved(key, number);
        log_set_up(key, number, "name proved", &proof.proven.principal());
        if let Some(own) = proof.proven.certificates().first() {
            let certificate: &[u8] = own;
            tracing::trace!(target: "trunkline::setup", peer = %key, session = number, certificate, "peer's certificate");
        }
        let name = principal(&proof.proven);
        self.live(session, role, binding, proof);
        if !self.drive(key, |machine, actions| machine.proved(now, number, &name, actions)) {
            // Another session has proved another name first.
            self.fail_handshake(key, number, Refused::OtherName.into());
        }
    }

    /// Sends the FAILURE of an ended exchange. The peer then ends the session.
    fn handshake_failed(&mut self, session: SessionOfPeer, failure: HandshakeFailure) {
        let ((key, number), now) = (session, self.now());
        self.after_flight(session);
        let handshake = self.proving.get(session);
        if failure.by != EndedBy::ThisNode || handshake.given == handshake.acknowledged {
            return self.fail_handshake(key, number, failure);
        }
        handshake.stage = Stage::Failed(failure);
        self.proving.set_timer(session, Some(now + FAILURE_LIMIT));
        // The peer may close the session before acknowledging the FAILURE.
        self.count_failure();
    }

    pub(super) fn count_failure(&self) {
        if let Some(own) = &self.shared.identity {
            own.handshakes_failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn fail_handshake(&mut self, key: PeerKey, number: u32, failure: HandshakeFailure) {
        let now = self.now();
        let cause = PeerDown::Handshake(failure);
        let stage = self.proving.handshakes.get(&(key, number)).map(|handshake| &handshake.stage);
        if !matches!(stage, Some(Stage::Failed(_))) {
            self.count_failure();
        }
        let is_transient = failure.cause == Refused::TooMany;
        let is_current = |peer: &PeerSession| peer.machine.current() == Some(number);
        let is_reported =
            self.peers.get(key).is_some_and(|peer| is_current(peer) && peer.machine.is_wanted());
        if !is_reported {
            self.shared.events.down(EventKind::SessionNotMade, key, cause);
            if let Some(suppressed) = self.log.line(now) {
                tracing::warn!(peer = %key, %cause, suppressed, "session not established; its handshake failed");
            }
        }
        self.drive(key, |machine, actions| machine.fail(now, number, cause, is_transient, actions));
    }
}

/// Returns the binding's side of the node that dialled `ini` and is the target of `back`. Returns `None` if the
/// messages are malformed or contradict each other.
fn side(ini: &FirstConnection, back: &FirstConnection) -> Option<Side> {
    let hello = Hello::parse(&ini.request, Features::HANDSHAKE).ok()?;
    let welcome = Welcome::parse(&back.reply).ok()?;
    let (request, reply) = (Carried::of_request(&ini.request)?, Carried::of_reply(&back.reply)?);
    let agree = request.versions == reply.versions
        && request.udp_port == reply.udp_port
        && hello.session == welcome.session
        && hello.pollers == welcome.pollers();
    agree.then(|| Side {
        versions: request.versions,
        features: [request.features, reply.features],
        listener_port: hello.listener_port,
        session: hello.session,
        pollers: hello.pollers,
        udp_port: request.udp_port,
        srqs: welcome.srqs,
        ini: ini.ini,
        tgt: back.tgt,
        gid: Gid::from(ini.from),
    })
}
