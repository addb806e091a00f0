//! Renewals, which are handshakes that repeat the proof of names in a live session, and the expiry of certificates.
//!
//! The TLS client begins a renewal after an hour, before either certificate expires, after its own credentials
//! change, and on a RENEW frame from the server. The frames are sent among calls, in the lane between poller 0 of both
//! nodes. A failed renewal is repeated. The session ends when the peer's certificate expires.
//! `docs/book/src/why/security.md`, *Renewal*, specifies the rules.
#![forbid(unsafe_code)]

use super::cm_machine::CmMachine;
use super::machine::FAILURE_LIMIT;
use super::proving::{EARLY_FRAMES, Live, PeerProof, SessionOfPeer, Stage, principal};
use crate::command::Command;
use crate::identity::binding::Binding;
use crate::identity::exchange::{Proof, Role};
use crate::identity::keys::RenewedKeys;
use crate::identity::{Credentials, HandshakeFailure, Proven, Refused};
use crate::wire::handshake::{Fragment, Part};
use crate::{PeerDown, PeerIdentity};
use rustls::pki_types::UnixTime;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use trunkline_verbs::Time;

/// Minimum time between two exchanges of a session.
const INTERVAL: Duration = Duration::from_secs(10);
/// Pause before a failed renewal is repeated, and pause if too many other renewals run.
const AGAIN: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(1);
/// Number of repetitions of a failed renewal before a pause of an hour.
const REPETITIONS: u8 = 2;
/// Time in which a peer must renew a certificate that no longer chains to a root.
const GRACE: Duration = Duration::from_secs(60);
/// Maximum number of concurrent renewals, in total and per principal.
const RENEWALS: usize = 64;
const RENEWALS_OF_ONE: usize = 4;
/// Pause between the renewals of two sessions after a change of credentials, and maximum total of these pauses.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSES: Duration = Duration::from_secs(30);

impl CmMachine {
    /// Records the outcome of a session's first handshake.
    pub(super) fn live(&mut self, session: SessionOfPeer, role: Role, binding: Binding, proof: Proof) {
        let (previous, lanes, now) = (proof.previous(), proof.lanes(), self.now());
        let Proof { proven, settings, .. } = proof;
        let binding = Binding { previous: Some(previous), ..binding };
        let (principal, ends) = (principal(&proven), proven.not_after());
        let identity = PeerIdentity::Proven(Arc::new(proven));
        let live = Live {
            proof: PeerProof { identity, settings: settings.into() },
            role,
            binding,
            principal,
            number: 0,
            exchange: None,
            begins: false,
            early: Vec::new(),
            begun_at: now,
            renew_at: None,
            serve_at: None,
            ends_at: Time::MAX,
            ending: Refused::Expired.into(),
            failed: 0,
            renewed: lanes.iter().map(|_| RenewedKeys::default()).collect(),
            lanes,
            switching: 0,
        };
        self.proving.get(session).stage = Stage::Proved(Box::new(live));
        self.schedule(session, ends);
    }

    /// Sets the times of the next renewal and of the end, after a proof that is valid until `ends`.
    fn schedule(&mut self, session: SessionOfPeer, ends: UnixTime) {
        let (now, random) = (self.now(), self.shared.runtime.random());
        let Some(credentials) = self.proving.credentials.clone() else { return };
        let left = |until: UnixTime| left(&credentials, until);
        let hour = self.renew_after;
        // Subtract up to a tenth at random, so that a node's sessions are not all renewed at the same time.
        let part = u32::try_from(random % 1024).unwrap_or(0);
        let regular = hour - hour * part / 10_240;
        let (theirs, own) = (left(ends), left(credentials.not_after));
        let Some(live) = self.proving.live(session) else { return };
        live.ends_at = now + theirs;
        live.failed = 0;
        if live.role == Role::Client {
            let before_the_end = theirs.min(own) * 9 / 10;
            live.renew_at = Some(now + regular.min(before_the_end).max(INTERVAL.min(hour)));
        }
        self.set_live_timer(session);
    }

