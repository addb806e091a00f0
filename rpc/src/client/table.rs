//! The calls of one poller that are in flight.
//!
//! Owned by the poller's RPC half. Each call has a slot; the number of a call on the wire is the slot and
//! a generation, so a late reply matches no call.

use super::numbers::Numbers;
use crate::call::{Answer, Outcome, Response, Submission, shutting_down};
use crate::frame::status_body::{self, StatusTexts};
use crate::frame::{
    Asked, By, Frame, FrameError, HANDLER_ERROR, Header, NOBODY, Number, RequestHeader, Unread,
};
use crate::name::MethodName;
use crate::reason::Reason;
use crate::status::{Code, Status};
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::ops::Range;
use trunkline_mutants::mutant;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Body, Carrier, Connect, Message, Origin, PeerDown, PeerKey, SendError, SendFailure, SendOutcome, Token,
    Toward, Turn,
};
use trunkline_verbs::Time;

struct Flight {
    generation: u32,
    peer: PeerKey,
    server: SocketAddr,
    method: &'static MethodName,
    one_way: bool,
    /// It was made on an ordered channel.
    ordered: bool,
    /// A handler or task of this node waits for it.
    nested: bool,
    deadline: Time,
    /// Which of the peer's pollers has it.
    turn: Turn,
    /// The request is in the peer's memory.
    delivered: bool,
    answer: Answer,
}

impl Flight {
    /// Its method and server, by which statuses name it.
    fn name(&self) -> String {
        format!("{} at {}", self.method, self.server)
    }
}

/// Which calls a table takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Takes {
    All,
    /// Those of handlers and tasks: the node shuts down.
    Nested,
    None,
}

/// The table of calls in flight.
pub(crate) struct Table {
    /// What may be in flight, and is.
    budget: Share,
    /// Most bytes that a decoded reply may take.
    most_decoded: usize,
    flights: Slab<Flight>,
    deadlines: BTreeSet<(Time, u64)>,
    generation: u32,
    /// Pollers of each peer that is up.
    pollers: BTreeMap<PeerKey, u16>,
    /// The numbers of methods at peers that are up.
    numbers: Numbers,
    scratch: Vec<u8>,
    /// Replies that matched no call; late ones are normal.
    pub(crate) unmatched_replies: u64,
    takes: Takes,
}

impl Table {
    pub(crate) fn new(budget: Share, most_decoded: usize) -> Self {
        Self {
            budget,
            most_decoded,
            flights: Slab::new(),
            deadlines: BTreeSet::new(),
            generation: 0,
            pollers: BTreeMap::new(),
            numbers: Numbers::default(),
            scratch: Vec::new(),
            unmatched_replies: 0,
            takes: Takes::All,
        }
    }

