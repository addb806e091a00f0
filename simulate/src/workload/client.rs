//! Clients, which act as the programs of a run.

use crate::coverage::{Coverage, EventKind};
use crate::identity::dns_name;
use crate::oracle::{Open, Oracle, pattern};
use crate::scheduler::timers::{Sleep, Timers};
use crate::workload::service::{FEW, PooledClient, WorkClient, WorkLocal};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use trunkline::{Bytes, CallOptions, Code, Connect, Node, Origin, PollerIndex, Status, Target};

/// Number of empty strings that a server keeps for one call. Three such calls exceed the budget of one peer.
pub(crate) const TEXTS: usize = 12_000;
/// Minimum size of a body in a registered buffer, in bytes.
const LENT: usize = 16 << 10;
/// Number of buffer bytes on each side of a slice.
const BESIDE: usize = 512;
/// Time limit of a call that may share a frame with a late call.
const PATIENCE: Duration = Duration::from_secs(1);
/// Name that no server has.
const NOBODY: &str = "nobody.example";
/// Time limit of a call whose handler may outlast all programs.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// A method to call, with the actions of its handler. Waiting and blocking times are in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ask {
    /// Replies immediately.
    Number,
    Echo {
        there: usize,
        back: usize,
        wait_us: u64,
    },
    Slow(u64),
    Block(u64),
    /// Waits, and then returns an error.
    Refuse(u64),
    Few(u64),
    Panic,
    Hang,
    /// Keeps a number of empty strings while it waits.
    Keep {
        wait_us: u64,
        texts: usize,
    },
    Nested {
        at: SocketAddr,
    },
    Forward {
        wait_us: u64,
        near: SocketAddr,
        far: SocketAddr,
    },
    /// Sleeps in the worker pool.
    Ponder(u64),
    /// Blocks a worker, and then waits on the same worker.
    Grind {
        block_us: u64,
        wait_us: u64,
    },
    /// Runs in the worker pool and never returns.
    Brood,
    Tell(usize),
}

impl Ask {
    /// Returns an echo that does not wait.
    pub(crate) fn echo(there: usize, back: usize) -> Self {
        Self::Echo { there, back, wait_us: 0 }
    }

    fn method(self) -> &'static str {
        match self {
            Self::Number => "number",
            Self::Echo { .. } => "echo",
            Self::Slow(_) => "slow",
            Self::Block(_) => "block",
            Self::Refuse(_) => "refuse",
            Self::Few(_) => "few",
            Self::Panic => "panic",
            Self::Hang => "hang",
            Self::Keep { .. } => "keep",
            Self::Nested { .. } => "nested",
            Self::Forward { .. } => "forward",
            Self::Ponder(_) => "ponder",
            Self::Grind { .. } => "grind",
            Self::Brood => "brood",
            Self::Tell(_) => "tell",
        }
    }

    /// Returns true if the handler never returns a value.
    fn always_fails(self) -> bool {
        matches!(self, Self::Refuse(_) | Self::Panic | Self::Hang | Self::Brood)
    }
}

#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) process: u64,
    pub(crate) oracle: Oracle,
    pub(crate) timers: Timers,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) node: Rc<Node>,
    pub(crate) pollers: u16,
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) random: fastrand::Rng,
}

impl Client {
    /// Sends calls with pauses between them.
    pub(crate) async fn run(mut self, calls: usize, think: Duration) {
        for _ in 0..calls {
            let pause = self.random.u64(..=u64::try_from(think.as_nanos()).unwrap_or(0) * 2);
            self.timers.sleep(Duration::from_nanos(pause)).await;
            let server = self.server();
            match self.random.u8(..100) {
                0..=5 => self.stream(server).await,
                6..=8 => self.cancel(server).await,
                9..=11 => self.in_order(server).await,
                12 => self.late(server).await,
                13..=14 => self.local(server).await,
                15 if self.oracle.has_names() => self.named(server).await,
                15..=19 => {
                    let timeout = self.timeout();
                    let _outcome = self.number_waiting(server, timeout).await;
                }
                roll => self.ask(server, roll).await,
            }
        }
    }

