//! Dispatch on one poller: requests to methods, and the handlers' outcomes to replies.

use super::authorize::{Authorizers, RefusalLog};
use super::caller::{Caller, Key};
use super::limits::MethodLimits;
use super::method::{Method, Outcome, Started};
use super::replies::{Parts, WaitingReplies, WaitingReply, is_large};
use super::request::parse_metadata;
use super::{ArgumentMemory, Failure, MethodNumbers, Request, Service};
use crate::call::LocalQueue;
use crate::call::context::{Context, CurrentCall, PollerContext};
use crate::executor::inbox::Inbox;
use crate::executor::pool::Pool;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::{Ready, TaskId};
use crate::node::budgets::check_metadata;
use crate::node::start_error::HandlerInitError;
use crate::observe::counted::MethodCounters;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{CallStream, first_charge};
use crate::wire::frame::{
    Encoded, FrameError, HANDLER_ERROR, Header, Method as MethodExtension, MethodRef, NOBODY, Number,
    RepliedBy, RequestHeader, UNSET, send, status_body,
};
use crate::wire::metadata::{Metadata, MetadataBytes, ReplyMetadata};
use crate::wire::method_shapes::MethodShapes;
use crate::wire::name::{MethodName, ServiceName, Streams};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::mem;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::rings::panics::catch;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Body, Connect, DeadlineKey, Deadlines, Destination, Leaves, Message, Origin, Outgoing, PeerKey, Report,
    Screening, SendError, Transport,
};
use trunkline_verbs::Time;

mod counting;
mod ending;
mod finding;
mod not_sent;
mod screening;
mod streams;

use counting::{FailureLog, is_of_drain};

const NS_PER_US: u64 = 1000;

struct Running {
    caller: Caller,
    started: Time,
    /// Key of its deadline.
    timer: Option<DeadlineKey>,
    /// Charge of its arguments, in bytes.
    decoded: usize,
    /// Context, if the handler has asked for it.
    context: Option<Context>,
    /// The stream of a call that has one.
    stream: Option<Arc<CallStream>>,
}

/// A method of a service, with the properties of its calls.
struct Served {
    name: &'static MethodName,
    calls: Box<dyn Method>,
    /// True if its calls have no reply.
    one_way: bool,
    /// The directions in which its calls stream items.
    streams: Streams,
    /// Limits of its running calls, on all pollers.
    limits: MethodLimits,
    /// Number of the method; `None` if callers name it by its hash.
    number: Option<u16>,
    /// Shapes of its types.
    shapes: Option<&'static MethodShapes>,
    counters: Arc<MethodCounters>,
}

impl Served {
    /// Describes the kind of its calls.
    fn kind(&self) -> &'static str {
        match self.streams {
            Streams::Neither if self.one_way => "it is one-way",
            Streams::Neither => "it has a reply",
            Streams::FromServer => "its server streams items",
            Streams::FromClient => "its client streams items",
            Streams::Both => "both sides stream items",
        }
    }
}

