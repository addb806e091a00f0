//! The calls of one poller that are in flight.
//!
//! Owned by the poller's RPC half. Each call has a slot; the number of a call on the wire is the slot and
//! a generation, so a late reply matches no call.

use crate::call::{Answer, Outcome, Response, Submission};
use crate::frame::{Frame, Header, NOBODY, Reason, RequestHeader};
use crate::name::MethodName;
use crate::status::{Code, Status};
use bytes::Bytes;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use trunkline_mutants::mutant;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Carrier, Message, PeerDown, PeerKey, PollerIndex, SendError, SendFailure, SendOutcome, Token,
};
use trunkline_verbs::Time;

struct Flight {
    generation: u32,
    peer: PeerKey,
    server: SocketAddr,
    method: &'static MethodName,
    one_way: bool,
    deadline: Time,
    /// The request is in the peer's memory.
    delivered: bool,
    answer: Answer,
}

/// The table of calls in flight.
pub(crate) struct Table {
    /// What may be in flight, and is.
    budget: Share,
    flights: Slab<Flight>,
    deadlines: BTreeSet<(Time, u64)>,
    generation: u32,
    /// Pollers of each peer that is up.
    pollers: BTreeMap<PeerKey, u16>,
    scratch: Vec<u8>,
    /// Replies that matched no call; late ones are normal.
    pub(crate) unmatched_replies: u64,
    closed: bool,
}

impl Table {
    pub(crate) fn new(budget: Share) -> Self {
        Self {
            budget,
            flights: Slab::new(),
            deadlines: BTreeSet::new(),
            generation: 0,
            pollers: BTreeMap::new(),
            scratch: Vec::new(),
            unmatched_replies: 0,
            closed: false,
        }
    }

    /// Calls in flight.
    pub(crate) fn len(&self) -> usize {
        self.flights.len()
    }

    /// Sends a call's request. `rest` receives the buffer of the encoded arguments for reuse.
    pub(crate) fn start(
        &mut self,
        carrier: &mut dyn Carrier,
        submission: Submission<impl Into<Answer>>,
        rest: impl FnOnce(Vec<u8>),
    ) {
        let now = carrier.now();
        let refusal = if self.closed {
            Some(Status::not_run(Code::Unavailable, "this node is shutting down"))
        } else if submission.deadline <= now {
            Some(Status::not_run(Code::DeadlineExceeded, "the deadline passed before the call could leave"))
        } else {
            None
        };
        if let Some(status) = refusal {
            return submission.answer.into().complete(Err(status));
        }
        let Submission { server, method, one_way, encoded, body, deadline, answer } = submission;
        if !mutant!(replies_match_any_call) {
            self.generation = self.generation.wrapping_add(1);
        }
        let peer = carrier.peer(server);
        if let Err(exhausted) = self.budget.take(peer, 1) {
            let status = Status::not_run(Code::ResourceExhausted, format!("{server}: {exhausted}"));
            return answer.into().complete(Err(status));
        }
        let flight = Flight {
            generation: self.generation,
            peer,
            server,
            method,
            one_way,
            deadline,
            delivered: false,
            answer: answer.into(),
        };
        let call = number(self.flights.insert(flight), self.generation);
        let header = Header::Request(RequestHeader {
            call,
            one_way,
            service: method.service.hash,
            method: method.hash,
            version: method.service.version,
            time_left_us: microseconds(deadline, now),
        });
        let message = Frame {
            peer,
            poller: None,
            session: None,
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
            Ok(spare) => {
                if !mutant!(deadline_is_not_kept) {
                    self.deadlines.insert((deadline, call));
                }
                if let Some(buffer) = spare {
                    rest(buffer);
                }
            }
            Err(error) => self.finish(call, Err(refused(server, error))),
        }
    }

    /// Takes the outcome of sending a request.
    pub(crate) fn sent(&mut self, token: Token, outcome: SendOutcome) {
        let Some(flight) = self.flight(token.0) else { return };
        match outcome {
            SendOutcome::Delivered if flight.one_way => self.finish(token.0, Ok(Response::empty())),
            SendOutcome::Delivered => flight.delivered = true,
            SendOutcome::Failed(SendFailure { may_have_arrived, cause }) => {
                let may_have_run = may_have_arrived && !mutant!(failed_requests_count_as_not_run);
                let status = Status::unreachable(flight.server, cause, may_have_run);
                self.finish(token.0, Err(status));
            }
        }
    }

