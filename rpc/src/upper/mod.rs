//! The RPC half of a poller: takes work from its queues, calls and dispatches, runs tasks.
//!
//! It lives on the poller's thread, and only that thread calls it. The state of a call is in
//! `client::Table` (calls made here) or `server::Dispatch` (calls that run here); this file only routes.
//! It never blocks and reads no clock on a call's path: the carrier passes the time in.

use crate::call::context::{Entered, PollerContext};
use crate::call::{Opening, Submission};
use crate::client::routes::id::RouteId;
use crate::client::routes::{Connector, Lookups, Parked, Routes};
use crate::client::{Table, is_one_way};
use crate::executor::inbox::{Inbox, Work};
use crate::executor::on_poller::OnPoller;
use crate::executor::pool::{Pool, SharedPool};
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::wakes::Collecting;
use crate::executor::{Ready, TaskId, Tasks, Turn};
use crate::node::budgets::Budgets;
use crate::node::start_error::HandlerInitError;
use crate::server::{Authorizers, Dispatch, MethodNumbers, Service};
use crate::status::Status;
use crate::status::reason::Reason;
use crate::stream::Unsent;
use crate::wire::frame::{By, FrameError, Header, NOBODY, StreamHeader, StreamPart, Unread};
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_machine::mutant;
use trunkline_machine::rings::panics::catch;
use trunkline_transport::ledger::UpperLedger;
use trunkline_transport::{
    Awaited, Carrier, Connect, Leaves, Message, Origin, PeerDown, PeerEvent, PeerKey, PollerIndex, Screening,
    SendOutcome, Token, Upper,
};
use trunkline_verbs::{Clock, Time};

/// Maximum number of calls taken from each queue in one turn, so that messages do not wait for long.
const TURN: usize = 256;

/// Maximum number of tasks polled from each queue in one turn, for the same reason.
const POLLS: usize = 128;

/// Polls of tasks between two reads of the clock.
const LOOK_EVERY: usize = 4;

#[derive(Debug)]
pub(crate) struct RpcPoller {
    inbox: Arc<Inbox>,
    context: PollerContext,
    parked: Parked,
    /// Present on the node's first poller only.
    connector: Option<Connector>,
    /// Runs the lookups of `connector`, unless this is a simulation.
    lookups: Option<Arc<Lookups>>,
    ready: Arc<Ready>,
    /// Reused to avoid an allocation per turn.
    woken: Vec<TaskId>,
    /// Number of polls of tasks, which wraps.
    polled: usize,
    table: Table,
    dispatch: Dispatch,
    /// Streams that wait for room in the queue of messages.
    unsent: Unsent,
    /// Streams with an item that found no memory here, and the bytes of the item.
    gaps: Vec<(Origin, u64, usize)>,
    tasks: Tasks,
    /// The node's worker pool, if its services need one.
    pool: Option<Arc<SharedPool>>,
    /// True once the poller has reported that its handlers have ended, or were cut by the end of the grace period.
    is_drained: bool,
}

impl RpcPoller {
    pub(crate) fn new(
        index: PollerIndex,
        inbox: Arc<Inbox>,
        services: &[Service],
        numbers: &MethodNumbers,
        clock: Clock,
        runtime_guard: RuntimeGuard,
        pool: Option<Arc<SharedPool>>,
        routes: Arc<Routes>,
        budgets: &Budgets,
    ) -> Result<Self, HandlerInitError> {
        let _here = OnPoller::enter(inbox.lifecycle());
        let (is_first, has_threads) = (index.0 == 0, clock.as_virtual().is_none());
        let lookups =
            (is_first && has_threads).then(|| Lookups::new(routes.pollers(), runtime_guard.clone()));
        let (owner, drain) = (Arc::clone(&inbox) as _, inbox.drain());
        let context = PollerContext::new(index, clock, runtime_guard, Arc::clone(&routes), owner, drain);
        let ready = Ready::new(Arc::clone(&inbox));
        let (handlers, arguments) = (budgets.handlers(index), budgets.arguments(index));
        let replies = budgets.waiting_replies(index);
        let most = budgets.most_metadata;
        let entered = Entered::enter(context.clone());
        let workers = Pool::new(pool.clone());
        let dispatch =
            Dispatch::new(services, numbers, &context, &workers, handlers, arguments, replies, most, &inbox)?;
        drop(entered);
        inbox.set_memory(budgets.most_decoded, Arc::clone(&budgets.memory));
        let memory = Rc::clone(dispatch.memory());
        let table = Table::new(budgets.calls(index), budgets.most_decoded, most, memory, &inbox);
        Ok(Self {
            inbox,
            context,
            parked: Parked::new(&routes),
            connector: is_first.then(|| Connector::new(&routes)),
            lookups,
            ready,
            woken: Vec::new(),
            polled: 0,
            table,
            dispatch,
            unsent: Unsent::default(),
            gaps: Vec::new(),
            tasks: Tasks::default(),
            pool,
            is_drained: false,
        })
    }

