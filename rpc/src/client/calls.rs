//! The table of calls in flight, owned by the RPC half of the poller. A call's number on the wire consists of its slot and a
//! generation, so that a late reply is not matched to a later call in the same slot.

#[cfg(feature = "identity")]
mod names;

use super::cancels::{Cancel, Cancels, send_control};
use super::held::{DrainedPollers, Held, MOST};
use super::methods::{Counters, Numbers};
use super::peer_queue::Part;
use super::pending_call::{AcceptMode, PendingCall, Progress, Session, is_reply_to, number, parts};
use super::statuses::{
    Backpressure, GAVE_UP, drained, expired, gave_up, late, missed, no_memory, no_session, not_sent,
    out_of_order, received, refused, status_of, unreadable,
};
use super::waiting::Waiting;
use crate::call::{AdmissionClass, Outcome, Response, Submission, shutting_down, too_many};
#[cfg(not(feature = "identity"))]
use crate::client::routes::id::ExpectedId;
use crate::executor::inbox::Inbox;
use crate::node::budgets::check_metadata;
use crate::observe::counted::{CallFailure, MethodCounters};
use crate::server::ArgumentMemory;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{Address, Expiry, Item, Misuse};
use crate::wire::frame::{
    Encoded, FrameError, HANDLER_ERROR, Header, Joined, MethodRef, Number, RepliedBy, RequestHeader,
    StreamPart, join, send,
};
use crate::wire::metadata::MetadataBytes;
use crate::wire::name::MethodName;
use slab::Slab;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline_machine::mutant;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Accepted, Awaited, Connect, Destination, Leaves, Message, Origin, PeerDown, PeerIdentity, PeerKey,
    PeerMap, PollerIndex, Report, SendError, SendFailure, SendOutcome, SessionNumber, Token, Transport,
};
use trunkline_verbs::Time;

/// Maximum number of waiting calls sent in one turn, which limits the delay for received messages.
const ROUND: usize = 256;

/// Minimum time between two searches for expired calls while more than [`FEW`] calls are in flight.
const SEARCH_EVERY: Duration = Duration::from_millis(1);
/// Maximum number of calls in flight at which expired calls are searched for at each deadline.
const FEW: usize = 256;

/// The calls in flight and the calls waiting to be sent.
pub(crate) struct Calls {
    /// Budget of calls in flight.
    budget: Share,
    /// Maximum size of a decoded reply, in bytes.
    most_decoded: usize,
    /// Maximum size of the metadata of one reply, in bytes.
    most_metadata: usize,
    /// Memory to which peers' items are charged.
    memory: Rc<ArgumentMemory>,
    pending: Slab<PendingCall>,
    /// Lower bound of the deadlines of the calls in flight, and the time of the next search. Most calls end long before
    /// their deadline and are never searched.
    next_due: Time,
    searched: Time,
    /// Calls that wait for room.
    waiting: Waiting,
    /// Calls that wait for their server's next session.
    held: Held,
    generation: u32,
    /// Current sessions, by peer.
    sessions: PeerMap<Session>,
    drained: DrainedPollers,
    /// Method numbers, by peer.
    numbers: Numbers,
    counters: Counters,
    scratch: Vec<u8>,
    accept_mode: AcceptMode,
    /// Stream cancellations to retry.
    cancels: Cancels,
    /// Names proved by peers; `None` if this node has no identity.
    #[cfg(feature = "identity")]
    names: Option<Box<names::Names>>,
}

impl Calls {
    pub(crate) fn new(
        budget: Share,
        most_decoded: usize,
        most_metadata: usize,
        memory: Rc<ArgumentMemory>,
        inbox: &Arc<Inbox>,
    ) -> Self {
        Self {
            budget,
            most_decoded,
            most_metadata,
            memory,
            pending: Slab::new(),
            next_due: Time::MAX,
            searched: Time::default(),
            waiting: Waiting::default(),
            held: Held::default(),
            generation: 0,
            sessions: PeerMap::default(),
            drained: DrainedPollers::default(),
            numbers: Numbers::default(),
            counters: Counters::new(inbox),
            scratch: Vec::new(),
            accept_mode: AcceptMode::All,
            cancels: Cancels::default(),
            #[cfg(feature = "identity")]
            names: None,
        }
    }

    /// Returns the total number of calls in flight and of calls that wait for room or a session.
    pub(crate) fn len(&self) -> usize {
        self.pending.len() + self.waiting.len() + self.held.len()
    }

    /// Returns true if waiting calls may have room, or if calls are to be repeated.
    pub(crate) fn is_ready(&self) -> bool {
        self.waiting.is_ready() || self.held.is_ready()
    }

    /// Sends a call's request, or queues the call until there is room, unless the call's future was dropped. `rest` receives
    /// the buffer of the encoded arguments for reuse.
    #[inline]
    pub(crate) fn start(
        &mut self,
        transport: &mut Transport,
        call: &mut Submission,
        rest: impl FnOnce(Encoded),
    ) {
        if call.is_abandoned() {
            self.end_with(call, gave_up());
            return rest(mem::take(&mut call.encoded));
        }
        let now = transport.now();
        if let Some(status) = self.refusal(call, now) {
            return self.end_with(call, status);
        }
        let peer = transport.peer(call.server);
        call.server = peer;
        if self.drained.refuses(peer) && self.is_stopped(peer, call) {
            return;
        }
        if self.may_bar(call.expected) && self.is_barred(transport, peer, call) {
            return;
        }
        let has_line = !self.waiting.is_empty();
        let pass = if has_line { self.waiting.pass(peer, call) } else { Ok(call.leaves()) };
        match pass.and_then(|leaves| self.attempt(transport, peer, call, leaves)) {
            Ok(is_queued) => {
                if has_line {
                    self.waiting.passed(peer, Part::of(call), is_queued);
                }
                rest(mem::take(&mut call.encoded));
            }
            Err(why) => self.no_room(peer, call.take(), why, now),
        }
    }

