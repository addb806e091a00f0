//! The connection machine, which decides when to dial, which requests to accept, and when a session is up or over.
//!
//! There is one machine per peer, without I/O or a clock. The CM machine passes in requests, answers, failures and
//! the time, and executes the returned actions.
//!
//! A session has two halves. In one half, this node's INIs are connected to the peer's TGTs. In the other, the peer's
//! INIs are connected to this node's TGTs.
//!
//! ```text
//!            want / request                  all INIs answered, all TGTs arrived
//!   Idle ---------------------> Open(half) ------------------------------> Open(up)
//!    ^  \                         |   ^                                       |
//!    |   \ want, too soon         |   | time                                  |
//!    |    `--------> Backoff -----+---'                                       |
//!    |                  ^         | transient failure, still wanted           |
//!    |                  `---------'                                           |
//!    `-- failure: refused, unreachable, time-out ---- broken, closed, restarted
//! ```
//!
//! [`Backoff`] decides the pause between two attempts. After a reported failure, a caller that requests a session
//! during the pause gets that failure at once, unless it chose to wait. The next attempt begins when the pause is
//! over and a caller requests a session. A caller that arrives during an attempt waits for its result. A caller that
//! waits through the pause shortens it, and the CM machine limits the rate of such attempts.
//!
//! The first of a session's INIs is dialled alone. The other INIs follow when the peer has answered or returned a
//! cookie, so a forged source address causes this node to send only one request. In a session with HANDSHAKE, the other
//! INIs follow when both nodes have proved their names.
//!
//! Requests are passed to the machine only after the sender has proved its address (`requests.rs`).
//!
//! Requests are matched by session names, which are pairs of epoch and number. A node numbers its sessions and has an
//! epoch for each peer. A name is never reused. A dial-back echoes the name of the session that it answers. The
//! result of a request is:
//!
//! | request | this node's session | result |
//! |---|---|---|
//! | echoes a session that this node does not have | any | refused as stale, the session continues |
//! | any | none | accepted, a new session dials back |
//! | any | peer's session not known yet | accepted, simultaneous connects become one session |
//! | same peer session, poller not connected yet | the same | accepted |
//! | same peer session, poller already connected | the same | refused as malformed |
//! | same epoch, later number, no echo | older | the session ends, a new session accepts the request |
//! | same epoch, earlier number | later | refused as stale (it was in flight too long) |
//! | from an incarnation with an unknown critical setting | any | refused with the setting's number; this node's dial ends |
//! | without HANDSHAKE, and this node requires names | any | refused for lack of identity, unless it is local |
//! | without HANDSHAKE, from another user or host | local, with another name | refused for lack of identity |
//! | with HANDSHAKE and this node's own epoch | any | refused as malformed, the session continues |
//! | with HANDSHAKE, from a poller after the first | names not proved | refused as malformed |
//! | without HANDSHAKE | with HANDSHAKE | refused as stale before the proof, for lack of identity after it |
//! | with HANDSHAKE | this node's dial, without it | the session ends, a new session accepts and dials with HANDSHAKE |
//! | with HANDSHAKE | the same, without HANDSHAKE | refused as stale |
//! | other epoch, no echo | any | the peer was restarted, the session ends, a new session accepts the request |
#![forbid(unsafe_code)]

use super::backoff::Backoff;
use super::private_data::{Cookie, Features, Hello, Refusal, SessionName, Welcome};
use crate::{Connect, PeerDown};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_verbs::{OneFlow, Time};

/// Minimum time for which a session was up if its end is not attributed to the network path.
const EARLY_END: Duration = Duration::from_secs(10);

/// Time limit of a handshake.
pub(crate) const HANDSHAKE_LIMIT: Duration = Duration::from_secs(5);
/// Time after the deadline of a handshake during which the cause is sent to the peer.
pub(super) const FAILURE_LIMIT: Duration = Duration::from_secs(1);

/// Time after which a peer may have stopped connecting back. Unanswered requests are repeated for longer.
const PEER_GIVES_UP: Duration = Duration::from_millis(1500);

/// Maximum number of candidates per peer.
pub(super) const CANDIDATES: usize = 4;

/// Action for the CM machine, which executes actions in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    /// Connect this poller's INI.
    Dial { number: u32, poller: u16, echo: Option<SessionName> },
    /// Notify the pollers that the session is up.
    Up { number: u32, welcome: Welcome },
    /// Begin the handshake on the first pair of connections. [`Machine::proved`] ends it, or [`Machine::fail`] at the
    /// deadline.
    Prove { number: u32, deadline: Time },
    /// End the connection of one of the peer's INIs. The session continues.
    DropTarget { number: u32, poller: u16 },
    /// Destroy all objects of the session.
    Close { number: u32 },
    /// Notify the pollers that the peer is down. Comes after the `Close`.
    Down { number: u32, cause: PeerDown },
    /// Report that the peer has not answered a dial-back. Comes after the `Close`.
    Unanswered,
    /// Notify the pollers that an attempt to connect failed, and of the earliest time of the next attempt. Comes after
    /// the `Close`.
    Away { number: u32, cause: PeerDown, until: Time, is_new: bool },
}

impl Action {
    /// Returns the cause of a session's end if this action reports it.
    pub(super) fn reports(&self, session: u32) -> Option<PeerDown> {
        match *self {
            Self::Down { number, cause } | Self::Away { number, cause, .. } => {
                (number == session).then_some(cause)
            }
            _ => None,
        }
    }
}

