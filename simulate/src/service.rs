//! The service of simulated nodes: one method for each way in which a handler may behave.

use crate::coverage::{Coverage, Kind};
use crate::oracle::{Open, Oracle, pattern};
use crate::timers::Timers;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use trunkline::{Bytes, PollerContext, Status};

/// Panic payload of a handler, which the panic hook does not print.
pub(crate) const PANIC: &str = "simulated panic of a handler";

/// Concurrent calls of `few` at a node: fewer than clients make.
pub(crate) const FEW: u32 = 2;

/// Work that a node does for others. Each call carries its number and bytes that belong to it.
#[trunkline::service(name = "trunkline.simulate.Work", version = 1)]
pub(crate) trait Work {
    /// Waits, and replies with `reply_bytes` bytes.
    async fn echo(&self, id: u64, wait_us: u64, reply_bytes: u32, body: Bytes) -> Result<Bytes, Status>;

    /// Replies with the call's number.
    async fn number(&self, id: u64) -> Result<u64, Status>;

    /// Waits before it replies.
    async fn slow(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Blocks its poller before it replies.
    async fn block(&self, id: u64, block_us: u64) -> Result<u64, Status>;

    /// Waits, unless that is for 0 us, and returns an error.
    async fn refuse(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Waits. Few of these calls run at once.
    async fn few(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Panics.
    async fn panic(&self, id: u64) -> Result<u64, Status>;

    /// Never returns.
    async fn hang(&self, id: u64) -> Result<u64, Status>;

    /// Keeps the texts while it waits.
    async fn keep(&self, id: u64, wait_us: u64, texts: Vec<String>) -> Result<u64, Status>;

    /// Calls `number` at another node before it replies. After a failure it returns that status, or a new one.
    async fn nested(&self, id: u64, at: String) -> Result<u64, Status>;

    /// Calls `slow` at one node with a local client, and then `number` at another with a local client and at both
    /// with clients that it shares with the program, before it replies.
    async fn forward(&self, id: u64, wait_us: u64, near: String, far: String) -> Result<u64, Status>;

    /// Takes bytes.
    #[oneway]
    async fn tell(&self, id: u64, body: Bytes);

    /// Never returns, and nobody waits for it.
    #[oneway]
    async fn linger(&self);

    /// Waits before it replies. It may run twice.
    #[idempotent]
    async fn repeat(&self, id: u64, wait_us: u64) -> Result<u64, Status>;
}

/// A service without callers, which shifts the method numbers of [`Work`].
#[trunkline::service(name = "trunkline.simulate.Idle", version = 1)]
pub(crate) trait Idle {
    /// Does nothing.
    async fn nothing(&self);
}

/// Handler of [`Work`].
#[derive(Debug)]
pub(crate) struct Idler;

impl Idle for Idler {
    async fn nothing(&self) {}
}

/// Time limit of a call made by a handler.
const INNER: Duration = Duration::from_millis(200);
/// Time limit of a call made by a forwarding handler.
const FORWARDED: Duration = Duration::from_secs(1);

/// Clients that handlers of a process share with its program, by server.
#[derive(Debug, Clone, Default)]
pub(crate) struct SharedClients(Arc<Mutex<BTreeMap<SocketAddr, WorkClient>>>);

impl SharedClients {
    /// Adds a client, in place of an earlier one of the same server.
    pub(crate) fn add(&self, server: SocketAddr, client: WorkClient) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(server, client);
    }

    fn of(&self, server: SocketAddr) -> Result<WorkClient, Status> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(&server).cloned().ok_or_else(|| Status::internal("no client of this server is shared"))
    }
}

/// Number of handlers of `few` that run in a process, on all its pollers.
#[derive(Debug, Clone, Default)]
pub(crate) struct Few(Arc<AtomicU32>);

/// Counts a handler until it is dropped.
struct OneOf<'a>(&'a Few);

impl Few {
    /// Counts one more handler. Returns the number that run now.
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

/// Handler of one poller.
#[derive(Debug)]
pub(crate) struct Worker {
    oracle: Oracle,
    timers: Timers,
    coverage: Arc<Coverage>,
    poller: PollerContext,
    process: u64,
    shared: SharedClients,
    few: Few,
}

impl Worker {
    /// Creates a handler for a poller.
    pub(crate) fn new(
        (oracle, timers, coverage): (Oracle, Timers, Arc<Coverage>),
        poller: PollerContext,
        process: u64,
        shared: SharedClients,
        few: Few,
    ) -> Self {
        Self { oracle, timers, coverage, poller, process, shared, few }
    }

    fn local(&self, server: SocketAddr, timeout: Duration) -> Result<WorkLocal, Status> {
        Ok(WorkLocal::connect(&self.poller, server)?.with_timeout(timeout))
    }

    /// Parses the address in an argument.
    fn address(&self, id: u64, text: &str) -> Result<SocketAddr, Status> {
        text.parse().map_err(|_| self.refused(id, Status::invalid_argument("no address")))
    }

