//! Streams of all three kinds, with pauses, slow readers, early ends and drops. The oracle checks each item and each end.

use crate::coverage::EventKind;
use crate::oracle::{Flow, Oracle, item};
use crate::scheduler::timers::{Sleep, Timers};
use crate::workload::client::{Client, all as all_end};
use crate::workload::service::{Handling, PANIC};
use serde::{Deserialize, Serialize};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use trunkline::{Bytes, CallOptions, Code, Status, Stream, Streaming};

/// Number of items between two pauses of a reader or a writer.
const BETWEEN_PAUSES: u64 = 8;
/// Number of items in a stream in the phases without faults. It exceeds the initial window.
const CALM_ITEMS: u64 = 150;
/// Range of idle timeouts of streams, in microseconds. Most exceed the pauses of a writer.
const IDLE_US: Range<u64> = 1_000..20_000;
/// Maximum time for which a machine may sleep before it detects a change.
const STOPS_LATER: Duration = Duration::from_millis(30);

/// Service with streams whose items are derived from the number of their call.
#[trunkline::service(name = "trunkline.simulate.Feed", version = 1)]
pub(crate) trait Feed {
    /// Sends items and ends as specified by the script.
    async fn watch(
        &self,
        id: u64,
        script: Script,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    /// Reads up to a number of items, and waits before it replies. If `checks` is true, the client's stream must have
    /// been dropped before the reply.
    async fn upload(
        &self,
        id: u64,
        script: Script,
        wait_us: u64,
        checks: bool,
        items: Streaming<Bytes>,
    ) -> Result<u64, Status>;

    /// Sends an item for each received item, up to a number.
    async fn chat(
        &self,
        id: u64,
        script: Script,
        items: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Then {
    Finish,
    Fail,
    Panic,
    /// Sends nothing more and does not end.
    Hang,
}

/// Behaviour of a writer or reader: its maximum number of items, its pauses, and the action after the last item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Script {
    pub(crate) items: u64,
    pub(crate) pause_us: u64,
    pub(crate) then: Then,
}

impl Script {
    /// Returns a script for `items` items without pauses, followed by the regular end.
    fn all(items: u64) -> Self {
        Self { items, pause_us: 0, then: Then::Finish }
    }

    fn random(random: &mut fastrand::Rng) -> Self {
        let items = if random.bool() { random.u64(..20) } else { random.u64(..200) };
        let pause_us = match random.u8(..3) {
            0 => random.u64(..2_000),
            // The pause is about as long as the transit time of an item.
            1 => random.u64(1..40),
            _ => 0,
        };
        Self { items, pause_us, then: Then::Finish }
    }

    fn pause(&self, timers: &Timers, items: u64) -> Option<Sleep> {
        let pauses = self.pause_us > 0 && items.is_multiple_of(BETWEEN_PAUSES);
        pauses.then(|| timers.sleep(Duration::from_micros(self.pause_us)))
    }
}

struct Source {
    oracle: Oracle,
    timers: Timers,
    flow: Flow,
    script: Script,
    sent: u64,
    pause: Option<Sleep>,
}

impl Source {
    fn new(oracle: &Oracle, timers: &Timers, flow: Flow, script: Script) -> Self {
        let (oracle, timers) = (oracle.clone(), timers.clone());
        Self { oracle, timers, flow, script, sent: 0, pause: None }
    }

    fn next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        if let Some(pause) = &mut self.pause {
            ready!(Pin::new(pause).poll(context));
            self.pause = None;
        }
        if self.sent < self.script.items {
            let bytes = item(self.flow, self.sent);
            self.sent += 1;
            self.oracle.item_sent(self.flow);
            self.pause = self.script.pause(&self.timers, self.sent);
            return Poll::Ready(Some(Ok(bytes.into())));
        }
        match self.script.then {
            Then::Finish => {
                self.oracle.stream_finished(self.flow);
                if !self.flow.from_caller {
                    self.oracle.returned(self.flow.call);
                }
                Poll::Ready(None)
            }
            Then::Fail => {
                let status = Status::failed_precondition(self.flow.call.to_string());
                self.oracle.refused(self.flow.call, &status);
                Poll::Ready(Some(Err(status)))
            }
            Then::Panic => {
                let told = "trunkline.simulate.Feed.watch: the handler panicked";
                self.oracle.refused(self.flow.call, &Status::internal(told));
                std::panic::panic_any(PANIC);
            }
            Then::Hang => Poll::Pending,
        }
    }
}

impl Stream for Source {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.next(context)
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.oracle.writer_gone(self.flow);
    }
}

