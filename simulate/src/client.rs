//! Clients: the programs of a run.

use crate::coverage::{Coverage, Kind};
use crate::oracle::{Open, Oracle, pattern};
use crate::pooled::PooledClient;
use crate::service::{FEW, WorkClient, WorkLocal};
use crate::timers::Timers;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use trunkline::{Bytes, CallOptions, Code, Connect, Node, Origin, PollerIndex, Status};

/// Empty texts that a server keeps for one call. Three such calls exceed the budget of one peer.
pub(crate) const TEXTS: usize = 12_000;
/// Minimum length of arguments in registered buffers, and the length of a buffer on each side of a slice.
const LENT: usize = 16 << 10;
const BESIDE: usize = 512;

/// A client of one node.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) process: u64,
    pub(crate) oracle: Oracle,
    pub(crate) timers: Timers,
    pub(crate) coverage: Arc<Coverage>,
    pub(crate) node: Rc<Node>,
    pub(crate) pollers: u16,
    /// The other nodes.
    pub(crate) servers: Vec<SocketAddr>,
    pub(crate) random: fastrand::Rng,
}

impl Client {
    /// Makes calls, with pauses between them.
    pub(crate) async fn run(mut self, calls: usize, think: Duration) {
        for _ in 0..calls {
            let pause = self.random.u64(..=u64::try_from(think.as_nanos()).unwrap_or(0) * 2);
            self.timers.sleep(Duration::from_nanos(pause)).await;
            let server = self.server();
            match self.random.u8(..100) {
                0..=23 => self.echo(server).await,
                24..=29 => self.stream(server).await,
                30..=49 => self.number(server).await,
                50..=58 => self.slow(server).await,
                59 => self.ponder(server).await,
                60..=63 => self.block(server).await,
                64 => self.grind(server).await,
                65..=68 => self.refuse(server).await,
                69..=71 => self.panic(server).await,
                72 => self.hang(server).await,
                73 => self.brood(server).await,
                74..=79 => self.nested(server).await,
                80..=83 => self.keep(server).await,
                84..=86 => self.tell(server).await,
                87..=89 => self.burst(server).await,
                90..=92 => self.cancel(server).await,
                93..=95 => self.in_order(server).await,
                96 => self.late(server).await,
                97 => self.too_many(server).await,
                _ => self.local(server).await,
            }
        }
    }

    fn server(&mut self) -> SocketAddr {
        self.servers[self.random.usize(..self.servers.len())]
    }

    pub(crate) fn timeout(&mut self) -> Duration {
        let (least, most) = if self.random.u8(..4) == 0 { (1, 30) } else { (200, 2000) };
        Duration::from_millis(self.random.u64(least..most))
    }

    pub(crate) fn connect(&self, server: SocketAddr, timeout: Duration) -> Option<WorkClient> {
        match WorkClient::connect(&self.node, server) {
            Ok(client) => Some(client.with_timeout(timeout)),
            Err(error) => {
                self.oracle.fail(format!("no client of {server}: {error}"));
                None
            }
        }
    }