    /// Holds or fails a call whose server accepts no more calls in this session. Returns false if the request must still be
    /// sent.
    #[cold]
    fn is_stopped(&mut self, peer: PeerKey, call: &mut Submission) -> bool {
        if call.connect == Connect::Wait && call.order.is_none() {
            if self.held.has_room(call.entry) {
                self.held.push(peer, call.take());
            } else {
                self.end_with(call, too_many(MOST));
            }
            return true;
        }
        self.drained.has(peer) && {
            self.end_with(call, drained());
            true
        }
    }

    pub(crate) fn take_again(&mut self) -> Vec<Submission> {
        self.held.take_ready()
    }

    /// Returns true if a peer refuses calls in the current session.
    pub(crate) fn is_refused_by(&self, peer: PeerKey) -> bool {
        self.drained.refuses(peer)
    }

    /// Records that a peer drains and refuses further calls in its session.
    pub(crate) fn drains(&mut self, from: Origin) {
        if self.session_of(from).is_some() {
            self.drained.insert(from.peer, None);
        }
    }

    /// Queues a call until there is room, or fails it.
    #[inline(never)]
    fn no_room(&mut self, peer: PeerKey, call: Submission, why: Backpressure, now: Time) {
        match call.entry {
            AdmissionClass::Waits => self.waiting.push(peer, call, why, now),
            entry => self.end(call, why.refusal(entry)),
        }
    }

    /// Fails the call and returns true if the call may not start.
    pub(crate) fn refuses(&mut self, call: &mut Submission, now: Time) -> bool {
        if call.is_abandoned() {
            self.end_with(call, gave_up());
            return true;
        }
        self.refusal(call, now).map(|status| self.end_with(call, status)).is_some()
    }

    /// Returns the status of a call that may not start.
    #[inline]
    fn refusal(&self, call: &Submission, now: Time) -> Option<Status> {
        let is_taken = match self.accept_mode {
            AcceptMode::All => true,
            AcceptMode::Nested => call.nested,
            AcceptMode::None => false,
        };
        if !is_taken {
            return Some(shutting_down());
        }
        (call.deadline <= now).then(expired)
    }

    /// Passes the request of a call to the transport, and takes the completion out of the call. Returns true if the request
    /// is queued there.
    ///
    /// # Errors
    /// Returns the limit that was reached, and leaves the call unchanged.
    #[inline]
    fn attempt(
        &mut self,
        transport: &mut Transport,
        peer: PeerKey,
        submission: &mut Submission,
        leaves: Leaves,
    ) -> Result<bool, Backpressure> {
        if let Some(leaves) = submission.entry.leaves_calls() {
            self.budget.take_one(peer, leaves).map_err(Backpressure::Calls)?;
        }
        if !mutant!(replies_match_any_call) {
            self.generation = self.generation.wrapping_add(1);
        }
        let (method_ref, session) = self.method_ref(peer, submission.method);
        match self.send(transport, peer, submission, method_ref, session, leaves) {
            Ok(is_queued) => Ok(is_queued),
            Err(error) => self.not_taken(transport, peer, submission, error, leaves),
        }
    }

    /// Handles a request that the transport refused.
    #[cold]
    #[inline(never)]
    fn not_taken(
        &mut self,
        transport: &mut Transport,
        peer: PeerKey,
        submission: &mut Submission,
        error: SendError,
        leaves: Leaves,
    ) -> Result<bool, Backpressure> {
        if error == SendError::SessionOver && self.compares_names() && submission.order.is_none() {
            // The peer's name must be compared before the call is sent in the next session.
            self.put_back(peer, submission.entry.leaves_calls());
            self.waiting.there_is_room();
            self.forget_numbers(peer);
            self.held.make_again(submission.take());
            return Ok(false);
        }
        let may_follow = submission.order.is_none() && !mutant!(numbers_are_used_after_their_session);
        let sent = if error == SendError::SessionOver && may_follow {
            // A request without a method number may wait for the next session, unless the call is ordered, because earlier
            // calls may be lost.
            self.send(transport, peer, submission, MethodRef::from(submission.method), None, leaves)
        } else {
            Err(error)
        };
        sent.or_else(|error| {
            self.put_back(peer, submission.entry.leaves_calls());
            if let SendError::QueueFull(exhausted) = error {
                return Err(Backpressure::Queue(exhausted));
            }
            if submission.drops_trace(error) {
                return self.attempt(transport, peer, submission, leaves);
            }
            self.waiting.there_is_room();
            let status =
                if error == SendError::SessionOver { out_of_order(PeerDown::Closed) } else { refused(error) };
            self.end_with(submission, status);
            Ok(false)
        })
    }