/// State of one of the peer's INIs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Absent,
    Accepted,
    Arrived,
}

/// Levels of a node's sessions, specified in `docs/book/src/why/security.md`, *Levels*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Levels {
    /// No handshake, because the node has no identity.
    None,
    /// Handshake required.
    Encrypted,
    /// Handshake required, unless the peer has no identity.
    Either,
}

impl Levels {
    /// Returns the features that the node supports. The first dial of an attempt requests all of them.
    pub(crate) fn features(self) -> Features {
        if self == Self::None { Features::NONE } else { Features::HANDSHAKE }
    }
}

/// Progress of the proof of both names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ProofState {
    /// The first pair of connections is not complete.
    Pairing,
    /// The handshake is in progress.
    Exchanging,
    /// The peer has proved its name, and may have received the proof of this node's name. The peer may therefore dial
    /// its other INIs.
    PeerProved,
    /// Both names are proved, or the session has no handshake.
    Done,
}

#[derive(Debug)]
struct Session {
    number: u32,
    /// Features of all requests and replies of the session.
    features: Features,
    proof: ProofState,
    /// Name that the peer has proved.
    #[cfg(feature = "identity")]
    name: Option<Arc<str>>,
    remote: Option<SessionName>,
    welcome: Option<Welcome>,
    /// The peer's session that this node's dials answer.
    echo: Option<SessionName>,
    /// True if the peer has dialled the session. After simultaneous connects this is true on both sides.
    is_accepted: bool,
    /// True if this host has proved for all connections that the other end is a process of this user.
    is_local: bool,
    /// True for each local poller whose INI is connected.
    answered: Vec<bool>,
    /// True if the INIs after the first were dialled.
    all_dialled: bool,
    /// Number of dials that were answered with a cookie.
    unproven: u32,
    /// Targets by remote poller; empty until the peer's poller count has arrived.
    targets: Vec<Target>,
    began: Time,
    deadline: Time,
    up_since: Option<Time>,
}

/// Kind of a pause before an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    /// Lasts until the time that was reported to callers.
    Whole,
    /// Shortened for a caller that waits.
    Early,
    /// Shortened for a caller that waits, to a time reserved for the node.
    Reserved,
}

#[derive(Debug)]
enum SessionState {
    Idle,
    Backoff { until: Time, pause: Pause },
    Open(Box<Session>),
}

/// Source of a node's session numbers, shared by its machines. Numbers are unique even if a peer is removed and added
/// again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Numbers(Arc<AtomicU32>);

impl Numbers {
    fn next(&self) -> u32 {
        self.0.fetch_add(1, Ordering::Relaxed).wrapping_add(1).max(1)
    }
}

/// The machine of one peer.
#[derive(Debug)]
pub(crate) struct Machine {
    epoch: u64,
    pollers: u16,
    levels: Levels,
    /// True if the peer may be a process of this user on this host, which is exempt from the handshake.
    tries_local: bool,
    numbers: Numbers,
    /// Use of a single pair of UDP ports by the connections of the next session.
    one_flow: OneFlow,
    /// True if dials test whether one flow is needed.
    tries_one_flow: bool,
    state: SessionState,
    /// True if a session was ever up.
    was_up: bool,
    /// True if the peer answered an attempt to connect, and no session was up since.
    has_answered: bool,
    /// True if pollers wait for a session, so that a failure must be reported to them.
    wanted: bool,
    backoff: Backoff,
    /// Epoch of a peer's incarnation with a critical setting unknown to this node, and the setting. Settings
    /// do not change, so a session with that incarnation is impossible.
    incompatible: Option<(u64, u16)>,
    closed: bool,
    /// Unproven sessions of newcomers at the peer's address, in addition to the current session, oldest first.
    #[expect(clippy::vec_box, reason = "sessions move to and from the state, which has a box")]
    candidates: Vec<Box<Session>>,
    /// Number and start of the last current session that has ended.
    ended: Option<(u32, Time)>,
}

impl Machine {
    /// Creates the machine for a new peer. `epoch` is this node's epoch for it.
    pub(crate) fn new(epoch: u64, pollers: u16, levels: Levels, numbers: Numbers) -> Self {
        Self {
            epoch,
            pollers,
            levels,
            tries_local: false,
            numbers,
            one_flow: OneFlow::No,
            tries_one_flow: false,
            state: SessionState::Idle,
            was_up: false,
            has_answered: false,
            wanted: false,
            backoff: Backoff::new(epoch),
            incompatible: None,
            closed: false,
            candidates: Vec::new(),
            ended: None,
        }
    }

    /// Records whether the peer may be a process of this user on this host. If so, the next attempt begins without a
    /// handshake.
    pub(crate) fn set_local(&mut self, may_be_local: bool) {
        self.tries_local = may_be_local && self.levels != Levels::None;
    }

    /// Returns whether the connections of the session, or of the next one, are one flow.
    pub(crate) fn one_flow(&self) -> OneFlow {
        self.one_flow
    }

    /// Makes the next dial test whether one flow is needed. Peers must not dial this node by its address, or two
    /// sessions would result.
    pub(crate) fn try_one_flow(&mut self) {
        self.tries_one_flow = true;
        self.find_flow();
    }

    fn find_flow(&mut self) {
        if self.tries_one_flow {
            self.one_flow = OneFlow::Try;
        }
    }

    /// Sets whether the connections of the session are one flow.
    pub(crate) fn set_one_flow(&mut self, one_flow: OneFlow) {
        self.one_flow = one_flow;
    }