    /// Sends a random call, or several concurrent calls of one kind.
    async fn ask(&mut self, server: SocketAddr, roll: u8) {
        let mut timeout = self.timeout();
        let at = self.server();
        let random = &mut self.random;
        let (calls, ask) = match roll {
            // Several calls share a frame.
            20..=22 => {
                let bytes = if random.u8(..8) == 0 { random.usize(..100 << 10) } else { 64 };
                (random.usize(1..8), Ask::Tell(bytes))
            }
            23..=46 => (1, Ask::echo(size(random), size(random))),
            47..=61 => (1, Ask::Number),
            62..=70 => (1, Ask::Slow(random.u64(..50_000))),
            71..=74 => (1, Ask::Block(random.u64(..10_000))),
            75..=78 => (1, Ask::Refuse(random.u64(..4).saturating_sub(1) * 1_000)),
            79..=81 => (1, Ask::Panic),
            82..=87 => (1, Ask::Nested { at }),
            88..=91 => (1, Ask::Keep { wait_us: random.u64(..30_000), texts: random.usize(..TEXTS) }),
            // The burst may exceed the number of receives of the server.
            92..=94 => {
                self.coverage.count(EventKind::Burst);
                (random.usize(8..40), Ask::Number)
            }
            // Send one call more than the server runs concurrently.
            95 => (FEW as usize + 1, Ask::Few(random.u64(500..5_000))),
            96 => (random.usize(1..6), Ask::Ponder(random.u64(..50_000))),
            97 => {
                let ask = Ask::Grind { block_us: random.u64(..20_000), wait_us: random.u64(..5_000) };
                (random.usize(1..6), ask)
            }
            other => {
                timeout = Duration::from_millis(random.u64(1..300));
                (1, if other == 98 { Ask::Hang } else { Ask::Brood })
            }
        };
        all((0..calls).map(|_| self.call(server, timeout, ask))).await;
    }

    fn server(&mut self) -> SocketAddr {
        self.servers[self.random.usize(..self.servers.len())]
    }

    pub(crate) fn timeout(&mut self) -> Duration {
        let (least, most) = if self.random.u8(..4) == 0 { (1, 30) } else { (200, 2000) };
        Duration::from_millis(self.random.u64(least..most))
    }

    /// Sends a call and checks its outcome. Returns the error if the call failed.
    pub(crate) async fn call(&self, server: SocketAddr, timeout: Duration, ask: Ask) -> Option<Status> {
        let open = self.oracle.made(self.process, server, ask.method(), timeout);
        let open = if let Ask::Tell(_) = ask { open.one_way() } else { open };
        let outcome = self.reply(server, timeout, ask, open.id()).await;
        let failure = open.end(outcome);
        if failure.is_none() && ask.always_fails() {
            self.oracle.fail(format!("a call succeeded whose handler returns no value: {ask:?}"));
        }
        failure
    }

    async fn reply(&self, server: SocketAddr, timeout: Duration, ask: Ask, id: u64) -> Result<u64, Status> {
        let work = WorkClient::connect(&self.node, server)?.with_timeout(timeout);
        let pooled = || PooledClient::connect(&self.node, server).map(|client| client.with_timeout(timeout));
        match ask {
            Ask::Number => work.number(id).await,
            Ask::Echo { there, back, wait_us } => {
                for bytes in [there, back] {
                    match bytes {
                        0..=1024 => {}
                        1025..=16_000 => self.coverage.count(EventKind::EagerMessage),
                        _ => self.coverage.count(EventKind::LargeMessage),
                    }
                }
                let reply_bytes = u32::try_from(back).unwrap_or(u32::MAX);
                let reply = work.echo(id, wait_us, reply_bytes, self.body(id, there)).await?;
                self.oracle.judge_reply(id, &reply, back);
                Ok(id)
            }
            Ask::Slow(wait_us) => work.slow(id, wait_us).await,
            Ask::Block(block_us) => work.block(id, block_us).await,
            Ask::Refuse(wait_us) => work.refuse(id, wait_us).await,
            Ask::Few(wait_us) => work.few(id, wait_us).await,
            Ask::Panic => work.panic(id).await,
            Ask::Hang => work.hang(id).await,
            Ask::Keep { wait_us, texts } => work.keep(id, wait_us, vec![String::new(); texts]).await,
            Ask::Nested { at } => work.nested(id, at.to_string()).await,
            Ask::Forward { wait_us, near, far } => {
                work.forward(id, wait_us, near.to_string(), far.to_string()).await
            }
            Ask::Ponder(wait_us) => pooled()?.ponder(id, wait_us).await,
            Ask::Grind { block_us, wait_us } => pooled()?.grind(id, block_us, wait_us).await,
            Ask::Brood => pooled()?.brood(id).await,
            Ask::Tell(bytes) => {
                self.coverage.count(EventKind::OneWay);
                work.tell(id, pattern(id, bytes).into()).await.map(|()| id)
            }
        }
    }