    /// Makes a call whose reply is its number, and judges the outcome.
    async fn judge<F>(
        &self,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
        call: impl FnOnce(WorkClient, u64) -> F,
    ) -> Option<Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let client = self.connect(server, timeout)?;
        self.judge_call(server, what, timeout, |id| call(client, id)).await
    }

    /// Makes and judges such a call for any client.
    pub(crate) async fn judge_call<F>(
        &self,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
        call: impl FnOnce(u64) -> F,
    ) -> Option<Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let id = self.oracle.made(self.process, server, what, timeout);
        let open = Open::new(&self.oracle, id);
        let outcome = call(id).await;
        open.ended();
        match outcome {
            Ok(replied) => self.oracle.succeeded(id, replied, false),
            Err(status) => {
                self.oracle.failed(id, &status);
                return Some(status);
            }
        }
        None
    }

    async fn judge_pooled<F>(
        &self,
        server: SocketAddr,
        what: &'static str,
        timeout: Duration,
        call: impl FnOnce(PooledClient, u64) -> F,
    ) -> Option<Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let Ok(client) = PooledClient::connect(&self.node, server) else {
            self.oracle.fail(format!("no client of {server}"));
            return None;
        };
        let client = client.with_timeout(timeout);
        self.judge_call(server, what, timeout, |id| call(client, id)).await
    }

    async fn ponder(&mut self, server: SocketAddr) {
        let (timeout, wait) = (self.timeout(), self.random.u64(..50_000));
        let count = self.random.usize(1..6);
        all((0..count).map(|_| self.ponder_at(server, timeout, wait))).await;
    }

    /// Makes a call whose handler sleeps in the worker pool. Returns the error, if it failed.
    pub(crate) async fn ponder_at(&self, server: SocketAddr, timeout: Duration, wait: u64) -> Option<Status> {
        let call = |client: PooledClient, id| async move { client.ponder(id, wait).await };
        self.judge_pooled(server, "ponder", timeout, call).await
    }

    async fn grind(&mut self, server: SocketAddr) {
        let (timeout, work, wait) = (self.timeout(), self.random.u64(..20_000), self.random.u64(..5_000));
        let count = self.random.usize(1..6);
        all((0..count).map(|_| self.grind_at(server, timeout, work, wait))).await;
    }

    /// Makes a call whose handler blocks a worker, and then waits on it. Returns the error, if it failed.
    pub(crate) async fn grind_at(
        &self,
        server: SocketAddr,
        timeout: Duration,
        block: u64,
        wait: u64,
    ) -> Option<Status> {
        let call = |client: PooledClient, id| async move { client.grind(id, block, wait).await };
        self.judge_pooled(server, "grind", timeout, call).await
    }

    /// Makes a call that never returns in the worker pool.
    async fn brood(&mut self, server: SocketAddr) {
        let timeout = Duration::from_millis(self.random.u64(1..300));
        let call = |client: PooledClient, id| async move { client.brood(id).await };
        if self.judge_pooled(server, "brood", timeout, call).await.is_none() {
            self.oracle.fail("a call succeeded whose handler never returns".to_owned());
        }
    }

    async fn echo(&mut self, server: SocketAddr) {
        let timeout = self.timeout();
        let size = |random: &mut fastrand::Rng| match random.u8(..10) {
            0..=5 => random.usize(..300),
            6..=7 => random.usize(1 << 10..16 << 10),
            _ => random.usize(16 << 10..200 << 10),
        };
        let (there, back) = (size(&mut self.random), size(&mut self.random));
        let _outcome = self.echo_of(server, timeout, there, back).await;
    }

    /// Sends bytes there and back. Returns the error, if the call failed.
    pub(crate) async fn echo_of(
        &self,
        server: SocketAddr,
        timeout: Duration,
        there: usize,
        back: usize,
    ) -> Option<Status> {
        self.late_echo_of(server, timeout, (there, back), 0).await
    }

    /// Sends bytes there and back, with a handler that waits before it replies. Returns the error, if the
    /// call failed.
    pub(crate) async fn late_echo_of(
        &self,
        server: SocketAddr,
        timeout: Duration,
        (there, back): (usize, usize),
        wait_us: u64,
    ) -> Option<Status> {
        for bytes in [there, back] {
            match bytes {
                0..=1024 => {}
                1025..=16_000 => self.coverage.count(Kind::EagerMessage),
                _ => self.coverage.count(Kind::LargeMessage),
            }
        }
        let client = self.connect(server, timeout)?;
        let id = self.oracle.made(self.process, server, "echo", timeout);
        let open = Open::new(&self.oracle, id);
        let reply_bytes = u32::try_from(back).unwrap_or(u32::MAX);
        let outcome = client.echo(id, wait_us, reply_bytes, self.body(id, there)).await;
        open.ended();
        match outcome {
            Ok(reply) => {
                self.oracle.judge_reply(id, &reply, back);
                self.oracle.succeeded(id, id, false);
                None
            }
            Err(status) => {
                self.oracle.failed(id, &status);
                Some(status)
            }
        }
    }

    /// Returns the bytes that belong to a call. Large ones are in turn in plain memory, a whole registered
    /// buffer, and a slice of one.
    fn body(&self, id: u64, bytes: usize) -> Bytes {
        let body = pattern(id, bytes);
        let beside = if id.is_multiple_of(4) { 0 } else { BESIDE };
        if bytes < LENT || id % 4 == 1 {
            return body.into();
        }
        let Some(mut buffer) = self.node.buffer(bytes + 2 * beside) else { return body.into() };
        self.coverage.count(Kind::LentMessage);
        let range = beside..beside + bytes;
        buffer[range.clone()].copy_from_slice(&body);
        buffer.freeze().slice(range)
    }

    async fn number(&mut self, server: SocketAddr) {
        let timeout = self.timeout();
        let _outcome = if self.random.u8(..4) == 0 {
            self.number_waiting(server, timeout).await
        } else {
            self.number_of(server, timeout).await
        };
    }

    /// Makes a small call that waits for its server. Returns the error, if it failed.
    pub(crate) async fn number_waiting(&self, server: SocketAddr, timeout: Duration) -> Option<Status> {
        self.coverage.count(Kind::CallWaited);
        let options = CallOptions::new().connect(Connect::Wait);
        let call = |client: WorkClient, id| async move { client.with(&options).number(id).await };
        let failure = self.judge(server, "number, waiting for its server", timeout, call).await;
        if let Some(status) = failure.as_ref().filter(|status| is_tied_to_a_session(status)) {
            let what =
                "a call that waits for its server failed with a session that was over when it was made";
            self.oracle.fail(format!("{what}: {status}"));
        }
        failure
    }

    /// Makes a small call. Returns the error, if it failed.
    pub(crate) async fn number_of(&self, server: SocketAddr, timeout: Duration) -> Option<Status> {
        self.judge(server, "number", timeout, |client, id| async move { client.number(id).await }).await
    }

    async fn slow(&mut self, server: SocketAddr) {
        let (timeout, wait) = (self.timeout(), self.random.u64(..50_000));
        let call = |client: WorkClient, id| async move { client.slow(id, wait).await };
        let _outcome = self.judge(server, "slow", timeout, call).await;
    }

    async fn block(&mut self, server: SocketAddr) {
        let (timeout, work) = (self.timeout(), self.random.u64(..10_000));
        let _outcome = self.block_at(server, timeout, work).await;
    }

    /// Makes a call whose handler blocks its poller. Returns the error, if it failed.
    pub(crate) async fn block_at(
        &self,
        server: SocketAddr,
        timeout: Duration,
        block_us: u64,
    ) -> Option<Status> {
        let call = |client: WorkClient, id| async move { client.block(id, block_us).await };
        self.judge(server, "block", timeout, call).await
    }

    async fn refuse(&mut self, server: SocketAddr) {
        let (timeout, wait) = (self.timeout(), self.random.u64(..4).saturating_sub(1) * 1_000);
        let _outcome = self.refuse_at(server, timeout, wait).await;
    }

    /// Makes a call whose handler waits and returns an error. Returns the error.
    pub(crate) async fn refuse_at(&self, server: SocketAddr, timeout: Duration, wait: u64) -> Option<Status> {
        let call = |client: WorkClient, id| async move { client.refuse(id, wait).await };
        let outcome = self.judge(server, "refuse", timeout, call).await;
        if outcome.is_none() {
            self.oracle.fail("a call succeeded whose handler returned an error".to_owned());
        }
        outcome
    }

    async fn panic(&mut self, server: SocketAddr) {
        let timeout = self.timeout();
        let _outcome = self.panic_at(server, timeout).await;
    }

    /// Makes a call whose handler panics. Returns the error.
    pub(crate) async fn panic_at(&self, server: SocketAddr, timeout: Duration) -> Option<Status> {
        let call = |client: WorkClient, id| async move { client.panic(id).await };
        let outcome = self.judge(server, "panic", timeout, call).await;
        if outcome.is_none() {
            self.oracle.fail("a call succeeded whose handler panicked".to_owned());
        }
        outcome
    }

    /// Drops a call whose handler would run for a minute.
    pub(crate) async fn give_up_hanging(&self, server: SocketAddr) {
        let mut call = pin!(self.hang_at(server, Duration::from_secs(60)));
        let mut pause = pin!(self.timers.sleep(Duration::from_millis(5)));
        poll_fn(|context| {
            if call.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            pause.as_mut().poll(context)
        })
        .await;
    }

    async fn hang(&mut self, server: SocketAddr) {
        let timeout = Duration::from_millis(self.random.u64(1..300));
        self.hang_at(server, timeout).await;
    }

    /// Makes a call that never returns, and judges that it fails.
    pub(crate) async fn hang_at(&self, server: SocketAddr, timeout: Duration) {
        if self.hang_for(server, timeout).await.is_none() {
            self.oracle.fail("a call succeeded whose handler never returns".to_owned());
        }
    }

    /// Makes a call that never returns. Returns the error.
    pub(crate) async fn hang_for(&self, server: SocketAddr, timeout: Duration) -> Option<Status> {
        let call = |client: WorkClient, id| async move { client.hang(id).await };
        self.judge(server, "hang", timeout, call).await
    }

    /// Drops a call while another of the same method runs. Returns the error of the other call, if it failed.
    pub(crate) async fn give_up_beside(&self, server: SocketAddr) -> Option<Status> {
        let slow = |wait| {
            let call = move |client: WorkClient, id| async move { client.slow(id, wait).await };
            self.judge(server, "slow, next to one given up", Duration::from_millis(500), call)
        };
        let mut stays = pin!(slow(6_000));
        let mut dropped = Some(Box::pin(slow(8_000)));
        let mut pause = pin!(self.timers.sleep(Duration::from_millis(3)));
        poll_fn(|context| {
            if let Poll::Ready(outcome) = stays.as_mut().poll(context) {
                return Poll::Ready(outcome);
            }
            if let Some(call) = &mut dropped
                && (call.as_mut().poll(context).is_ready() || pause.as_mut().poll(context).is_ready())
            {
                dropped = None;
            }
            Poll::Pending
        })
        .await
    }

    async fn nested(&mut self, server: SocketAddr) {
        let (timeout, at) = (self.timeout(), self.server());
        let call = |client: WorkClient, id| async move { client.nested(id, at.to_string()).await };
        let _outcome = self.judge(server, "nested", timeout, call).await;
    }

    /// Makes a call whose handler makes calls. Returns the error, if it failed.
    pub(crate) async fn forward_of(
        &self,
        server: SocketAddr,
        timeout: Duration,
        wait_us: u64,
        (near, far): (SocketAddr, SocketAddr),
    ) -> Option<Status> {
        let (near, far) = (near.to_string(), far.to_string());
        let call = |client: WorkClient, id| async move { client.forward(id, wait_us, near, far).await };
        self.judge(server, "forward", timeout, call).await
    }

    async fn keep(&mut self, server: SocketAddr) {
        let (timeout, wait, texts) = (self.timeout(), self.random.u64(..30_000), self.random.usize(..TEXTS));
        let _outcome = self.keep_at(server, timeout, wait, texts).await;
    }

    /// Makes a call whose handler keeps empty texts while it waits. Returns the error, if it failed.
    pub(crate) async fn keep_at(
        &self,
        server: SocketAddr,
        timeout: Duration,
        wait: u64,
        texts: usize,
    ) -> Option<Status> {
        let texts = vec![String::new(); texts];
        let call = |client: WorkClient, id| async move { client.keep(id, wait, texts).await };
        self.judge(server, "keep", timeout, call).await
    }

    async fn tell(&mut self, server: SocketAddr) {
        let timeout = self.timeout();
        let bytes = if self.random.u8(..8) == 0 { self.random.usize(..100 << 10) } else { 64 };
        let Some(client) = self.connect(server, timeout) else { return };
        self.coverage.count(Kind::OneWay);
        let id = self.oracle.made(self.process, server, "tell", timeout);
        let open = Open::new(&self.oracle, id);
        let outcome = client.tell(id, pattern(id, bytes).into()).await;
        open.ended();
        match outcome {
            Ok(()) => self.oracle.succeeded(id, id, true),
            Err(status) => self.oracle.failed(id, &status),
        }
    }

    /// Makes many calls at once, more than the server's receives hold.
    async fn burst(&mut self, server: SocketAddr) {
        self.coverage.count(Kind::Burst);
        let (timeout, count) = (self.timeout(), self.random.usize(8..40));
        all((0..count).map(|_| self.number_of(server, timeout))).await;
    }

    /// Makes more calls of a method at once than its server runs.
    async fn too_many(&mut self, server: SocketAddr) {
        let (timeout, wait) = (self.timeout(), self.random.u64(500..5_000));
        let call = move |client: WorkClient, id| async move { client.few(id, wait).await };
        all((0..=FEW).map(|_| self.judge(server, "few", timeout, call))).await;
    }

    /// Makes a call and mostly drops it before it ends.
    async fn cancel(&mut self, server: SocketAddr) {
        let patience = Duration::from_nanos(self.random.u64(..3_000_000));
        let wait = self.random.u64(..6_000);
        let large = self.random.bool();
        let mut pause = pin!(self.timers.sleep(patience));
        let timeout = Duration::from_secs(1);
        let call: Pin<Box<dyn Future<Output = Option<Status>>>> = if large {
            Box::pin(self.echo_of(server, timeout, 100 << 10, 50 << 10))
        } else {
            let call = move |client: WorkClient, id| async move { client.slow(id, wait).await };
            Box::pin(self.judge(server, "slow, given up", timeout, call))
        };
        let mut call = call;
        let gave_up = poll_fn(|context| {
            if call.as_mut().poll(context).is_ready() {
                return Poll::Ready(false);
            }
            pause.as_mut().poll(context).map(|()| true)
        })
        .await;
        if gave_up {
            self.coverage.count(Kind::CallCancelled);
        }
    }

    /// Makes a call from a task that runs on a poller.
    async fn local(&mut self, server: SocketAddr) {
        self.coverage.count(Kind::LocalCall);
        let timeout = self.timeout();
        let poller = PollerIndex(self.random.u16(..self.pollers));
        let id = self.oracle.made(self.process, server, "number from a poller's task", timeout);
        let open = Open::new(&self.oracle, id);
        let task = move |context| async move {
            WorkLocal::connect(&context, server)?.with_timeout(timeout).number(id).await
        };
        let outcome = self.node.run_on(poller, task).await;
        open.ended();
        match outcome {
            Ok(Ok(replied)) => self.oracle.succeeded(id, replied, false),
            Ok(Err(status)) => self.oracle.failed(id, &status),
            // The node shut down under the task, so it is unknown whether the call ran.
            Err(_) => self.oracle.given_up(id),
        }
    }
}

/// Returns true if a call did not leave because its session had ended. Only an ordered call may fail so. A
/// request queued in a session that ends fails with [`Code::Unavailable`].
fn is_tied_to_a_session(status: &Status) -> bool {
    !status.may_have_run() && status.origin() == Origin::Local && status.code() == Code::Aborted
}

/// Waits until all have ended.
pub(crate) async fn all<T>(calls: impl Iterator<Item = impl Future<Output = T>>) {
    let mut calls = calls.map(Box::pin).collect::<Vec<_>>();
    poll_fn(|context| {
        calls.retain_mut(|call| call.as_mut().poll(context).is_pending());
        if calls.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}
