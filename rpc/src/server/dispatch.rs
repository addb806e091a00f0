//! Requests to methods, and the handlers' outcomes to replies, on one poller.

use super::limits::MethodLimits;
use super::method::{Method, Outcome};
use super::{ArgumentMemory, Failure, MethodNumbers, Request, Service};
use crate::call::LocalQueue;
use crate::context::PollerContext;
use crate::executor::{Ready, TaskId};
use crate::frame::{
    Asked, By, Encoded, FrameError, HANDLER_ERROR, Header, NOBODY, Number, RequestHeader, send, status_body,
};
use crate::inbox::Inbox;
use crate::name::ServiceName;
use crate::reason::Reason;
use crate::status::{Code, Status};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_rings::panics::catch;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{
    Body, Carrier, Connect, DeadlineKey, Deadlines, Leaves, LogLimit, Message, Origin, Outgoing, PeerKey,
    PollerIndex, Report, SendError, SessionNumber, Toward,
};
use trunkline_verbs::Time;

/// A request, as its sender identifies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    peer: PeerKey,
    session: SessionNumber,
    poller: PollerIndex,
    call: u64,
}

impl Key {
    fn new(from: Origin, call: u64) -> Self {
        Self { peer: from.peer, session: from.session, poller: from.poller, call }
    }
}

/// Who made a call, and what its reply has to report.
#[derive(Debug, Clone, Copy)]
struct Caller {
    key: Key,
    one_way: bool,
    /// The method's number, which the caller does not know.
    number: Option<Number>,
}

struct Running {
    caller: Caller,
    /// The place of its deadline.
    timer: Option<DeadlineKey>,
    /// What its arguments are charged with, in bytes.
    decoded: usize,
}

/// The services of a poller and the requests that run there.
pub(crate) struct Dispatch {
    /// What may run at once, and does.
    budget: Share,
    arguments: Rc<ArgumentMemory>,
    services: BTreeMap<u64, &'static ServiceName>,
    methods: Vec<Box<dyn Method>>,
    /// Whether calls of `methods` get no reply.
    one_way: Vec<bool>,
    /// How many calls of `methods` may run at once, on all pollers.
    limits: Vec<MethodLimits>,
    /// Index in `methods`, and the service, by the method's hash.
    index: BTreeMap<u64, (u32, &'static ServiceName)>,
    /// The numbers of `methods`. `None` is one that callers name by its hash.
    numbers: Vec<Option<Number>>,
    /// Index in `methods` by the number.
    by_number: BTreeMap<u16, u32>,
    running: BTreeMap<TaskId, Running>,
    by_key: BTreeMap<Key, TaskId>,
    deadlines: Deadlines<TaskId>,
    scratch: Vec<u8>,
    /// Of one-way calls that were refused.
    log: LogLimit,
    poller: Rc<LocalQueue>,
    /// Of its poller: how far the node has come, and whose code runs.
    inbox: Arc<Inbox>,
}

impl Dispatch {
    pub(crate) fn new(
        services: &[Service],
        numbers: &MethodNumbers,
        context: &PollerContext,
        budget: Share,
        arguments: Share,
        inbox: &Arc<Inbox>,
    ) -> Self {
        let mut dispatch = Self {
            budget,
            arguments: Rc::new(ArgumentMemory::new(arguments)),
            services: BTreeMap::new(),
            methods: Vec::new(),
            one_way: Vec::new(),
            limits: Vec::new(),
            index: BTreeMap::new(),
            numbers: Vec::new(),
            by_number: BTreeMap::new(),
            running: BTreeMap::new(),
            by_key: BTreeMap::new(),
            deadlines: Deadlines::default(),
            scratch: Vec::new(),
            log: LogLimit::default(),
            poller: context.calls(),
            inbox: Arc::clone(inbox),
        };
        let mut names = Vec::new();
        for service in services {
            dispatch.services.insert(service.name.hash, service.name);
            for (name, method) in service.methods(context).0 {
                // A service has at most 1024 methods, and a node far fewer than 2^20 services.
                let table = u32::try_from(dispatch.methods.len()).unwrap_or(u32::MAX);
                dispatch.index.insert(name.hash, (table, service.name));
                let (version, hash) = (service.name.version, name.hash);
                let number = numbers.of(hash).map(|number| Number { number, version, method: hash });
                dispatch.by_number.extend(number.map(|number| (number.number, table)));
                dispatch.numbers.push(number);
                names.push(name);
                dispatch.methods.push(method);
                dispatch.one_way.push(name.one_way);
                dispatch.limits.push(service.limits_of(name));
            }
        }
        inbox.occupant().set_methods(names);
        dispatch
    }

