//! The RPC half of a poller. It drives the transport, takes work from queues, sends and dispatches calls, and runs tasks.
//!
//! It is used only on the poller's thread. `client::Calls` handles outgoing calls, `server::Dispatch` handles incoming
//! calls, and this file only routes events and work to them. It never blocks, and does not read the clock on a call's path,
//! because the transport provides the time of the turn.

use crate::call::context::{Entered, PollerContext};
use crate::call::{Opening, Submission};
use crate::client::routes::id::RouteId;
use crate::client::routes::{Connector, Lookups, Parked, Routes};
use crate::client::{Calls, follow_health, is_one_way};
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
use crate::stream::{Item, Unsent};
use crate::wire::frame::{
    DATA, DATA_BYTES, FrameError, Header, NOBODY, REPLY, REQUEST, RepliedBy, StreamHeader, StreamPart,
    Unparsed,
};
use std::any::Any;
use std::collections::BTreeMap;
use std::mem;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_machine::rings::panics::catch;
use trunkline_machine::{self as machine, Machine, mutant};
use trunkline_transport::ledger::DriverLedger;
use trunkline_transport::{
    Awaited, Begun, Connect, EAGER_BYTES, Event, Leaves, Message, MessageHeader, Origin, PeerDown, PeerEvent,
    PeerKey, Screening, SendOutcome, Token, Transport,
};
use trunkline_verbs::{Clock, Time};

/// Maximum number of calls taken from each queue in one turn, so that messages are not delayed for long.
const TURN: usize = 256;

/// Maximum number of tasks polled from each queue in one turn, so that messages are not delayed for long.
const POLLS: usize = 128;

/// Number of task polls between two reads of the clock.
const LOOK_EVERY: usize = 4;

/// A poller of a node, with its transport and calls.
#[derive(Debug)]
pub(crate) struct RpcPoller {
    transport: Transport,
    rpc: Rpc,
}

/// The calls on a poller, in both directions. They borrow the transport for each step.
#[derive(Debug)]
struct Rpc {
    inbox: Arc<Inbox>,
    context: PollerContext,
    parked: Parked,
    /// Searches for servers; present only on the node's first poller.
    connector: Option<Connector>,
    /// Runs the lookups for `connector`; absent in a simulation.
    lookups: Option<Arc<Lookups>>,
    ready: Arc<Ready>,
    /// Reused to avoid an allocation per turn.
    woken: Vec<TaskId>,
    /// Number of task polls so far, which wraps around.
    polled: usize,
    calls: Calls,
    dispatch: Dispatch,
    /// Streams that wait for room in the message queue.
    unsent: Unsent,
    /// Streams with an item for which this node had no memory, and the size of this item in bytes.
    gaps: Vec<(Origin, u64, usize)>,
    tasks: Tasks,
    /// The node's worker pool, if its services need one.
    pool: Option<Arc<SharedPool>>,
    /// True if the poller has reported that its handlers ended or were dropped at the end of the grace period.
    is_drained: bool,
}