    fn dial_features(&self) -> Features {
        if self.tries_local { Features::NONE } else { self.levels.features() }
    }

    /// Returns true if sessions with this peer may have these features.
    fn allows(&self, features: Features, is_local: bool) -> bool {
        features != Features::NONE || is_local || self.levels != Levels::Encrypted
    }

    /// Returns a session, current or candidate.
    fn session(&self, number: u32) -> Option<&Session> {
        self.sessions().find(|session| session.number == number)
    }

    fn session_mut(&mut self, number: u32) -> Option<&mut Session> {
        let current = match &mut self.state {
            SessionState::Open(session) => Some(session),
            _ => None,
        };
        let mut all = current.into_iter().chain(&mut self.candidates).map(|session| &mut **session);
        all.find(|session| session.number == number)
    }

    fn sessions(&self) -> impl Iterator<Item = &Session> {
        let current = match &self.state {
            SessionState::Open(session) => Some(session),
            _ => None,
        };
        current.into_iter().chain(&self.candidates).map(|session| &**session)
    }

    /// Returns true if a current or candidate session has that number.
    pub(crate) fn has(&self, number: u32) -> bool {
        self.session(number).is_some()
    }

    /// Returns the number of the current session.
    pub(crate) fn current(&self) -> Option<u32> {
        match &self.state {
            SessionState::Open(session) => Some(session.number),
            _ => None,
        }
    }

    /// Returns the time at which a session began, if it is the current session or the previous one.
    pub(crate) fn began(&self, number: u32) -> Option<Time> {
        let current = match &self.state {
            SessionState::Open(session) => Some((session.number, session.began)),
            _ => None,
        };
        [current, self.ended].into_iter().flatten().find(|(of, _)| *of == number).map(|(_, began)| began)
    }

    /// Returns this node's name of the session with that number.
    pub(crate) fn name(&self, number: u32) -> SessionName {
        SessionName { epoch: self.epoch, number }
    }

    pub(crate) fn features(&self, number: u32) -> Features {
        self.session(number).map_or(self.levels.features(), |session| session.features)
    }

    /// Returns true if a request echoes the epoch and number of an open session. Only the peer has received
    /// them, so the echo proves its address.
    pub(crate) fn is_echoed(&self, hello: &Hello) -> bool {
        hello.echo.is_some_and(|echo| self.echoed(echo).is_some())
    }

    fn echoed(&self, echo: SessionName) -> Option<&Session> {
        self.session(echo.number).filter(|_| echo.epoch == self.epoch)
    }

    /// Returns true if this is the peer's name for a session of the machine.
    pub(crate) fn is_with(&self, name: SessionName) -> bool {
        self.sessions().any(|session| session.remote == Some(name))
    }

    /// Returns true if a session with the peer was ever up.
    pub(crate) fn was_up(&self) -> bool {
        self.was_up
    }

    /// Pretends that a session was up. For tests.
    #[cfg(test)]
    pub(crate) fn pretend_it_was_up(&mut self) {
        self.was_up = true;
    }

    /// Returns the progress of the proof in a session.
    #[cfg(test)]
    fn proof(&self, number: u32) -> ProofState {
        self.session(number).map_or(ProofState::Pairing, |session| session.proof)
    }

    /// Returns true if the current session's peer is a verified process of this user on this host.
    pub(crate) fn is_with_local_user(&self) -> bool {
        matches!(&self.state, SessionState::Open(session) if session.is_with_local_user())
    }