    /// Starts the handler of a request, or replies at once.
    pub(crate) fn request(
        &mut self,
        carrier: &mut dyn Carrier,
        from: Origin,
        header: RequestHeader,
        message: Message,
        encoded: Range<usize>,
        ready: &Arc<Ready>,
    ) {
        let found = self.find(header.asked).and_then(|table| self.check_kind(table, header.one_way));
        let number = match (header.asked, &found) {
            (Asked::Method(_), Ok(table)) => self.number(*table),
            _ => None,
        };
        let key = Key::new(from, header.call);
        let caller = Caller { key, one_way: header.one_way, number };
        // A node that drains waits for what it sends, and its sessions are about to end.
        if let Some(number) = number.filter(|_| caller.one_way && !self.inbox.lifecycle().is_draining()) {
            self.report(carrier, key, number);
        }
        let started = self.check_phase().and(found).and_then(|table| {
            self.admit(carrier, &caller, table)?;
            Ok(table)
        });
        let table = match started {
            Ok(table) => table,
            Err(status) => return self.reply(carrier, caller, Err(Failure::Node(status))),
        };
        let deadline = (header.time_left_us > 0)
            .then(|| carrier.now() + Duration::from_micros(header.time_left_us.into()));
        let Some(method) = usize::try_from(table).ok().and_then(|at| self.methods.get_mut(at)) else {
            return self.ended(key.peer, table);
        };
        self.inbox.occupant().handler(table);
        let request = Request::new(message, encoded, Rc::clone(&self.poller), Rc::clone(&self.arguments));
        self.arguments.begin(key.peer);
        let started = method.start(table, request, ready);
        let decoded = self.arguments.end();
        match started {
            Ok(slot) => {
                let task = TaskId { table, slot };
                let deadline = deadline.filter(|_| !mutant!(server_keeps_no_deadline));
                let timer = deadline.map(|deadline| self.deadlines.add(carrier.now(), deadline, task));
                self.running.insert(task, Running { caller, timer, decoded });
                // A peer that uses a number twice confuses only its own cancellations.
                self.by_key.insert(key, task);
            }
            Err(outcome) => {
                self.ended(key.peer, table);
                self.arguments.put_back(key.peer, decoded);
                self.reply(carrier, caller, outcome);
            }
        }
    }

    /// Refuses a request that cannot be read.
    pub(crate) fn refuse(
        &mut self,
        carrier: &mut dyn Carrier,
        from: Origin,
        (call, one_way): (u64, bool),
        error: FrameError,
    ) {
        let (code, reason) = match error {
            FrameError::UnknownExtension(_) => {
                self.inbox.lifecycle().count_unknown_extension();
                (Code::Unimplemented, Reason::UnknownExtension)
            }
            FrameError::Kind(_) | FrameError::Flags(_) => (Code::Unimplemented, Reason::OtherProtocol),
            FrameError::MethodKind(_) => (Code::Unimplemented, Reason::NoMethod),
            _ => (Code::InvalidArgument, Reason::BadArguments),
        };
        // Not a warning, because a peer could fill the log with them.
        tracing::debug!(peer = ?from.peer, one_way, %error, "a request was refused");
        let caller = Caller { key: Key::new(from, call), one_way, number: None };
        let status = Status::not_run(code, error.to_string()).because(reason);
        self.reply(carrier, caller, Err(Failure::Node(status)));
    }