struct Upload(Source);

impl Stream for Upload {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let next = ready!(self.0.next(context));
        Poll::Ready(next.and_then(Result::ok))
    }
}

/// Writer that sends an item for each received item.
struct Replies {
    items: Streaming<Bytes>,
    replies: Source,
    has_ended: bool,
}

impl Stream for Replies {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.as_mut().get_mut();
        let flow = Flow { from_caller: true, ..this.replies.flow };
        while !this.has_ended && this.replies.pause.is_none() && this.replies.sent < this.replies.script.items
        {
            match ready!(Pin::new(&mut this.items).poll_next(context)) {
                Some(Ok(item)) => {
                    this.replies.oracle.item_received(flow, &item);
                    return this.replies.next(context);
                }
                Some(Err(status)) => {
                    this.replies.oracle.refused(flow.call, &status);
                    return Poll::Ready(Some(Err(status)));
                }
                None => {
                    this.replies.oracle.stream_ended(flow);
                    this.has_ended = true;
                    this.replies.script.items = 0;
                }
            }
        }
        if let Some(pause) = &mut this.replies.pause {
            ready!(Pin::new(pause).poll(context));
            this.replies.pause = None;
            return self.as_mut().poll_next(context);
        }
        this.replies.next(context)
    }
}

#[derive(Debug)]
pub(crate) struct Feeder(pub(crate) Handling);

impl Feeder {
    fn source(&self, id: u64, script: Script) -> Source {
        Source::new(&self.0.oracle, &self.0.timers, Flow { call: id, from_caller: false }, script)
    }
}

impl Feed for Feeder {
    async fn watch(
        &self,
        id: u64,
        script: Script,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        self.0.entered(id, "watch", &[]);
        Ok(self.source(id, script))
    }

    async fn upload(
        &self,
        id: u64,
        script: Script,
        wait_us: u64,
        checks: bool,
        mut items: Streaming<Bytes>,
    ) -> Result<u64, Status> {
        self.0.entered(id, "upload", &[]);
        let flow = Flow { call: id, from_caller: true };
        let mut taken = 0;
        while taken < script.items {
            match items.message().await {
                Ok(Some(item)) => self.0.oracle.item_received(flow, &item),
                Ok(None) => {
                    self.0.oracle.stream_ended(flow);
                    break;
                }
                Err(status) => {
                    return Err(self.0.refused(id, status));
                }
            }
            taken += 1;
            if let Some(pause) = script.pause(&self.0.timers, taken) {
                pause.await;
            }
        }
        drop(items);
        if wait_us > 0 {
            self.0.coverage.count(EventKind::StreamReset);
            self.0.timers.sleep(Duration::from_micros(wait_us)).await;
        }
        if checks && !self.0.oracle.is_writer_gone(flow) {
            self.0.oracle.fail(format!("the client of call {id} still sends items that its handler refused"));
        }
        self.0.done(id)
    }

    async fn chat(
        &self,
        id: u64,
        script: Script,
        items: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        self.0.entered(id, "chat", &[]);
        Ok(Replies { items, replies: self.source(id, script), has_ended: false })
    }
}

#[derive(Debug, Clone, Copy)]
enum Shape {
    /// The handler sends items.
    Watch(Script),
    /// The client sends items. The handler reads them, and then waits.
    Upload { sent: Script, taken: Script, wait: Duration, checks: bool },
    /// The client sends items, and the handler answers each item.
    Chat { sent: Script, answered: Script },
}