    fn set_live_timer(&mut self, session: SessionOfPeer) {
        let Some(live) = self.proving.live(session) else { return };
        let exchange = live.exchange.as_ref().and_then(|exchange| exchange.next_timer());
        let timer = [live.renew_at, live.serve_at, exchange].into_iter().flatten().min();
        let timer = timer.map_or(live.ends_at, |at| at.min(live.ends_at));
        self.proving.set_timer(session, Some(timer));
    }

    /// Takes new credentials. Live sessions are renewed, and end if their certificates are revoked. If the principal
    /// has changed, a renewal would end them, so they keep the last proof until their next regular renewal.
    pub(super) fn take_credentials(&mut self, credentials: &Arc<Credentials>) {
        let earlier = self.proving.credentials.replace(Arc::clone(credentials));
        let is_same = earlier.and_then(|earlier| earlier.principal()) == credentials.principal();
        let mut sessions = Vec::new();
        for session in self.proving.live_sessions() {
            self.judge(session);
            sessions.extend(self.proving.renewing(session).map(|live| (live.ends_at, session)));
        }
        let now = self.now();
        for (session, pause) in one_by_one(sessions) {
            if is_same {
                self.ask_for_renewal(session, now + pause);
            }
            self.set_live_timer(session);
        }
    }

    /// Ends a session if its certificates are revoked, or after [`GRACE`] if they no longer chain to a root. Returns
    /// true in the second case.
    fn judge(&mut self, session: SessionOfPeer) -> bool {
        let now = self.now();
        let Some(live) = self.proving.renewing(session) else { return false };
        let PeerIdentity::Proven(proven) = &live.proof.identity else { return false };
        let cause = match self.judged(proven) {
            Ok(()) => return false,
            Err(cause) => cause,
        };
        if cause == Refused::Revoked {
            self.end_live(session, cause.into());
            return false;
        }
        let Some(live) = self.proving.live(session) else { return false };
        (live.ends_at, live.ending) = (live.ends_at.min(now + GRACE), cause.into());
        true
    }

    /// Verifies certificates against the current roots and lists, which may be newer than the exchange that verified
    /// them.
    ///
    /// # Errors
    /// Returns the cause for which they are now refused.
    pub(super) fn judged(&self, proven: &Proven) -> Result<(), Refused> {
        let credentials = self.proving.credentials.as_ref().ok_or(Refused::Malformed)?;
        let date = credentials.client.time_provider.current_time().ok_or(Refused::Malformed)?;
        credentials.verifier.check(proven.certificates(), date).map(drop)
    }

    /// Schedules a renewal at `at`, but no earlier than [`INTERVAL`] after the last renewal. The TLS server then
    /// requests it from the client.
    fn ask_for_renewal(&mut self, session: SessionOfPeer, at: Time) {
        let interval = INTERVAL.min(self.renew_after);
        let Some(live) = self.proving.live(session).filter(|live| live.exchange.is_none()) else { return };
        live.renew_at = Some(at.max(live.begun_at + interval));
    }

    /// Begins a renewal, or requests one from the TLS client.
    fn begin_renewal(&mut self, session: SessionOfPeer) {
        let (key, number) = session;
        let Some(live) = self.proving.live(session).filter(|live| live.exchange.is_none()) else { return };
        let next = live.number.wrapping_add(1);
        if live.role == Role::Client {
            (live.begins, live.number) = (true, next);
            return self.queue_renewal(session);
        }
        for fragment in Fragment::all(next, false, Part::Renew, &[]) {
            let frame = fragment.emit().into();
            self.shared.pollers[0].command(Command::SendHandshake { peer: key, number, frame });
        }
    }

