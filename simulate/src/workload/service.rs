//! Services of simulated nodes. There is one method for each behaviour of a handler: on pollers, in the worker pool, and
//! in chains of calls between two nodes.

use crate::coverage::{Coverage, EventKind};
use crate::oracle::{Oracle, pattern};
use crate::scheduler::timers::Timers;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline::{Bytes, Context, Limit, PollerContext, Status};

/// Payload of a handler's panic, which the panic hook does not print.
pub(crate) const PANIC: &str = "simulated panic of a handler";

/// Maximum number of concurrent calls to `few` on a node. Clients make more.
pub(crate) const FEW: u32 = 2;

/// Number of workers per node. Clients make more concurrent calls.
pub(crate) const WORKERS: u16 = 2;
/// Limit on calls that wait for a worker. Clients exceed it.
pub(crate) const QUEUED_JOBS: Limit = Limit { per_peer: 2, in_all: 6 };

/// Time limit of each call to [`Chain`] from a program or a handler. No call may reach it.
pub(crate) const CHAINED: Duration = Duration::from_secs(60);

/// Work for other nodes. Each call contains its number, from which its bytes are derived.
#[trunkline::service(name = "trunkline.simulate.Work", version = 1)]
pub(crate) trait Work {
    /// Waits, and replies with `reply_bytes` bytes.
    async fn echo(&self, id: u64, wait_us: u64, reply_bytes: u32, body: Bytes) -> Result<Bytes, Status>;

    /// Replies with the call's number.
    async fn number(&self, id: u64) -> Result<u64, Status>;

    /// Waits before it replies.
    async fn slow(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Blocks the poller before it replies.
    async fn block(&self, id: u64, block_us: u64) -> Result<u64, Status>;

    /// Waits unless `wait_us` is 0, and then returns an error.
    async fn refuse(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Waits before it replies. Only `FEW` of these calls run concurrently.
    async fn few(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Panics.
    async fn panic(&self, id: u64) -> Result<u64, Status>;

    /// Never returns.
    async fn hang(&self, id: u64) -> Result<u64, Status>;

    /// Keeps the strings while it waits.
    async fn keep(&self, id: u64, wait_us: u64, texts: Vec<String>) -> Result<u64, Status>;

    /// Calls `number` on another node before it replies. If this call fails, the handler returns the status of the
    /// failure or a new status.
    async fn nested(&self, id: u64, at: String) -> Result<u64, Status>;

    /// Calls `slow` on one node with a local client. Then calls `number` on another node with a local client, and on both
    /// nodes with clients shared with the program. Replies after these calls.
    async fn forward(&self, id: u64, wait_us: u64, near: String, far: String) -> Result<u64, Status>;

    /// Accepts bytes.
    #[oneway]
    async fn tell(&self, id: u64, body: Bytes);

    /// Never returns. The call is one-way.
    #[oneway]
    async fn linger(&self);

    /// Waits before it replies, or fails in a process selected by the oracle. The call may run twice.
    #[idempotent]
    async fn repeat(&self, id: u64, wait_us: u64) -> Result<u64, Status>;
}

/// Service that is never called. It shifts the method numbers of [`Work`].
#[trunkline::service(name = "trunkline.simulate.Idle", version = 1)]
pub(crate) trait Idle {
    /// Does nothing.
    async fn nothing(&self);
}

#[derive(Debug)]
pub(crate) struct Idler;

impl Idle for Idler {
    async fn nothing(&self) {}
}

/// Parts of a run that the handlers in a process use.
#[derive(Debug, Clone)]
pub(crate) struct Handling {
    pub(crate) process: u64,
    pub(crate) oracle: Oracle,
    pub(crate) timers: Timers,
    pub(crate) coverage: Arc<Coverage>,
}

impl Handling {
    /// Records that the handler of a call was entered, with these argument bytes.
    pub(crate) fn entered(&self, id: u64, method: &str, body: &[u8]) {
        self.oracle.entered(id, self.process, method, body);
    }

    /// Records the error that the handler of a call returns.
    pub(crate) fn refused(&self, id: u64, status: Status) -> Status {
        self.oracle.refused(id, &status);
        status
    }

    /// Records that the handler of a call returns its number.
    pub(crate) fn done(&self, id: u64) -> Result<u64, Status> {
        self.oracle.returned(id);
        Ok(id)
    }

    async fn wait(&self, wait_us: u64) {
        if wait_us > 0 {
            self.timers.sleep(Duration::from_micros(wait_us)).await;
        }
    }
}

/// Time limit of a nested call.
const INNER: Duration = Duration::from_millis(200);
const FORWARDED: Duration = Duration::from_secs(1);

/// Clients shared by the handlers in a process and its program, by server.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedClients(Arc<Mutex<BTreeMap<SocketAddr, WorkClient>>>);

impl SharedClients {
    /// Adds a client. Replaces an earlier client for the same server.
    pub(crate) fn add(&self, server: SocketAddr, client: WorkClient) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(server, client);
    }

    fn of(&self, server: SocketAddr) -> Result<WorkClient, Status> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&server).cloned().ok_or_else(|| Status::internal("no client of this server is shared"))
    }
}

