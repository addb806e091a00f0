//! A carrier without a network, for fuzzing and unit tests: it records what it is given.

use crate::call::{
    AdmissionClass, NewStream, Opened, Opening, Outcome, Outgoing as Items, StreamWait, Submission,
};
use crate::client::routes::Routes;
#[cfg(test)]
use crate::client::routes::{Chosen, Link};
use crate::codec::{Bincode, Coding};
use crate::executor::inbox::Inboxes;
use crate::executor::inbox::{Inbox, Work};
use crate::executor::pool::SharedPool;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::node::budgets::{Budgets, Limits};
use crate::node::lifecycle::Lifecycle;
use crate::server::{MethodNumbers, Methods, Request, Service};
use crate::status::Status;
use crate::stream::ItemBuffer;
#[cfg(test)]
use crate::stub::no_items;
use crate::upper::RpcPoller;
use crate::wire::frame::Encoded;
#[cfg(test)]
use crate::wire::metadata::Metadata;
use crate::wire::name::{MethodName, ServiceName, Streams};
use bytes::Bytes;
use futures_core::Stream;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_machine::rings::cell::{self, Getter, Setter};
use trunkline_transport::{
    Carrier, Connect, EAGER_BYTES, Exhausted, Leaves, Origin, Outgoing, PeerDown, PeerEvent, PeerKey,
    PollerIndex, Reach, SendError, SendOutcome, SessionNumber, Taken, Token, Toward, Turn, Upper as _,
};
use trunkline_verbs::{Clock, Time};

/// Largest message of the fake carrier, in bytes.
pub(crate) const LIMIT: usize = 1 << 20;

/// The limit that a full queue reports.
const FULL: Exhausted = Exhausted::Peer { name: "queued bytes", limit: LIMIT };

/// A message that was handed to the fake carrier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) peer: PeerKey,
    pub(crate) toward: Toward,
    pub(crate) session: Option<SessionNumber>,
    pub(crate) bytes: Bytes,
    pub(crate) token: Token,
    pub(crate) ordered: bool,
}

/// The fake carrier.
#[derive(Debug)]
pub(crate) struct FakeCarrier {
    pub(crate) now: Time,
    pub(crate) given: Vec<Given>,
    pub(crate) cancelled: Vec<Token>,
    /// Number of requests to give up messages.
    pub(crate) searches: usize,
    /// True if cancelled messages have not left yet.
    pub(crate) holds_messages: bool,
    /// The error with which it refuses messages.
    pub(crate) refusal: Option<SendError>,
    /// Number of refused messages.
    pub(crate) refused: usize,
    /// True if its queue has no room for large messages.
    pub(crate) is_full_of_large: bool,
    /// Number of large messages that it takes nevertheless.
    pub(crate) room_for_large: usize,
    /// The error with which it refuses large messages.
    pub(crate) refuses_large: Option<SendError>,
    /// True if its sessions are over, although it has not reported that.
    pub(crate) sessions_are_over: bool,
    /// The session through which messages leave at once; without one they wait.
    pub(crate) leaves_through: Option<SessionNumber>,
    /// Reason why its peers cannot be reached, and the time until it may try again.
    pub(crate) away: Option<PeerDown>,
    pub(crate) away_for: Duration,
    /// Nodes that have sessions, and those that it was asked to reach.
    pub(crate) up: BTreeSet<PeerKey>,
    pub(crate) reached: Vec<PeerKey>,
    /// Those that it was asked to reach for callers that wait.
    pub(crate) waited_for: Vec<PeerKey>,
}

impl FakeCarrier {
    pub(crate) fn new() -> Self {
        Self {
            now: Time(1_000_000),
            given: Vec::new(),
            cancelled: Vec::new(),
            searches: 0,
            holds_messages: false,
            refusal: None,
            refused: 0,
            is_full_of_large: false,
            room_for_large: 0,
            refuses_large: None,
            sessions_are_over: false,
            leaves_through: None,
            away: None,
            away_for: Duration::ZERO,
            up: BTreeSet::new(),
            reached: Vec::new(),
            waited_for: Vec::new(),
        }
    }

    /// Returns the key of the peer at an address.
    #[cfg(test)]
    pub(crate) fn key(address: SocketAddr) -> PeerKey {
        PeerKey::new(address)
    }

    /// Advances its clock.
    pub(crate) fn wait(&mut self, time: Duration) {
        self.now += time;
    }
}

impl Carrier for FakeCarrier {
    fn now(&self) -> Time {
        self.now
    }