/// The services of a poller, and the requests that run there.
pub(crate) struct Dispatch {
    /// Budget of running handlers.
    budget: Share,
    arguments: Rc<ArgumentMemory>,
    /// Maximum size of one call's metadata in each direction, in bytes.
    most_metadata: usize,
    /// Call whose handler is being polled.
    current: Rc<CurrentCall>,
    /// Replies without room.
    replies: WaitingReplies,
    /// Peers with a call whose handler has begun, and that had no reply.
    unanswered: BTreeSet<PeerKey>,
    services: BTreeMap<u64, &'static ServiceName>,
    methods: Vec<Served>,
    /// Counters of the methods that are not served.
    others: Arc<MethodCounters>,
    /// Index in `methods`, and the service, by the method's hash.
    index: BTreeMap<u64, (u32, &'static ServiceName)>,
    /// Index in `methods` by the number.
    by_number: Vec<Option<u32>>,
    running: BTreeMap<TaskId, Running>,
    by_key: BTreeMap<Key, TaskId>,
    deadlines: Deadlines<TaskId>,
    scratch: Vec<u8>,
    /// Limits of the log of failed calls.
    log: FailureLog,
    /// `None` if all calls may run.
    authorizers: Option<Box<(Authorizers, RefusalLog)>>,
    poller: Rc<LocalQueue>,
    /// Foreign runtime to enter while the program's code runs.
    runtime_guard: RuntimeGuard,
    /// Inbox of its poller, with the node's lifecycle and the code that occupies the poller.
    inbox: Arc<Inbox>,
}

impl Dispatch {
    pub(crate) fn new(
        services: &[Service],
        numbers: &MethodNumbers,
        context: &PollerContext,
        pool: &Pool,
        budget: Share,
        arguments: Share,
        replies: Share,
        most_metadata: usize,
        inbox: &Arc<Inbox>,
    ) -> Result<Self, HandlerInitError> {
        let mut dispatch = Self {
            budget,
            arguments: Rc::new(ArgumentMemory::new(arguments, Rc::clone(context.call()))),
            most_metadata,
            current: Rc::clone(context.call()),
            replies: WaitingReplies::new(replies),
            unanswered: BTreeSet::new(),
            services: BTreeMap::new(),
            methods: Vec::new(),
            others: inbox.served().add_others(),
            index: BTreeMap::new(),
            by_number: Vec::new(),
            running: BTreeMap::new(),
            by_key: BTreeMap::new(),
            deadlines: Deadlines::default(),
            scratch: Vec::new(),
            log: FailureLog::default(),
            authorizers: None,
            poller: context.calls(),
            runtime_guard: context.runtime_guard().clone(),
            inbox: Arc::clone(inbox),
        };
        let mut names = Vec::new();
        let _inside = context.runtime_guard().enter();
        for service in services {
            dispatch.services.insert(service.name.hash, service.name);
            for (name, calls) in service.methods(context, pool)?.all {
                // A service has at most 1024 methods, and a node far fewer than 2^20 services.
                let table = u32::try_from(dispatch.methods.len()).unwrap_or(u32::MAX);
                dispatch.index.insert(name.hash, (table, service.name));
                let number = numbers.of(name.hash);
                if let Some(number) = number {
                    let at = usize::from(number);
                    dispatch.by_number.resize(dispatch.by_number.len().max(at + 1), None);
                    dispatch.by_number[at] = Some(table);
                }
                names.push(name);
                let limits = service.limits_of(name);
                let (one_way, streams, shapes) = (name.one_way, name.streams, name.shapes);
                shapes.into_iter().for_each(|shapes| _ = shapes.trace());
                let counters = inbox.served().add(name);
                dispatch.methods.push(Served {
                    name,
                    calls,
                    one_way,
                    streams,
                    limits,
                    number,
                    shapes,
                    counters,
                });
            }
        }
        inbox.running().set_methods(names);
        inbox.running().runs_here();
        Ok(dispatch)
    }

    /// Does the same as [`Self::request`], for the first request of a method and other rare ones.
    #[inline(never)]
    pub(crate) fn request_by_name(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        header: RequestHeader,
        message: Message,
        encoded: Range<usize>,
        ready: &Arc<Ready>,
    ) {
        self.request(transport, from, header, message, encoded, ready);
    }

    /// Starts the handler of a request, or replies at once.
    #[inline(always)]
    pub(crate) fn request(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        header: RequestHeader,
        message: Message,
        encoded: Range<usize>,
        ready: &Arc<Ready>,
    ) {
        // One branch without authorizers: this is the path of all calls.
        if self.has_authorizers() && !message.is_accepted() {
            let head = message.as_slice().get(..encoded.start).unwrap_or_default();
            if self.screen(transport, from, &header, head) == Screening::Refused {
                return;
            }
        }
        let table = match header.method_ref {
            MethodRef::Number(number) => self.by_number.get(usize::from(number)).copied().flatten(),
            MethodRef::Method(_) => None,
        };
        let deadline = (message.time_left_us() > 0)
            .then(|| transport.now().plus_ns(u64::from(message.time_left_us()) * NS_PER_US));
        let Some(caller) = table.and_then(|table| self.caller(table, from, &header, deadline)) else {
            return self.look_up(transport, from, header, deadline, message, encoded, ready);
        };
        match table {
            Some(table) if !self.inbox.lifecycle().is_draining() => {
                self.start(transport, caller, table, message, encoded, ready);
            }
            _ => self.look_up(transport, from, header, deadline, message, encoded, ready),
        }
    }

    /// Returns the caller of a request for a method, if that is of the request's kind.
    #[inline]
    fn caller(
        &self,
        table: u32,
        from: Origin,
        header: &RequestHeader,
        deadline: Option<Time>,
    ) -> Option<Caller> {
        let served = self.served(table)?;
        let streams = served.streams;
        let is_of_kind = served.one_way == header.one_way && streams.any() == header.opens;
        let key = Key::new(from, header.call);
        let RequestHeader { one_way, metadata, .. } = *header;
        is_of_kind.then_some(Caller {
            overtakes: false,
            key,
            deadline,
            one_way,
            metadata,
            table,
            streams,
            number: None,
        })
    }