    /// Passes the request of a call to the transport. The call is then in flight. Returns true if the request waits to be
    /// sent.
    #[inline]
    fn send(
        &mut self,
        transport: &mut Transport,
        peer: PeerKey,
        submission: &mut Submission,
        method_ref: MethodRef,
        session: Option<SessionNumber>,
        leaves: Leaves,
    ) -> Result<bool, SendError> {
        let Submission { method, one_way, deadline, order, nested, entry, metadata, .. } = *submission;
        let is_chosen = submission.is_chosen();
        let counters = self.counters.index(method);
        let slot = self.pending.vacant_entry();
        let call = number(slot.key(), self.generation, one_way);
        let now = transport.now();
        let opens = method.streams.any();
        // An ordered call must not move to another session. A balanced channel repeats its calls itself, except streams.
        let waits = submission.connect == Connect::Wait || (is_chosen && opens);
        let may_repeat = waits && order.is_none();
        // The call waits for its route, not for this server.
        let connect = if is_chosen { Connect::FailFast } else { submission.connect };
        let again = may_repeat.then(|| Box::new(submission.copy(Encoded::default(), None)));
        // Streams may have no deadline.
        let is_timed = !opens || deadline != Time::MAX;
        let header = RequestHeader { call, one_way, opens, method_ref, metadata };
        let to = Joined {
            peer,
            destination: order.map_or(Destination::Any, Destination::Choice),
            session,
            ordered: order.is_some() || opens,
            token: Token(call),
            report: if one_way { Report::Always } else { Report::Failure },
            deadline: is_timed.then_some(deadline),
        };
        let accepted = match join(transport, header.short(), &submission.encoded, &submission.body, &to) {
            Some(accepted) => accepted,
            None => send_alone(transport, header, submission, &mut self.scratch, &to, connect, leaves)?,
        };
        let Some(completion) = submission.completion.take() else { return Ok(false) };
        let due = match completion.stream() {
            Some(stream) if opens => stream.begin_timer(now, deadline),
            _ => Some(deadline),
        };
        let due = due.filter(|_| !mutant!(deadline_is_not_kept)).unwrap_or(Time::MAX);
        self.next_due = self.next_due.min(due);
        slot.insert(PendingCall {
            generation: self.generation,
            peer,
            method,
            counters,
            started: now,
            one_way,
            ordered: order.is_some(),
            nested,
            is_chosen,
            leaves: entry.leaves_calls(),
            due,
            choice: accepted.choice,
            progress: accepted.left.map_or(Progress::Waits, Progress::Left),
            again,
            completion,
        });
        self.counters.at(counters).into_iter().for_each(MethodCounters::began);
        if opens && accepted.left.is_some() {
            self.opened(now, call, accepted.left);
        }
        if one_way && mutant!(one_way_calls_succeed_unsent) {
            self.finish(now, call, Ok(Response::empty()));
        }
        Ok(accepted.left.is_none())
    }

    /// Allows a call's stream to send frames, because the request has been sent.
    #[cold]
    fn opened(&mut self, now: Time, call: u64, session: Option<SessionNumber>) {
        let Some(pending) = self.pending(call) else { return };
        let (peer, destination) = (pending.peer, Destination::Choice(pending.choice));
        if let Some(stream) = pending.completion.stream().filter(|stream| !stream.is_open()) {
            stream.opened(now, Address { peer, destination, session, call });
        }
    }

    /// Handles a frame that the server sent on a stream.
    pub(crate) fn stream_frame(
        &mut self,
        transport: &mut Transport,
        from: PeerKey,
        call: u64,
        part: StreamPart,
        item: Item<'_>,
    ) {
        let (now, most_metadata, memory) = (transport.now(), self.most_metadata, Rc::clone(&self.memory));
        let waiting = if mutant!(late_items_match_any_stream) {
            parts(call).and_then(|(slot, _)| self.pending.get_mut(slot))
        } else {
            self.waiting(from, call)
        };
        let Some(pending) = waiting else { return };
        let Some(stream) = pending.completion.stream() else { return self.without_stream(transport, call) };
        // The server's limit on metadata may be higher than this node's limit.
        let most = if part == StreamPart::Accept { most_metadata } else { usize::MAX };
        let received = check_metadata(item.as_slice().len(), most)
            .map_err(Status::after_run)
            .and_then(|()| stream.frame(now, part, item, &|peer, from, to| memory.recharge(peer, from, to)));
        if let Err(status) = received {
            stream.abort(status.of_call(format_args!("{} at {}", pending.method, pending.peer)));
            self.sweep(transport);
        }
    }

    /// Ends a unary or one-way call for which a stream frame arrived.
    #[cold]
    fn without_stream(&mut self, transport: &mut Transport, call: u64) {
        let Some(pending) = self.pending(call) else { return };
        let status = Misuse::NO_STREAM.status();
        let text = format!("{}: {}", pending.name(), status.message());
        let unsent = self.take_unsent(transport, &[call]);
        self.abandon(transport, call, &unsent, |_| (status.code(), Reason::OtherProtocol, text));
    }

    /// Ends a call because this node did not have memory in time for an item of the call's stream.
    pub(crate) fn stream_gap(&mut self, from: PeerKey, call: u64, bytes: usize) {
        let status = Status::ran(Code::ResourceExhausted, no_memory(bytes)).because(Reason::Overloaded);
        self.abort_stream(from, call, status);
    }

    /// Ends a call because this node dropped an item of the call's stream.
    pub(crate) fn abort_stream(&mut self, peer: PeerKey, call: u64, status: Status) {
        let Some(pending) = self.waiting(peer, call) else { return };
        if let Some(stream) = pending.completion.stream() {
            stream.abort(status.of_call(format_args!("{} at {peer}", pending.method)));
        }
    }