impl RpcPoller {
    /// Creates a poller with this transport.
    pub(crate) fn new(
        mut transport: Transport,
        inbox: Arc<Inbox>,
        services: &[Service],
        numbers: &MethodNumbers,
        clock: Clock,
        runtime_guard: RuntimeGuard,
        pool: Option<Arc<SharedPool>>,
        routes: Arc<Routes>,
        budgets: &Budgets,
        authorizers: &Authorizers,
    ) -> Result<Self, HandlerInitError> {
        let index = transport.poller();
        let _here = OnPoller::enter(inbox.lifecycle());
        let (is_first, has_threads) = (index.0 == 0, clock.as_virtual().is_none());
        let lookups =
            (is_first && has_threads).then(|| Lookups::new(routes.pollers(), runtime_guard.clone()));
        let (owner, drain) = (Arc::clone(&inbox) as _, inbox.drain());
        let (of_node, has_identity) = (Arc::clone(&routes), transport.has_identity());
        let context = PollerContext::new(index, clock, runtime_guard, of_node, owner, drain, has_identity);
        let ready = Ready::new(Arc::clone(&inbox));
        let (handlers, arguments) = (budgets.handlers(index), budgets.arguments(index));
        let replies = budgets.waiting_replies(index);
        let most = budgets.most_metadata;
        let entered = Entered::enter(context.clone());
        let workers = Pool::new(pool.clone());
        let mut dispatch =
            Dispatch::new(services, numbers, &context, &workers, handlers, arguments, replies, most, &inbox)?;
        drop(entered);
        inbox.set_memory(budgets.most_decoded, Arc::clone(&budgets.memory));
        inbox.set_timers(Arc::clone(context.timers()));
        let memory = Rc::clone(dispatch.memory());
        #[cfg_attr(not(feature = "identity"), expect(unused_mut, reason = "names are not compared"))]
        let mut calls = Calls::new(budgets.calls(index), budgets.most_decoded, most, memory, &inbox);
        #[cfg(feature = "identity")]
        if has_identity {
            routes.compare_names();
            calls.compare_names(&routes);
        }
        dispatch.authorize_by(authorizers);
        if dispatch.has_authorizers() {
            transport.screen_announced();
        }
        let rpc = Rpc {
            inbox,
            context,
            parked: Parked::new(&routes),
            connector: is_first.then(|| Connector::new(&routes)),
            lookups,
            ready,
            woken: Vec::new(),
            polled: 0,
            calls,
            dispatch,
            unsent: Unsent::default(),
            gaps: Vec::new(),
            tasks: Tasks::default(),
            pool,
            is_drained: false,
        };
        Ok(Self { transport, rpc })
    }

    /// Handles the events of the round. Returns `None` if the turn ends because simulated time was charged.
    fn deliver(&mut self) -> Option<()> {
        let Self { transport, rpc } = self;
        while let Some(event) = transport.poll_event() {
            match event {
                Event::Message(from, message) => rpc.message(transport, from, message),
                Event::Sent(token, outcome) => rpc.sent(transport, token, outcome),
                event => rpc.rare_event(transport, event),
            }
            if transport.is_charged() {
                return None;
            }
            if transport.is_flush_due() {
                rpc.flush(transport);
            }
        }
        Some(())
    }

    /// Handles a round, or the remaining part of it. Returns `None` if the turn ends during the round.
    fn round(&mut self) -> Option<()> {
        self.deliver()?;
        if self.transport.begin_work() {
            let worked = self.rpc.run(&mut self.transport);
            self.transport.note_work(worked);
            if self.transport.is_charged() {
                return None;
            }
        }
        if self.transport.has_events() { self.deliver() } else { Some(()) }
    }

    /// Runs the steps of a shutdown.
    #[cold]
    fn shut_down(&mut self) {
        let Self { transport, rpc } = self;
        if transport.begins_shutdown() {
            rpc.shutdown(transport);
        }
        if transport.is_grace_over() {
            let has_told = rpc.grace_over(transport);
            transport.cut(has_told);
        }
        for (peer, session) in transport.settling(rpc.dispatch.len() == 0) {
            if rpc.dispatch.has_ended(peer) && transport.settle(peer, session) {
                rpc.settled(transport, peer);
            }
        }
    }
}

impl Machine for RpcPoller {
    fn turn(&mut self) -> machine::Turn {
        let _here = self.rpc.enter();
        match self.transport.begin_turn() {
            Begun::Round => {}
            Begun::LookAgain => {
                return self.transport.sleep_unless(self.rpc.is_ready(), self.rpc.next_timer());
            }
            Begun::Over(turn) => return turn,
        }
        if self.round().is_none() {
            return machine::Turn::Again;
        }
        self.transport.flush_round();
        if self.transport.is_shutting_down() {
            self.shut_down();
        }
        self.transport.end_turn(|| self.rpc.awaited())
    }

    fn sleep(&mut self, until: Option<Time>) {
        self.transport.sleep(until);
    }

    fn is_woken(&self) -> bool {
        self.transport.is_woken()
    }

    fn is_due(&self) -> bool {
        self.transport.is_due(self.rpc.is_ready())
    }

    fn inspect(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(self.transport.inspect(self.rpc.ledger())))
    }
}