    /// Sets the program's authorizers of requests.
    pub(crate) fn with_authorizers(mut self, authorizers: &Authorizers) -> Self {
        self.dispatch.authorize_by(authorizers);
        self
    }

    /// Returns the numbers of calls in flight and of running handlers.
    pub(crate) fn sizes(&self) -> (usize, usize) {
        (self.table.len() + self.parked.len(), self.dispatch.len())
    }

    fn take_work(&mut self, carrier: &mut dyn Carrier) -> bool {
        let mut any = false;
        // A task may have made the last call by a client that it shares, and read the clock for it.
        carrier.advance(self.context.queue().last_made());
        for _ in 0..TURN {
            let Some(work) = self.inbox.pop() else { break };
            any = true;
            match work {
                Work::Call(submission) if submission.route.is_some() => {
                    self.place(carrier, submission.erase_answer())
                }
                Work::Call(submission) => {
                    self.table
                        .start(carrier, &mut submission.erase_answer(), |buffer| self.inbox.keep(buffer));
                }
                Work::Open(opening) => self.open(carrier, *opening),
                Work::Route(id) => self.look(carrier, id),
                Work::Resolved(resolved) => {
                    if let Some(connector) = &mut self.connector {
                        connector.resolved(carrier, *resolved);
                    }
                }
                Work::Spawn(spawn) => self.tasks.add(spawn(&self.context), &self.ready),
            }
        }
        any |= self.take_spawned() | self.take_local(carrier);
        let local = self.context.calls();
        // Both are read, so that neither flag stays set.
        let sweep = local.take_sweep() | self.inbox.take_sweep();
        if sweep {
            self.table.sweep(carrier);
            self.parked.sweep();
        }
        any | sweep
    }

    /// Takes the tasks that this poller's tasks and handlers have spawned.
    #[inline]
    fn take_spawned(&mut self) -> bool {
        if !self.context.has_spawned() {
            return false;
        }
        for task in self.context.take_spawned() {
            self.tasks.add(task, &self.ready);
        }
        true
    }

    /// Takes the calls of this poller's tasks and handlers.
    fn take_local(&mut self, carrier: &mut dyn Carrier) -> bool {
        let local = self.context.queue();
        if !local.has_calls() {
            return false;
        }
        // A handler may have worked long before it made a call.
        carrier.advance(local.last_made());
        let mut calls = local.take();
        let count = calls.len().min(TURN);
        for call in calls.iter_mut().take(count) {
            if call.route.is_some() {
                let call = call.take();
                Self::place_in(&mut self.table, &mut self.parked, &self.inbox, carrier, call);
                continue;
            }
            self.table.start(carrier, call, |buffer| local.buffers().keep(buffer));
            local.called(call.server);
        }
        if count == calls.len() {
            calls.clear();
        } else {
            calls.drain(..count);
        }
        local.put_back(calls);
        count > 0
    }

    /// Makes a call that streams items, and adds the task that sends the caller's.
    fn open(&mut self, carrier: &mut dyn Carrier, Opening { submission, sending }: Opening) {
        let mut submission = submission.erase_answer();
        if submission.route.is_some() {
            self.place(carrier, submission);
        } else {
            self.table.start(carrier, &mut submission, |buffer| self.inbox.keep(buffer));
        }
        if let Some(sending) = sending {
            self.tasks.add(sending, &self.ready);
        }
    }