    /// Returns true if the current session is up.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&self.state, SessionState::Open(session) if session.up_since.is_some())
    }

    /// Returns true if the session with that number is up.
    #[cfg(feature = "identity")]
    pub(crate) fn is_up_as(&self, number: u32) -> bool {
        self.is_up() && self.current() == Some(number)
    }

    /// Returns true if the peer accepted the session long ago, but its own connections have not arrived. If the peer
    /// then closes the session, its requests were lost in transit.
    pub(super) fn lacks_connections_back(&self, now: Time, number: u32) -> bool {
        self.session(number).is_some_and(|session| {
            session.up_since.is_none()
                && session.answered.first() == Some(&true)
                && !session.targets.contains(&Target::Arrived)
                && session.is_old(now)
        })
    }

    /// Returns true if the failure of a session shows that the peer has not answered the dial-back.
    pub(super) fn lacks_answer(&self, now: Time, number: u32, cause: PeerDown) -> bool {
        self.session(number).is_some_and(|session| session.lacks_answer(now, cause))
    }

    /// Returns true if the peer has dialled the current session.
    pub(crate) fn is_accepted(&self) -> bool {
        matches!(&self.state, SessionState::Open(session) if session.is_accepted)
    }

    /// Returns the number of the peer's connections, including announced ones, in sessions that are not up yet.
    pub(crate) fn half_open(&self) -> u32 {
        let current = if self.is_up() { 0 } else { self.connections() };
        let candidates = self.candidates.iter().map(|session| session.connections());
        candidates.fold(current, u32::saturating_add)
    }

    /// Returns the number of the peer's connections, including announced ones, in the current session; 1 before the
    /// proof.
    pub(crate) fn connections(&self) -> u32 {
        match &self.state {
            SessionState::Open(session) => session.connections(),
            _ => 0,
        }
    }

    /// Returns true if a session requires a handshake, and its peer has not proved a name.
    pub(crate) fn is_unproven(&self, number: u32) -> bool {
        self.session(number).is_some_and(Session::is_unproven)
    }

    pub(crate) fn unproven_sessions(&self) -> usize {
        self.sessions().filter(|session| session.is_unproven()).count()
    }

    /// Returns the number of the peer's pollers in a session.
    #[cfg(feature = "identity")]
    pub(crate) fn pollers_of(&self, number: u32) -> u16 {
        self.session(number).map_or(0, |session| u16::try_from(session.targets.len()).unwrap_or(u16::MAX))
    }

    pub(crate) fn candidates(&self) -> usize {
        self.candidates.len()
    }

    /// Returns the oldest unproven session.
    pub(crate) fn oldest_unproven(&self) -> Option<u32> {
        let unproven = self.sessions().filter(|session| session.is_unproven());
        unproven.min_by_key(|session| session.deadline).map(|session| session.number)
    }

    /// Returns the setting that rules out a session with this incarnation of the peer.
    fn unknown_setting_of(&self, epoch: u64) -> Option<u16> {
        self.incompatible.filter(|(known, _)| *known == epoch).map(|(_, setting)| setting)
    }

    /// Returns true if a poller waits for a session.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted
    }

    /// Returns true if there is no session, no attempt and no waiting poller.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.state, SessionState::Idle) && self.candidates.is_empty()
    }

    /// Requests a session for sending. Opens one, or reports why the last attempt failed.
    pub(crate) fn want(&mut self, now: Time, connect: Connect, actions: &mut Vec<Action>) {
        if self.closed {
            actions.push(Action::Down { number: 0, cause: PeerDown::ShuttingDown });
            return;
        }
        if self.is_up() {
            return;
        }
        let waits = connect == Connect::Wait || mutant!(calls_wait_for_the_next_attempt);
        if let (Some((cause, until)), None) = (self.backoff.away(now), self.current())
            && (!waits || cause.is_final())
        {
            actions.push(Action::Away { number: 0, cause, until, is_new: false });
            return;
        }
        self.wanted = true;
        if matches!(self.state, SessionState::Idle) || mutant!(second_session_is_dialed) {
            match self.backoff.not_before(now) {
                Some(until) => self.state = SessionState::Backoff { until, pause: Pause::Whole },
                None => self.open(now, None, self.dial_features(), actions),
            }
        }
        if waits && let SessionState::Backoff { until, pause: pause @ Pause::Whole } = &mut self.state {
            let early = self.backoff.early(now);
            if early < *until {
                (*until, *pause) = (early, Pause::Early);
            }
        }
    }

    /// Returns true if the next attempt may begin early because a caller waits. The caller of this function reserves
    /// a time for it.
    pub(super) fn is_early(&self, now: Time) -> bool {
        matches!(self.state, SessionState::Backoff { until, pause: Pause::Early } if until <= now)
    }

    /// Delays an early attempt until a reserved time, or until the end of the whole pause if that is
    /// earlier.
    pub(super) fn delay(&mut self, now: Time, reserved: Time) {
        let until = self.backoff.not_before(now).map_or(now, |whole| whole.min(reserved));
        if let SessionState::Backoff { pause: Pause::Early, .. } = self.state {
            self.state = SessionState::Backoff { until, pause: Pause::Reserved };
        }
    }

    /// Handles a request from the peer, which has proved its address. Returns the number of its session; the caller
    /// then accepts the request.
    ///
    /// # Errors
    /// Returns the refusal to send.
    pub(crate) fn request(
        &mut self,
        now: Time,
        hello: &Hello,
        actions: &mut Vec<Action>,
    ) -> Result<u32, Refusal> {
        if self.closed {
            return Err(Refusal::ShuttingDown);
        }
        if !self.allows(hello.features, hello.is_local) {
            return Err(Refusal::IdentityRequired);
        }
        if hello.features == Features::HANDSHAKE && hello.session.epoch == self.epoch {
            // Both nodes need different epochs to determine their roles. This node's own dial continues.
            return Err(Refusal::Malformed);
        }
        if hello.echo.is_some() && !self.is_echoed(hello) {
            return Err(Refusal::Stale);
        }
        let joined = match hello.echo {
            Some(echo) => self.echoed(echo),
            None => self.sessions().find(|session| session.remote == Some(hello.session)),
        };
        if let Some(number) = joined.map(|session| session.number)
            && self.candidates.iter().any(|session| session.number == number)
        {
            return self.join_candidate(number, hello);
        }
        let known = match &self.state {
            SessionState::Open(session) => session.remote,
            _ => None,
        };
        if let SessionState::Open(session) = &self.state
            && session.is_with_local_user()
            && known != Some(hello.session)
            && hello.features == Features::NONE
            && !hello.is_local
        {
            return Err(Refusal::IdentityRequired);
        }
        let epoch = hello.session.epoch;
        if let Some(setting) = self.unknown_setting_of(epoch) {
            // This node's own dial, if there is one, reaches the same incarnation.
            if let Some(number) = self.current().filter(|_| known.is_none_or(|name| name.epoch == epoch)) {
                self.fail(now, number, PeerDown::UnknownSetting(setting), false, actions);
            }
            return Err(Refusal::Setting(setting));
        }
        if hello.features == Features::HANDSHAKE && hello.poller > 0 && !self.admits_others(hello.session) {
            return Err(Refusal::Malformed);
        }
        if let SessionState::Open(session) = &self.state
            && session.features != hello.features
        {
            if session.features == Features::HANDSHAKE {
                let is_proven = session.proof == ProofState::Done;
                return Err(if is_proven { Refusal::IdentityRequired } else { Refusal::Stale });
            }
            if hello.echo.is_some() || known == Some(hello.session) {
                return Err(Refusal::Stale);
            }
            if known.is_none() {
                // Both nodes dial at the same time. This node repeats its dial in a session with the peer's features.
                self.replace(now, PeerDown::Replaced, actions);
            }
        }
        match known {
            Some(name) if name == hello.session => {}
            Some(_) if hello.echo.is_some() => {
                return Err(Refusal::Stale);
            }
            Some(name) if name.epoch == hello.session.epoch => {
                if !is_later(hello.session.number, name.number) {
                    return Err(Refusal::Stale);
                }
                if hello.features == Features::HANDSHAKE && !mutant!(restart_needs_no_name) {
                    return self.open_candidate(now, hello, actions);
                }
                self.replace(now, PeerDown::Replaced, actions);
            }
            Some(_) if hello.features == Features::HANDSHAKE && !mutant!(restart_needs_no_name) => {
                return self.open_candidate(now, hello, actions);
            }
            Some(_) => self.replace(now, PeerDown::Restarted, actions),
            None => {}
        }
        if self.current().is_none() {
            self.open(now, Some(hello.session), hello.features, actions);
        }
        let SessionState::Open(session) = &mut self.state else { return Err(Refusal::Malformed) };
        session.accept(hello)
    }

    /// Accepts a request from a newcomer at the address of a peer that has proved a name. Its session is a candidate.
    fn open_candidate(
        &mut self,
        now: Time,
        hello: &Hello,
        actions: &mut Vec<Action>,
    ) -> Result<u32, Refusal> {
        if self.candidates.len() >= CANDIDATES {
            let oldest = self.candidates.remove(0);
            actions.push(Action::Close { number: oldest.number });
        }
        let mut session = self.new_session(now, Some(hello.session), hello.features);
        let number = session.accept(hello)?;
        actions.push(Action::Dial { number, poller: 0, echo: Some(hello.session) });
        self.candidates.push(session);
        Ok(number)
    }

    /// Handles a request that belongs to a candidate.
    fn join_candidate(&mut self, number: u32, hello: &Hello) -> Result<u32, Refusal> {
        let session = self.session_mut(number).ok_or(Refusal::Stale)?;
        if session.remote != Some(hello.session) || session.features != hello.features {
            return Err(Refusal::Stale);
        }
        // A peer that has proved its name dials its other connections while DONE may still be in flight.
        if hello.poller > 0 && session.is_unproven() {
            Err(Refusal::Malformed)
        } else {
            session.accept(hello)
        }
    }

    /// Handles the acceptance of a poller's INI by the peer.
    pub(crate) fn answered(
        &mut self,
        now: Time,
        number: u32,
        poller: u16,
        welcome: Welcome,
        actions: &mut Vec<Action>,
    ) {
        let unknown_setting = self.unknown_setting_of(welcome.session.epoch);
        let Some(session) = self.session_mut(number) else { return };
        if session.proof == ProofState::Pairing && session.is_joined_by_another(welcome.session) {
            let accepted = |&(_, target): &(u16, &Target)| *target != Target::Absent;
            let dropped = (0..).zip(&session.targets).filter(accepted);
            actions.extend(dropped.map(|(poller, _)| Action::DropTarget { number, poller }));
            session.targets.clear();
            (session.remote, session.is_accepted) = (None, false);
        }
        let consistent = session.remote.is_none_or(|remote| remote == welcome.session)
            && session.welcome.as_ref().is_none_or(|earlier| *earlier == welcome);
        if !consistent {
            // The peer began another session between two requests of this node.
            self.fail(now, number, PeerDown::Restarted, true, actions);
            return;
        }
        session.remote = Some(welcome.session);
        session.is_local &= welcome.is_local;
        let (features, is_local) = (session.features, welcome.is_local);
        if !self.allows(features, is_local) {
            return self.dial_with_handshake(now, number, actions);
        }
        let Some(session) = self.session_mut(number) else { return };
        if let Some(setting) = unknown_setting {
            return self.fail(now, number, PeerDown::UnknownSetting(setting), false, actions);
        }
        if session.features != welcome.features {
            let cause = PeerDown::Misbehaved("it agreed to other features than this node wants");
            return self.fail(now, number, cause, false, actions);
        }
        if !session.fits(welcome.pollers()) {
            let cause = PeerDown::Misbehaved("two numbers of pollers for one session");
            self.fail(now, number, cause, false, actions);
            return;
        }
        session.welcome = Some(welcome);
        if let Some(answered) = session.answered.get_mut(usize::from(poller)) {
            *answered = true;
        }
        session.pair(actions);
        session.dial_others(actions);
        self.complete(now, actions);
    }

    /// Handles a refusal of a poller's INI with a cookie. Later dials carry the cookie.
    pub(crate) fn unproven(&mut self, now: Time, number: u32, poller: u16, actions: &mut Vec<Action>) {
        let pollers = self.pollers;
        let Some(session) = self.session_mut(number) else { return };
        session.unproven += 1;
        // Allow twice the expected number: one for the first INI, and one for each INI if the cookie expires.
        if session.unproven > 2 + 2 * u32::from(pollers) {
            let cause = PeerDown::Refused(Refusal::Unproven(Cookie([0; 16]), None).explain());
            return self.fail(now, number, cause, true, actions);
        }
        actions.push(Action::Dial { number, poller, echo: session.echo });
        session.dial_others(actions);
    }

    /// Handles the establishment of an accepted connection from the peer.
    pub(crate) fn arrived(&mut self, now: Time, number: u32, poller: u16, actions: &mut Vec<Action>) {
        let Some(session) = self.session_mut(number) else { return };
        if let Some(target @ Target::Accepted) = session.targets.get_mut(usize::from(poller)) {
            *target = Target::Arrived;
        }
        session.pair(actions);
        self.complete(now, actions);
    }

    /// Handles a refusal of an INI because the peer lacks a feature. Returns true if the machine dials once more
    /// without the features.
    pub(crate) fn feature_refused(&mut self, now: Time, number: u32, actions: &mut Vec<Action>) -> bool {
        let SessionState::Open(session) = &self.state else { return false };
        // A peer whose session name is known supports the feature.
        let may_repeat = self.levels == Levels::Either
            && session.number == number
            && session.features != Features::NONE
            && session.remote.is_none();
        if may_repeat {
            actions.push(Action::Close { number });
            self.open(now, None, Features::NONE, actions);
        }
        may_repeat
    }

    /// Handles a refusal of an INI because the peer requires an identity. Returns true if the machine dials once more
    /// with a handshake.
    pub(crate) fn identity_required(&mut self, now: Time, number: u32, actions: &mut Vec<Action>) -> bool {
        let is_local_try = self.tries_local
            && matches!(&self.state, SessionState::Open(session)
                if session.number == number && session.features == Features::NONE && session.echo.is_none());
        if is_local_try {
            self.dial_with_handshake(now, number, actions);
        }
        is_local_try
    }

    /// Repeats a dial that assumed a local user.
    fn dial_with_handshake(&mut self, now: Time, number: u32, actions: &mut Vec<Action>) {
        self.tries_local = false;
        actions.push(Action::Close { number });
        self.open(now, None, self.levels.features(), actions);
    }

    /// Handles the proof of the peer's name while this node's proof may still be in flight. On the TLS client, it is
    /// called when the Finished is sent.
    #[cfg(feature = "identity")]
    pub(crate) fn peer_proved(&mut self, number: u32) {
        if let Some(session) = self.session_mut(number)
            && session.proof == ProofState::Exchanging
        {
            session.proof = ProofState::PeerProved;
        }
    }

    /// Returns true if a session whose peer has proved this name may become the current session. It may not while a
    /// session with another name is live at the address.
    #[cfg(feature = "identity")]
    pub(crate) fn admits(&self, number: u32, name: &str) -> bool {
        let SessionState::Open(live) = &self.state else { return true };
        live.number == number
            || !live.is_with_local_user() && live.name.as_ref().is_none_or(|live| **live == *name)
    }

    /// Handles the end of the handshake, when both names are proved. Returns false if the session may not become the
    /// current session; see [`Self::admits`].
    #[cfg(feature = "identity")]
    pub(crate) fn proved(
        &mut self,
        now: Time,
        number: u32,
        name: &Arc<str>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some(session) = self.session(number) else { return true };
        if !matches!(session.proof, ProofState::Exchanging | ProofState::PeerProved) {
            return true;
        }
        if !self.admits(number, name) {
            return false;
        }
        self.adopt(now, number, actions);
        let SessionState::Open(session) = &mut self.state else { return true };
        session.name = Some(Arc::clone(name));
        session.proof = ProofState::Done;
        session.deadline = now + HANDSHAKE_LIMIT;
        session.dial_others(actions);
        self.complete(now, actions);
        true
    }

    /// Promotes a candidate to the current session. The previous session becomes a candidate if it is unproven, and
    /// otherwise ends.
    #[cfg(feature = "identity")]
    fn adopt(&mut self, now: Time, number: u32, actions: &mut Vec<Action>) {
        let Some(at) = self.candidates.iter().position(|session| session.number == number) else { return };
        let session = self.candidates.remove(at);
        let is_newer = |live: &Session| {
            let same = live.remote.map(|name| name.epoch) == session.remote.map(|name| name.epoch);
            if same { PeerDown::Replaced } else { PeerDown::Restarted }
        };
        match std::mem::replace(&mut self.state, SessionState::Idle) {
            SessionState::Open(live) if live.features == Features::HANDSHAKE && live.name.is_none() => {
                self.candidates.push(live);
            }
            SessionState::Open(live) => {
                let cause = is_newer(&live);
                self.state = SessionState::Open(live);
                self.replace(now, cause, actions);
            }
            SessionState::Idle | SessionState::Backoff { .. } => {}
        }
        self.state = SessionState::Open(session);
    }

    /// Returns true if the peer may dial further INIs in that session, which has a handshake.
    fn admits_others(&self, name: SessionName) -> bool {
        self.sessions().any(|session| session.remote == Some(name) && session.proof >= ProofState::PeerProved)
    }

    /// Ends the session after a failure or a close. A transient failure of a session that was never up is
    /// retried without a report.
    pub(crate) fn fail(
        &mut self,
        now: Time,
        number: u32,
        cause: PeerDown,
        transient: bool,
        actions: &mut Vec<Action>,
    ) {
        if let Some(at) = self.candidates.iter().position(|session| session.number == number) {
            let session = self.candidates.remove(at);
            actions.push(Action::Close { number });
            actions.extend(session.lacks_answer(now, cause).then_some(Action::Unanswered));
            return;
        }
        if self.current() != Some(number) {
            return;
        }
        let SessionState::Open(session) = std::mem::replace(&mut self.state, SessionState::Idle) else {
            return;
        };
        self.ended = Some((number, session.began));
        actions.push(Action::Close { number });
        actions.extend(session.lacks_answer(now, cause).then_some(Action::Unanswered));
        if session.may_be_blocked(now, cause) {
            // Search for a flow that passes, since firewalls and addresses change.
            self.find_flow();
        }
        if let (PeerDown::UnknownSetting(setting), Some(remote)) = (cause, session.remote) {
            self.incompatible = Some((remote.epoch, setting));
        }
        if let Some(up_since) = session.up_since {
            self.backoff.ended(now, up_since);
            if cause.is_incompatible() || matches!(cause, PeerDown::NotShared(_)) {
                // Until the next attempt, callers get this cause immediately, as after a failed attempt.
                self.backoff.failed(now, cause, false);
            }
            self.wanted = false;
            actions.push(match self.backoff.away(now) {
                Some((cause, until)) => Action::Away { number, cause, until, is_new: true },
                None => Action::Down { number, cause },
            });
            return;
        }
        self.has_answered |= session.is_answered();
        let cause = match cause {
            PeerDown::Unreachable if self.has_answered => PeerDown::NoFurtherAnswer,
            cause => cause,
        };
        let silent = self.backoff.failed(now, cause, transient);
        if !self.wanted {
            return;
        }
        match self.backoff.not_before(now) {
            Some(until) if silent && !self.closed => {
                self.state = SessionState::Backoff { until, pause: Pause::Whole };
            }
            until => {
                self.wanted = false;
                actions.push(match until.filter(|_| !self.closed) {
                    Some(until) => Action::Away { number, cause, until, is_new: true },
                    None => Action::Down { number, cause },
                });
            }
        }
    }

    /// Ends the session because the local device was removed. Pollers that wait are notified, because another attempt
    /// requires a device.
    pub(crate) fn device_removed(&mut self, actions: &mut Vec<Action>) {
        self.close_candidates(actions);
        let (was_up, number) = (self.is_up(), self.current());
        if let Some(number) = number {
            actions.push(Action::Close { number });
        }
        self.state = SessionState::Idle;
        self.backoff.reset();
        if std::mem::take(&mut self.wanted) || was_up {
            actions.push(Action::Down { number: number.unwrap_or(0), cause: PeerDown::DeviceRemoved });
        }
    }

    /// Handles the passage of time.
    pub(crate) fn tick(&mut self, now: Time, actions: &mut Vec<Action>) {
        for late in self.candidates.extract_if(.., |session| session.deadline <= now) {
            actions.push(Action::Close { number: late.number });
            actions.extend(late.lacks_answer(now, PeerDown::Unreachable).then_some(Action::Unanswered));
        }
        match &self.state {
            SessionState::Backoff { until, .. } if *until <= now => {
                self.open(now, None, self.dial_features(), actions);
            }
            SessionState::Open(session) if session.up_since.is_none() && session.deadline <= now => {
                let number = session.number;
                let dialled = if session.proof == ProofState::Done { session.answered.len() } else { 1 };
                let is_answered = session.answered.iter().take(dialled).all(|answered| *answered);
                let cause = match session.proof {
                    ProofState::Exchanging | ProofState::PeerProved => {
                        PeerDown::RefusedHere("the handshake timed out")
                    }
                    _ if is_answered => PeerDown::NoConnectionBack,
                    _ => PeerDown::Unreachable,
                };
                self.fail(now, number, cause, false, actions);
            }
            _ => {}
        }
    }

    /// Replaces the cause of the peer's absence with a more specific one.
    pub(super) fn explain(&mut self, cause: PeerDown) {
        self.backoff.explain(cause);
    }

    /// Returns the time of the next call of [`Machine::tick`].
    pub(crate) fn next_timer(&self) -> Option<Time> {
        let current = match &self.state {
            SessionState::Backoff { until, .. } => Some(*until),
            SessionState::Open(session) if session.up_since.is_none() => Some(session.deadline),
            _ => None,
        };
        self.candidates.iter().map(|session| session.deadline).chain(current).min()
    }

    /// Ends the session because the node shuts down. New sessions are refused.
    pub(crate) fn close(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.closed = true;
        self.close_candidates(actions);
        if let Some(number) = self.current() {
            self.fail(now, number, PeerDown::ShuttingDown, false, actions);
        } else if self.wanted {
            self.wanted = false;
            actions.push(Action::Down { number: 0, cause: PeerDown::ShuttingDown });
        }
        self.state = SessionState::Idle;
    }

    fn close_candidates(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.candidates.drain(..).map(|session| Action::Close { number: session.number }));
    }

    fn open(&mut self, now: Time, echo: Option<SessionName>, features: Features, actions: &mut Vec<Action>) {
        let mut session = self.new_session(now, echo, features);
        actions.push(Action::Dial { number: session.number, poller: 0, echo });
        if mutant!(all_pollers_dial_at_once) {
            session.dial_others(actions);
        }
        self.state = SessionState::Open(session);
    }

    fn new_session(&self, now: Time, echo: Option<SessionName>, features: Features) -> Box<Session> {
        Box::new(Session {
            number: self.numbers.next(),
            features,
            #[cfg(feature = "identity")]
            name: None,
            proof: if features == Features::NONE { ProofState::Done } else { ProofState::Pairing },
            remote: echo,
            welcome: None,
            echo,
            is_accepted: false,
            is_local: true,
            answered: vec![false; usize::from(self.pollers)],
            all_dialled: false,
            unproven: 0,
            targets: Vec::new(),
            began: now,
            deadline: now + HANDSHAKE_LIMIT,
            up_since: None,
        })
    }

    /// Ends the session because the peer began another session. Queued messages remain queued.
    fn replace(&mut self, _now: Time, cause: PeerDown, actions: &mut Vec<Action>) {
        let SessionState::Open(session) = std::mem::replace(&mut self.state, SessionState::Idle) else {
            return;
        };
        self.ended = Some((session.number, session.began));
        actions.push(Action::Close { number: session.number });
        if session.up_since.is_some() {
            actions.push(Action::Down { number: session.number, cause });
        }
    }

    fn complete(&mut self, now: Time, actions: &mut Vec<Action>) {
        let SessionState::Open(session) = &mut self.state else { return };
        let whole = session.up_since.is_none()
            && session.proof == ProofState::Done
            && session.answered.iter().all(|&answered| answered)
            && !session.targets.is_empty()
            && session.targets.iter().all(|&target| target == Target::Arrived);
        if let (true, Some(welcome)) = (whole, &session.welcome) {
            session.up_since = Some(now);
            (self.was_up, self.has_answered) = (true, false);
            self.wanted = false;
            self.backoff.succeeded();
            actions.push(Action::Up { number: session.number, welcome: welcome.clone() });
        }
    }
}