    /// Starts the handler of a request with the method's hash, or refuses the request.
    #[inline(never)]
    fn look_up(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        header: RequestHeader,
        deadline: Option<Time>,
        message: Message,
        encoded: Range<usize>,
        ready: &Arc<Ready>,
    ) {
        let RequestHeader { method_ref, one_way, metadata, .. } = header;
        let found = self.find(&header);
        let found = found.and_then(|table| self.compare(&header, table, message.as_slice()));
        let number = match (method_ref, &found) {
            (MethodRef::Method(MethodExtension { method, schema, .. }), Ok(table)) => {
                let number = self.served(*table).and_then(|served| served.number);
                number.map(|number| Number { number, schema, method })
            }
            _ => None,
        };
        let streams = found.as_ref().ok().and_then(|table| self.served(*table)).map(|served| served.streams);
        let (key, streams) = (Key::new(from, header.call), streams.unwrap_or_default());
        let table = found.as_ref().map_or_else(|_| self.refused_method(method_ref), |table| *table);
        let caller = Caller { key, deadline, one_way, metadata, table, streams, number, overtakes: false };
        // A node that drains waits for what it sends, and its sessions are about to end.
        if let Some(number) = number.filter(|_| caller.one_way && !self.inbox.lifecycle().is_draining()) {
            self.report(transport, caller.key, number);
        }
        match self.check_phase().and(found) {
            Ok(table) => self.start(transport, caller, table, message, encoded, ready),
            Err(status) => self.refuse_unfound(transport, caller, method_ref, status),
        }
    }

    /// Refuses a request of a method that this node does not serve, or not now.
    fn refuse_unfound(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        method_ref: MethodRef,
        status: Status,
    ) {
        if caller.one_way && status.reason() != Some(Reason::Draining) {
            self.counters(caller.table).refused();
            self.counters(caller.table).failed(status.code());
            self.not_served(transport, caller.key, method_ref, &status);
        } else {
            self.refuse_call(transport, caller, status);
        }
    }

    /// Starts a method's handler, if there is room for it. A handler that ends in its first poll needs no further
    /// state.
    #[inline]
    fn start(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        table: u32,
        message: Message,
        encoded: Range<usize>,
        ready: &Arc<Ready>,
    ) {
        let Caller { key, deadline, .. } = caller;
        let admitted =
            self.admit(transport, &caller, table).and_then(|()| self.admit_stream(transport.now(), &caller));
        if let Err(status) = admitted {
            return self.refuse_call(transport, caller, status);
        }
        if caller.metadata > 0
            && let Err(status) = self.take_metadata(&caller, message.as_slice(), encoded.start)
        {
            self.ended(key.peer, table);
            self.arguments.put_back(key.peer, first_charge(caller.streams));
            return self.refuse_call(transport, caller, status);
        }
        let stream = if caller.streams.any() { Some(self.open(&caller)) } else { None };
        let Some(served) = self.methods.get_mut(table as usize) else { return self.ended(key.peer, table) };
        self.inbox.running().handler(table);
        let (poller, memory) = (Rc::clone(&self.poller), Rc::clone(&self.arguments));
        let request = Request::new(message, encoded, poller, memory, stream.clone(), self.most_metadata);
        self.current.begin(key.peer, deadline);
        let inside = self.runtime_guard.enter();
        let started = served.calls.start(table, request, ready);
        drop(inside);
        let (decoded, context) = (self.arguments.end(), self.current.end());
        match started {
            Started::Running(slot) => {
                let task = TaskId { table, slot };
                let deadline = deadline.filter(|_| !mutant!(server_keeps_no_deadline));
                let started = transport.now();
                let timer = deadline.map(|deadline| self.deadlines.add(started, deadline, task));
                self.counters(table).began();
                self.running.insert(task, Running { caller, started, timer, decoded, context, stream });
                // A peer that uses a number twice confuses only its own cancellations, but must not lose a stream.
                if let Some(earlier) = self.by_key.insert(key, task) {
                    self.end_replaced(transport, earlier);
                }
            }
            Started::Ended(outcome) => {
                let metadata = context.and_then(|context| context.end());
                self.ended(key.peer, table);
                self.arguments.put_back(key.peer, decoded);
                if let Some(stream) = stream {
                    self.arguments.put_back(key.peer, stream.close());
                }
                match outcome {
                    Ok(reply) if !caller.one_way && caller.number.is_none() && metadata.is_none() => {
                        self.counters(table).ended_at_once();
                        self.reply_at_once(transport, &caller, (reply.encoded, reply.body));
                    }
                    outcome => {
                        if !is_of_drain(&outcome) {
                            self.counters(table).ended_at_once();
                        }
                        self.reply(transport, caller, outcome, metadata);
                    }
                }
            }
        }
    }