    /// Takes a frame of a stream.
    fn stream(&mut self, carrier: &mut dyn Carrier, from: Origin, header: StreamHeader, item: &[u8]) {
        let StreamHeader { call, part, .. } = header;
        if header.from_caller {
            self.dispatch.stream_frame(carrier, from, call, part, item);
        } else {
            self.table.stream_frame(carrier, from.peer, call, part, item);
        }
    }

    /// Starts a call on a route, or queues it until the route is ready.
    fn place(&mut self, carrier: &mut dyn Carrier, call: Submission) {
        Self::place_in(&mut self.table, &mut self.parked, &self.inbox, carrier, call);
    }

    fn place_in(
        table: &mut Table,
        parked: &mut Parked,
        inbox: &Inbox,
        carrier: &mut dyn Carrier,
        mut call: Submission,
    ) {
        if table.refuses(&mut call, carrier.now()) {
            return;
        }
        let serves = |peer| carrier.is_up(peer) && !table.is_refused_by(peer);
        // A balanced channel makes a call again that does not wait and has no stream.
        let is_repeated = call.connect == Connect::FailFast && !call.method.streams.any();
        let stays = |peer| if is_repeated { carrier.is_up(peer) } else { serves(peer) };
        let placed = if call.is_chosen() && stays(call.server) {
            Some(call)
        } else {
            call.route.and_then(|id| parked.place(carrier, &serves, id, call))
        };
        if let Some(mut call) = placed {
            table.start(carrier, &mut call, |buffer| inbox.keep(buffer));
        }
    }

    /// Starts calls that have waited for their route.
    fn start_all(&mut self, carrier: &mut dyn Carrier, calls: Vec<Submission>) {
        for mut call in calls {
            self.table.start(carrier, &mut call, |buffer| self.inbox.keep(buffer));
        }
    }

    /// Handles a route that has changed or has new waiters.
    fn look(&mut self, carrier: &mut dyn Carrier, id: RouteId) {
        if let Some(connector) = &mut self.connector {
            connector.look(carrier, id);
        }
        let (table, here) = (&self.table, &*carrier);
        let serves = |peer| here.is_up(peer) && !table.is_refused_by(peer);
        let calls = self.parked.look(&serves, id);
        self.start_all(carrier, calls);
    }

    /// Makes calls again that their servers have not taken.
    fn make_again(&mut self, carrier: &mut dyn Carrier) {
        for mut call in self.table.take_again() {
            if call.route.is_some() {
                self.place(carrier, call);
            } else {
                self.table.start(carrier, &mut call, |buffer| self.inbox.keep(buffer));
            }
        }
    }

    /// Begins the requested lookups.
    fn look_up(&mut self) {
        let wanted = self.connector.as_mut().map(Connector::take_lookups).unwrap_or_default();
        for lookup in wanted {
            match &self.lookups {
                Some(lookups) => lookups.begin(lookup),
                None => {
                    let inbox = Arc::clone(&self.inbox);
                    let task = async move {
                        let _closed = inbox.push(Work::Resolved(Box::new(lookup.run().await)));
                    };
                    self.tasks.add(Box::pin(task), &self.ready);
                }
            }
        }
    }

    fn run_ready(&mut self, carrier: &mut dyn Carrier) -> bool {
        // Tasks that are woken meanwhile wait for the next turn.
        let count = self.ready.len().min(POLLS);
        let mut woken = mem::take(&mut self.woken);
        self.ready.take_woken(&mut woken);
        if woken.len() > POLLS {
            self.ready.put_back(woken.drain(POLLS..));
        }
        for _ in 0..count {
            let Some(task) = self.ready.pop() else { break };
            self.poll(carrier, task);
        }
        let any = count > 0 || !woken.is_empty();
        woken.drain(..).for_each(|task| self.poll(carrier, task));
        self.woken = woken;
        any
    }

    /// Sends the items of streams, as far as their windows and the carrier have room.
    fn send_items(&mut self, carrier: &mut dyn Carrier) {
        // A window can do without growth. Items that exceed theirs and arguments, which cannot wait, find room beside it.
        let charge =
            |peer, from, to| self.dispatch.memory().recharge_leaving(peer, from, to, Leaves::ThreeEighths);
        self.unsent.flush(self.inbox.changes(), carrier, &charge);
    }