    /// Sends a call whose reply is its number, and checks the outcome. Returns the error if the call failed.
    pub(crate) async fn judge<F>(
        &self,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
        call: impl FnOnce(u64) -> F,
    ) -> Option<Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let open = self.oracle.made(self.process, server, what, timeout);
        let outcome = call(open.id()).await;
        open.end(outcome)
    }

    /// Calls `number` through a client. Returns the error if the call failed.
    pub(crate) async fn number_by(
        &self,
        client: WorkClient,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
        connect: Connect,
    ) -> Option<Status> {
        let options = CallOptions::new().timeout(timeout).connect(connect);
        let call = |id| async move { client.with(&options).number(id).await };
        self.judge(server, what, timeout, call).await
    }

    /// Sends a small call on a channel that expects a name. Returns the error if the call failed.
    pub(crate) async fn number_named(
        &self,
        server: SocketAddr,
        name: &str,
        timeout: Duration,
        connect: Connect,
    ) -> Option<Status> {
        let client = WorkClient::new(self.node.channel(Target::from(server).named(name)));
        let options = CallOptions::new().timeout(timeout).connect(connect);
        let open =
            self.oracle.made(self.process, server, "number, by a name to prove", timeout).expects(name);
        let outcome = client.with(&options).number(open.id()).await;
        open.end(outcome)
    }

    /// Sends a call on a channel that expects either the server's name or a name that no server has.
    async fn named(&mut self, server: SocketAddr) {
        let name = if self.random.bool() { dns_name(server) } else { NOBODY.to_owned() };
        let connect = if self.random.bool() { Connect::Wait } else { Connect::FailFast };
        let timeout = self.timeout();
        let _outcome = self.number_named(server, &name, timeout, connect).await;
    }

    /// Sends a small call that waits for its server. Returns the error if the call failed.
    pub(crate) async fn number_waiting(&self, server: SocketAddr, timeout: Duration) -> Option<Status> {
        self.coverage.count(EventKind::CallWaited);
        let client = self.connect(server)?;
        let what = "number, waiting for its server";
        let failure = self.number_by(client, server, what, timeout, Connect::Wait).await;
        if let Some(status) = failure.as_ref().filter(|status| is_tied_to_a_session(status)) {
            let what =
                "a call that waits for its server failed with a session that was over when it was made";
            self.oracle.fail(format!("{what}: {status}"));
        }
        failure
    }

    pub(crate) fn connect(&self, server: SocketAddr) -> Option<WorkClient> {
        let client = WorkClient::connect(&self.node, server);
        client.map_err(|error| self.oracle.fail(format!("no client of {server}: {error}"))).ok()
    }

    /// Returns the argument bytes of a call. Large bodies are in plain memory, in a whole registered buffer or in a slice
    /// of one, depending on the call.
    fn body(&self, id: u64, bytes: usize) -> Bytes {
        let body = pattern(id, bytes);
        let beside = if id.is_multiple_of(4) { 0 } else { BESIDE };
        if bytes < LENT || id % 4 == 1 {
            return body.into();
        }
        let Some(mut buffer) = self.node.buffer(bytes + 2 * beside) else { return body.into() };
        self.coverage.count(EventKind::LentMessage);
        let range = beside..beside + bytes;
        buffer[range.clone()].copy_from_slice(&body);
        buffer.freeze().slice(range)
    }

    /// Drops a call whose handler would run for a minute.
    pub(crate) async fn give_up_hanging(&self, server: SocketAddr) {
        let call = self.call(server, MINUTE, Ask::Hang);
        let _gave_up = ends_within(call, self.timers.sleep(Duration::from_millis(5))).await;
    }

    /// Drops a call while another call to the same method runs. Returns the error of the other call if it failed.
    pub(crate) async fn give_up_beside(&self, server: SocketAddr) -> Option<Status> {
        let slow = |wait_us| self.call(server, Duration::from_millis(500), Ask::Slow(wait_us));
        let mut stays = pin!(slow(6_000));
        let pause = self.timers.sleep(Duration::from_millis(3));
        let mut dropped = Some(Box::pin(ends_within(slow(8_000), pause)));
        poll_fn(|context| {
            if let Poll::Ready(outcome) = stays.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            dropped.take_if(|call| call.as_mut().poll(context).is_ready());
            Poll::Pending
        })
        .await
    }

    /// Sends a call and usually drops it before it ends.
    async fn cancel(&mut self, server: SocketAddr) {
        let patience = Duration::from_nanos(self.random.u64(..3_000_000));
        let slow = Ask::Slow(self.random.u64(..6_000));
        let ask = if self.random.bool() { Ask::echo(100 << 10, 50 << 10) } else { slow };
        let call = self.call(server, Duration::from_secs(1), ask);
        if !ends_within(call, self.timers.sleep(patience)).await {
            self.coverage.count(EventKind::CallCancelled);
        }
    }

    async fn local(&mut self, server: SocketAddr) {
        self.coverage.count(EventKind::LocalCall);
        let timeout = self.timeout();
        let poller = PollerIndex(self.random.u16(..self.pollers));
        let open = self.oracle.made(self.process, server, "number from a poller's task", timeout);
        let id = open.id();
        let task = move |context| async move {
            WorkLocal::connect(&context, server)?.with_timeout(timeout).number(id).await
        };
        // If the node shut down during the task, it is unknown whether the call ran.
        if let Ok(outcome) = self.node.run_on(poller, task).await {
            open.end(outcome);
        }
    }

    /// Sends a small or large call from a task on a poller, and then keeps the poller busy, usually until after the
    /// call's deadline. The request is staged in the poller's current turn, and would be sent when the task returns. A
    /// small request usually shares its frame with the request of a call that is not late.
    async fn late(&mut self, server: SocketAddr) {
        let timeout = Duration::from_micros(self.random.u64(500..4_000));
        let busy = Duration::from_micros(self.random.u64(1_000..8_000));
        let bytes = if self.random.bool() { self.random.usize(..300) } else { 40 << 10 };
        let poller = PollerIndex(self.random.u16(..self.pollers));
        let open = self.oracle.made(self.process, server, "echo from a busy poller", timeout);
        let id = open.id();
        let shares = bytes < 300 && self.random.u8(..4) > 0;
        let beside = shares.then(|| self.oracle.made(self.process, server, "number", PATIENCE));
        let number_beside = beside.as_ref().map(Open::id);
        let timers = self.timers.clone();
        let task = move |context| async move {
            let client = WorkLocal::connect(&context, server)?;
            let (patient, client) = (client.clone().with_timeout(PATIENCE), client.with_timeout(timeout));
            let number = number_beside.map(|id| patient.number(id));
            let call = client.echo(id, 0, 0, pattern(id, bytes).into());
            timers.block(busy);
            let outcome = call.await;
            let number = match number {
                Some(number) => Some(number.await),
                None => None,
            };
            Ok::<_, Status>((outcome, number))
        };
        let outcome = self.node.run_on(poller, task).await;
        if busy > timeout {
            self.coverage.count(EventKind::LateCall);
        }
        // If the node shut down during the task, it is unknown whether the calls ran.
        let Ok(outcome) = outcome else { return };
        let (outcome, number) = match outcome {
            Ok((outcome, number)) => (outcome, number),
            Err(status) => (Err(status.clone()), Some(Err(status))),
        };
        if let Some((open, number)) = beside.zip(number) {
            open.end(number);
        }
        let outcome = outcome.map(|reply| {
            self.oracle.judge_reply(id, &reply, 0);
            id
        });
        let failure = open.end(outcome).filter(|_| busy > timeout);
        let is_wrong = |status: &&Status| status.code() == Code::DeadlineExceeded && status.may_have_run();
        if let Some(status) = failure.as_ref().filter(is_wrong) {
            self.oracle.fail(format!("call {id} was late before it could be sent: {status}"));
        }
    }
}