    /// Makes a call inside the handler of call `id`, and judges it. The handler fails if the call does.
    async fn inner<F>(
        &self,
        id: u64,
        (server, timeout): (SocketAddr, Duration),
        what: &'static str,
        call: impl FnOnce(u64) -> F,
    ) -> Result<(), Status>
    where
        F: Future<Output = Result<u64, Status>>,
    {
        let inner = self.oracle.made(self.process, server, what, timeout);
        let open = Open::new(&self.oracle, inner);
        let reply = call(inner).await;
        open.ended();
        match &reply {
            Ok(replied) => self.oracle.succeeded(inner, *replied, false),
            Err(status) => self.oracle.failed(inner, status),
        }
        reply.map(|_| ()).map_err(|status| {
            let own = if id.is_multiple_of(2) { Status::aborted(status.message()) } else { status };
            self.refused(id, own)
        })
    }

    fn refused(&self, id: u64, status: Status) -> Status {
        self.oracle.refused(id, &status);
        status
    }

    fn done(&self, id: u64) -> Result<u64, Status> {
        self.oracle.returned(id);
        Ok(id)
    }
}

impl Work for Worker {
    async fn echo(&self, id: u64, wait_us: u64, reply_bytes: u32, body: Bytes) -> Result<Bytes, Status> {
        self.oracle.entered(id, (self.process, "echo"), &body);
        if wait_us > 0 {
            self.timers.sleep(Duration::from_micros(wait_us)).await;
        }
        self.oracle.returned(id);
        Ok(pattern(!id, usize::try_from(reply_bytes).unwrap_or(0)).into())
    }

    async fn number(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "number"), &[]);
        self.done(id)
    }

    async fn slow(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "slow"), &[]);
        self.coverage.count(Kind::HandlerSlept);
        self.timers.sleep(Duration::from_micros(wait_us)).await;
        self.done(id)
    }

    async fn repeat(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "repeat"), &[]);
        self.timers.sleep(Duration::from_micros(wait_us)).await;
        self.done(id)
    }

    async fn block(&self, id: u64, block_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "block"), &[]);
        self.coverage.count(Kind::HandlerBlocked);
        self.timers.block(Duration::from_micros(block_us));
        self.done(id)
    }

    async fn refuse(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "refuse"), &[]);
        self.coverage.count(Kind::HandlerRefused);
        if wait_us > 0 {
            self.timers.sleep(Duration::from_micros(wait_us)).await;
        }
        let details = pattern(!id, usize::try_from(id % 100).unwrap_or(0));
        Err(self.refused(id, Status::failed_precondition(id.to_string()).with_details(details)))
    }

    async fn few(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "few"), &[]);
        let (_until_dropped, running) = self.few.begin();
        if running > FEW {
            self.oracle.fail(format!(
                "{running} calls of `few` run in process {}, its limit is {FEW}",
                self.process
            ));
        }
        self.timers.sleep(Duration::from_micros(wait_us)).await;
        self.done(id)
    }

    async fn panic(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "panic"), &[]);
        self.coverage.count(Kind::HandlerPanicked);
        self.oracle.handler(id, "panics");
        let told = "trunkline.simulate.Work.panic: the handler panicked";
        let _what_its_caller_is_told = self.refused(id, Status::internal(told));
        std::panic::panic_any(PANIC);
    }

    async fn hang(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "hang"), &[]);
        self.coverage.count(Kind::HandlerHung);
        self.oracle.handler(id, "never returns");
        std::future::pending().await
    }

    async fn keep(&self, id: u64, wait_us: u64, texts: Vec<String>) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "keep"), &[]);
        self.coverage.count(Kind::ArgumentsKept);
        self.timers.sleep(Duration::from_micros(wait_us)).await;
        drop(texts);
        self.done(id)
    }

    async fn nested(&self, id: u64, at: String) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "nested"), &[]);
        self.coverage.count(Kind::NestedCall);
        let at = self.address(id, &at)?;
        let call = |inner| async move { self.local(at, INNER)?.number(inner).await };
        self.inner(id, (at, INNER), "number inside a handler", call).await?;
        self.done(id)
    }

    async fn forward(&self, id: u64, wait_us: u64, near: String, far: String) -> Result<u64, Status> {
        self.oracle.entered(id, (self.process, "forward"), &[]);
        self.coverage.count(Kind::NestedCall);
        let (near, far) = (self.address(id, &near)?, self.address(id, &far)?);
        let slow = |inner| async move { self.local(near, FORWARDED)?.slow(inner, wait_us).await };
        self.inner(id, (near, FORWARDED), "slow inside a handler", slow).await?;
        let number = |inner| async move { self.local(far, FORWARDED)?.number(inner).await };
        self.inner(id, (far, FORWARDED), "number inside a handler", number).await?;
        for server in [far, near] {
            let shared =
                |inner| async move { self.shared.of(server)?.with_timeout(FORWARDED).number(inner).await };
            self.inner(id, (server, FORWARDED), "number inside a handler, by a shared client", shared)
                .await?;
        }
        self.done(id)
    }

    async fn tell(&self, id: u64, body: Bytes) {
        self.oracle.entered(id, (self.process, "tell"), &body);
        self.oracle.returned(id);
    }

    async fn linger(&self) {
        std::future::pending().await
    }
}