    fn advance(&mut self, time: Time) {
        self.now = self.now.max(time);
    }

    fn is_flush_overdue(&mut self) -> bool {
        false
    }

    fn flush(&mut self) {}

    fn poller(&self) -> PollerIndex {
        PollerIndex(0)
    }

    fn pollers(&self) -> u16 {
        1
    }

    fn peer(&mut self, node: PeerKey) -> PeerKey {
        node
    }

    fn is_up(&self, peer: PeerKey) -> bool {
        self.up.contains(&peer)
    }

    fn reach(&mut self, node: PeerKey, connect: Connect) -> Reach {
        self.reached.push(node);
        if connect == Connect::Wait {
            self.waited_for.push(node);
        }
        match self.away {
            _ if self.up.contains(&node) => Reach::Up,
            Some(cause) => Reach::Away { cause, due_in: self.away_for },
            None => Reach::UnderWay,
        }
    }

    fn send(&mut self, message: &Outgoing<'_>) -> Result<Taken, SendError> {
        let bytes = message.head.len() + message.body.len();
        if let Some(error) = self.refusal {
            self.refused += 1;
            return Err(error);
        }
        if let Some(error) = self.refuses_large.filter(|_| bytes > EAGER_BYTES) {
            return Err(error);
        }
        let has_room = if bytes > EAGER_BYTES && self.is_full_of_large {
            self.room_for_large > 0
        } else {
            message.leaves != Leaves::All || self.leaves_through.is_some()
        };
        if !has_room {
            return Err(SendError::QueueFull(FULL));
        }
        self.room_for_large = self.room_for_large.saturating_sub(usize::from(bytes > EAGER_BYTES));
        if message.session.is_some() && self.sessions_are_over {
            return Err(SendError::SessionOver);
        }
        if bytes > LIMIT {
            return Err(SendError::TooLarge { bytes, limit: LIMIT });
        }
        self.given.push(Given {
            peer: message.peer,
            toward: message.toward,
            session: message.session,
            bytes: [message.head, &message.body].concat().into(),
            token: message.token,
            ordered: message.ordered,
        });
        let turn = Turn::new(u32::try_from(self.given.len()).unwrap_or_default());
        Ok(Taken { turn, left: self.leaves_through })
    }

    fn cancel(&mut self, tokens: &BTreeSet<Token>) -> BTreeSet<Token> {
        self.searches += 1;
        self.cancelled.extend(tokens);
        if self.holds_messages { tokens.clone() } else { BTreeSet::new() }
    }

    fn has_session(&self, _: PeerKey, _: SessionNumber) -> bool {
        !self.sessions_are_over
    }

    fn away(&self, _: PeerKey) -> Option<PeerDown> {
        self.away
    }

    fn waiting_bytes(&self, _: PeerKey, _: &dyn Fn(&[u8]) -> bool) -> Option<usize> {
        None
    }

    fn has_reply_room(&mut self, _: PeerKey) -> Result<(), Exhausted> {
        match self.refusal {
            Some(SendError::QueueFull(exhausted)) => Err(exhausted),
            _ => Ok(()),
        }
    }

    fn max_message_bytes(&self) -> usize {
        LIMIT
    }
}

/// A service whose methods each do one thing.
static SERVICE: ServiceName =
    ServiceName { name: "fake", version: 2, oldest: 2, codec: 0, codec_name: "bincode", hash: 0x5e41 };
/// A method with a reply and without streams.
const METHOD: MethodName = MethodName {
    service: &SERVICE,
    name: "",
    hash: 0,
    one_way: false,
    idempotent: false,
    streams: Streams::Neither,
    shapes: None,
};
/// Methods of the fake service, and one that it does not have.
pub(crate) static METHODS: [MethodName; 12] = [
    MethodName { name: "echo", hash: 1, ..METHOD },
    MethodName { name: "hang", hash: 2, ..METHOD },
    MethodName { name: "decode", hash: 3, ..METHOD },
    MethodName { name: "fail", hash: 4, ..METHOD },
    MethodName { name: "keep", hash: 6, ..METHOD },
    MethodName { name: "hang unheard", hash: 7, one_way: true, ..METHOD },
    MethodName { name: "keep unheard", hash: 8, one_way: true, ..METHOD },
    MethodName { name: "offloaded", hash: 9, ..METHOD },
    MethodName { name: "feed", hash: 10, streams: Streams::FromServer, ..METHOD },
    MethodName { name: "gather", hash: 11, streams: Streams::FromClient, ..METHOD },
    MethodName { name: "talk", hash: 12, streams: Streams::Both, ..METHOD },
    MethodName { name: "missing", hash: 5, ..METHOD },
];
pub(crate) const ECHO: &MethodName = &METHODS[0];
pub(crate) const HANG: &MethodName = &METHODS[1];
/// Streams items: as many as the first byte of its body says, or without an end if that is 255, of as many bytes as the
/// second one says in hundreds.
#[cfg(test)]
pub(crate) const FEED: &MethodName = &METHODS[8];
/// Takes items and replies with their number. With a body it takes only as many as that says, and waits.
#[cfg(test)]
pub(crate) const GATHER: &MethodName = &METHODS[9];
/// Streams the items that it takes.
#[cfg(test)]
pub(crate) const TALK: &MethodName = &METHODS[10];
/// Runs in the worker pool.
#[cfg(test)]
pub(crate) const OFFLOADED: &MethodName = &METHODS[7];