    /// Checks the metadata of a request, charges it to the peer and creates the context of its handler.
    #[cold]
    #[inline(never)]
    fn take_metadata(&self, caller: &Caller, message: &[u8], encoded: usize) -> Result<(), Status> {
        let (metadata, peer) = (self.parse_metadata(caller.metadata, message, encoded)?, caller.key.peer);
        self.arguments.charge_metadata(peer, metadata.size())?;
        self.current.begin_with(peer, caller.deadline, metadata);
        Ok(())
    }

    /// Checks the metadata of a request, which has this size and ends at `encoded`.
    fn parse_metadata(&self, size: u32, message: &[u8], encoded: usize) -> Result<Metadata, Status> {
        let [range, _] = MetadataBytes::of_request(size).before(encoded);
        let block = message.get(range).unwrap_or_default();
        parse_metadata(block, self.most_metadata)
    }

    /// Replies to a call whose handler has ended in its first poll.
    #[inline]
    fn reply_at_once(&mut self, transport: &mut Transport, caller: &Caller, mut parts: Parts) {
        let metadata = MetadataBytes::default();
        let header =
            Header::Reply { call: caller.key.call, code: 0, by: RepliedBy::Handler, number: None, metadata };
        let sent = if waits_for_room(caller, &parts) {
            self.send_or_wait(transport, *caller, header, parts)
        } else {
            self.send(transport, caller, &header, &mut parts)
        };
        if let Err(error) = sent {
            self.count_unsent(caller.table, &error);
            self.reply_with_refusal(transport, *caller, true, error);
        }
    }

    /// Refuses a request that cannot be read.
    pub(crate) fn refuse(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        call: u64,
        one_way: bool,
        error: FrameError,
    ) {
        let (code, reason) = match error {
            FrameError::UnknownExtension(_) => {
                self.inbox.lifecycle().counters.unknown_extensions.add();
                (Code::Unimplemented, Reason::UnknownExtension)
            }
            FrameError::Kind(_) | FrameError::Flags(_) => (Code::Unimplemented, Reason::OtherProtocol),
            FrameError::MethodKind(_) => (Code::Unimplemented, Reason::NoMethod),
            _ => (Code::InvalidArgument, Reason::BadArguments),
        };
        // Not a warning, because a peer could fill the log with them.
        tracing::debug!(peer = ?from.peer, one_way, %error, "a request was refused");
        let caller = Caller { one_way, ..Caller::of_one_way(Key::new(from, call)) };
        let status = Status::not_run(code, error.to_string()).because(reason);
        self.refuse_call(transport, caller, status);
    }

    /// Drops the handler of a call that its caller has cancelled.
    pub(crate) fn cancel(&mut self, now: Time, from: Origin, call: u64) {
        let first = || self.running.keys().next().copied().filter(|_| mutant!(cancel_ends_another_call));
        if let Some(task) = first().or_else(|| self.by_key.get(&Key::new(from, call)).copied()) {
            return self.drop_counted(now, task, Code::Cancelled);
        }
        if !self.replies.is_empty() {
            self.replies.cancel(Key::new(from, call));
        }
    }

    /// Polls a woken handler, and replies if it has ended.
    pub(crate) fn poll(&mut self, transport: &mut Transport, task: TaskId) {
        let Some(served) = self.methods.get_mut(task.table as usize) else { return };
        self.inbox.running().handler(task.table);
        // A wake-up for an earlier call may find no handler.
        let mut running = self.running.get_mut(&task);
        if let Some(running) = &mut running {
            let Caller { key, deadline, .. } = running.caller;
            self.current.resume(key.peer, deadline, running.context.take());
        }
        let inside = self.runtime_guard.enter();
        let polled = served.calls.poll(task.slot);
        drop(inside);
        let (decoded, context) = (self.arguments.end(), self.current.end());
        if let Some(running) = &mut running {
            running.decoded += decoded;
            running.context = context;
        }
        let Some(outcome) = polled else { return };
        if let Some((caller, metadata)) = self.forget(transport.now(), task, !is_of_drain(&outcome)) {
            self.reply(transport, caller, outcome, metadata);
        }
    }

