//! The service that simulated nodes offer: a method for each way a handler may behave.

use crate::coverage::{Coverage, Kind};
use crate::oracle::{Open, Oracle, pattern};
use crate::timers::Timers;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Bytes, PollerContext, Status};

/// The payload of a handler's panic, by which the panic hook knows not to print it.
pub(crate) const PANIC: &str = "simulated panic of a handler";

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

    /// Panics.
    async fn panic(&self, id: u64) -> Result<u64, Status>;

    /// Never returns.
    async fn hang(&self, id: u64) -> Result<u64, Status>;

    /// Calls `number` at another node before it replies.
    async fn nested(&self, id: u64, at: String) -> Result<u64, Status>;

    /// Takes bytes.
    #[oneway]
    async fn tell(&self, id: u64, body: Bytes);
}

/// The handler of one poller.
#[derive(Debug)]
pub(crate) struct Worker {
    oracle: Oracle,
    timers: Timers,
    coverage: Arc<Coverage>,
    poller: PollerContext,
    process: u64,
}

impl Worker {
    /// A handler for a poller.
    pub(crate) fn new(
        oracle: Oracle,
        timers: Timers,
        coverage: Arc<Coverage>,
        poller: PollerContext,
        process: u64,
    ) -> Self {
        Self { oracle, timers, coverage, poller, process }
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
        self.oracle.entered(id, self.process, &body);
        if wait_us > 0 {
            self.timers.sleep(Duration::from_micros(wait_us)).await;
        }
        self.oracle.returned(id);
        Ok(pattern(!id, usize::try_from(reply_bytes).unwrap_or(0)).into())
    }

    async fn number(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.done(id)
    }

    async fn slow(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::HandlerSlept);
        self.timers.sleep(Duration::from_micros(wait_us)).await;
        self.done(id)
    }

    async fn block(&self, id: u64, block_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::HandlerBlocked);
        self.timers.block(Duration::from_micros(block_us));
        self.done(id)
    }

    async fn refuse(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::HandlerRefused);
        if wait_us > 0 {
            self.timers.sleep(Duration::from_micros(wait_us)).await;
        }
        let details = pattern(!id, usize::try_from(id % 100).unwrap_or(0));
        Err(self.refused(id, Status::failed_precondition(id.to_string()).with_details(details)))
    }

    async fn panic(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::HandlerPanicked);
        self.oracle.handler(id, "panics");
        let _what_its_caller_is_told = self.refused(id, Status::internal("the handler panicked"));
        std::panic::panic_any(PANIC);
    }

    async fn hang(&self, id: u64) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::HandlerHung);
        self.oracle.handler(id, "never returns");
        std::future::pending().await
    }

    async fn nested(&self, id: u64, at: String) -> Result<u64, Status> {
        self.oracle.entered(id, self.process, &[]);
        self.coverage.count(Kind::NestedCall);
        let at: SocketAddr =
            at.parse().map_err(|_| self.refused(id, Status::invalid_argument("no address")))?;
        let timeout = Duration::from_millis(200);
        let inner = self.oracle.made(self.process, at, "number inside a handler", timeout);
        let open = Open::new(&self.oracle, inner);
        let reply = match WorkLocal::connect(&self.poller, at) {
            Ok(client) => client.with_timeout(timeout).number(inner).await,
            Err(status) => Err(status),
        };
        open.ended();
        match &reply {
            Ok(replied) => self.oracle.succeeded(inner, *replied, false),
            Err(status) => self.oracle.failed(inner, status),
        }
        reply.map_err(|status| self.refused(id, Status::aborted(status.message())))?;
        self.done(id)
    }

    async fn tell(&self, id: u64, body: Bytes) {
        self.oracle.entered(id, self.process, &body);
        self.oracle.returned(id);
    }
}