impl Rpc {
    fn take_work(&mut self, transport: &mut Transport) -> bool {
        let mut any = false;
        // If a task queued the last call through a shared client, the client has read a newer time.
        transport.advance(self.context.queue().last_made());
        for _ in 0..TURN {
            let Some(work) = self.inbox.pop() else { break };
            any = true;
            match work {
                Work::Call(submission) if submission.route.is_some() => {
                    self.place(transport, submission.erase_completion())
                }
                Work::Call(submission) => {
                    self.calls.start(transport, &mut submission.erase_completion(), |buffer| {
                        self.inbox.keep(buffer)
                    });
                }
                Work::Open(opening) => self.open(transport, *opening),
                Work::Route(id) => self.look(transport, id),
                Work::Resolved(resolved) => {
                    if let Some(connector) = &mut self.connector {
                        connector.resolved(transport, *resolved);
                    }
                }
                Work::Spawn(spawn) => self.tasks.add(spawn(&self.context), &self.ready),
                Work::Watch(watched) => {
                    self.tasks.add(Box::pin(follow_health(self.context.clone(), watched)), &self.ready);
                }
            }
        }
        any |= self.take_spawned() | self.take_local(transport);
        let local = self.context.calls();
        // Uses `|` instead of `||`, so that both flags are cleared.
        let sweep = local.take_sweep() | self.inbox.take_sweep();
        if sweep {
            self.calls.sweep(transport);
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

    /// Takes the calls that this poller's tasks and handlers have made.
    fn take_local(&mut self, transport: &mut Transport) -> bool {
        let local = self.context.queue();
        if !local.has_calls() {
            return false;
        }
        // A handler may have run for a long time before it started a call.
        transport.advance(local.last_made());
        let mut calls = local.take();
        let count = calls.len().min(TURN);
        for call in calls.iter_mut().take(count) {
            if call.route.is_some() {
                let call = call.take();
                Self::place_in(&mut self.calls, &mut self.parked, &self.inbox, transport, call);
                continue;
            }
            self.calls.start(transport, call, |buffer| local.buffers().keep(buffer));
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

    /// Starts a call that streams items, and adds the task that sends the caller's items.
    fn open(&mut self, transport: &mut Transport, Opening { submission, sending }: Opening) {
        let mut submission = submission.erase_completion();
        if submission.route.is_some() {
            self.place(transport, submission);
        } else {
            self.calls.start(transport, &mut submission, |buffer| self.inbox.keep(buffer));
        }
        if let Some(sending) = sending {
            self.tasks.add(sending, &self.ready);
        }
    }

    /// Handles a stream frame.
    fn stream(&mut self, transport: &mut Transport, from: Origin, header: StreamHeader, item: Item<'_>) {
        let StreamHeader { call, part, .. } = header;
        if header.from_caller {
            self.dispatch.stream_frame(transport, from, call, part, item);
        } else {
            self.calls.stream_frame(transport, from.peer, call, part, item);
        }
    }

    /// Starts a call on a route, or queues it until the route is ready.
    fn place(&mut self, transport: &mut Transport, call: Submission) {
        Self::place_in(&mut self.calls, &mut self.parked, &self.inbox, transport, call);
    }

    fn place_in(
        calls: &mut Calls,
        parked: &mut Parked,
        inbox: &Inbox,
        transport: &mut Transport,
        mut call: Submission,
    ) {
        if calls.refuses(&mut call, transport.now()) {
            return;
        }
        let is_up = |peer, expected| transport.is_up(peer) && calls.is_named(peer, expected);
        let serves = |peer, expected| is_up(peer, expected) && !calls.is_refused_by(peer);
        // A balanced channel itself repeats fail-fast calls without streams.
        let is_repeated = call.connect == Connect::FailFast && !call.method.streams.any();
        let expected = call.expected;
        let stays = |peer| if is_repeated { is_up(peer, expected) } else { serves(peer, expected) };
        let placed = if call.is_chosen() && stays(call.server) {
            Some(call)
        } else {
            call.route.and_then(|id| parked.place(transport, &serves, id, call))
        };
        if let Some(mut call) = placed {
            calls.start(transport, &mut call, |buffer| inbox.keep(buffer));
        }
    }

    /// Starts calls that have waited for their route.
    fn start_all(&mut self, transport: &mut Transport, calls: Vec<Submission>) {
        for mut call in calls {
            self.calls.start(transport, &mut call, |buffer| self.inbox.keep(buffer));
        }
    }

    /// Handles a route that has changed or has new waiters.
    fn look(&mut self, transport: &mut Transport, id: RouteId) {
        if let Some(connector) = &mut self.connector {
            connector.look(transport, id);
        }
        let (calls, here) = (&self.calls, &*transport);
        let serves =
            |peer, expected| here.is_up(peer) && calls.is_named(peer, expected) && !calls.is_refused_by(peer);
        let calls = self.parked.look(&serves, id);
        self.start_all(transport, calls);
    }

    /// Repeats calls that were not accepted by their servers.
    fn make_again(&mut self, transport: &mut Transport) {
        for mut call in self.calls.take_again() {
            if call.route.is_some() {
                self.place(transport, call);
            } else {
                self.calls.start(transport, &mut call, |buffer| self.inbox.keep(buffer));
            }
        }
    }

    /// Begins the requested lookups.
    fn look_up(&mut self) {
        let Some(connector) = &mut self.connector else { return };
        for lookup in connector.take_lookups() {
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

    fn run_ready(&mut self, transport: &mut Transport) -> bool {
        // Tasks that are woken during these polls wait for the next turn.
        let count = self.ready.len().min(POLLS);
        let mut woken = mem::take(&mut self.woken);
        self.ready.take_woken(&mut woken);
        if woken.len() > POLLS {
            self.ready.put_back(woken.drain(POLLS..));
        }
        for _ in 0..count {
            let Some(task) = self.ready.pop() else { break };
            self.poll(transport, task);
        }
        let any = count > 0 || !woken.is_empty();
        woken.drain(..).for_each(|task| self.poll(transport, task));
        self.woken = woken;
        any
    }

    /// Sends stream items while their windows and the transport have room.
    fn send_items(&mut self, transport: &mut Transport) {
        // Enlarging a window is optional. It leaves memory for items beyond a window and for arguments, which cannot wait.
        let charge =
            |peer, from, to| self.dispatch.memory().recharge_leaving(peer, from, to, Leaves::ThreeEighths);
        self.unsent.flush(self.inbox.changes(), transport, &charge);
    }

    fn flush_overdue(&mut self, transport: &mut Transport) {
        if transport.is_flush_overdue() {
            self.flush(transport);
        }
    }

    fn poll(&mut self, transport: &mut Transport, task: TaskId) {
        self.polled = self.polled.wrapping_add(1);
        if self.polled.is_multiple_of(LOOK_EVERY) {
            self.flush_overdue(transport);
        }
        if task.table == TaskId::SPAWNED {
            self.inbox.running().task();
            let _inside = self.context.runtime_guard().enter();
            self.tasks.poll(task.slot);
        } else {
            self.dispatch.poll(transport, task);
        }
    }

    /// Handles a frame that is malformed or has unknown parts. Replies if the frame's sender waits for a reply.
    fn unparsed(&mut self, transport: &mut Transport, from: Origin, message: &Message, error: FrameError) {
        match Header::unparsed(message.header(), message.as_slice()) {
            Some(Unparsed::Request { call, one_way }) => {
                self.dispatch.refuse(transport, from, call, one_way, error);
            }
            Some(Unparsed::Reply { call }) => self.calls.unparsed(transport.now(), from.peer, call, error),
            // The level is debug, because a peer could otherwise fill the log.
            None => {
                tracing::debug!(peer = %from.peer, %error, "malformed message dropped");
            }
        }
    }

    /// Returns true if the node is draining and this poller's handlers have ended, but this has not been reported.
    fn has_drained(&self) -> bool {
        !self.is_drained && self.inbox.lifecycle().is_draining() && self.dispatch.len() == 0
    }

    /// Lets channels with several servers avoid a draining server. Calls that wait for a connection then wait for the
    /// server's next session.
    #[cold]
    fn leave_out(&mut self, from: Origin) {
        self.calls.drains(from);
        if let Some(epoch) = self.calls.epoch_of(from) {
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

impl Rpc {
    /// Begins a turn on this thread. The turn ends when the returned guard is dropped. Code of the program may run at any
    /// time during the turn, for example when borrowed bytes are dropped.
    fn enter(&self) -> (Collecting, Turn, OnPoller, Entered) {
        let poller = Entered::enter(self.context.clone());
        (self.inbox.collect_wakes(), self.ready.enter(), OnPoller::enter(self.inbox.lifecycle()), poller)
    }

    /// Handles an event other than a message or the outcome of a message.
    #[cold]
    fn rare_event(&mut self, transport: &mut Transport, event: Event) {
        match event {
            Event::Message(..) | Event::Sent(..) => {}
            Event::Peer(peer, event) => self.peer(transport, peer, event),
            Event::Announced(from) => self.announced(transport, from),
            Event::GivenUp { from, part, bytes } => self.given_up(transport.now(), from, &part, bytes),
            Event::NotSent { to, header, head, cause } => self.not_sent(transport, to, header, &head, cause),
        }
    }

    #[inline]
    fn message(&mut self, transport: &mut Transport, from: Origin, message: Message) {
        let (header, contents) = (message.header(), message.as_slice());
        match header.kind {
            REPLY => {
                if let Some((call, encoded)) = Header::parse_success(header, contents) {
                    return self.calls.succeeded(transport.now(), from.peer, call, message, encoded);
                }
            }
            REQUEST => {
                if let Some((request, encoded)) = Header::parse_numbered(header, contents) {
                    self.dispatch.request(transport, from, request, message, encoded, &self.ready);
                    return self.inbox.running().nobody();
                }
            }
            DATA => {
                if let Some((header, item)) = StreamHeader::parse_data(header, contents) {
                    if item.len() > EAGER_BYTES {
                        return self.large_item(transport, from, header, message);
                    }
                    self.stream(transport, from, header, Item::Borrowed(item));
                    return self.inbox.running().nobody();
                }
            }
            _ => {}
        }
        self.other_message(transport, from, message);
    }

    /// Handles a message that is malformed, has extensions, or is of a rare kind.
    #[inline(never)]
    fn other_message(&mut self, transport: &mut Transport, from: Origin, message: Message) {
        let (header, encoded) = match Header::parse(message.header(), message.as_slice()) {
            Ok(parsed) => parsed,
            Err(error) => return self.unparsed(transport, from, &message, error),
        };
        match header {
            Header::Request(request) => {
                self.dispatch.request_by_name(transport, from, request, message, encoded, &self.ready);
            }
            // The peer refused a one-way call, which may already have ended on this node.
            Header::Reply { call, by: RepliedBy::Node { reason, ran: false }, .. } if is_one_way(call) => {
                self.inbox.lifecycle().counters.not_served_by_peers.add();
                if reason == Some(Reason::NoMethod) {
                    self.calls.forget_numbers(from.peer);
                }
            }
            Header::Reply { call, code, by, number, metadata } => {
                number.into_iter().for_each(|number| self.calls.learn(from, number));
                if let RepliedBy::Node { reason: Some(Reason::Draining), ran: false } = by {
                    // The server is excluded before the caller repeats the call.
                    self.leave_out(from);
                }
                self.calls.reply(transport.now(), from.peer, call, code, by, metadata, message, encoded);
            }
            Header::Number { number, .. } => self.calls.learn(from, number),
            Header::Cancel { call } => self.dispatch.cancel(transport.now(), from, call),
            Header::Drained => {
                self.calls.drained(from, transport.now());
                self.leave_out(from);
            }
            Header::Stream(header) => {
                let item = message.as_slice().get(encoded.end..).unwrap_or_default();
                self.stream(transport, from, header, Item::Borrowed(item));
            }
        }
        self.inbox.running().nobody();
    }

    /// Handles an item that was fetched by RDMA READ. The reader gets the item's memory, unless the memory in use is so large
    /// that a stopped reader could block others.
    #[inline(never)]
    fn large_item(
        &mut self,
        transport: &mut Transport,
        from: Origin,
        header: StreamHeader,
        message: Message,
    ) {
        if transport.has_spare_memory() {
            self.stream(transport, from, header, Item::Own(message.bytes_from(DATA_BYTES)));
        } else {
            let item = message.as_slice().get(DATA_BYTES..).unwrap_or_default();
            self.stream(transport, from, header, Item::Borrowed(item));
        }
        self.inbox.running().nobody();
    }

    /// Decides whether to accept a large message before its data is fetched.
    #[cold]
    fn announced(&mut self, transport: &mut Transport, from: Origin) {
        let Some(announcement) = transport.announcement(from) else { return };
        let request = Header::parse_announced(announcement.part().header(), announcement.part().as_slice());
        let screening = request.map_or(Screening::Undecided, |(request, head)| {
            let screening = self.dispatch.screen(transport, from, &request, &head);
            self.inbox.running().nobody();
            screening
        });
        transport.screened(announcement, screening);
    }

    fn given_up(&mut self, now: Time, from: Origin, part: &Message, bytes: usize) {
        let parsed = Header::parse(part.header(), part.as_slice()).map(|(header, _)| header);
        if let Ok(Header::Stream(StreamHeader { call, from_caller, part })) = parsed
            && matches!(part, StreamPart::Data { .. } | StreamPart::Accept)
        {
            if from_caller {
                self.gaps.push((from, call, bytes));
            } else {
                self.calls.stream_gap(from.peer, call, bytes);
            }
        }
        // Only replies matter here, because the sender of a request holds the request's state.
        if let Some(Unparsed::Reply { call }) = Header::unparsed(part.header(), part.as_slice()) {
            self.calls.given_up(now, from.peer, call, bytes);
        }
        self.inbox.running().nobody();
    }

    fn not_sent(
        &mut self,
        transport: &mut Transport,
        to: Origin,
        header: MessageHeader,
        head: &[u8],
        cause: PeerDown,
    ) {
        match Header::parse(header, head) {
            Ok((Header::Stream(StreamHeader { call, from_caller: true, .. }), _)) => {
                let status = Status::not_sent("an item of the stream", cause);
                self.calls.abort_stream(to.peer, call, status);
            }
            Ok((Header::Stream(StreamHeader { call, .. }), _)) => {
                self.dispatch.item_not_sent(transport, to, call, cause);
            }
            // The start of a reply may lack a part that the reply's header announces.
            _ => {
                if let Some(Unparsed::Reply { call }) = Header::unparsed(header, head) {
                    self.dispatch.reply_not_sent(transport, to, call, cause);
                }
            }
        }
        self.inbox.running().nobody();
    }

    fn sent(&mut self, transport: &mut Transport, token: Token, outcome: SendOutcome) {
        if token != NOBODY {
            self.calls.sent(transport, token, outcome);
        }
    }

    fn peer(&mut self, transport: &mut Transport, peer: PeerKey, event: PeerEvent) {
        match event {
            PeerEvent::Up { session, epoch, pollers, ref identity } => {
                self.context.call().up(peer, identity.clone());
                self.calls.up(peer, session, epoch, pollers, identity);
                let (calls, here) = (&self.calls, &*transport);
                let serves = |peer, expected| {
                    here.is_up(peer) && calls.is_named(peer, expected) && !calls.is_refused_by(peer)
                };
                let calls = self.parked.up(&serves, peer);
                self.start_all(transport, calls);
            }
            PeerEvent::Renewed { ref identity } => {
                self.context.call().up(peer, identity.clone());
                #[cfg(feature = "identity")]
                self.calls.renewed(peer, identity);
            }
            PeerEvent::Down { cause } => {
                self.calls.down(transport, peer, cause);
                self.dispatch.down(transport.now(), peer);
                self.context.call().down(peer);
            }
        }
        if let Some(connector) = &mut self.connector {
            connector.peer(transport, peer, event);
        }
        self.inbox.running().nobody();
    }

    fn run(&mut self, transport: &mut Transport) -> bool {
        self.inbox.running().turn_begins();
        for (from, call, bytes) in mem::take(&mut self.gaps) {
            self.dispatch.stream_gap(transport, from, call, bytes);
        }
        self.inbox.wake_others();
        if self.calls.is_ready() {
            self.make_again(transport);
        }
        let took = self.take_work(transport) | self.context.timers().fire(transport.now());
        // Calls that tasks make are sent in the same turn.
        let ran = self.run_ready(transport);
        if ran {
            self.take_local(transport);
        }
        self.send_items(transport);
        let sought = self.connector.as_mut().is_some_and(|connector| connector.tick(transport));
        self.look_up();
        let late = self.calls.expire(transport) | self.dispatch.expire(transport);
        let lost = self.dispatch.end_lost(transport.now());
        let expired = late | lost | self.parked.expire(transport.now()) | sought;
        let replied = self.dispatch.send_waiting(transport);
        let admitted = self.calls.admit(transport, |buffer| self.inbox.keep(buffer));
        self.inbox.running().nobody();
        self.report_drained();
        self.calls.settle();
        self.dispatch.settle();
        took | ran | expired | replied | admitted
    }

    fn flush(&mut self, transport: &mut Transport) {
        self.inbox.wake_others();
        self.send_items(transport);
        transport.flush();
    }

    fn next_timer(&self) -> Option<Time> {
        let connector = self.connector.as_ref().and_then(Connector::next_timer);
        let routes = [connector, self.parked.next_timer(), self.unsent.next_timer()];
        let calls = [self.calls.next_timer(), self.dispatch.next_deadline(), self.context.timers().next()];
        routes.into_iter().chain(calls).flatten().min()
    }

    fn awaited(&self) -> BTreeMap<PeerKey, Awaited> {
        let mut awaited = BTreeMap::new();
        self.calls.awaited(&mut awaited);
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
            || self.calls.is_ready()
            || !self.gaps.is_empty()
            || self.dispatch.has_lost()
            || self.has_drained()
    }

    fn shutdown(&mut self, transport: &mut Transport) {
        // The shutdown has already begun, unless another poller panicked.
        self.inbox.lifecycle().begin_end();
        self.calls.close_to_outside(transport.now());
        self.parked.close(false);
        if mutant!(drained_is_told_before_the_end_of_handlers) {
            self.calls.peers().into_iter().for_each(|peer| self.settled(transport, peer));
        }
    }

    fn grace_over(&mut self, transport: &mut Transport) -> bool {
        if self.dispatch.len() > 0 && !mem::replace(&mut self.is_drained, true) {
            self.inbox.lifecycle().poller_cut();
        }
        let has_told = self.dispatch.end_all(transport);
        self.inbox.running().nobody();
        has_told
    }

    fn settled(&mut self, transport: &mut Transport, peer: PeerKey) {
        if self.dispatch.has_answered(peer) {
            self.calls.tell_drained(transport, peer);
        }
    }

    fn ledger(&self) -> DriverLedger {
        DriverLedger {
            calls: self.calls.len() + self.parked.len(),
            handlers: self.dispatch.len(),
            slots: self.dispatch.slots(),
            has_timer: self.next_timer().is_some(),
            sent_to_drained: self.calls.sent_to_drained(),
            budgets: self
                .dispatch
                .budgets(self.calls.stream_bytes())
                .into_iter()
                .chain([self.calls.budget()])
                .collect(),
        }
    }
}

impl Drop for Rpc {
    fn drop(&mut self) {
        let _here = OnPoller::enter(self.inbox.lifecycle());
        self.inbox.close();
        if !self.is_drained {
            let lifecycle = self.inbox.lifecycle();
            if self.dispatch.len() == 0 { lifecycle.poller_drained() } else { lifecycle.poller_cut() }
        }
        // Without a shutdown, it is unknown whether the calls have run.
        self.calls.close();
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
        // Services are dropped while calls are refused, because a destructor could otherwise wait for a call that is never
        // sent.
        self.dispatch.drop_services();
        self.inbox.running().nobody();
        if let Some(pool) = &self.pool {
            pool.poller_ended();
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