    /// Calls in flight.
    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Sends a call's request, unless its future has been dropped. `rest` receives the buffer of the encoded arguments
    /// for reuse.
    pub(crate) fn start(
        &mut self,
        carrier: &mut dyn Carrier,
        submission: Submission<impl Into<Answer>>,
        rest: impl FnOnce(Vec<u8>),
    ) {
        let answer = submission.answer.into();
        if answer.is_abandoned() {
            return rest(submission.encoded);
        }
        let now = carrier.now();
        let is_taken = match self.takes {
            Takes::All => true,
            Takes::Nested => submission.nested,
            Takes::None => false,
        };
        let refusal = if !is_taken {
            Some(shutting_down())
        } else if submission.deadline <= now {
            let text = "the deadline passed before the call could leave";
            Some(Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired))
        } else {
            None
        };
        if let Some(status) = refusal {
            let call = format_args!("{} at {}", submission.method, submission.server);
            return answer.complete(Err(status.of_call(call)));
        }
        let Submission { server, method, one_way, encoded, body, deadline, connect, order, nested, .. } =
            submission;
        if !mutant!(replies_match_any_call) {
            self.generation = self.generation.wrapping_add(1);
        }
        let peer = carrier.peer(server);
        if let Err(exhausted) = self.budget.take(peer, 1) {
            let status =
                Status::not_run(Code::ResourceExhausted, format!("{method} at {server}: {exhausted}"));
            return answer.complete(Err(status.because(Reason::Overloaded)));
        }
        let flight = Flight {
            generation: self.generation,
            peer,
            server,
            method,
            one_way,
            ordered: order.is_some(),
            nested,
            deadline,
            turn: Turn(0),
            delivered: false,
            answer,
        };
        let call = number(self.flights.insert(flight), self.generation);
        // With the number of a session that has ended it could not leave; by its hash it waits for the next one. An
        // ordered call must not follow others there.
        let may_use = |session| {
            order.is_some()
                || carrier.has_session(peer, session)
                || mutant!(numbers_are_used_after_their_session)
        };
        let (asked, session) = match self.numbers.of(peer, method) {
            Some((number, _)) if mutant!(numbers_outlive_their_session) => (Asked::Number(number), None),
            Some((number, session)) if may_use(session) => (Asked::Number(number), Some(session)),
            _ => (Asked::from(method), None),
        };
        let time_left_us = microseconds(deadline, now);
        let header = Header::Request(RequestHeader { call, one_way, asked, time_left_us });
        let message = Frame {
            peer,
            toward: order.map_or(Toward::Any, Toward::Turn),
            session,
            connect,
            ordered: order.is_some(),
            header,
            encoded,
            body,
            token: Token(call),
            deadline: Some(deadline),
        };
        match message.send(carrier, &mut self.scratch) {
            Ok(_) if one_way && mutant!(one_way_calls_succeed_unsent) => {
                self.finish(call, Ok(Response::empty()));
            }
            Ok((turn, spare)) => {
                if let Some(flight) = self.flight(call) {
                    flight.turn = turn;
                }
                if !mutant!(deadline_is_not_kept) {
                    self.deadlines.insert((deadline, call));
                }
                if let Some(buffer) = spare {
                    rest(buffer);
                }
            }
            Err(error) => self.finish(call, Err(refused(format_args!("{method} at {server}"), error))),
        }
    }

    /// Takes the outcome of sending a request.
    pub(crate) fn sent(&mut self, carrier: &dyn Carrier, token: Token, outcome: SendOutcome) {
        let Some(flight) = self.flight(token.0) else { return };
        match outcome {
            SendOutcome::Delivered if flight.one_way => self.finish(token.0, Ok(Response::empty())),
            SendOutcome::Delivered => flight.delivered = true,
            SendOutcome::Failed(SendFailure { may_have_arrived, cause }) => {
                let peer = flight.peer;
                let may_have_run = may_have_arrived && !mutant!(failed_requests_count_as_not_run);
                let last = carrier.away(flight.peer).filter(|_| cause == PeerDown::Deadline);
                let status = match last {
                    None if flight.ordered && !may_have_run && cause.ends_a_session() => {
                        let text = format!(
                            "{} at {}: an ordered call cannot follow others to another session: {cause}",
                            flight.method, flight.server
                        );
                        Status::not_run(Code::Aborted, text).because(Reason::Unreachable)
                    }
                    Some(last) => {
                        let call = format_args!("{} at {}: {last}", flight.method, flight.server);
                        Status::unreachable(call, cause, may_have_run)
                    }
                    None => Status::unreachable(flight.name(), cause, may_have_run),
                };
                self.finish(token.0, Err(status));
                // Its session may be over before this poller has been told.
                self.forget_numbers(peer);
            }
        }
    }

    /// Takes a reply.
    pub(crate) fn reply(
        &mut self,
        from: PeerKey,
        (call, code, by): (u64, u8, By),
        message: Message,
        encoded: Range<usize>,
    ) {
        let Some(flight) = self.waiting(from, call) else { return };
        let outcome = if code == 0 {
            Ok(Response::new(message, encoded, self.most_decoded))
        } else if code == HANDLER_ERROR && by == By::Handler {
            Ok(Response::of_error(message, encoded, self.most_decoded))
        } else {
            let status = status_of(flight.method, Code::from_number(code), by, message, encoded);
            if status.reason() == Some(Reason::NoMethod) {
                self.forget_numbers(from);
            }
            Err(status)
        };
        self.finish(call, outcome);
    }

    /// The call that waits for a reply of this peer.
    fn waiting(&mut self, from: PeerKey, call: u64) -> Option<&mut Flight> {
        let waits = self.flight(call).is_some_and(|flight| flight.peer == from && !flight.one_way);
        if !waits {
            self.unmatched_replies += 1;
        }
        self.flight(call).filter(|_| waits)
    }

    /// Takes a reply that cannot be read.
    pub(crate) fn unread(&mut self, from: PeerKey, call: u64, error: FrameError) {
        let Some(flight) = self.waiting(from, call) else { return };
        let reason = match error {
            FrameError::UnknownExtension(_) => Reason::UnknownExtension,
            _ => Reason::BadReply,
        };
        let text = format!("{}: the reply cannot be read: {error}", flight.method);
        self.finish(call, Err(Status::ran(Code::Internal, text).because(reason)));
    }

    /// A reply does not come, because this node had no memory for it in time.
    pub(crate) fn given_up(&mut self, from: PeerKey, call: u64, bytes: usize) {
        let Some(flight) = self.waiting(from, call) else { return };
        let text = format!("{} at {}: {}", flight.method, flight.server, no_memory(bytes));
        self.finish(call, Err(Status::ran(Code::ResourceExhausted, text).because(Reason::Overloaded)));
    }

    /// A peer reports the number of a method.
    pub(crate) fn learn(&mut self, from: Origin, number: Number) {
        if self.pollers.contains_key(&from.peer) {
            self.numbers.learn(from, number);
        }
    }

    /// The numbers of a peer's methods are good no longer.
    fn forget_numbers(&mut self, peer: PeerKey) {
        if !mutant!(numbers_outlive_their_session) {
            self.numbers.forget(peer);
        }
    }

    /// A session with a peer is up.
    pub(crate) fn up(&mut self, peer: PeerKey, pollers: u16) {
        self.forget_numbers(peer);
        self.pollers.insert(peer, pollers);
    }

    /// A peer is lost: no reply will come for requests that were delivered to it.
    pub(crate) fn down(&mut self, peer: PeerKey, cause: PeerDown) {
        self.pollers.remove(&peer);
        self.forget_numbers(peer);
        let lost = self.numbers(|flight| flight.peer == peer && flight.delivered);
        for call in lost {
            let Some(flight) = self.flight(call) else { continue };
            let status = Status::unreachable(flight.name(), cause, true);
            self.finish(call, Err(status));
        }
        self.budget.leave(peer);
    }

    /// The calls that are charged, and those in flight.
    pub(crate) fn budget(&self) -> BudgetLedger {
        let mut counted = BTreeMap::new();
        for (_, flight) in &self.flights {
            *counted.entry(flight.peer).or_default() += 1;
        }
        self.budget.ledger(counted)
    }

    /// Ends the calls whose deadline has passed. Returns whether there was one.
    pub(crate) fn expire(&mut self, carrier: &mut dyn Carrier) -> bool {
        let now = carrier.now();
        let mut any = false;
        while let Some(&(deadline, call)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            any = true;
            self.deadlines.remove(&(deadline, call));
            let Some(flight) = self.flight(call) else { continue };
            let name = flight.name();
            let peer = flight.peer;
            let away = carrier.away(peer);
            let is_reply = |frame: &[u8]| is_reply_to(frame, call);
            let waiting = carrier.waiting_bytes(peer, &is_reply);
            self.abandon(carrier, call, |has_left| {
                let late = "the deadline passed before it could leave";
                let text = match (waiting, away) {
                    (Some(bytes), _) => format!("{name}: {}", no_memory(bytes)),
                    _ if has_left => format!("{name}: no answer in time"),
                    (None, Some(cause)) => format!("{name}: {late}: {cause}"),
                    (None, None) => format!("{name}: {late}"),
                };
                (Code::DeadlineExceeded, Reason::Expired, text)
            });
        }
        any
    }

    /// Ends the calls that nobody waits for any more. It examines every call in flight: a turn after
    /// dropped calls costs one pass over the slab, and in exchange no dropped call costs a message to
    /// the poller.
    pub(crate) fn sweep(&mut self, carrier: &mut dyn Carrier) {
        for call in self.numbers(|flight| flight.answer.is_abandoned()) {
            let gave_up = "the caller gave up".to_owned();
            self.abandon(carrier, call, |_| (Code::Cancelled, Reason::Cancelled, gave_up));
        }
    }

    /// When `expire` is due next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// The node shuts down: refuses calls from outside of handlers and tasks, and ends those in flight. Handlers finish
    /// with the calls that they make.
    pub(crate) fn close_to_outside(&mut self) {
        self.takes = Takes::Nested;
        self.end_all(|flight| !flight.nested || mutant!(draining_ends_nested_calls));
    }

    /// Refuses further calls and ends those in flight.
    pub(crate) fn close(&mut self) {
        self.takes = Takes::None;
        self.end_all(|_| true);
    }

    fn end_all(&mut self, which: impl Fn(&Flight) -> bool) {
        for call in self.numbers(which) {
            let Some(flight) = self.flight(call) else { continue };
            let text = format!("{}: this node is shutting down", flight.name());
            self.finish(call, Err(Status::ran(Code::Unavailable, text).because(Reason::Draining)));
        }
    }

    fn flight(&mut self, call: u64) -> Option<&mut Flight> {
        let (slot, generation) = parts(call)?;
        self.flights.get_mut(slot).filter(|flight| flight.generation == generation)
    }

    fn numbers(&self, which: impl Fn(&Flight) -> bool) -> Vec<u64> {
        let chosen = self.flights.iter().filter(|(_, flight)| which(flight));
        chosen.map(|(slot, flight)| number(slot, flight.generation)).collect()
    }

    fn finish(&mut self, call: u64, outcome: Outcome) {
        let Some((slot, _)) = parts(call) else { return };
        if let Some(flight) = self.flights.try_remove(slot) {
            self.deadlines.remove(&(flight.deadline, call));
            self.budget.put_back(flight.peer, 1);
            flight.answer.complete(outcome);
        }
    }

    /// Ends a call that may have left, with a status that depends on whether it has, and informs the poller that
    /// has it that nobody waits for it.
    fn abandon(
        &mut self,
        carrier: &mut dyn Carrier,
        call: u64,
        why: impl FnOnce(bool) -> (Code, Reason, String),
    ) {
        let Some(flight) = self.flight(call) else { return };
        let Flight { peer, one_way, turn, .. } = *flight;
        let has_left = !carrier.cancel(Token(call)) || mutant!(expired_in_the_queue_counts_as_run);
        let (code, reason, text) = why(has_left);
        let status = if has_left { Status::ran(code, text) } else { Status::not_run(code, text) };
        self.finish(call, Err(status.because(reason)));
        if one_way || !has_left || mutant!(cancellation_is_not_sent) {
            return;
        }
        // Without a session it has left through one that is over, and its handler ends with that.
        let Some(pollers) = self.pollers.get(&peer).copied() else { return };
        let message = Frame {
            peer,
            toward: Toward::Poller(turn.of(pollers)),
            session: None,
            connect: Connect::FailFast,
            ordered: false,
            header: Header::Cancel { call },
            encoded: Vec::new(),
            body: Body::new(),
            token: NOBODY,
            deadline: None,
        };
        // A lost cancellation costs the server no more than the handler's time.
        let _ = message.send(carrier, &mut self.scratch);
    }
}