    fn flush_overdue(&mut self, carrier: &mut dyn Carrier) {
        if carrier.is_flush_overdue() {
            self.flush(carrier);
        }
    }

    fn poll(&mut self, carrier: &mut dyn Carrier, task: TaskId) {
        self.polled = self.polled.wrapping_add(1);
        if self.polled.is_multiple_of(LOOK_EVERY) {
            self.flush_overdue(carrier);
        }
        if task.table == TaskId::SPAWNED {
            self.inbox.running().task();
            let _inside = self.context.runtime_guard().enter();
            self.tasks.poll(task.slot);
        } else {
            self.dispatch.poll(carrier, task);
        }
    }

    /// Handles a malformed frame, or one with unknown parts. Answers it if its sender waits for a reply.
    fn unread(&mut self, carrier: &mut dyn Carrier, from: Origin, message: &[u8], error: FrameError) {
        match Header::unread(message) {
            Some(Unread::Request { call, one_way }) => {
                self.dispatch.refuse(carrier, from, call, one_way, error);
            }
            Some(Unread::Reply { call }) => self.table.unread(carrier.now(), from.peer, call, error),
            // Not a warning, because a peer could fill the log with them.
            None => {
                tracing::debug!(peer = ?from.peer, %error, "a message that is not an RPC frame was dropped");
            }
        }
    }

    /// Returns true if the node is draining and this poller's handlers have ended, until that is reported.
    fn has_drained(&self) -> bool {
        !self.is_drained && self.inbox.lifecycle().is_draining() && self.dispatch.len() == 0
    }

    /// Makes channels with several servers leave out one that drains, and calls that wait for a connection wait for its next
    /// session.
    #[cold]
    fn leave_out(&mut self, from: Origin) {
        self.table.drains(from);
        if let Some(epoch) = self.table.epoch_of(from) {
            self.context.routes().drains(from.peer, epoch);
        }
    }

    fn report_drained(&mut self) {
        if self.has_drained() {
            self.is_drained = true;
            self.inbox.lifecycle().poller_drained();
        }
    }
}

impl Upper for RpcPoller {
    type Here = (Collecting, Turn, OnPoller, Entered);

    fn enter(&self) -> Self::Here {
        let poller = Entered::enter(self.context.clone());
        (self.inbox.collect_wakes(), self.ready.enter(), OnPoller::enter(self.inbox.lifecycle()), poller)
    }

    fn message(&mut self, carrier: &mut dyn Carrier, from: Origin, message: Message) {
        if let Some((call, encoded)) = Header::parse_success(message.as_slice()) {
            return self.table.succeeded(carrier.now(), from.peer, call, message, encoded);
        }
        if let Some((request, encoded)) = Header::parse_numbered(message.as_slice()) {
            self.dispatch.request(carrier, from, request, message, encoded, &self.ready);
            return self.inbox.running().nobody();
        }
        if let Some((header, item)) = StreamHeader::parse_data(message.as_slice()) {
            self.stream(carrier, from, header, item);
            return self.inbox.running().nobody();
        }
        let (header, encoded) = match Header::parse(message.as_slice()) {
            Ok(parsed) => parsed,
            Err(error) => {
                return self.unread(carrier, from, message.as_slice(), error);
            }
        };
        match header {
            Header::Request(request) => {
                self.dispatch.request_by_name(carrier, from, request, message, encoded, &self.ready);
            }
            // The refusal of a call that has no reply, and that may have ended.
            Header::Reply { call, by: By::Node { reason, ran: false }, .. } if is_one_way(call) => {
                self.inbox.lifecycle().counters.not_served_by_peers.add();
                if reason == Some(Reason::NoMethod) {
                    self.table.forget_numbers(from.peer);
                }
            }
            Header::Reply { call, code, by, number, metadata } => {
                number.into_iter().for_each(|number| self.table.learn(from, number));
                if let By::Node { reason: Some(Reason::Draining), ran: false } = by {
                    // Before the caller makes the call again.
                    self.leave_out(from);
                }
                self.table.reply(carrier.now(), from.peer, call, code, by, metadata, message, encoded);
            }
            Header::Number { number, .. } => self.table.learn(from, number),
            Header::Cancel { call } => self.dispatch.cancel(carrier.now(), from, call),
            Header::Drained => {
                self.table.drained(from, carrier.now());
                self.leave_out(from);
            }
            Header::Stream(header) => {
                let item = message.as_slice().get(encoded.end..).unwrap_or_default();
                self.stream(carrier, from, header, item);
            }
        }
        self.inbox.running().nobody();
    }

