//! Requests to methods, and the handlers' outcomes to replies, on one poller.

use super::method::{Method, Outcome};
use super::{Request, Service};
use crate::call::LocalQueue;
use crate::context::PollerContext;
use crate::executor::{Ready, TaskId};
use crate::frame::{Frame, Header, NOBODY, Reason, RequestHeader};
use crate::name::ServiceName;
use crate::status::{Code, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trunkline_mutants::mutant;
use trunkline_transport::budget::Share;
use trunkline_transport::ledger::BudgetLedger;
use trunkline_transport::{Carrier, Message, Origin, PeerKey, PollerIndex, SendError, SessionNumber};
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

struct Running {
    key: Key,
    one_way: bool,
    deadline: Option<Time>,
}

/// The services of a poller and the requests that run there.
pub(crate) struct Dispatch {
    /// What may run at once, and does.
    budget: Share,
    services: BTreeMap<u64, &'static ServiceName>,
    methods: Vec<Box<dyn Method>>,
    /// Index in `methods`, and the service, by the method's hash.
    index: BTreeMap<u64, (u32, &'static ServiceName)>,
    running: BTreeMap<TaskId, Running>,
    by_key: BTreeMap<Key, TaskId>,
    deadlines: BTreeSet<(Time, TaskId)>,
    scratch: Vec<u8>,
    poller: Rc<LocalQueue>,
}

impl Dispatch {
    pub(crate) fn new(services: &[Service], context: &PollerContext, budget: Share) -> Self {
        let mut dispatch = Self {
            budget,
            services: BTreeMap::new(),
            methods: Vec::new(),
            index: BTreeMap::new(),
            running: BTreeMap::new(),
            by_key: BTreeMap::new(),
            deadlines: BTreeSet::new(),
            scratch: Vec::new(),
            poller: context.calls(),
        };
        for service in services {
            dispatch.services.insert(service.name.hash, service.name);
            for (name, method) in service.methods(context).0 {
                // A service has at most 1024 methods, and a node far fewer than 2^20 services.
                let number = u32::try_from(dispatch.methods.len()).unwrap_or(u32::MAX);
                dispatch.index.insert(name.hash, (number, service.name));
                dispatch.methods.push(method);
            }
        }
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
        let key = Key::new(from, header.call);
        let table = match self.find(header).and_then(|table| self.admit(carrier, key, header).map(|()| table))
        {
            Ok(table) => table,
            Err((reason, status)) => {
                if !header.one_way {
                    self.reply(carrier, key, reason, Err(status));
                }
                return;
            }
        };
        let deadline =
            (header.time_left_us > 0).then(|| carrier.now() + Duration::from_micros(header.time_left_us));
        let Some(method) = usize::try_from(table).ok().and_then(|at| self.methods.get_mut(at)) else {
            return self.budget.put_back(key.peer, 1);
        };
        match method.start(table, Request::new(message, encoded, Rc::clone(&self.poller)), ready) {
            Ok(slot) => {
                let task = TaskId { table, slot };
                self.running.insert(task, Running { key, one_way: header.one_way, deadline });
                // A peer that uses a number twice confuses only its own cancellations.
                self.by_key.insert(key, task);
                if !mutant!(server_keeps_no_deadline) {
                    self.deadlines.extend(deadline.map(|deadline| (deadline, task)));
                }
            }
            Err(outcome) => {
                self.budget.put_back(key.peer, 1);
                if !header.one_way {
                    self.finish(carrier, key, outcome);
                }
            }
        }
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
        let Some(outcome) = method.poll(task.slot) else { return };
        if let Some(Running { key, one_way, .. }) = self.forget(task)
            && !one_way
        {
            self.finish(carrier, key, outcome);
        }
    }

    /// Drops the handlers whose deadline has passed. Returns whether there was one.
    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        while let Some(&(_, task)) = self.deadlines.first().filter(|(deadline, _)| *deadline <= now) {
            any = true;
            self.drop_task(task);
        }
        any
    }

    /// A peer is lost: drops the handlers whose replies it waited for.
    pub(crate) fn down(&mut self, peer: PeerKey) {
        if mutant!(handlers_outlive_their_peer) {
            return;
        }
        let lost = self.running.iter().filter(|(_, running)| running.key.peer == peer && !running.one_way);
        for task in lost.map(|(task, _)| *task).collect::<Vec<_>>() {
            self.drop_task(task);
        }
        self.budget.leave(peer);
    }

    /// Drops all handlers one by one: a panic in one drop does not prevent the others.
    pub(crate) fn close(&mut self) {
        for task in self.running.keys().copied().collect::<Vec<_>>() {
            self.drop_task(task);
        }
    }

    /// When `expire` is due next.
    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Handlers that run.
    pub(crate) fn len(&self) -> usize {
        self.running.len()
    }

    /// The handlers that are charged, and those that run.
    pub(crate) fn budget(&self) -> BudgetLedger {
        let mut counted = BTreeMap::new();
        for running in self.running.values() {
            *counted.entry(running.key.peer).or_default() += 1;
        }
        self.budget.ledger(counted)
    }

    /// Slots of the methods' tables that are taken: one for each handler that runs.
    pub(crate) fn slots(&self) -> usize {
        self.methods.iter().map(|method| method.len()).sum()
    }

    fn find(&self, header: RequestHeader) -> Result<u32, (Reason, Status)> {
        let not_run = |reason, code, text: String| Err((reason, Status::not_run(code, text)));
        let Some(service) = self.services.get(&header.service) else {
            return not_run(Reason::NO_SERVICE, Code::Unimplemented, String::new());
        };
        if service.version != header.version {
            return not_run(Reason::OTHER_VERSION, Code::FailedPrecondition, service.version.to_string());
        }
        match self.index.get(&header.method) {
            Some((table, owner)) if owner.hash == header.service => Ok(*table),
            _ => not_run(Reason::NO_METHOD, Code::Unimplemented, String::new()),
        }
    }

    /// Charges a peer with a handler, or refuses it: also if the peer takes so few replies that there would be no
    /// room for this one's.
    fn admit(
        &mut self,
        carrier: &mut dyn Carrier,
        key: Key,
        header: RequestHeader,
    ) -> Result<(), (Reason, Status)> {
        let refusal = |text| (Reason::NOT_RUN, Status::not_run(Code::ResourceExhausted, text));
        if !header.one_way {
            let room = carrier.has_reply_room(key.peer);
            room.map_err(|exhausted| refusal(format!("the caller takes too few replies: {exhausted}")))?;
        }
        self.budget.take(key.peer, 1).map_err(|exhausted| refusal(exhausted.to_string()))
    }

    fn finish(&mut self, carrier: &mut dyn Carrier, key: Key, outcome: Outcome) {
        let reason = match &outcome {
            Err(status) if !status.may_have_run() => Reason::NOT_RUN,
            _ => Reason::HANDLER,
        };
        self.reply(carrier, key, reason, outcome);
    }

    fn reply(&mut self, carrier: &mut dyn Carrier, key: Key, reason: Reason, outcome: Outcome) {
        let text = match self.send(carrier, key, reason, outcome) {
            Err(error @ SendError::TooLarge { .. }) => format!("the reply is too large: {error}"),
            Err(SendError::QueueFull(exhausted)) => {
                format!("the caller takes too few replies: {exhausted}")
            }
            // It was sent, or the caller's node is lost.
            Ok(()) | Err(_) => return,
        };
        if self.send(carrier, key, Reason::HANDLER, Err(Status::resource_exhausted(text))).is_err() {
            tracing::debug!(?key, "a caller accepts no replies; its deadline will end the call");
        }
    }

    fn send(
        &mut self,
        carrier: &mut dyn Carrier,
        key: Key,
        reason: Reason,
        outcome: Outcome,
    ) -> Result<(), SendError> {
        let (code, encoded, body) = match outcome {
            Ok(reply) => (0, reply.encoded, reply.body),
            Err(status) => {
                let mut text = self.poller.spare().take();
                text.extend_from_slice(status.message().as_bytes());
                (status.code().number(), text, status.details().clone())
            }
        };
        let frame = Frame {
            peer: key.peer,
            poller: Some(key.poller),
            session: Some(key.session),
            header: Header::Reply { call: key.call, code, reason },
            encoded,
            body,
            token: NOBODY,
            deadline: None,
        };
        if let Some(buffer) = frame.send(carrier, &mut self.scratch)? {
            self.poller.spare().rest(buffer);
        }
        Ok(())
    }

    fn drop_task(&mut self, task: TaskId) {
        if self.forget(task).is_some()
            && let Some(method) = usize::try_from(task.table).ok().and_then(|at| self.methods.get_mut(at))
        {
            method.cancel(task.slot);
        }
    }

    fn forget(&mut self, task: TaskId) -> Option<Running> {
        let running = self.running.remove(&task)?;
        if !mutant!(ended_handlers_stay_charged) {
            self.budget.put_back(running.key.peer, 1);
        }
        self.by_key.remove(&running.key);
        if let Some(deadline) = running.deadline {
            self.deadlines.remove(&(deadline, task));
        }
        Some(running)
    }
}

impl std::fmt::Debug for Dispatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dispatch").field("running", &self.running.len()).finish_non_exhaustive()
    }
}