    /// Drops the handlers whose deadline has passed. Returns true if there was one.
    pub(crate) fn expire(&mut self, transport: &mut Transport) -> bool {
        let mut any = false;
        while let Some(task) = self.deadlines.due(transport.now()) {
            any = true;
            let caller = self.running.get_mut(&task).map(|running| {
                running.timer = None;
                running.caller
            });
            self.current.take_withdrawn();
            self.drop_task(transport.now(), task);
            let is_withdrawn = self.current.take_withdrawn();
            if let Some(caller) = caller.filter(|_| is_withdrawn) {
                let text = "the deadline passed while the call waited for a worker";
                let status = Status::not_run(Code::DeadlineExceeded, text).because(Reason::Expired);
                self.reply(transport, caller, Err(Failure::Node(status)), None);
            } else if let Some(caller) = caller {
                self.counters(task.table).failed(Code::DeadlineExceeded);
                if caller.one_way {
                    self.inbox.lifecycle().counters.one_way_failed.add();
                } else {
                    self.unanswered.insert(caller.key.peer);
                }
            }
        }
        any
    }

    /// Drops the handlers whose replies a lost peer waited for.
    pub(crate) fn down(&mut self, now: Time, peer: PeerKey) {
        if mutant!(handlers_outlive_their_peer) {
            return;
        }
        let lost = self
            .running
            .iter()
            .filter(|(_, running)| running.caller.key.peer == peer && !running.caller.one_way);
        for task in lost.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.drop_counted(now, task, Code::Cancelled);
        }
        self.budget.leave(peer);
        self.arguments.leave(peer);
        self.replies.down(peer, now);
        self.unanswered.remove(&peer);
    }

    /// Returns true if all calls of a peer whose handlers have ended had a reply in this session, or have none.
    pub(crate) fn has_answered(&self, peer: PeerKey) -> bool {
        !self.unanswered.contains(&peer)
    }

    /// Returns true if no handler of a peer's calls runs, and no reply to the peer waits for room.
    pub(crate) fn has_ended(&self, peer: PeerKey) -> bool {
        // A search in `running` for each peer would take a draining poller's time from the handlers that are left.
        !self.replies.has_any_to(peer) && self.budget.used_by(peer) == 0
    }

    /// Drops all handlers one by one: a panic in one drop does not prevent the others.
    pub(crate) fn close(&mut self) {
        for task in self.running.keys().copied().collect::<Vec<_>>() {
            // The time is not known here: it takes no time in the report.
            self.drop_counted(Time::default(), task, Code::Cancelled);
        }
        self.replies.close();
    }

    /// Drops the services of a poller that ends, on which no handler runs.
    pub(crate) fn drop_services(&mut self) {
        for served in self.methods.drain(..) {
            // Dropping the last method of a service drops the service, which may panic.
            let _ended = catch(|| drop(served));
        }
    }