/// The status of a call that the carrier did not take.
fn refused(call: fmt::Arguments<'_>, error: SendError) -> Status {
    let (code, reason) = match error {
        SendError::NoPeer => (Code::Unavailable, Reason::Draining),
        SendError::BackingOff { cause, .. } => Status::of(cause),
        SendError::TooLarge { .. } => (Code::ResourceExhausted, Reason::TooLarge),
        _ => (Code::ResourceExhausted, Reason::Overloaded),
    };
    Status::not_run(code, format!("{call}: {error}")).because(reason)
}

/// The status in a reply.
fn status_of(method: &MethodName, code: Code, by: By, message: Message, encoded: Range<usize>) -> Status {
    let (bytes, end) = (message.as_slice(), encoded.end);
    let Some(StatusTexts { message: text, causes }) = status_body::parse(&bytes[encoded], bytes.len() - end)
    else {
        let text = format!("{method}: the reply's status, {code:?}, is malformed or exceeds its limits");
        return Status::ran(Code::Internal, text).because(Reason::BadReply);
    };
    let mut status = failed(method, code, by, &text);
    if mutant!(error_replies_lose_their_text) {
        status = Status::new(status.code(), "");
    }
    drop(text);
    status.with_causes(causes).with_details(message.into_bytes().slice(end..))
}