impl Session {
    /// Returns true if the session is so old that the peer may have closed it.
    fn is_old(&self, now: Time) -> bool {
        self.deadline <= now + (HANDSHAKE_LIMIT - PEER_GIVES_UP)
    }

    /// Returns true if the end of the session for this cause shows that the peer has not answered the dial-back. The
    /// peer may end the session itself because this node's connection does not arrive.
    fn lacks_answer(&self, now: Time, cause: PeerDown) -> bool {
        let is_silent = match cause {
            PeerDown::Unreachable => true,
            PeerDown::Closed => self.is_old(now),
            _ => false,
        };
        is_silent && self.echo.is_some() && !self.answered.contains(&true)
    }

    /// Returns true if the peer answered a request to connect.
    fn is_answered(&self) -> bool {
        self.unproven > 0 || self.answered.contains(&true)
    }

    /// Returns true if the peer has yet to prove its name.
    fn is_unproven(&self) -> bool {
        self.proof < ProofState::PeerProved
    }

    /// Returns true if a firewall may be the cause of the end of a session that this node dialled.
    fn may_be_blocked(&self, now: Time, cause: PeerDown) -> bool {
        let is_silence = matches!(
            cause,
            PeerDown::Unreachable
                | PeerDown::NotCompleted
                | PeerDown::NoConnectionBack
                | PeerDown::Died
                | PeerDown::Closed
        );
        is_silence && !self.is_accepted && self.up_since.is_none_or(|since| now - since < EARLY_END)
    }