    /// Returns the method reference for a request, and the session to which the request is bound, if any.
    fn method_ref(
        &mut self,
        peer: PeerKey,
        method: &'static MethodName,
    ) -> (MethodRef, Option<SessionNumber>) {
        match self.numbers.of(peer, method) {
            Some((number, _)) if mutant!(numbers_outlive_their_session) => (MethodRef::Number(number), None),
            Some((number, session)) => (MethodRef::Number(number), Some(session)),
            None => (MethodRef::from(method), self.compared_session(peer)),
        }
    }

    /// Sends the requests of waiting calls while there is room. Returns true if a round began.
    pub(crate) fn admit(&mut self, transport: &mut Transport, mut rest: impl FnMut(Encoded)) -> bool {
        if !self.waiting.begin_round(transport.now()) || mutant!(admission_is_lost) {
            return false;
        }
        for call in self.waiting.abandoned() {
            self.end(call, gave_up());
        }
        for _ in 0..ROUND {
            let Some((seat, mut call, leaves)) = self.waiting.next() else { break };
            // The transport may have removed the peer while it was idle.
            transport.peer(call.server);
            if call.is_abandoned() {
                self.waiting.leave(seat, None);
                self.end(call, gave_up());
                continue;
            }
            let is_away = call.is_chosen() && !transport.is_up(seat.peer);
            if is_away || (self.drained.refuses(seat.peer) && self.is_stopped(seat.peer, &mut call)) {
                self.waiting.leave(seat, None);
                // A stopped call no longer has a completion.
                self.held.make_again(call);
                continue;
            }
            if self.compares_names() && self.is_barred(transport, seat.peer, &mut call) {
                self.waiting.leave(seat, None);
                continue;
            }
            match self.attempt(transport, seat.peer, &mut call, leaves) {
                Ok(is_queued) => {
                    let waited = self.waiting.since(&seat).map_or(0, |since| transport.now().since(since));
                    self.counters.of(call.method).into_iter().for_each(|counters| counters.waited(waited));
                    self.waiting.leave(seat, Some(is_queued));
                    rest(call.encoded);
                }
                Err(why) => self.waiting.put_back(seat, call, why),
            }
        }
        self.waiting.end_round();
        true
    }