impl Shape {
    fn random(random: &mut fastrand::Rng) -> Self {
        let mut sent = Script::random(random);
        let mut taken = Script::random(random);
        if random.u8(..3) > 0 {
            taken.items = u64::MAX;
        } else if random.bool() {
            sent.then = Then::Hang;
        }
        match random.u8(..4) {
            0 => {
                let wait = Duration::from_micros(random.u64(..3_000));
                Self::Upload { sent, taken, wait, checks: false }
            }
            1 => Self::Chat { sent, answered: taken },
            _ => {
                sent.then = match random.u8(..8) {
                    0 => Then::Fail,
                    1 => Then::Panic,
                    2 => Then::Hang,
                    _ => Then::Finish,
                };
                Self::Watch(sent)
            }
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Watch(_) => "watch",
            Self::Upload { .. } => "upload",
            Self::Chat { .. } => "chat",
        }
    }
}

impl Client {
    /// Opens a stream. If it is dropped, opens a second stream immediately.
    pub(crate) async fn stream(&mut self, server: SocketAddr) {
        let (timeout, shape) = (self.timeout(), Shape::random(&mut self.random));
        let mut read = Script { items: u64::MAX, ..Script::random(&mut self.random) };
        if self.random.u8(..3) == 0 {
            read.items = self.random.u64(..30);
        }
        let has_idle_timeout = self.random.u8(..3) == 0;
        let idle = has_idle_timeout.then(|| Duration::from_micros(self.random.u64(IDLE_US)));
        let _outcome = self.stream_of(server, timeout, idle, shape, read).await;
        if read.items < u64::MAX {
            let again = Shape::Watch(Script::random(&mut self.random));
            let _outcome = self.stream_of(server, timeout, None, again, Script::all(u64::MAX)).await;
        }
    }

    /// Streams items without faults. Returns the error if the call failed.
    pub(crate) async fn calm_stream(
        &self,
        server: SocketAddr,
        random: &mut fastrand::Rng,
        timeout: Duration,
        limit: Duration,
    ) -> Option<Status> {
        let all = Script::all(u64::MAX);
        let hangs = Script { items: 40, pause_us: 0, then: Then::Hang };
        let stops = limit + STOPS_LATER;
        let shape = match random.u8(..5) {
            0 => Shape::Watch(Script::all(CALM_ITEMS)),
            1 => Shape::Upload {
                sent: Script::all(CALM_ITEMS),
                taken: all,
                wait: Duration::ZERO,
                checks: false,
            },
            2 => Shape::Chat { sent: Script::all(CALM_ITEMS), answered: all },
            3 => Shape::Upload { sent: hangs, taken: Script::all(10), wait: stops, checks: true },
            _ => {
                // Items of the first stream are in transit when the second stream takes its slot. The slot is free after
                // its poller has handled the drop.
                let sends = Script { items: 1_000, pause_us: random.u64(1..20), then: Then::Hang };
                let (_, failure) =
                    self.stream_of(server, timeout, None, Shape::Watch(sends), Script::all(30)).await;
                if failure.is_some() {
                    return failure;
                }
                self.timers.sleep(Duration::from_micros(random.u64(1..20))).await;
                let failures = RefCell::new(Vec::new());
                // Calls are assigned to the pollers in turn. More concurrent calls would exceed the handler limit.
                all_end((0..self.pollers.min(3)).map(|_| async {
                    let again = Shape::Watch(Script::all(CALM_ITEMS));
                    let (_, failure) = self.stream_of(server, timeout, None, again, all).await;
                    failures.borrow_mut().extend(failure);
                }))
                .await;
                return failures.into_inner().pop();
            }
        };
        self.stream_of(server, timeout, None, shape, all).await.1
    }