    fn screens(&self) -> bool {
        self.dispatch.has_authorizers()
    }

    fn announced(
        &mut self,
        carrier: &mut dyn Carrier,
        from: Origin,
        header: &[u8],
        part: &[u8],
    ) -> Screening {
        let Some((request, head)) = Header::parse_announced(header, part) else {
            return Screening::Undecided;
        };
        let screening = self.dispatch.screen(carrier, from, &request, &head);
        self.inbox.running().nobody();
        screening
    }

    fn given_up(&mut self, from: Origin, frame: &[u8], bytes: usize) {
        let parsed = Header::parse(frame).map(|(header, _)| header);
        if let Ok(Header::Stream(StreamHeader { call, from_caller, part })) = parsed
            && matches!(part, StreamPart::Data { .. } | StreamPart::Accept)
        {
            if from_caller {
                self.gaps.push((from, call, bytes));
            } else {
                self.table.stream_gap(from.peer, call, bytes);
            }
        }
        // The sender of a request knows.
        if let Some(Unread::Reply { call }) = Header::unread(frame) {
            // Rare, and the only place without the time of the turn.
            let now = self.context.clock().now();
            self.table.given_up(now, from.peer, call, bytes);
        }
        self.inbox.running().nobody();
    }

    fn not_sent(&mut self, carrier: &mut dyn Carrier, to: Origin, head: &[u8], cause: PeerDown) {
        match Header::parse(head) {
            Ok((Header::Stream(StreamHeader { call, from_caller: true, .. }), _)) => {
                let status = Status::not_sent("an item of the stream", cause);
                self.table.abort_stream(to.peer, call, status);
            }
            Ok((Header::Stream(StreamHeader { call, .. }), _)) => {
                self.dispatch.item_not_sent(carrier, to, call, cause);
            }
            // The head of a reply may lack a part of what the header names.
            _ => {
                if let Some(Unread::Reply { call }) = Header::unread(head) {
                    self.dispatch.reply_not_sent(carrier, to, call, cause);
                }
            }
        }
        self.inbox.running().nobody();
    }

    fn sent(&mut self, carrier: &mut dyn Carrier, token: Token, outcome: SendOutcome) {
        if token != NOBODY {
            self.table.sent(carrier, token, outcome);
        }
    }

    fn peer(&mut self, carrier: &mut dyn Carrier, peer: PeerKey, event: PeerEvent) {
        match event {
            PeerEvent::Up { session, epoch, pollers } => {
                self.table.up(peer, session, epoch, pollers);
                let (table, here) = (&self.table, &*carrier);
                let serves = |peer| here.is_up(peer) && !table.is_refused_by(peer);
                let calls = self.parked.up(&serves, peer);
                self.start_all(carrier, calls);
            }
            PeerEvent::Down { cause } => {
                self.table.down(carrier, peer, cause);
                self.dispatch.down(carrier.now(), peer);
            }
        }
        if let Some(connector) = &mut self.connector {
            connector.peer(carrier, peer, event);
        }
        self.inbox.running().nobody();
    }

    fn run(&mut self, carrier: &mut dyn Carrier) -> bool {
        self.inbox.running().turn_begins();
        for (from, call, bytes) in mem::take(&mut self.gaps) {
            self.dispatch.stream_gap(carrier, from, call, bytes);
        }
        self.inbox.wake_others();
        if self.table.is_ready() {
            self.make_again(carrier);
        }
        let took = self.take_work(carrier) | self.context.timers().fire(carrier.now());
        // Calls of tasks leave in the turn in which the tasks run.
        let ran = self.run_ready(carrier);
        if ran {
            self.take_local(carrier);
        }
        self.send_items(carrier);
        let sought = self.connector.as_mut().is_some_and(|connector| connector.tick(carrier));
        self.look_up();
        let late = self.table.expire(carrier) | self.dispatch.expire(carrier);
        let expired = late | self.parked.expire(carrier.now()) | sought;
        let replied = self.dispatch.send_waiting(carrier);
        let admitted = self.table.admit(carrier, |buffer| self.inbox.keep(buffer));
        self.inbox.running().nobody();
        self.report_drained();
        self.table.settle();
        self.dispatch.settle();
        took | ran | expired | replied | admitted
    }