fn service() -> Service {
    Service::new(&SERVICE, |_, methods| {
        let [echo, hang, decode, fail, keep, hang_unheard, keep_unheard, offloaded, streams @ .., _] =
            &METHODS;
        let [feed, gather, talk] = streams;
        methods.add(echo, |request| async move {
            let replier = request.replier();
            replier.bytes(request.into_body())
        });
        methods.add(hang, |_| std::future::pending());
        methods.add(decode, |request| async move {
            let decoders =
                (Coding::<Bincode, u64>::decoder(), Coding::<Bincode, Vec<Option<String>>>::decoder());
            let value = request.arguments(&["number", "texts"], decoders)?;
            request.replier().value(&Coding::<Bincode, (u64, Vec<Option<String>>)>::of(&value))
        });
        methods.add(fail, |request| async move {
            Err(Status::aborted("it fails").with_details(request.into_body()).into())
        });
        let keeps = |request: Request| async move {
            let decoders = (Coding::<Bincode, Vec<String>>::decoder(),);
            let (_texts,) = request.arguments(&["texts"], decoders)?;
            std::future::pending().await
        };
        methods.add(keep, keeps);
        methods.add(hang_unheard, |_| std::future::pending());
        methods.add(keep_unheard, keeps);
        let pool = methods.pool();
        methods.add(offloaded, move |request| {
            let pool = pool.clone();
            async move {
                let bytes = pool.offload(offloaded, request.context(), async { Bytes::new() }).await;
                let bytes = bytes.map_err(crate::server::Failure::Node)?;
                request.replier().bytes(bytes)
            }
        });
        add_streams(methods, [feed, gather, talk]);
        Ok(())
    })
}

/// Adds the methods that stream items.
fn add_streams(methods: &mut Methods, [feed, gather, talk]: [&'static MethodName; 3]) {
    let raw = |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item);
    methods.add(feed, move |request| async move {
        let (writer, replier, body) = (request.writer(), request.replier(), request.into_body());
        let (left, hundreds) = (body.first().copied().unwrap_or(0), body.get(1).copied().unwrap_or(0));
        writer.send(Repeat { left, item: vec![left; usize::from(hundreds) * 100].into() }, raw).await?;
        replier.end()
    });
    methods.add(gather, |request| async move {
        let (mut items, replier) = (request.raw_items(|bytes| bytes)?, request.replier());
        let most = request.into_body().first().copied();
        let mut count = 0_u64;
        while most.is_none_or(|most| count < u64::from(most)) && items.message().await?.is_some() {
            count += 1;
        }
        if most.is_some() {
            std::future::pending::<()>().await;
        }
        replier.value(&Coding::<Bincode, u64>::of(&count))
    });
    methods.add(talk, move |request| async move {
        let (items, replier) = (request.raw_items(|bytes| bytes)?, request.replier());
        request.writer().send(items, raw).await?;
        replier.end()
    });
}

/// A stream of one item, again and again.
struct Repeat {
    left: u8,
    item: Bytes,
}

impl Stream for Repeat {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.left {
            0 => return Poll::Ready(None),
            u8::MAX => {}
            _ => self.left -= 1,
        }
        Poll::Ready(Some(Ok(self.item.clone())))
    }
}

/// The RPC half of a poller on a fake carrier.
#[derive(Debug)]
pub(crate) struct Rig {
    pub(crate) carrier: FakeCarrier,
    pub(crate) inbox: Arc<Inbox>,
    #[cfg(test)]
    pub(crate) routes: Arc<Routes>,
    pub(crate) poller: RpcPoller,
    /// The ordered channel on which calls are submitted.
    pub(crate) order: Option<Turn>,
    /// The raw argument of calls that are submitted.
    pub(crate) body: Bytes,
    /// Deadline and limit of idle time of streams that are opened.
    pub(crate) stream_limits: (Time, Option<Duration>),
}