/// Number of running `few` handlers in a process, on all its pollers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Few(Arc<AtomicU32>);

/// Counts a running handler until it is dropped.
struct OneOf<'a>(&'a Few);

impl Few {
    /// Counts another handler. Returns the number of running handlers.
    fn begin(&self) -> (OneOf<'_>, u32) {
        let before = self.0.fetch_add(1, Ordering::Relaxed);
        (OneOf(self), before + 1)
    }
}

impl Drop for OneOf<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) run: Handling,
    pub(crate) poller: PollerContext,
    pub(crate) shared: SharedClients,
    pub(crate) few: Few,
}

impl Worker {
    fn local(&self, server: SocketAddr, timeout: Duration) -> Result<WorkLocal, Status> {
        Ok(WorkLocal::connect(&self.poller, server)?.with_timeout(timeout))
    }

    fn address(&self, id: u64, text: &str) -> Result<SocketAddr, Status> {
        text.parse().map_err(|_| self.run.refused(id, Status::invalid_argument("no address")))
    }

    /// Sends a nested call from the handler of call `id`, and checks it. The handler fails if the nested call fails.
    async fn inner<F>(
        &self,
        id: u64,
        server: SocketAddr,
        timeout: Duration,
        what: &'static str,
        call: impl FnOnce(u64) -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let open = self.run.oracle.made(self.run.process, server, what, timeout);
        let outcome = call(open.id()).await;
        open.end(outcome).map_or(Ok(()), |status| {
            let own = if id.is_multiple_of(2) { Status::aborted(status.message()) } else { status };
            Err(self.run.refused(id, own))
        })
    }
}

impl Work for Worker {
    async fn echo(&self, id: u64, wait_us: u64, reply_bytes: u32, body: Bytes) -> Result<Bytes, Status> {
        self.run.entered(id, "echo", &body);
        self.run.wait(wait_us).await;
        self.run.oracle.returned(id);
        Ok(pattern(!id, usize::try_from(reply_bytes).unwrap_or(0)).into())
    }

    async fn number(&self, id: u64) -> Result<u64, Status> {
        self.run.entered(id, "number", &[]);
        self.run.done(id)
    }

    async fn slow(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.run.entered(id, "slow", &[]);
        self.run.coverage.count(EventKind::HandlerSlept);
        self.run.wait(wait_us).await;
        self.run.done(id)
    }

    async fn repeat(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.run.entered(id, "repeat", &[]);
        self.run.wait(wait_us).await;
        if self.run.oracle.is_failing(self.run.process) {
            return Err(self.run.refused(id, Status::internal("the server is faulty")));
        }
        self.run.done(id)
    }

    async fn block(&self, id: u64, block_us: u64) -> Result<u64, Status> {
        self.run.entered(id, "block", &[]);
        self.run.coverage.count(EventKind::HandlerBlocked);
        self.run.timers.block(Duration::from_micros(block_us));
        self.run.done(id)
    }

    async fn refuse(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.run.entered(id, "refuse", &[]);
        self.run.coverage.count(EventKind::HandlerRefused);
        self.run.wait(wait_us).await;
        let details = pattern(!id, usize::try_from(id % 100).unwrap_or(0));
        Err(self.run.refused(id, Status::failed_precondition(id.to_string()).with_details(details)))
    }

    async fn few(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.run.entered(id, "few", &[]);
        let (_until_dropped, running) = self.few.begin();
        if running > FEW {
            self.run.oracle.fail(format!(
                "{running} calls of `few` run in process {}, its limit is {FEW}",
                self.run.process
            ));
        }
        self.run.wait(wait_us).await;
        self.run.done(id)
    }

    async fn panic(&self, id: u64) -> Result<u64, Status> {
        self.run.entered(id, "panic", &[]);
        self.run.coverage.count(EventKind::HandlerPanicked);
        self.run.oracle.handler(id, "panics");
        let told = "trunkline.simulate.Work.panic: the handler panicked";
        let _what_its_caller_is_told = self.run.refused(id, Status::internal(told));
        std::panic::panic_any(PANIC);
    }

    async fn hang(&self, id: u64) -> Result<u64, Status> {
        self.run.entered(id, "hang", &[]);
        self.run.coverage.count(EventKind::HandlerHung);
        self.run.oracle.handler(id, "never returns");
        std::future::pending().await
    }

    async fn keep(&self, id: u64, wait_us: u64, texts: Vec<String>) -> Result<u64, Status> {
        self.run.entered(id, "keep", &[]);
        self.run.coverage.count(EventKind::ArgumentsKept);
        self.run.wait(wait_us).await;
        drop(texts);
        self.run.done(id)
    }