    /// Handles the outcome of sending a request.
    pub(crate) fn sent(&mut self, transport: &Transport, token: Token, outcome: SendOutcome) {
        let now = transport.now();
        let Some(pending) = self.pending(token.0) else { return };
        match outcome {
            SendOutcome::Delivered if pending.one_way => self.finish(now, token.0, Ok(Response::empty())),
            SendOutcome::Delivered => {
                pending.progress = Progress::Delivered;
                if pending.completion.stream().is_some() {
                    let peer = pending.peer;
                    self.opened(now, token.0, self.compared_session(peer));
                }
                // The request may have occupied the message queue.
                self.waiting.there_is_room();
            }
            SendOutcome::Failed(SendFailure { may_have_arrived, cause }) => {
                let peer = pending.peer;
                let is_missed = may_have_arrived && self.is_missed(token.0);
                let may_have_run =
                    may_have_arrived && !is_missed && !mutant!(failed_requests_count_as_not_run);
                if !may_have_run && cause.ends_a_session() && self.is_taken_back(token.0) {
                    return self.forget_numbers(peer);
                }
                let Some(pending) = self.pending(token.0) else { return };
                let status = match cause {
                    _ if pending.ordered && !may_have_run && cause.ends_a_session() => {
                        out_of_order(cause).of_call(format_args!("{} at {}", pending.method, pending.peer))
                    }
                    PeerDown::Deadline if !may_have_run => {
                        let why = not_sent(transport.is_up(peer), transport.away(peer));
                        let text = format!("{}: {why}", pending.name());
                        Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired)
                    }
                    _ if is_missed => missed(pending, cause),
                    _ => Status::unreachable(pending.name(), cause, may_have_run),
                };
                self.finish(now, token.0, Err(status));
                // The session may have ended before this poller was notified.
                self.forget_numbers(peer);
            }
        }
    }

    /// Handles a successful reply of a handler.
    #[inline]
    pub(crate) fn succeeded(
        &mut self,
        now: Time,
        from: PeerKey,
        call: u64,
        message: Message,
        encoded: Range<usize>,
    ) {
        let response = Response::new(message, encoded, self.most_decoded);
        let Some(pending) = self.waiting(from, call) else { return };
        let outcome = if pending.completion.stream().is_some() {
            self.admit_item(from, call, response)
        } else {
            Ok(response)
        };
        self.finish(now, call, outcome);
    }

    pub(crate) fn reply(
        &mut self,
        now: Time,
        from: PeerKey,
        call: u64,
        code: u8,
        by: RepliedBy,
        metadata: MetadataBytes,
        message: Message,
        encoded: Range<usize>,
    ) {
        let most_metadata = self.most_metadata;
        let Some(pending) = self.waiting(from, call) else { return };
        let (method, counters) = (pending.method, pending.counters);
        if let RepliedBy::Node { reason: Some(Reason::Draining), ran: false } = by
            && self.is_taken_back(call)
        {
            return;
        }
        let received = match received(metadata, most_metadata, &message, encoded.start) {
            Ok(received) => received,
            Err(status) => {
                return self.finish(now, call, Err(status.of_call(format_args!("{method} at {from}"))));
            }
        };
        let outcome = if code == 0 {
            let response = Response::new(message, encoded, self.most_decoded).with_metadata(metadata);
            self.admit_item(from, call, response)
        } else if code == HANDLER_ERROR && by == RepliedBy::Handler {
            self.counters.failed(counters, from, CallFailure::ERROR, None);
            Ok(Response::of_error(message, encoded, self.most_decoded).with_metadata(metadata))
        } else {
            let status = status_of(method, from, Code::from_number(code), by, message, encoded);
            let status = status.with_reply_metadata(received);
            if status.reason() == Some(Reason::NoMethod) {
                self.forget_numbers(from);
            }
            Err(status)
        };
        self.finish(now, call, outcome);
    }

    /// Refuses a reply whose item exceeds the memory limit for the peer's streams.
    fn admit_item(&mut self, from: PeerKey, call: u64, response: Response) -> Outcome {
        let Some(pending) = self.waiting(from, call) else { return Ok(response) };
        let method = pending.method;
        let Some(stream) = pending.completion.stream().filter(|_| response.has_value()).cloned() else {
            return Ok(response);
        };
        let charge = |peer, from, to| self.memory.recharge(peer, from, to);
        let charged = stream.charge_answer(response.value_bytes(), &charge);
        charged.map(|()| response).map_err(|status| status.of_call(format_args!("{method} at {from}")))
    }

    /// Returns the call that waits for this reply from a peer.
    #[inline]
    fn waiting(&mut self, from: PeerKey, call: u64) -> Option<&mut PendingCall> {
        let (slot, generation) = parts(call)?;
        let is_asked = |pending: &&mut PendingCall| {
            pending.generation == generation && pending.peer == from && !pending.one_way
        };
        self.pending.get_mut(slot).filter(is_asked)
    }

    /// Handles a reply that cannot be parsed.
    pub(crate) fn unparsed(&mut self, now: Time, from: PeerKey, call: u64, error: FrameError) {
        let Some(pending) = self.waiting(from, call) else { return };
        let status = unreadable(&pending.name(), error);
        self.finish(now, call, Err(status));
    }

    /// Ends a call because this node did not have memory in time for the reply.
    pub(crate) fn given_up(&mut self, now: Time, from: PeerKey, call: u64, bytes: usize) {
        let Some(pending) = self.waiting(from, call) else { return };
        let text = format!("{} at {}: {}", pending.method, pending.peer, no_memory(bytes));
        self.finish(now, call, Err(Status::ran(Code::ResourceExhausted, text).because(Reason::Overloaded)));
    }

    /// Stores a method number reported by a peer.
    pub(crate) fn learn(&mut self, from: Origin, number: Number) {
        if self.sessions.get(from.peer).is_some() {
            self.numbers.learn(from, number);
        }
    }

    /// Discards the method numbers of a peer.
    pub(crate) fn forget_numbers(&mut self, peer: PeerKey) {
        if !mutant!(numbers_outlive_their_session) {
            self.numbers.forget(peer);
        }
    }

    /// Records a new session with a peer.
    pub(crate) fn up(
        &mut self,
        peer: PeerKey,
        number: SessionNumber,
        epoch: u64,
        pollers: u16,
        identity: &PeerIdentity,
    ) {
        self.forget_numbers(peer);
        self.drained.forget(peer);
        self.sessions.insert(
            peer,
            Session {
                number,
                epoch,
                pollers,
                #[cfg(feature = "identity")]
                matched: None,
            },
        );
        self.name_up(peer, identity);
    }

    /// Records a DRAINED frame. The sending poller has answered all calls from this poller, and runs no further calls from
    /// it.
    pub(crate) fn drained(&mut self, from: Origin, now: Time) {
        if self.session_of(from).is_some_and(|session| from.poller.0 < session.pollers) {
            self.drained.insert(from.peer, Some((from.poller, now)));
        }
    }

    /// Returns the incarnation of the peer that sent a message, if its session is current.
    pub(crate) fn epoch_of(&self, from: Origin) -> Option<u64> {
        self.session_of(from).map(|session| session.epoch)
    }

    fn session_of(&self, from: Origin) -> Option<&Session> {
        self.sessions.get(from.peer).filter(|session| session.number == from.session)
    }

    /// Returns the number of calls in flight that were sent after their peer's DRAINED frame.
    pub(crate) fn sent_to_drained(&self) -> usize {
        let is_late =
            |pending: &PendingCall| self.drained.since(pending.peer).is_some_and(|at| pending.started > at);
        self.pending.iter().filter(|(_, pending)| is_late(pending)).count()
    }

    /// Returns true if an unanswered call was sent but cannot have run, because the server's poller has answered every call
    /// that it accepted. One-way calls and streams are excluded, because they do not end with a reply.
    fn is_missed(&self, call: u64) -> bool {
        let Some(pending) = parts(call).and_then(|(slot, _)| self.pending.get(slot)) else { return false };
        let is_unary = !pending.one_way && !pending.method.streams.any();
        let session = self.sessions.get(pending.peer).filter(|session| match pending.progress {
            Progress::Left(number) => is_unary && number == session.number,
            // Calls of earlier sessions ended together with those sessions.
            Progress::Waits | Progress::Delivered => is_unary,
        });
        session.is_some_and(|session| self.drained.contains(pending.peer, pending.choice.of(session.pollers)))
    }

    /// Sends DRAINED to all pollers of a peer, because this poller has answered their calls and runs no further calls from
    /// them.
    pub(crate) fn tell_drained(&mut self, transport: &mut Transport, peer: PeerKey) {
        let pollers = self.sessions.get(peer).map_or(0, |session| session.pollers);
        for poller in (0..pollers).map(PollerIndex) {
            // Without the frame, the peer treats its unanswered calls as possibly run.
            let _ = send_control(
                &mut self.scratch,
                transport,
                peer,
                Destination::Poller(poller),
                false,
                &Header::Drained,
            );
        }
    }

    pub(crate) fn peers(&self) -> Vec<PeerKey> {
        self.sessions.iter().map(|(peer, _)| peer).collect()
    }

    /// Handles the loss of a peer. Calls whose requests were delivered fail, because they get no reply.
    pub(crate) fn down(&mut self, transport: &mut Transport, peer: PeerKey, cause: PeerDown) {
        self.forget_numbers(peer);
        self.cancels.forget(peer);
        let lost = self.numbers(|pending| {
            pending.peer == peer
                && match pending.progress {
                    Progress::Waits => false,
                    Progress::Left(session) => !transport.has_session(peer, session),
                    Progress::Delivered => true,
                }
        });
        for call in lost {
            let is_missed = self.is_missed(call);
            if is_missed && self.is_taken_back(call) {
                continue;
            }
            let Some(pending) = self.pending(call) else { continue };
            let status = if !is_missed {
                Status::unreachable(pending.name(), cause, true)
            } else if pending.ordered {
                out_of_order(cause).of_call(format_args!("{}", pending.name()))
            } else {
                missed(pending, cause)
            };
            self.finish(transport.now(), call, Err(status));
        }
        // Calls that may use another server move there if their requests are unsent.
        let chosen = self.numbers(|pending| pending.peer == peer && pending.is_chosen);
        for Token(call) in self.take_unsent(transport, &chosen) {
            if !self.is_taken_back(call)
                && let Some(pending) = self.pending(call)
            {
                let status = Status::unreachable(pending.name(), cause, false);
                self.finish(transport.now(), call, Err(status));
            }
        }
        self.sessions.remove(peer);
        self.drained.forget(peer);
        self.name_down(peer, cause);
        self.held.release(peer);
        if cause.ends_a_session() {
            for call in self.waiting.take(|to, call| to == peer && call.order.is_some()) {
                self.end(call, out_of_order(cause));
            }
        }
        self.budget.leave(peer);
    }

    /// Adds the events that calls wait for, by peer. The events include the end of a draining peer's session, because a
    /// vanished peer would otherwise never be called again.
    pub(crate) fn awaited(&self, awaited: &mut BTreeMap<PeerKey, Awaited>) {
        awaited.extend(self.drained.peers().map(|peer| (peer, Awaited::Interest)));
        awaited.extend(self.held.servers().map(|peer| (peer, Awaited::Reply)));
        for (_, pending) in self.pending.iter().filter(|(_, pending)| !pending.one_way) {
            let what = if pending.method.streams.any() { Awaited::Item } else { Awaited::Reply };
            let known = awaited.entry(pending.peer).or_default();
            *known = what.max(*known);
        }
    }

    /// Returns the number of calls charged to the budget, and the number of calls in flight.
    pub(crate) fn budget(&self) -> BudgetLedger {
        let mut counted = BTreeMap::new();
        for (_, pending) in self.pending.iter().filter(|(_, pending)| pending.leaves.is_some()) {
            *counted.entry(pending.peer).or_default() += 1;
        }
        self.budget.ledger(counted)
    }

    /// Returns the bytes charged to each peer for streams opened by this node.
    pub(crate) fn stream_bytes(&self) -> BTreeMap<PeerKey, usize> {
        let mut bytes = BTreeMap::new();
        for (_, pending) in &self.pending {
            let charged = pending.completion.stream().map_or(0, |stream| stream.charged());
            if charged > 0 {
                *bytes.entry(pending.peer).or_default() += charged;
            }
        }
        bytes
    }

    /// Ends all calls in flight and all waiting calls whose deadline has passed. Returns true if any call ended.
    pub(crate) fn expire(&mut self, transport: &mut Transport) -> bool {
        let now = transport.now();
        let mut any = false;
        for cancel in self.cancels.take_due(now) {
            self.cancel(transport, cancel);
        }
        while let Some((call, why)) = self.waiting.late(now) {
            any = true;
            self.end(call, why.expired());
        }
        for (peer, call) in self.held.late(now) {
            any = true;
            let why = self.why_held(transport, peer, &call);
            self.end(call, no_session(peer, why));
        }
        any | (self.search_due() <= now && self.expire_calls(transport))
    }

    /// Returns the time of the next search for passed deadlines.
    #[inline]
    fn search_due(&self) -> Time {
        let pause = if self.pending.len() > FEW { SEARCH_EVERY } else { Duration::ZERO };
        self.next_due.max(self.searched + pause)
    }

    /// Ends the calls in flight whose deadline has passed. Returns true if any call ended.
    #[cold]
    fn expire_calls(&mut self, transport: &mut Transport) -> bool {
        let now = transport.now();
        let (mut due, mut idle, mut next_due) = (Vec::new(), BTreeMap::new(), Time::MAX);
        for (slot, pending) in &mut self.pending {
            if pending.due <= now {
                let call = number(slot, pending.generation, pending.one_way);
                match pending.completion.stream().map_or(Expiry::Deadline, |stream| stream.expiry(now)) {
                    Expiry::Deadline => due.push((pending.due, call)),
                    Expiry::Idle(limit) => {
                        idle.insert(call, limit);
                        due.push((pending.due, call));
                    }
                    Expiry::Later(time) => pending.due = time,
                }
            }
            if pending.due > now {
                next_due = next_due.min(pending.due);
            }
        }
        (self.next_due, self.searched) = (next_due, now);
        due.sort_unstable();
        let due = due.into_iter().map(|(_, call)| call).collect::<Vec<_>>();
        let any = !due.is_empty();
        let unsent = self.take_unsent(transport, &due);
        for call in due {
            let Some(pending) = self.pending(call) else { continue };
            let name = pending.name();
            let peer = pending.peer;
            let (is_up, away) = (transport.is_up(peer), transport.away(peer));
            let is_reply = |part: &Message| is_reply_to(part, call);
            let waiting = transport.waiting_bytes(peer, &is_reply);
            self.abandon(transport, call, &unsent, |has_left| {
                let unsent = (!has_left).then_some((is_up, away));
                let text = format!("{name}: {}", late(idle.get(&call), waiting, unsent));
                (Code::DeadlineExceeded, Reason::Expired, text)
            });
        }
        any
    }

    /// Ends the calls whose futures were dropped.
    ///
    /// Dropping a future does not send a message to the poller. Instead, the next turn checks all calls in flight. Calls
    /// that wait for room are checked in their next round.
    pub(crate) fn sweep(&mut self, transport: &mut Transport) {
        self.waiting.ask_for_sweep();
        for (_, call) in self.held.take(Submission::is_abandoned) {
            self.end(call, gave_up());
        }
        let abandoned = self.numbers(|pending| pending.completion.is_abandoned());
        let unsent = self.take_unsent(transport, &abandoned);
        for call in abandoned {
            self.abandon(transport, call, &unsent, |_| {
                (Code::Cancelled, Reason::Cancelled, GAVE_UP.to_owned())
            });
        }
    }

    /// Returns the time of the next `expire` or `admit`.
    pub(crate) fn next_timer(&self) -> Option<Time> {
        let due = Some(self.search_due()).filter(|_| self.next_due < Time::MAX && !self.pending.is_empty());
        due.into_iter()
            .chain(self.waiting.next_timer())
            .chain(self.cancels.next_timer())
            .chain(self.held.next_timer())
            .min()
    }

    /// Refuses and ends calls made outside of handlers and tasks, because the node shuts down. Nested calls continue, so
    /// that handlers can finish.
    pub(crate) fn close_to_outside(&mut self, now: Time) {
        self.accept_mode = AcceptMode::Nested;
        self.end_waiting(|call| !call.nested);
        self.end_all(now, |pending| !pending.nested || mutant!(draining_ends_nested_calls));
    }

    /// Refuses further calls and ends the calls in flight.
    pub(crate) fn close(&mut self) {
        self.accept_mode = AcceptMode::None;
        self.end_waiting(|_| true);
        // The time is not available here, so the report counts durations of zero.
        self.end_all(Time::default(), |_| true);
    }

    fn end_waiting(&mut self, which: impl Fn(&Submission) -> bool) {
        let held = self.held.take(&which).into_iter().map(|(_, call)| call);
        for call in self.waiting.take(|_, call| which(call)).into_iter().chain(held) {
            self.end(call, shutting_down());
        }
    }

    fn end_all(&mut self, now: Time, which: impl Fn(&PendingCall) -> bool) {
        for call in self.numbers(which) {
            let Some(pending) = self.pending(call) else { continue };
            let text = format!("{}: this node is shutting down", pending.name());
            self.finish(now, call, Err(Status::ran(Code::Unavailable, text).because(Reason::Draining)));
        }
    }

    fn pending(&mut self, call: u64) -> Option<&mut PendingCall> {
        let (slot, generation) = parts(call)?;
        self.pending.get_mut(slot).filter(|pending| pending.generation == generation)
    }

    fn numbers(&self, which: impl Fn(&PendingCall) -> bool) -> Vec<u64> {
        let chosen = self.pending.iter().filter(|(_, pending)| which(pending));
        chosen.map(|(slot, pending)| number(slot, pending.generation, pending.one_way)).collect()
    }

    #[inline]
    fn finish(&mut self, now: Time, call: u64, outcome: Outcome) {
        let Some(PendingCall { completion, counters, started, peer, .. }) = self.remove(call) else { return };
        let ns = now.since(started);
        self.counters.ended(counters, peer, ns);
        if let Err(status) = &outcome {
            self.counters.failed(counters, peer, status.into(), Some(ns));
        }
        completion.complete(outcome);
    }

    /// Returns a call's unit to the budget, if the call uses one.
    #[inline]
    fn put_back(&mut self, peer: PeerKey, leaves: Option<Leaves>) {
        if let Some(leaves) = leaves {
            self.budget.put_back_one(peer, leaves);
        }
    }

    /// Removes a call from the calls in flight.
    #[inline]
    fn remove(&mut self, call: u64) -> Option<PendingCall> {
        let (slot, _) = parts(call)?;
        let pending = self.pending.try_remove(slot)?;
        self.put_back(pending.peer, pending.leaves);
        if let Some(stream) = pending.completion.stream() {
            self.memory.recharge(pending.peer, stream.release(), 0);
        }
        self.waiting.there_is_room();
        Some(pending)
    }

    /// Removes a call without recording an outcome.
    #[cold]
    fn withdraw(&mut self, call: u64) -> Option<PendingCall> {
        let pending = self.remove(call)?;
        self.counters.at(pending.counters).into_iter().for_each(MethodCounters::withdrawn);
        Some(pending)
    }

    /// Takes back a call that has not run, in order to repeat it. Returns false if the call cannot be repeated.
    #[cold]
    fn is_taken_back(&mut self, call: u64) -> bool {
        // A repeated stream would lose client items that have been sent, and receive server items twice.
        let has_begun = |pending: &PendingCall| {
            pending.completion.stream().is_some_and(|stream| {
                stream.is_accepted() || (pending.method.streams.has_client_items() && stream.is_open())
            })
        };
        let pending = self.pending(call).filter(|pending| !has_begun(pending));
        let Some(again) = pending.and_then(|pending| pending.again.take()) else { return false };
        let Some(pending) = self.withdraw(call) else { return false };
        pending.completion.stream().into_iter().for_each(|stream| stream.withdrawn());
        self.held.make_again(again.with_completion(Some(pending.completion)));
        true
    }

    /// Fails a call that is not in flight. Adds the method and the server to the status.
    fn end(&mut self, mut call: Submission, status: Status) {
        self.end_with(&mut call, status);
    }

    #[cold]
    fn end_with(&mut self, call: &mut Submission, status: Status) {
        if let Some(completion) = call.completion.take() {
            if !completion.is_superseded() {
                self.count_refusal(call, (&status).into());
            }
            completion.complete(Err(status.of_call(format_args!("{} at {}", call.method, call.server))));
        }
    }

    /// Counts a call that ends before its request is passed to the transport.
    #[cold]
    fn count_refusal(&mut self, call: &Submission, failure: CallFailure) {
        self.counters.refused(call.method, call.server, failure);
    }

    /// Publishes the exact budget to other pollers at the end of a turn.
    pub(crate) fn settle(&self) {
        self.budget.settle_cache();
    }

    /// Takes the unsent requests of these calls back from the transport, in a single search of the transport's queues.
    fn take_unsent(&mut self, transport: &mut Transport, calls: &[u64]) -> BTreeSet<Token> {
        let mut waits =
            |call: &u64| self.pending(*call).is_some_and(|pending| pending.progress == Progress::Waits);
        let waiting =
            calls.iter().filter(|call| waits(call)).map(|call| Token(*call)).collect::<BTreeSet<_>>();
        if waiting.is_empty() { waiting } else { transport.cancel(&waiting) }
    }

    /// Ends a call that may have been sent, with a status that depends on its progress, and sends a cancellation to the
    /// remote poller. Requests in `unsent` have been taken back from the transport.
    fn abandon(
        &mut self,
        transport: &mut Transport,
        call: u64,
        unsent: &BTreeSet<Token>,
        why: impl FnOnce(bool) -> (Code, Reason, String),
    ) {
        let Some(pending) = self.pending(call) else { return };
        let PendingCall { peer, one_way, choice, method, .. } = *pending;
        let is_superseded = pending.completion.is_superseded();
        let has_left = !unsent.contains(&Token(call)) || mutant!(expired_in_the_queue_counts_as_run);
        let (code, reason, text) = why(has_left);
        let status = if has_left { Status::ran(code, text) } else { Status::not_run(code, text) };
        if is_superseded {
            self.withdraw(call);
        } else {
            self.finish(transport.now(), call, Err(status.because(reason)));
        }
        if one_way || !has_left || mutant!(cancellation_is_not_sent) {
            return;
        }
        // If the peer has no session, the handler has already ended together with the session.
        let Some(session) = self.sessions.get(peer) else { return };
        let destination = Destination::Poller(choice.of(session.pollers));
        let cancel = Cancel { peer, destination, call, ordered: method.streams.any() };
        self.cancel(transport, cancel);
    }

    /// Sends a cancellation, or keeps it while the message queue is full. Only cancellations of streams are kept, because a
    /// stream may have no deadline. For other calls, a lost cancellation only wastes the handler's time.
    fn cancel(&mut self, transport: &mut Transport, cancel: Cancel) {
        let Cancel { peer, destination, call, ordered } = cancel;
        let sent =
            send_control(&mut self.scratch, transport, peer, destination, ordered, &Header::Cancel { call });
        if ordered && matches!(sent, Err(SendError::QueueFull(_))) {
            self.cancels.push(cancel, transport.now());
        }
    }
}