impl Rig {
    pub(crate) fn new() -> Self {
        Self::with_limits(Limits::default())
    }

    /// Creates a rig with other limits.
    pub(crate) fn with_limits(limits: Limits) -> Self {
        Self::with(limits, None)
    }

    /// Creates a rig with a worker pool.
    pub(crate) fn with(limits: Limits, pool: Option<Arc<SharedPool>>) -> Self {
        Self::serving(service(), Clock::monotonic(), limits, pool)
    }

    /// Creates a rig whose callers have this clock.
    #[cfg(test)]
    pub(crate) fn with_clock(clock: Clock) -> Self {
        Self::serving(service(), clock, Limits::default(), None)
    }

    /// Creates a rig with a service, whose handlers have this clock.
    pub(crate) fn serving(
        service: Service,
        clock: Clock,
        limits: Limits,
        pool: Option<Arc<SharedPool>>,
    ) -> Self {
        let budgets = Budgets::new(limits, 1, &Arc::default());
        let numbers = MethodNumbers::default();
        let inbox = Arc::new(Inbox::new(Lifecycle::new(1)));
        let inboxes = Arc::<Inboxes>::default();
        inboxes.open([Arc::clone(&inbox)].into_iter());
        let routes = Routes::new(inboxes);
        routes.open(Runtime::default(), clock.clone(), limits.metadata);
        let poller = RpcPoller::new(
            PollerIndex(0),
            Arc::clone(&inbox),
            &[service],
            &numbers,
            clock,
            RuntimeGuard::default(),
            pool,
            Arc::clone(&routes),
            &budgets,
        )
        .expect("its service is made");
        Self {
            carrier: FakeCarrier::new(),
            inbox,
            #[cfg(test)]
            routes,
            poller,
            order: None,
            body: Bytes::from_static(b"body"),
            stream_limits: (Time::MAX, None),
        }
    }

    /// Submits a call to the server with this port, as another thread does.
    pub(crate) fn submit(
        &self,
        port: u16,
        method: &'static MethodName,
        limit: Duration,
        one_way: bool,
    ) -> Getter<Outcome> {
        self.submit_as(port, method, limit, one_way, false)
    }

    /// Submits a call as [`Self::submit`] does, or as a handler does if `nested`.
    pub(crate) fn submit_as(
        &self,
        port: u16,
        method: &'static MethodName,
        limit: Duration,
        one_way: bool,
        nested: bool,
    ) -> Getter<Outcome> {
        let entry = if nested { AdmissionClass::Reserved } else { AdmissionClass::Tries };
        self.submit_with(port, method, limit, one_way, entry)
    }

    /// Submits a call of this admission class.
    pub(crate) fn submit_with(
        &self,
        port: u16,
        method: &'static MethodName,
        limit: Duration,
        one_way: bool,
        entry: AdmissionClass,
    ) -> Getter<Outcome> {
        self.push(Submission { one_way, ..self.submission(port, method, limit, entry) })
    }

    /// Creates a call of `echo`, on an ordered channel if it has a number.
    #[cfg(test)]
    pub(crate) fn submit_ordered(
        &self,
        port: u16,
        limit: Duration,
        entry: AdmissionClass,
        order: Option<Turn>,
    ) -> Getter<Outcome> {
        self.push(Submission { order, ..self.submission(port, ECHO, limit, entry) })
    }

    /// Submits a call of `echo` with metadata and encoded arguments of this many bytes.
    #[cfg(test)]
    pub(crate) fn submit_with_metadata(
        &self,
        port: u16,
        metadata: &Metadata,
        arguments: usize,
    ) -> Getter<Outcome> {
        let mut call = self.submission(port, ECHO, Duration::from_secs(1), AdmissionClass::Tries);
        call.encoded.clear();
        call.encoded.buffer().extend_from_slice(metadata.block());
        call.encoded.buffer().extend(std::iter::repeat_n(7, arguments));
        call.metadata = u32::try_from(metadata.size()).unwrap();
        self.push(call)
    }