    async fn nested(&self, id: u64, at: String) -> Result<u64, Status> {
        self.run.entered(id, "nested", &[]);
        self.run.coverage.count(EventKind::NestedCall);
        let at = self.address(id, &at)?;
        let call = |inner| async move { self.local(at, INNER)?.number(inner).await };
        self.inner(id, at, INNER, "number inside a handler", call).await?;
        self.run.done(id)
    }

    async fn forward(&self, id: u64, wait_us: u64, near: String, far: String) -> Result<u64, Status> {
        self.run.entered(id, "forward", &[]);
        self.run.coverage.count(EventKind::NestedCall);
        let (near, far) = (self.address(id, &near)?, self.address(id, &far)?);
        let slow = |inner| async move { self.local(near, FORWARDED)?.slow(inner, wait_us).await };
        self.inner(id, near, FORWARDED, "slow inside a handler", slow).await?;
        let number = |inner| async move { self.local(far, FORWARDED)?.number(inner).await };
        self.inner(id, far, FORWARDED, "number inside a handler", number).await?;
        for server in [far, near] {
            let shared =
                |inner| async move { self.shared.of(server)?.with_timeout(FORWARDED).number(inner).await };
            self.inner(id, server, FORWARDED, "number inside a handler, by a shared client", shared).await?;
        }
        self.run.done(id)
    }

    async fn tell(&self, id: u64, body: Bytes) {
        self.run.entered(id, "tell", &body);
        self.run.oracle.returned(id);
    }

    async fn linger(&self) {
        std::future::pending().await
    }
}

/// Work that is done outside of pollers.
#[trunkline::service(name = "trunkline.simulate.Pooled", version = 1)]
pub(crate) trait Pooled {
    /// Sleeps on a timer of the pool.
    #[offload]
    async fn ponder(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Blocks its worker, and then waits on the same worker.
    #[blocking]
    async fn grind(&self, id: u64, block_us: u64, wait_us: u64) -> Result<u64, Status>;

    /// Never returns.
    #[offload]
    async fn brood(&self, id: u64) -> Result<u64, Status>;
}

#[derive(Debug)]
pub(crate) struct Thinker(pub(crate) Handling);

impl Thinker {
    fn entered(&self, id: u64, method: &str) {
        self.0.entered(id, method, &[]);
        self.0.coverage.count(EventKind::HandlerPooled);
        if Context::current().is_none_or(|call| call.is_cancelled()) {
            self.0.oracle.fail(format!(
                "call {id} ({method}) starts in the pool although it was over, or without its context"
            ));
        }
    }
}

impl Pooled for Thinker {
    async fn ponder(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.entered(id, "ponder");
        let (began, wait) = (self.0.timers.now(), Duration::from_micros(wait_us));
        trunkline::sleep(wait).await;
        if self.0.timers.now() < began + wait {
            self.0.oracle.fail(format!("the sleep of call {id} ends before its time"));
        }
        self.0.done(id)
    }

    async fn grind(&self, id: u64, block_us: u64, wait_us: u64) -> Result<u64, Status> {
        self.entered(id, "grind");
        self.0.timers.block(Duration::from_micros(block_us));
        trunkline::sleep(Duration::from_micros(wait_us)).await;
        self.0.done(id)
    }

    async fn brood(&self, id: u64) -> Result<u64, Status> {
        self.entered(id, "brood");
        self.0.oracle.handler(id, "never returns");
        trunkline::sleep(Duration::from_secs(3600)).await;
        Err(Status::internal("an hour has passed"))
    }
}

/// Calls whose handlers make further calls.
#[trunkline::service(name = "trunkline.simulate.Chain", version = 1)]
pub(crate) trait Chain {
    /// Continues a chain that has `rest` calls left. The next call goes to `to`, and the call after it to `back`.
    async fn chain(&self, rest: u8, to: String, back: String) -> Result<(), Status>;

    /// Waits for `wait_us` microseconds.
    async fn hold(&self, wait_us: u64);

    /// Accepts bytes.
    async fn take(&self, bytes: Bytes);

    /// Returns the given number of bytes.
    async fn give(&self, bytes: u32) -> Result<Bytes, Status>;
}

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) poller: PollerContext,
    pub(crate) timers: Timers,
}

impl Chain for Link {
    async fn chain(&self, rest: u8, to: String, back: String) -> Result<(), Status> {
        let Some(rest) = rest.checked_sub(1) else { return Ok(()) };
        let server: SocketAddr = to.parse().map_err(|_| Status::invalid_argument("no address"))?;
        let next = ChainLocal::connect(&self.poller, server)?.with_timeout(CHAINED);
        next.chain(rest, back, to).await
    }

    async fn hold(&self, wait_us: u64) {
        self.timers.sleep(Duration::from_micros(wait_us)).await;
    }

    async fn take(&self, _: Bytes) {}

    async fn give(&self, bytes: u32) -> Result<Bytes, Status> {
        Ok(vec![0x5a; usize::try_from(bytes).unwrap_or(0)].into())
    }
}