/// Passes a request to the transport if it cannot be bundled with an earlier message. Takes the body of the submission.
#[inline(never)]
fn send_alone(
    transport: &mut Transport,
    header: RequestHeader,
    submission: &mut Submission,
    scratch: &mut Vec<u8>,
    to: &Joined,
    connect: Connect,
    leaves: Leaves,
) -> Result<Accepted, SendError> {
    let body = mem::take(&mut submission.body);
    let mut out = to.outgoing(connect, body, leaves);
    let sent = send(transport, &Header::Request(header), &mut submission.encoded, scratch, &mut out);
    sent.inspect_err(|_| submission.body = mem::take(&mut out.body))
}

/// Names are not compared without the `identity` feature.
#[cfg(not(feature = "identity"))]
#[expect(clippy::unused_self, reason = "the same methods as with feature identity")]
impl Calls {
    #[inline]
    fn compares_names(&self) -> bool {
        false
    }

    #[inline]
    fn may_bar(&self, _: ExpectedId) -> bool {
        false
    }

    #[inline]
    fn compared_session(&self, _: PeerKey) -> Option<SessionNumber> {
        None
    }

    #[inline]
    pub(crate) fn is_named(&self, _: PeerKey, _: ExpectedId) -> bool {
        true
    }

    #[inline]
    fn is_barred(&self, _: &Transport, _: PeerKey, _: &Submission) -> bool {
        false
    }

    fn name_up(&self, _: PeerKey, _: &PeerIdentity) {}

    fn name_down(&self, _: PeerKey, _: PeerDown) {}

    fn why_held(&self, _: &Transport, _: PeerKey, _: &Submission) -> Option<String> {
        None
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls")
            .field("in_flight", &self.pending.len())
            .field("waiting", &self.waiting.len())
            .finish_non_exhaustive()
    }
}