    /// Handles a handshake frame of a session that has a proof.
    pub(super) fn renewal_frame(&mut self, session: SessionOfPeer, frame: Box<[u8]>) {
        let (now, interval) = (self.now(), INTERVAL.min(self.renew_after * 9 / 10));
        let Some(live) = self.proving.live(session) else { return };
        let Ok(Fragment { exchange: number, part, .. }) = Fragment::parse(&frame) else {
            return self.end_live(session, Refused::Malformed.into());
        };
        match &mut live.exchange {
            // The server requests a renewal that this client has begun.
            Some(_) if part == Part::Renew && live.role == Role::Client => {}
            Some(exchange) if live.number == number => match exchange.handle(frame) {
                Ok(true) => self.queue_handshake(session),
                Ok(false) => self.after_renewal(session),
                Err(failure) => self.renewal_failed(session, failure),
            },
            None if live.role == Role::Client && part == Part::Renew && number > live.number => {
                self.ask_for_renewal(session, now);
                self.set_live_timer(session);
            }
            _ if live.role == Role::Server && part == Part::Tls && number >= live.number => {
                if number > live.number {
                    // The client has begun the next exchange, so the previous exchange is over.
                    (live.number, live.exchange) = (number, None);
                    live.early.clear();
                    live.serve_at = Some(now.max(live.begun_at + interval));
                }
                if live.early.len() < EARLY_FRAMES && live.serve_at.is_some() {
                    live.early.push(frame);
                }
                self.set_live_timer(session);
            }
            // The frame belongs to an ended exchange.
            _ => {}
        }
    }

    /// Handles the timer of a session that has a proof.
    pub(super) fn tick_live(&mut self, session: SessionOfPeer, now: Time) {
        let is_up = self.peers.get(session.0).is_some_and(|peer| peer.machine.is_up_as(session.1));
        let Some(live) = self.proving.renewing(session) else { return };
        let is_any_due = [live.renew_at, live.serve_at].into_iter().flatten().any(|at| at <= now);
        let can_begin = is_any_due && is_up && live.switching == 0 && self.has_room_for_renewal(live);
        let Some(live) = self.proving.live(session) else { return };
        if live.ends_at <= now {
            let ending = live.ending;
            return self.end_live(session, ending);
        }
        if let Some(exchange) = &mut live.exchange {
            // A server that has this client's proof may have switched.
            let may_have_switched = exchange.has_peer_proved();
            match exchange.handle_timer(now) {
                Ok(()) => {}
                Err(failure) if may_have_switched => return self.end_live(session, failure),
                Err(failure) => return self.renewal_failed(session, failure),
            }
        }
        let is_due = |at: &mut Option<Time>| {
            let is_due = at.is_some_and(|at| at <= now);
            if is_due {
                *at = (!can_begin).then(|| now + BUSY);
            }
            is_due && can_begin
        };
        if is_due(&mut live.renew_at) {
            self.begin_renewal(session);
        } else if is_due(&mut live.serve_at) {
            live.begins = true;
            self.queue_renewal(session);
        }
        self.set_live_timer(session);
    }

    /// Records that all lanes of a session at one poller have switched.
    pub(super) fn switched(&mut self, session: SessionOfPeer) {
        if let Some(live) = self.proving.live(session) {
            live.switching = live.switching.saturating_sub(1);
        }
    }

    fn has_room_for_renewal(&self, own: &Live) -> bool {
        let renewals = &self.proving.renewals;
        let is_same = |session: &&SessionOfPeer| {
            self.proving.renewing(**session).is_some_and(|live| live.principal == own.principal)
        };
        renewals.len() < RENEWALS && renewals.iter().filter(is_same).count() < RENEWALS_OF_ONE
    }

    /// Queues the turn that begins an exchange.
    fn queue_renewal(&mut self, session: SessionOfPeer) {
        self.proving.renewals.insert(session);
        self.queue_handshake(session);
    }