    /// Creates a call of `echo` by this link.
    #[cfg(test)]
    pub(crate) fn submit_by(&self, link: &Link, connect: Connect, limit: Duration) -> Getter<Outcome> {
        let (server, route) = link.server();
        let submission = self.submission(0, ECHO, limit, AdmissionClass::Waits);
        self.push(Submission { server, route, connect, ..submission })
    }

    /// Submits a call of `echo` that waits for a connection to the server with this port.
    #[cfg(test)]
    pub(crate) fn submit_waiting(
        &self,
        port: u16,
        limit: Duration,
        entry: AdmissionClass,
    ) -> Getter<Outcome> {
        self.push(Submission { connect: Connect::Wait, ..self.submission(port, ECHO, limit, entry) })
    }

    fn submission(
        &self,
        port: u16,
        method: &'static MethodName,
        limit: Duration,
        entry: AdmissionClass,
    ) -> Submission<Setter<Outcome>> {
        let mut encoded = Encoded::default();
        encoded.buffer().push(7);
        Submission {
            connect: Connect::FailFast,
            order: self.order,
            server: PeerKey::new(SocketAddr::new([127, 0, 0, 1].into(), port)),
            route: None,
            method,
            one_way: false,
            encoded,
            metadata: 0,
            body: self.body.clone().into(),
            deadline: self.carrier.now + limit,
            nested: entry == AdmissionClass::Reserved,
            entry,
            answer: None,
        }
    }

    fn push(&self, submission: Submission<Setter<Outcome>>) -> Getter<Outcome> {
        let (setter, getter) = cell::pair();
        let _ = self.inbox.push(Work::Call(Submission { answer: Some(setter), ..submission }));
        getter
    }

    /// Creates a call of `echo` to a server that a balance has chosen.
    #[cfg(test)]
    pub(crate) fn submit_chosen(&self, chosen: &Chosen, connect: Connect) -> Getter<Outcome> {
        let (server, route) = chosen.to;
        let submission = self.submission(0, ECHO, Duration::from_secs(60), AdmissionClass::Waits);
        self.push(Submission { server, route, connect, ..submission })
    }

    /// Opens a stream of a server that a balance has chosen.
    #[cfg(test)]
    pub(crate) fn open_chosen(
        &self,
        chosen: &Chosen,
        method: &'static MethodName,
        connect: Connect,
    ) -> (StreamWait, Opened) {
        let (server, route) = chosen.to;
        let call = self.submission(0, method, Duration::ZERO, AdmissionClass::Tries);
        self.open_call(Submission { server, route, connect, ..call }, no_items())
    }

    /// Opens a stream of the server with this port.
    pub(crate) fn open(&self, port: u16, method: &'static MethodName, items: Items) -> (StreamWait, Opened) {
        self.open_with(port, method, items, Connect::FailFast)
    }

    /// Opens a stream of the server with this port, whose call does this when the server cannot be reached.
    pub(crate) fn open_with(
        &self,
        port: u16,
        method: &'static MethodName,
        items: Items,
        connect: Connect,
    ) -> (StreamWait, Opened) {
        let call = self.submission(port, method, Duration::ZERO, AdmissionClass::Tries);
        self.open_call(Submission { connect, ..call }, items)
    }

    fn open_call(&self, call: Submission<Setter<Outcome>>, items: Items) -> (StreamWait, Opened) {
        let ((deadline, idle_limit), method) = (self.stream_limits, call.method);
        let NewStream { answer, wait, opened, sending } =
            NewStream::new(Arc::clone(&self.inbox) as _, method, idle_limit, items);
        let submission = Submission { deadline, ..call }.with_answer(Some(answer));
        let _closed = self.inbox.push(Work::Open(Box::new(Opening { submission, sending })));
        (wait, opened)
    }

    pub(crate) fn run(&mut self) {
        self.poller.run(&mut self.carrier);
    }

    pub(crate) fn message(&mut self, from: Origin, bytes: impl Into<Bytes>) {
        let bytes: Bytes = bytes.into();
        self.poller.message(&mut self.carrier, from, bytes.into());
    }

    /// Reports that a message with these first bytes cannot be sent.
    #[cfg(test)]
    pub(crate) fn not_sent(&mut self, to: Origin, head: &[u8], cause: PeerDown) {
        self.poller.not_sent(&mut self.carrier, to, head, cause);
    }

    pub(crate) fn sent(&mut self, token: Token, outcome: SendOutcome) {
        self.poller.sent(&mut self.carrier, token, outcome);
    }

    pub(crate) fn peer(&mut self, peer: PeerKey, event: PeerEvent) {
        self.poller.peer(&mut self.carrier, peer, event);
    }
}