/// Draws a number of bytes. Most numbers are small, some exceed a frame, and some are large.
fn size(random: &mut fastrand::Rng) -> usize {
    match random.u8(..10) {
        0..=5 => random.usize(..300),
        6..=7 => random.usize(1 << 10..16 << 10),
        _ => random.usize(16 << 10..200 << 10),
    }
}

/// Returns true if a call was not sent because its session had ended. Only ordered calls may fail for this reason. Other
/// requests in the queue of an ending session fail with [`Code::Unavailable`].
fn is_tied_to_a_session(status: &Status) -> bool {
    !status.may_have_run() && status.origin() == Origin::Local && status.code() == Code::Aborted
}

/// Polls a call until it ends or the pause is over. Returns true if the call has ended.
async fn ends_within<T>(call: impl Future<Output = T>, pause: Sleep) -> bool {
    let (mut call, mut pause) = (pin!(call), pin!(pause));
    poll_fn(|context| {
        if call.as_mut().poll(context).is_ready() {
            return Poll::Ready(true);
        }
        pause.as_mut().poll(context).map(|()| false)
    })
    .await
}

pub(crate) async fn all<T>(calls: impl Iterator<Item = impl Future<Output = T>>) {
    let mut calls = calls.map(Box::pin).collect::<Vec<_>>();
    poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