    /// The caller has given up: drops the handler.
    pub(crate) fn cancel(&mut self, from: Origin, call: u64) {
        let first = || self.running.keys().next().copied().filter(|_| mutant!(cancel_ends_another_call));
        if let Some(task) = first().or_else(|| self.by_key.get(&Key::new(from, call)).copied()) {
            self.drop_task(task);
        }
    }

    /// Polls a woken handler, and replies if it has ended.
    pub(crate) fn poll(&mut self, carrier: &mut dyn Carrier, task: TaskId) {
        let Some(method) = usize::try_from(task.table).ok().and_then(|at| self.methods.get_mut(at)) else {
            return;
        };
        self.inbox.occupant().handler(task.table);
        // A wake-up for an earlier call may find no handler.
        let mut running = self.running.get_mut(&task);
        if let Some(running) = &running {
            self.arguments.begin(running.caller.key.peer);
        }
        let polled = method.poll(task.slot);
        let decoded = self.arguments.end();
        if let Some(running) = &mut running {
            running.decoded += decoded;
        }
        let Some(outcome) = polled else { return };
        if let Some(Running { caller, .. }) = self.forget(task) {
            self.reply(carrier, caller, outcome);
        }
    }

    /// Drops the handlers whose deadline has passed. Returns whether there was one.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(task) = self.deadlines.due(now) {
            any = true;
            if let Some(running) = self.running.get_mut(&task) {
                running.timer = None;
            }
            self.drop_task(task);
        }
        any
    }

    /// A peer is lost: drops the handlers whose replies it waited for.
    pub(crate) fn down(&mut self, peer: PeerKey) {
        if mutant!(handlers_outlive_their_peer) {
            return;
        }
        let lost = self
            .running
            .iter()
            .filter(|(_, running)| running.caller.key.peer == peer && !running.caller.one_way);
        for task in lost.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.drop_task(task);
        }
        self.budget.leave(peer);
        self.arguments.leave(peer);
    }

    /// Drops all handlers one by one: a panic in one drop does not prevent the others.
    pub(crate) fn close(&mut self) {
        for task in self.running.keys().copied().collect::<Vec<_>>() {
            self.drop_task(task);
        }
    }

    /// Drops the services of a poller that ends, on which no handler runs.
    pub(crate) fn drop_services(&mut self) {
        for method in self.methods.drain(..) {
            // The last one of a service drops that, which may panic.
            let _ended = catch(|| drop(method));
        }
    }

    /// When `expire` is due next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.next()
    }

    /// Handlers that run.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// The handlers that are charged, and those that run; the same of their arguments.
    pub(crate) fn budgets(&self) -> [BudgetLedger; 2] {
        let (mut handlers, mut bytes) = (BTreeMap::new(), BTreeMap::new());
        for Running { caller: Caller { key, .. }, decoded, .. } in self.running.values() {
            *handlers.entry(key.peer).or_default() += 1;
            if *decoded > 0 {
                *bytes.entry(key.peer).or_default() += decoded;
            }
        }
        [self.budget.ledger(handlers), self.arguments.ledger(bytes)]
    }

    /// Slots of the methods' tables that are taken: one for each handler that runs.
    pub(crate) fn slots(&self) -> usize {
        self.methods.iter().map(|method| method.len()).sum()
    }

    /// Whether requests are taken.
    fn check_phase(&self) -> Result<(), Status> {
        let lifecycle = self.inbox.lifecycle();
        if lifecycle.is_draining() && !mutant!(draining_starts_handlers) {
            lifecycle.count_refused();
            let text = "the server is draining: it takes no new calls";
            return Err(Status::not_run(Code::Unavailable, text).because(Reason::Draining));
        }
        Ok(())
    }

    fn number(&self, table: u32) -> Option<Number> {
        *self.numbers.get(usize::try_from(table).ok()?)?
    }

    /// The method that a request asks for.
    fn find(&self, asked: Asked) -> Result<u32, Status> {
        let refused = |reason, code, text: String| Err(Status::not_run(code, text).because(reason));
        let asked = match asked {
            Asked::Number(number) => {
                let table = self.by_number.get(&number).copied();
                return table.map_or_else(
                    || refused(Reason::NoMethod, Code::Unimplemented, format!("number {number}")),
                    Ok,
                );
            }
            Asked::Method(method) => method,
        };
        let Some(service) = self.services.get(&asked.service) else {
            return refused(Reason::NoService, Code::Unimplemented, String::new());
        };
        if service.version != asked.version {
            return refused(Reason::OtherSchema, Code::FailedPrecondition, service.version.to_string());
        }
        match self.index.get(&asked.method) {
            Some((table, owner)) if owner.hash == asked.service => Ok(*table),
            _ => refused(Reason::NoMethod, Code::Unimplemented, String::new()),
        }
    }

    /// Refuses calls without a reply to methods that have one, whose handlers would outlive their sessions, and the
    /// opposite, whose callers would take the end of a handler for its success.
    fn check_kind(&self, table: u32, one_way: bool) -> Result<u32, Status> {
        let is_right = usize::try_from(table).is_ok_and(|at| self.one_way.get(at) == Some(&one_way));
        if is_right {
            return Ok(table);
        }
        let text = if one_way { "it has a reply" } else { "it is one-way" };
        Err(Status::not_run(Code::Unimplemented, text).because(Reason::NoMethod))
    }

    /// Charges a peer with a handler, or refuses it: also if the peer takes so few replies that there would be no
    /// room for this one's, or if as many calls of the method run as may.
    fn admit(&mut self, carrier: &mut dyn Carrier, caller: &Caller, table: u32) -> Result<(), Status> {
        let peer = caller.key.peer;
        let refusal = |text| Status::not_run(Code::ResourceExhausted, text).because(Reason::Overloaded);
        if !caller.one_way {
            let room = carrier.has_reply_room(peer);
            room.map_err(|exhausted| refusal(format!("the caller takes too few replies: {exhausted}")))?;
        }
        self.budget.take(peer, 1).map_err(|exhausted| refusal(exhausted.to_string()))?;
        self.limits(table).map_or(Ok(()), MethodLimits::take).map_err(|full| {
            self.budget.put_back(peer, 1);
            refusal(full)
        })
    }

    fn limits(&self, table: u32) -> Option<&MethodLimits> {
        self.limits.get(usize::try_from(table).ok()?)
    }

    /// A call that was admitted has ended.
    fn ended(&mut self, peer: PeerKey, table: u32) {
        self.budget.put_back(peer, 1);
        self.limits(table).inspect(|limits| limits.put_back());
    }

    /// Reports the number of a one-way call's method to its caller, unless that takes too few frames.
    fn report(&mut self, carrier: &mut dyn Carrier, key: Key, number: Number) {
        if carrier.has_reply_room(key.peer).is_err() {
            return;
        }
        let header = Header::Number { call: key.call, number };
        // The next call names the method by its hash again if this one is lost.
        let _ = self.send_frame(carrier, key, header, (Encoded::default(), Body::new()));
    }

    /// Replies to a call, unless nobody waits for that.
    fn reply(&mut self, carrier: &mut dyn Carrier, caller: Caller, outcome: Outcome) {
        if caller.one_way {
            if let Err(Failure::Node(status)) = outcome
                && let Some(left_out) = self.log.line(carrier.now())
            {
                tracing::warn!(peer = %caller.key.peer, %status, left_out, "a one-way call failed, which its caller does not learn");
            }
            return;
        }
        let ran = match &outcome {
            Err(Failure::Node(status)) => status.may_have_run(),
            Ok(_) | Err(Failure::Handler(_) | Failure::Error(_)) => true,
        };
        let (reason, text) = match self.send(carrier, &caller, outcome) {
            Err(error @ SendError::TooLarge { .. }) => {
                (Reason::TooLarge, format!("the reply is too large: {error}"))
            }
            Err(SendError::QueueFull(exhausted)) => {
                (Reason::Overloaded, format!("the caller takes too few replies: {exhausted}"))
            }
            // It was sent, or the caller's node is lost.
            Ok(()) | Err(_) => return,
        };
        let code = Code::ResourceExhausted;
        let status = if ran { Status::ran(code, text) } else { Status::not_run(code, text) };
        if self.send(carrier, &caller, Err(Failure::Node(status.because(reason)))).is_err() {
            tracing::debug!(key = ?caller.key, "a caller accepts no replies; its deadline will end the call");
        }
    }

    fn send(
        &mut self,
        carrier: &mut dyn Carrier,
        caller: &Caller,
        outcome: Outcome,
    ) -> Result<(), SendError> {
        let (code, by, encoded, body) = match outcome {
            Ok(reply) => (0, By::Handler, reply.encoded, reply.body),
            Err(Failure::Error(error)) => (HANDLER_ERROR, By::Handler, error.0, Body::new()),
            Err(Failure::Handler(status))
                if !status.may_have_run() && mutant!(forwarded_status_is_trusted) =>
            {
                self.with_status(By::Node { reason: status.reason(), ran: false }, status)
            }
            Err(Failure::Handler(status)) => self.with_status(By::Handler, status),
            Err(Failure::Node(status)) => {
                let by = By::Node { reason: status.reason(), ran: status.may_have_run() };
                self.with_status(by, status)
            }
        };
        let Caller { key, number, .. } = *caller;
        let header = Header::Reply { call: key.call, code, by, number };
        self.send_frame(carrier, key, header, (encoded, body))
    }

    /// Sends a frame to the poller that made a call.
    fn send_frame(
        &mut self,
        carrier: &mut dyn Carrier,
        key: Key,
        header: Header,
        (mut encoded, body): (Encoded, Body),
    ) -> Result<(), SendError> {
        let mut out = Outgoing {
            peer: key.peer,
            toward: Toward::Poller(key.poller),
            session: Some(key.session),
            connect: Connect::FailFast,
            ordered: false,
            head: &[],
            announced: 0,
            body,
            token: NOBODY,
            report: Report::Never,
            deadline: None,
            leaves: Leaves::Nothing,
        };
        send(carrier, &header, &mut encoded, &mut self.scratch, &mut out)?;
        self.poller.spare().rest(encoded);
        Ok(())
    }

    /// Code, origin, encoded part and body of a reply with a status.
    fn with_status(&self, by: By, status: Status) -> (u8, By, Encoded, Body) {
        let status = status.within_limits();
        let mut texts = self.poller.spare().take();
        status_body::emit(&status, texts.buffer());
        (status.code().number(), by, texts, status.details().clone().into())
    }

    fn drop_task(&mut self, task: TaskId) {
        if self.forget(task).is_some()
            && let Some(method) = usize::try_from(task.table).ok().and_then(|at| self.methods.get_mut(at))
        {
            self.inbox.occupant().handler(task.table);
            method.cancel(task.slot);
        }
    }

    fn forget(&mut self, task: TaskId) -> Option<Running> {
        let running = self.running.remove(&task)?;
        if !mutant!(ended_handlers_stay_charged) {
            self.ended(running.caller.key.peer, task.table);
        }
        self.arguments.put_back(running.caller.key.peer, running.decoded);
        self.by_key.remove(&running.caller.key);
        running.timer.and_then(|timer| self.deadlines.remove(timer));
        Some(running)
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("running", &self.running.len()).finish_non_exhaustive()
    }
}