    /// Returns true if the peer is a verified process of this user on this host.
    fn is_with_local_user(&self) -> bool {
        self.is_local && self.remote.is_some() && self.features == Features::NONE
    }

    /// Returns the number of the peer's connections, including announced ones; 1 before the proof.
    fn connections(&self) -> u32 {
        let pollers = u32::try_from(self.targets.len()).unwrap_or(u32::MAX);
        if self.is_unproven() { pollers.min(1) } else { pollers }
    }

    /// Takes a request into the session, and returns its number.
    fn accept(&mut self, hello: &Hello) -> Result<u32, Refusal> {
        self.remote = Some(hello.session);
        self.is_local &= hello.is_local;
        self.is_accepted |= hello.echo.is_none();
        if !self.fits(hello.pollers) {
            return Err(Refusal::Malformed);
        }
        match self.targets.get_mut(usize::from(hello.poller)) {
            Some(target @ Target::Absent) => *target = Target::Accepted,
            _ => return Err(Refusal::Malformed),
        }
        Ok(self.number)
    }

    /// Requests the handshake once, when the first pair of connections is complete.
    fn pair(&mut self, actions: &mut Vec<Action>) {
        let is_complete =
            self.answered.first() == Some(&true) && self.targets.first() == Some(&Target::Arrived);
        if is_complete && self.proof == ProofState::Pairing {
            self.proof = ProofState::Exchanging;
            actions.push(Action::Prove { number: self.number, deadline: self.deadline });
            self.deadline += FAILURE_LIMIT;
        }
    }

    /// Returns true if a request has joined this node's dial, but `answering` names another session.
    fn is_joined_by_another(&self, answering: SessionName) -> bool {
        self.echo.is_none() && self.remote.is_some_and(|joined| joined != answering)
    }

    /// Dials the INIs after the first, once, unless the proof must come first.
    fn dial_others(&mut self, actions: &mut Vec<Action>) {
        if self.proof != ProofState::Done || std::mem::replace(&mut self.all_dialled, true) {
            return;
        }
        let pollers = u16::try_from(self.answered.len()).unwrap_or(u16::MAX);
        let (number, echo) = (self.number, self.echo);
        actions.extend((1..pollers).map(|poller| Action::Dial { number, poller, echo }));
    }

    /// Records the number of the peer's pollers. Returns true if it agrees with an earlier record.
    fn fits(&mut self, pollers: u16) -> bool {
        if self.targets.is_empty() {
            self.targets = vec![Target::Absent; usize::from(pollers)];
        }
        self.targets.len() == usize::from(pollers)
    }
}

/// Returns true if session number `a` was assigned after `b`. The counter may wrap.
fn is_later(a: u32, b: u32) -> bool {
    a != b && a.wrapping_sub(b) < u32::MAX / 2
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