    fn flush(&mut self, carrier: &mut dyn Carrier) {
        self.inbox.wake_others();
        self.send_items(carrier);
        carrier.flush();
    }

    fn next_timer(&self) -> Option<Time> {
        let connector = self.connector.as_ref().and_then(Connector::next_timer);
        let routes = [connector, self.parked.next_timer(), self.unsent.next_timer()];
        let calls = [self.table.next_timer(), self.dispatch.next_deadline(), self.context.timers().next()];
        routes.into_iter().chain(calls).flatten().min()
    }

    fn awaited(&self) -> BTreeMap<PeerKey, Awaited> {
        let mut awaited = BTreeMap::new();
        self.table.awaited(&mut awaited);
        for (peer, streams) in self.dispatch.callers() {
            let known = awaited.entry(peer).or_default();
            *known = (*known).max(if streams { Awaited::Item } else { Awaited::Interest });
        }
        awaited
    }

    fn is_ready(&self) -> bool {
        self.inbox.has_work()
            || !self.ready.is_empty()
            || self.context.calls().has_work()
            || self.context.has_spawned()
            || self.table.is_ready()
            || !self.gaps.is_empty()
            || self.has_drained()
    }

    fn shutdown(&mut self, carrier: &mut dyn Carrier) {
        // Already done, unless the node ends because another poller has panicked.
        self.inbox.lifecycle().begin_end();
        self.table.close_to_outside(carrier.now());
        self.parked.close(false);
        if mutant!(drained_is_told_before_the_end_of_handlers) {
            self.table.peers().into_iter().for_each(|peer| self.settled(carrier, peer));
        }
    }

    fn grace_over(&mut self, carrier: &mut dyn Carrier) -> bool {
        if self.dispatch.len() > 0 && !mem::replace(&mut self.is_drained, true) {
            self.inbox.lifecycle().poller_cut();
        }
        let has_told = self.dispatch.end_all(carrier);
        self.inbox.running().nobody();
        has_told
    }

    fn is_drained(&self) -> bool {
        self.dispatch.len() == 0
    }

    fn has_ended(&self, peer: PeerKey) -> bool {
        self.dispatch.has_ended(peer)
    }

    fn settled(&mut self, carrier: &mut dyn Carrier, peer: PeerKey) {
        if self.dispatch.has_answered(peer) {
            self.table.tell_drained(carrier, peer);
        }
    }

    fn ledger(&self) -> UpperLedger {
        let (calls, handlers) = self.sizes();
        UpperLedger {
            calls,
            handlers,
            slots: self.dispatch.slots(),
            has_timer: self.next_timer().is_some(),
            sent_to_drained: self.table.sent_to_drained(),
            budgets: self
                .dispatch
                .budgets(self.table.stream_bytes())
                .into_iter()
                .chain([self.table.budget()])
                .collect(),
        }
    }
}

impl Drop for RpcPoller {
    fn drop(&mut self) {
        let _here = OnPoller::enter(self.inbox.lifecycle());
        self.inbox.close();
        if !self.is_drained {
            let lifecycle = self.inbox.lifecycle();
            if self.dispatch.len() == 0 { lifecycle.poller_drained() } else { lifecycle.poller_cut() }
        }
        // Without a shutdown it is unknown whether the calls have run.
        self.table.close();
        self.parked.close(true);
        if let Some(connector) = &mut self.connector {
            connector.close();
        }
        self.dispatch.close();
        self.inbox.running().task();
        let _inside = self.context.runtime_guard().enter();
        self.tasks.close();
        let spawned = self.context.take_spawned();
        let _ended = catch(|| drop(spawned));
        // Dropped here, while calls that a drop may wait for are refused: no poller would make them.
        self.dispatch.drop_services();
        self.inbox.running().nobody();
        if let Some(pool) = &self.pool {
            pool.poller_ended();
        }
    }
}

pub(crate) mod fake;
#[cfg(test)]
mod tests;