    /// Returns the time of the next `expire` or `send_waiting`.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next().into_iter().chain(self.replies.next_timer()).min()
    }

    /// Returns the number of running handlers and of replies that wait for room.
    pub(crate) fn len(&self) -> usize {
        self.running.len() + self.replies.len()
    }

    /// Returns the ledgers of running handlers, of their arguments and of waiting replies. `bytes` are the bytes of streams
    /// that this node has opened, which count as arguments.
    pub(crate) fn budgets(&self, mut bytes: BTreeMap<PeerKey, usize>) -> [BudgetLedger; 3] {
        let mut handlers = BTreeMap::new();
        for Running { caller: Caller { key, .. }, decoded, stream, .. } in self.running.values() {
            *handlers.entry(key.peer).or_default() += 1;
            let decoded = decoded + stream.as_ref().map_or(0, |stream| stream.charged());
            if decoded > 0 {
                *bytes.entry(key.peer).or_default() += decoded;
            }
        }
        [self.budget.ledger(handlers), self.arguments.ledger(bytes), self.replies.ledger()]
    }

    /// Returns the number of occupied slots in the methods' tables: one per running handler.
    pub(crate) fn slots(&self) -> usize {
        self.methods.iter().map(|served| served.calls.len()).sum()
    }

    /// Returns an error if the node accepts no requests.
    fn check_phase(&self) -> Result<(), Status> {
        let lifecycle = self.inbox.lifecycle();
        if lifecycle.is_draining() && !mutant!(draining_starts_handlers) {
            lifecycle.counters.refused.add();
            let text = "the server is draining: it takes no new calls";
            return Err(Status::not_run(Code::Unavailable, text).because(Reason::Draining));
        }
        Ok(())
    }

    #[inline]
    fn served(&self, table: u32) -> Option<&Served> {
        self.methods.get(table as usize)
    }

    /// Charges a peer with a handler, or refuses the request. It also refuses when the peer takes so few replies
    /// that there is no room for this one, and when a limit of the method is reached.
    #[inline]
    fn admit(&mut self, transport: &mut Transport, caller: &Caller, table: u32) -> Result<(), Status> {
        let peer = caller.key.peer;
        let refusal = |text| Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded);
        if !caller.one_way {
            let room = transport.has_reply_room(peer);
            room.map_err(|exhausted| refusal(format!("the caller takes too few replies: {exhausted}")))?;
        }
        self.budget.take_one(peer, Leaves::Nothing).map_err(|exhausted| refusal(exhausted.to_string()))?;
        self.served(table).map_or(Ok(()), |served| served.limits.take()).map_err(|full| {
            self.budget.put_back_one(peer, Leaves::Nothing);
            refusal(full)
        })
    }

    /// Ends a turn. The budget that other pollers see is then exact.
    pub(crate) fn settle(&self) {
        self.budget.settle_cache();
    }

    /// Releases the charge of an admitted call that has ended.
    #[inline]
    fn ended(&mut self, peer: PeerKey, table: u32) {
        self.budget.put_back_one(peer, Leaves::Nothing);
        self.served(table).inspect(|served| served.limits.put_back());
    }

    /// Reports the number of a one-way call's method to its caller, unless the caller accepts too few frames.
    fn report(&mut self, transport: &mut Transport, key: Key, number: Number) {
        if transport.has_reply_room(key.peer).is_err() {
            return;
        }
        let header = Header::Number { call: key.call, number };
        // The next call names the method by its hash again if this one is lost.
        let _ =
            self.send(transport, &Caller::of_one_way(key), &header, &mut (Encoded::default(), Body::new()));
    }

    /// Replies to a call, or logs the failure of a one-way call.
    #[inline(never)]
    fn reply(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        mut outcome: Outcome,
        metadata: Option<Box<ReplyMetadata>>,
    ) {
        let (now, Caller { key, one_way, number, .. }) = (transport.now(), caller);
        if one_way {
            outcome.as_ref().err().into_iter().for_each(|failure| self.failed(now, &caller, failure));
            return self.one_way_ended(now, key.peer, outcome);
        }
        let metadata = self.metadata_of(metadata, &mut outcome);
        outcome.as_ref().err().into_iter().for_each(|failure| self.failed(now, &caller, failure));
        let (code, by, mut encoded, body) = match outcome {
            Ok(reply) => (0, RepliedBy::Handler, reply.encoded, reply.body),
            Err(failure) => self.of_failure(failure),
        };
        let metadata = metadata.map_or_else(MetadataBytes::default, |metadata| {
            encoded.prepend(metadata.trailing.block());
            encoded.prepend(metadata.initial.block());
            metadata.bytes()
        });
        let header = Header::Reply { call: key.call, code, by, number, metadata };
        let mut parts = (encoded, body);
        let sent = if waits_for_room(&caller, &parts) {
            self.send_or_wait(transport, caller, header, parts)
        } else {
            self.send(transport, &caller, &header, &mut parts)
        };
        if let Err(error) = sent {
            if code == 0 {
                self.count_unsent(caller.table, &error);
            }
            let ran = !matches!(by, RepliedBy::Node { ran: false, .. });
            self.reply_with_refusal(transport, caller, ran, error);
        }
    }

    /// Returns the metadata of a reply, including the metadata of the handler's status. If there is too much, the outcome becomes
    /// a refusal without metadata.
    fn metadata_of(
        &self,
        metadata: Option<Box<ReplyMetadata>>,
        outcome: &mut Outcome,
    ) -> Option<Box<ReplyMetadata>> {
        let of_status = match outcome {
            Err(Failure::Handler(status) | Failure::Node(status)) => {
                Some(status.metadata()).filter(|metadata| !metadata.is_empty())
            }
            _ => None,
        };
        if metadata.is_none() && of_status.is_none() {
            return None;
        }
        let mut metadata = metadata.unwrap_or_default();
        of_status.into_iter().for_each(|more| metadata.trailing.extend(more));
        if let Err(status) = check_metadata(metadata.size(), self.most_metadata) {
            *outcome = Err(Failure::Node(status.after_run()));
            return None;
        }
        Some(metadata)
    }

    /// Sends a reply that waits for room, or queues it.
    #[inline(never)]
    fn send_or_wait(
        &mut self,
        transport: &mut Transport,
        caller: Caller,
        header: Header,
        mut parts: Parts,
    ) -> Result<(), SendError> {
        // Small ones do not wait behind large ones.
        if !is_large(&parts) || !self.replies.has_any_to(caller.key.peer) {
            match self.send(transport, &caller, &header, &mut parts) {
                Err(SendError::QueueFull(_)) if !mutant!(replies_do_not_wait_for_room) => {}
                sent => return sent,
            }
        }
        let reply = WaitingReply::new(caller, header, parts);
        self.replies.add(reply, transport.now()).map_err(SendError::QueueFull)
    }

    /// Sends waiting replies while there is room, up to the limit of a turn. Returns true if a turn has begun.
    pub(crate) fn send_waiting(&mut self, transport: &mut Transport) -> bool {
        let now = transport.now();
        if !self.replies.begin_turn(now) {
            return false;
        }
        while let Some(mut reply) = self.replies.next(now) {
            let caller = reply.caller;
            match self.send(transport, &caller, &reply.header, &mut reply.parts) {
                Err(SendError::QueueFull(full)) => self.replies.put_back(reply, now, full),
                sent => {
                    self.replies.left(&reply);
                    if let Err(error) = sent {
                        self.reply_with_refusal(transport, caller, true, error);
                    }
                }
            }
        }
        self.unanswered.extend(self.replies.take_late());
        true
    }

    /// Drops a one-way request of a method that this node does not serve: counts it, logs each such service and method
    /// once, and makes the caller's node count it too, unless that node accepts too few frames.
    #[cold]
    fn not_served(&mut self, transport: &mut Transport, key: Key, method_ref: MethodRef, status: &Status) {
        let lifecycle = self.inbox.lifecycle();
        let service = match method_ref {
            MethodRef::Method(method) => self.services.get(&method.service),
            MethodRef::Number(_) => None,
        };
        let hash = match (method_ref, service) {
            (MethodRef::Method(method), None) => method.service,
            (MethodRef::Method(method), Some(_)) => method.method,
            (MethodRef::Number(number), _) => u64::from(number),
        };
        if lifecycle.count_not_served(hash) {
            let service = service.map_or("of another name", |service| service.name);
            tracing::warn!(
                peer = %key.peer, service, hash = format_args!("{hash:016x}"), %status,
                "one-way calls of what this node does not serve are dropped; one_way_requests_not_served counts them"
            );
        }
        if transport.has_reply_room(key.peer).is_err() {
            return;
        }
        let by = RepliedBy::Node { reason: status.reason(), ran: false };
        let header = Header::Reply {
            call: key.call,
            code: status.code().number(),
            by,
            number: None,
            metadata: MetadataBytes::default(),
        };
        // If it is lost, only the caller's counter misses one.
        let _ =
            self.send(transport, &Caller::of_one_way(key), &header, &mut (Encoded::default(), Body::new()));
    }

    /// Counts and logs the failure of a one-way call, which has no reply. Requests that a draining node refuses have their
    /// own counter.
    fn one_way_ended(&mut self, now: Time, peer: PeerKey, outcome: Outcome) {
        let Err(failure) = outcome else { return };
        if !failure.is_of_drain() {
            self.inbox.lifecycle().counters.one_way_failed.add();
        }
        if let Failure::Node(status) = failure
            && status.reason() != Some(Reason::Panicked)
            && let Some(left_out) = self.log.one_way.line(now)
        {
            tracing::warn!(
                %peer, %status, left_out,
                "a one-way call failed, which its caller does not learn; one_way_requests_failed counts them"
            );
        }
    }

    /// Replies in place of a reply that could not be sent.
    #[cold]
    fn reply_with_refusal(&mut self, transport: &mut Transport, caller: Caller, ran: bool, error: SendError) {
        let (reason, text) = match error {
            SendError::TooLarge { .. } => (Reason::TooLarge, format!("the reply is too large: {error}")),
            SendError::QueueFull(exhausted) => {
                (Reason::Overloaded, format!("the caller takes too few replies: {exhausted}"))
            }
            // The caller's node is lost.
            _ => {
                self.unanswered.insert(caller.key.peer);
                return;
            }
        };
        let code = Code::ResourceExhausted;
        let status = if ran { Status::ran(code, text) } else { Status::not_run(code, text) };
        let Caller { key, number, .. } = caller;
        let (code, by, encoded, body) = self.of_failure(Failure::Node(status.because(reason)));
        let header = Header::Reply { call: key.call, code, by, number, metadata: MetadataBytes::default() };
        if self.send(transport, &caller, &header, &mut (encoded, body)).is_err() {
            self.unanswered.insert(key.peer);
            tracing::debug!(?key, "a caller accepts no replies; its deadline will end the call");
        }
    }

    /// Sends a frame to the poller that made a call. On failure the parts are unchanged.
    #[inline]
    fn send(
        &mut self,
        transport: &mut Transport,
        caller: &Caller,
        header: &Header,
        (encoded, body): &mut Parts,
    ) -> Result<(), SendError> {
        let key = caller.key;
        let mut out = Outgoing {
            peer: key.peer,
            destination: Destination::Poller(key.poller),
            session: Some(key.session),
            connect: Connect::FailFast,
            // The reply that ends a stream follows its items.
            ordered: caller.streams.any() && !caller.overtakes,
            header: UNSET,
            head: &[],
            announced: 0,
            body: mem::take(body),
            token: NOBODY,
            report: Report::Never,
            deadline: None,
            leaves: Leaves::Nothing,
        };
        let sent = send(transport, header, encoded, &mut self.scratch, &mut out);
        sent.inspect_err(|_| *body = mem::take(&mut out.body))?;
        self.poller.buffers().keep(mem::take(encoded));
        Ok(())
    }

    /// Returns the code, origin, encoded part and body of a failed call's reply.
    fn of_failure(&self, failure: Failure) -> (u8, RepliedBy, Encoded, Body) {
        let (by, status) = match failure {
            Failure::Error(error) => return (HANDLER_ERROR, RepliedBy::Handler, error.0, Body::new()),
            Failure::Handler(status) if !status.may_have_run() && mutant!(forwarded_status_is_trusted) => {
                (RepliedBy::Node { reason: status.reason(), ran: false }, status)
            }
            Failure::Handler(status) => (RepliedBy::Handler, status),
            Failure::Node(status) => {
                (RepliedBy::Node { reason: status.reason(), ran: status.may_have_run() }, status)
            }
        };
        let status = status.within_limits();
        let mut texts = self.poller.buffers().take();
        status_body::emit(&status, texts.buffer());
        (status.code().number(), by, texts, status.details().clone().into())
    }

    /// Drops a handler. Returns false if it does not run.
    fn drop_task(&mut self, now: Time, task: TaskId) -> bool {
        if self.forget(now, task, true).is_none() {
            return false;
        }
        if let Some(served) = self.methods.get_mut(task.table as usize) {
            self.inbox.running().handler(task.table);
            let _inside = self.runtime_guard.enter();
            served.calls.cancel(task.slot);
        }
        true
    }

    /// Removes a handler that has ended. Returns its caller and the metadata of its response. If `has_run` is false, its call
    /// is not counted.
    fn forget(
        &mut self,
        now: Time,
        task: TaskId,
        has_run: bool,
    ) -> Option<(Caller, Option<Box<ReplyMetadata>>)> {
        let running = self.running.remove(&task)?;
        let counters = self.counters(task.table);
        if has_run {
            counters.ended(now.since(running.started))
        } else {
            counters.withdrawn()
        }
        if !mutant!(ended_handlers_stay_charged) {
            self.ended(running.caller.key.peer, task.table);
        }
        self.arguments.put_back(running.caller.key.peer, running.decoded);
        if let Some(stream) = &running.stream {
            self.arguments.put_back(running.caller.key.peer, stream.close());
        }
        // A later call may have the same number.
        if let Entry::Occupied(entry) = self.by_key.entry(running.caller.key)
            && *entry.get() == task
        {
            entry.remove();
        }
        running.timer.and_then(|timer| self.deadlines.remove(timer));
        let metadata = running.context.and_then(|context| context.end());
        Some((running.caller, metadata))
    }
}

/// Returns true if a reply waits for room in the queue: it is large, or ends a stream that no deadline ends.
#[inline]
fn waits_for_room(caller: &Caller, parts: &Parts) -> bool {
    is_large(parts) || (caller.streams.any() && caller.deadline.is_none())
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("running", &self.running.len()).finish_non_exhaustive()
    }
}