    /// Drops a stream whose handler no longer sends, and checks that the handler's stream is dropped within `limit`.
    pub(crate) async fn drop_stream(&self, server: SocketAddr, timeout: Duration, limit: Duration) {
        let hangs = Shape::Watch(Script { items: 20, pause_us: 0, then: Then::Hang });
        let (call, failure) = self.stream_of(server, timeout, None, hangs, Script::all(10)).await;
        self.timers.sleep(limit + STOPS_LATER).await;
        let flow = Flow { call, from_caller: false };
        if failure.is_none() && !self.oracle.is_writer_gone(flow) {
            self.oracle.fail(format!("the handler of call {call} still sends items that its client dropped"));
        }
    }

    /// Sends a call that streams items, and reads them as specified by `read`. Returns its number and the error if the
    /// call failed.
    async fn stream_of(
        &self,
        server: SocketAddr,
        timeout: Duration,
        idle: Option<Duration>,
        shape: Shape,
        read: Script,
    ) -> (u64, Option<Status>) {
        let open = self.oracle.made(self.process, server, shape.name(), timeout);
        let id = open.id();
        let Ok(client) = FeedClient::connect(&self.node, server) else {
            self.oracle.fail(format!("no client of {server}"));
            return (id, None);
        };
        let client = client.with_timeout(timeout);
        let options = idle.map_or_else(CallOptions::new, |limit| CallOptions::new().idle_timeout(limit));
        let client = client.with(&options);
        self.coverage.count(EventKind::StreamOpened);
        let upload = |script| {
            let flow = Flow { call: id, from_caller: true };
            Upload(Source::new(&self.oracle, &self.timers, flow, script))
        };
        let outcome = match shape {
            Shape::Watch(script) => match client.watch(id, script).await {
                Ok(items) => self.read(id, items, read).await,
                Err(status) => Err(status),
            },
            Shape::Upload { sent, taken, wait, checks } => {
                let wait_us = u64::try_from(wait.as_micros()).unwrap_or(0);
                client.upload(id, taken, wait_us, checks, upload(sent)).await.map(Some)
            }
            Shape::Chat { sent, answered } => match client.chat(id, answered, upload(sent)).await {
                Ok(items) => self.read(id, items, read).await,
                Err(status) => Err(status),
            },
        };
        let outcome = match outcome {
            Ok(Some(replied)) => {
                self.coverage.count(EventKind::StreamFinished);
                Ok(replied)
            }
            Ok(None) => {
                self.coverage.count(EventKind::StreamDropped);
                return (id, None);
            }
            Err(status) => Err(status),
        };
        let failure = open.end(outcome);
        let is_idle = failure.as_ref().is_some_and(|status| status.message().contains("idle_timeout"));
        if let Some(limit) = idle.filter(|_| is_idle) {
            self.oracle.stream_idle(Flow { call: id, from_caller: false }, limit);
        }
        (id, failure)
    }

    /// Reads up to a number of items. Returns the number of the call, or `None` if the stream was dropped.
    async fn read(
        &self,
        id: u64,
        mut items: Streaming<Bytes>,
        script: Script,
    ) -> Result<Option<u64>, Status> {
        let flow = Flow { call: id, from_caller: false };
        let mut taken = 0;
        while taken < script.items {
            match items.message().await {
                Ok(Some(item)) => self.oracle.item_received(flow, &item),
                Ok(None) => {
                    self.oracle.stream_ended(flow);
                    return Ok(Some(id));
                }
                Err(status) => {
                    if status.code() == Code::Unavailable {
                        self.coverage.count(EventKind::StreamLost);
                    }
                    self.judge_count(id, taken, &status);
                    return Err(status);
                }
            }
            taken += 1;
            if let Some(pause) = script.pause(&self.timers, taken) {
                pause.await;
            }
        }
        Ok(None)
    }

    /// Checks that a status from a node states the number of delivered items.
    fn judge_count(&self, id: u64, taken: u64, status: &Status) {
        let says = format!("{taken} items of the stream were delivered before");
        let is_of_node =
            status.reason().is_some() || matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded);
        if is_of_node && !status.causes().contains(&says) {
            self.oracle.fail(format!("the end of call {id} does not say that {says}: {status:?}"));
        }
    }
}
