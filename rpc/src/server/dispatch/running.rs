//! Runs the handler of a request, from the arrival of the request to the handler's last poll.

use super::counting::is_of_drain;
use super::{Dispatch, Running};
use crate::executor::{Ready, TaskId};
use crate::server::Request;
use crate::server::caller::{Caller, Key};
use crate::server::method::{Outcome, Started};
use crate::server::request::parse_metadata;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{CallStream, first_charge};
use crate::wire::frame::{Method as MethodExtension, MethodRef, Number, RequestHeader};
use crate::wire::metadata::{Metadata, MetadataBytes};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_transport::{Leaves, Message, Origin, Screening, Transport};
use trunkline_verbs::Time;

const NS_PER_US: u64 = 1000;

impl Dispatch {
    /// Like [`Self::request`], but for rare requests, such as the first request to a method.
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
        // All calls take this path, so a node without authorizers pays only for one branch.
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

    /// Returns the caller of a request if the method's kind matches the request's.
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

    /// Starts the handler of a request that contains the method's hash, or refuses the request.
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
        // Omitted while the node drains, because it waits for its outgoing frames, and its sessions are about to end.
        if let Some(number) = number.filter(|_| caller.one_way && !self.inbox.lifecycle().is_draining()) {
            self.report(transport, caller.key, number);
        }
        match self.check_phase().and(found) {
            Ok(table) => self.start(transport, caller, table, message, encoded, ready),
            Err(status) => self.refuse_unfound(transport, caller, method_ref, status),
        }
    }

    /// Starts a method's handler, if it is admitted. A handler that ends in its first poll needs no further state.
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
        let stream = if caller.streams.any() { Some(self.open(transport, &caller)) } else { None };
        let Some(served) = self.methods.get_mut(table as usize) else { return self.ended(key.peer, table) };
        self.inbox.running().handler(table);
        let (poller, memory) = (Rc::clone(&self.poller), Rc::clone(&self.arguments));
        let request = Request::new(message, encoded, poller, memory, stream.clone(), self.most_metadata);
        self.current.begin(key.peer, deadline);
        let inside = self.runtime_guard.enter();
        let started = served.calls.start(table, request, ready);
        drop(inside);
        if matches!(started, Started::Running(_)) {
            self.current.bind();
        }
        let (decoded, context) = (self.arguments.end(), self.current.end());
        match started {
            Started::Running(slot) => {
                let task = TaskId { table, slot };
                let deadline = deadline.filter(|_| !mutant!(server_keeps_no_deadline));
                let started = transport.now();
                let timer = deadline.map(|deadline| self.deadlines.add(started, deadline, task));
                self.counters(table).began();
                self.running.insert(task, Running { caller, started, timer, decoded, context, stream });
                // If a peer reuses a number, only the peer's own cancellations are affected, but the earlier stream must be
                // ended.
                if let Some(earlier) = self.by_key.insert(key, task) {
                    self.end_replaced(transport, earlier);
                }
            }
            Started::Ended(mut outcome) => {
                let metadata = context.and_then(|context| context.end());
                self.ended(key.peer, table);
                self.arguments.put_back(key.peer, decoded);
                if let Some(stream) = stream {
                    add_answer(&stream, &mut outcome);
                    self.arguments.put_back(key.peer, stream.close());
                }
                match outcome {
                    Ok(reply) if !caller.one_way && caller.number.is_none() && metadata.is_none() => {
                        self.count_ended_at_once(table, key.peer);
                        self.reply_at_once(transport, &caller, (reply.encoded, reply.body));
                    }
                    outcome => {
                        if !is_of_drain(&outcome) {
                            self.count_ended_at_once(table, key.peer);
                        }
                        self.reply(transport, caller, outcome, metadata);
                    }
                }
            }
        }
    }

    /// Checks the metadata of a request, charges it to the peer and creates the handler's context.
    #[cold]
    #[inline(never)]
    fn take_metadata(&self, caller: &Caller, message: &[u8], encoded: usize) -> Result<(), Status> {
        let (metadata, peer) = (self.parse_metadata(caller.metadata, message, encoded)?, caller.key.peer);
        self.arguments.charge_metadata(peer, metadata.size())?;
        self.current.begin_with(peer, caller.deadline, metadata);
        Ok(())
    }

    /// Checks and parses the metadata of a request, which has this size and ends at `encoded`.
    pub(super) fn parse_metadata(
        &self,
        size: u32,
        message: &[u8],
        encoded: usize,
    ) -> Result<Metadata, Status> {
        let [range, _] = MetadataBytes::of_request(size).before(encoded);
        let block = message.get(range).unwrap_or_default();
        parse_metadata(block, self.most_metadata)
    }

    /// Returns an error if the node refuses requests in its current phase.
    pub(super) fn check_phase(&self) -> Result<(), Status> {
        let lifecycle = self.inbox.lifecycle();
        if lifecycle.is_draining() && !mutant!(draining_starts_handlers) {
            lifecycle.counters.refused.add();
            let text = "the server is draining: it takes no new calls";
            return Err(Status::not_run(Code::Unavailable, text).because(Reason::Draining));
        }
        Ok(())
    }

    /// Charges a handler to a peer, or refuses the request. Also refuses the request if too many replies wait for the peer,
    /// or if a limit of the method is reached.
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

    /// Polls a handler after a wake-up, and replies if the handler has ended.
    pub(crate) fn poll(&mut self, transport: &mut Transport, task: TaskId) {
        let Some(served) = self.methods.get_mut(task.table as usize) else { return };
        self.inbox.running().handler(task.table);
        // The slot can be without a handler after a wake-up for an earlier call.
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
        let Some(mut outcome) = polled else { return };
        if let Some(stream) = running.and_then(|running| running.stream.as_ref()) {
            add_answer(stream, &mut outcome);
        }
        if let Some((caller, metadata)) = self.forget(transport.now(), task, !is_of_drain(&outcome)) {
            self.reply(transport, caller, outcome, metadata);
        }
    }
}

/// Adds the only item of a handler's stream to the reply, unless the item was already sent.
#[inline(never)]
fn add_answer(stream: &CallStream, outcome: &mut Outcome) {
    if let Ok(reply) = outcome
        && let Some(item) = stream.take_answer(&mut reply.encoded)
    {
        reply.body = item.into();
    }
}