/// The status with this text.
fn failed(method: &MethodName, code: Code, by: By, text: &str) -> Status {
    let By::Node { reason, ran } = by else { return Status::new(code, text) };
    let text = match reason {
        Some(Reason::NoService) => format!("{method}: the server has no such service"),
        Some(Reason::NoMethod) => {
            format!("{method}: the server's service has no such method, or sends other parts of it raw")
        }
        Some(Reason::OtherSchema) => {
            let version = method.service.version;
            format!("{method}: called with schema version {version}, the server has {text}")
        }
        _ => format!("{method}: {text}"),
    };
    let status = if ran { Status::ran(code, text) } else { Status::not_run(code, text) }.of_peer();
    match reason {
        Some(reason) => status.because(reason),
        None => status,
    }
}

/// Why a reply of so many bytes did not come.
fn no_memory(bytes: usize) -> String {
    format!(
        "no memory became free here in time for the reply of {bytes} bytes: release large messages that are held, \
         or raise rendezvous_bytes_per_peer and rendezvous_bytes"
    )
}

/// Whether a frame is a reply to this call, or announces it.
fn is_reply_to(frame: &[u8], call: u64) -> bool {
    matches!(Header::unread(frame), Some(Unread::Reply { call: of }) if of == call)
}

fn microseconds(deadline: Time, now: Time) -> u32 {
    u32::try_from(deadline.saturating_duration_since(now).as_micros()).unwrap_or(u32::MAX).max(1)
}

/// A slot fits 32 bits: the budget of calls does.
fn number(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | slot as u64
}

#[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
fn parts(call: u64) -> Option<(usize, u32)> {
    Some((usize::try_from(call as u32).ok()?, (call >> 32) as u32))
}

impl fmt::Debug for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table").field("in_flight", &self.flights.len()).finish_non_exhaustive()
    }
}