    /// Takes a reply.
    pub(crate) fn reply(
        &mut self,
        from: PeerKey,
        (call, code, reason): (u64, u8, Reason),
        message: Message,
        encoded: Range<usize>,
    ) {
        let Some(flight) = self.flight(call).filter(|flight| flight.peer == from && !flight.one_way) else {
            self.unmatched_replies += 1;
            return;
        };
        let outcome = if code == 0 {
            Ok(Response::new(message, encoded))
        } else {
            let text = String::from_utf8_lossy(&message.as_slice()[encoded.clone()]);
            let mut status = failed(flight.method, Code::from_number(code), reason, &text);
            if mutant!(error_replies_lose_their_text) {
                status = Status::new(status.code(), "");
            }
            drop(text);
            Err(status.with_details(message.into_bytes().slice(encoded.end..)))
        };
        self.finish(call, outcome);
    }

    /// A session with a peer is up.
    pub(crate) fn up(&mut self, peer: PeerKey, pollers: u16) {
        self.pollers.insert(peer, pollers);
    }

    /// A peer is lost: no reply will come for requests that were delivered to it.
    pub(crate) fn down(&mut self, peer: PeerKey, cause: PeerDown) {
        self.pollers.remove(&peer);
        let lost = self.numbers(|flight| flight.peer == peer && flight.delivered);
        for call in lost {
            let Some(flight) = self.flight(call) else { continue };
            let status = Status::unreachable(flight.server, cause, true);
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
            let text = format!("{} at {}: no answer in time", flight.method, flight.server);
            self.abandon(carrier, call, Status::deadline_exceeded(text));
        }
        any
    }

    /// Ends the calls that nobody waits for any more. It examines every call in flight: a turn after
    /// dropped calls costs one pass over the slab, and in exchange no dropped call costs a message to
    /// the poller.
    pub(crate) fn sweep(&mut self, carrier: &mut dyn Carrier) {
        for call in self.numbers(|flight| flight.answer.is_abandoned()) {
            self.abandon(carrier, call, Status::cancelled("the caller gave up"));
        }
    }

    /// When `expire` is due next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Refuses further calls and ends those in flight.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        for call in self.numbers(|_| true) {
            self.finish(call, Err(Status::unavailable("this node is shutting down")));
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

    /// Ends a call and informs the server that nobody waits for it.
    fn abandon(&mut self, carrier: &mut dyn Carrier, call: u64, status: Status) {
        let Some(flight) = self.flight(call) else { return };
        let (peer, one_way) = (flight.peer, flight.one_way);
        carrier.cancel(Token(call));
        self.finish(call, Err(status));
        if one_way || mutant!(cancellation_is_not_sent) {
            return;
        }
        // The carrier chose the peer's poller and did not say which, so all of them are informed.
        for poller in 0..self.pollers.get(&peer).copied().unwrap_or_default() {
            let message = Frame {
                peer,
                poller: Some(PollerIndex(poller)),
                session: None,
                header: Header::Cancel { call },
                encoded: Vec::new(),
                body: Bytes::new(),
                token: NOBODY,
                deadline: None,
            };
            // A lost cancellation costs the server no more than the handler's time.
            let _ = message.send(carrier, &mut self.scratch);
        }
    }
}

/// The status of a call that the carrier did not take.
fn refused(server: SocketAddr, error: SendError) -> Status {
    let code = match error {
        SendError::NoPeer => Code::Unavailable,
        _ => Code::ResourceExhausted,
    };
    Status::not_run(code, format!("{server}: {error}"))
}

/// The status of a reply.
fn failed(method: &MethodName, code: Code, reason: Reason, text: &str) -> Status {
    match reason {
        Reason::HANDLER => Status::new(code, text),
        Reason::NO_SERVICE => Status::not_run(code, format!("{method}: the server has no such service")),
        Reason::NO_METHOD => {
            Status::not_run(code, format!("{method}: the server's service has no such method"))
        }
        Reason::OTHER_VERSION => {
            let version = method.service.version;
            Status::not_run(
                code,
                format!("{method}: called with schema version {version}, the server has {text}"),
            )
        }
        _ => Status::not_run(code, format!("{method}: {text}")),
    }
}

fn microseconds(deadline: Time, now: Time) -> u64 {
    u64::try_from(deadline.saturating_duration_since(now).as_micros()).unwrap_or(u64::MAX).max(1)
}

/// A slot fits 32 bits: the budget of calls does.
fn number(slot: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | slot as u64
}

#[allow(clippy::cast_possible_truncation, reason = "the two halves of a word")]
fn parts(call: u64) -> Option<(usize, u32)> {
    Some((usize::try_from(call as u32).ok()?, (call >> 32) as u32))
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table").field("in_flight", &self.flights.len()).finish_non_exhaustive()
    }
}