    /// Sends the frames of a renewal, and takes its outcome.
    pub(super) fn after_renewal(&mut self, session: SessionOfPeer) {
        let ((key, number), now) = (session, self.now());
        let Some(live) = self.proving.live(session) else { return };
        let Some(exchange) = &mut live.exchange else { return };
        if let Some(proven) = exchange.proven() {
            if principal(proven) != live.principal {
                let failure = exchange.fail(Refused::RenewedName);
                return self.renewal_failed(session, failure);
            }
            exchange.confirm(now);
            // The peer may switch once it has one of the frames below.
            for (renewed, lanes) in live.renewed.iter().zip(exchange.lanes()) {
                renewed.put(lanes);
            }
        }
        while let Some(frame) = exchange.poll_frame() {
            self.shared.pollers[0].command(Command::SendHandshake { peer: key, number, frame });
        }
        let Some(proof) = exchange.take_proof() else {
            return self.set_live_timer(session);
        };
        live.binding.previous = Some(proof.previous());
        let Proof { proven, .. } = proof;
        let ends = proven.not_after();
        let identity = PeerIdentity::Proven(Arc::new(proven));
        live.exchange = None;
        live.switching = live.renewed.len();
        let had_until = live.ends_at;
        let exchange = live.number;
        live.proof.identity = identity.clone();
        live.ending = Refused::Expired.into();
        tracing::debug!(peer = %key, exchange, "session re-authenticated");
        if let Some(own) = &self.shared.identity {
            own.renewals.fetch_add(1, Ordering::Relaxed);
        }
        self.tell(|| Command::Renewed { peer: key, number, identity: identity.clone(), exchange });
        self.schedule(session, ends);
        if self.judge(session) {
            // The roots have changed. Keep the grace period that began then.
            if let Some(live) = self.proving.live(session) {
                live.ends_at = live.ends_at.min(had_until);
            }
            self.ask_for_renewal(session, now);
        }
        self.set_live_timer(session);
    }

    /// Ends a renewal. It is repeated, unless its cause ends the session.
    pub(super) fn renewal_failed(&mut self, session: SessionOfPeer, failure: HandshakeFailure) {
        let ((key, number), now, hour) = (session, self.now(), self.renew_after);
        self.count_failure();
        let Some(live) = self.proving.live(session) else { return };
        if let Some(mut exchange) = live.exchange.take() {
            while let Some(frame) = exchange.poll_frame() {
                self.shared.pollers[0].command(Command::SendHandshake { peer: key, number, frame });
            }
        }
        (live.begins, live.serve_at) = (false, None);
        live.early.clear();
        tracing::warn!(peer = %key, cause = %failure, "session re-authentication failed");
        if matches!(failure.cause(), Refused::Binding | Refused::Malformed | Refused::RenewedName) {
            (live.ends_at, live.ending) = (now + FAILURE_LIMIT, failure);
        } else if live.role == Role::Client {
            live.failed = live.failed.saturating_add(1);
            let pause = if live.failed <= REPETITIONS { AGAIN } else { hour.max(AGAIN) };
            live.renew_at = Some(now + pause);
        }
        self.set_live_timer(session);
    }

    fn end_live(&mut self, (key, number): SessionOfPeer, failure: HandshakeFailure) {
        let (now, cause) = (self.now(), PeerDown::Handshake(failure));
        self.drive(key, |machine, actions| machine.fail(now, number, cause, false, actions));
    }
}

/// Returns the time until a date, according to the clock of `credentials`.
fn left(credentials: &Credentials, until: UnixTime) -> Duration {
    let date = credentials.client.time_provider.current_time();
    let left = date.map_or(0, |date| until.as_secs().saturating_sub(date.as_secs()));
    Duration::from_secs(left)
}

/// Returns sessions in the order in which their certificates expire, with the pause before the renewal of each
/// session.
fn one_by_one<S: Ord>(mut sessions: Vec<(Time, S)>) -> impl Iterator<Item = (S, Duration)> {
    sessions.sort_unstable();
    let count = u32::try_from(sessions.len()).unwrap_or(u32::MAX);
    let pause = PAUSE.min(PAUSES / count.max(1));
    (0..).zip(sessions).map(move |(before, (_, session))| (session, pause * before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_are_spread_and_ordered_by_certificate_expiry() {
        let pauses = |count: u64| {
            one_by_one((0..count).map(|number| (Time(1_000_000 - number), number)).collect())
                .collect::<Vec<_>>()
        };
        assert_eq!(pauses(1), [(0, Duration::ZERO)]);
        assert_eq!(pauses(3), [(2, Duration::ZERO), (1, PAUSE), (0, PAUSE * 2)]);
        let (last, pause) = pauses(100_000).pop().unwrap();
        assert!(last == 0 && pause < PAUSES && pause > PAUSES * 9 / 10, "{pause:?}");
    }
}
