//! A service whose methods run in the worker pool of their node.

use crate::coverage::{Coverage, Kind};
use crate::oracle::Oracle;
use crate::timers::Timers;
use std::sync::Arc;
use std::time::Duration;
use trunkline::{Context, Limit, Status};

/// Workers of a node, and calls that may wait for a worker: fewer than clients make.
pub(crate) const WORKERS: u16 = 2;
pub(crate) const QUEUED_JOBS: Limit = Limit { per_peer: 2, in_all: 6 };

/// Work that pollers do not wait for.
#[trunkline::service(name = "trunkline.simulate.Pooled", version = 1)]
pub(crate) trait Pooled {
    /// Sleeps by the pool's own timers.
    #[offload]
    async fn ponder(&self, id: u64, wait_us: u64) -> Result<u64, Status>;

    /// Blocks its worker, and then waits on it.
    #[blocking]
    async fn grind(&self, id: u64, block_us: u64, wait_us: u64) -> Result<u64, Status>;

    /// Never returns.
    #[offload]
    async fn brood(&self, id: u64) -> Result<u64, Status>;
}

/// Handler of the service.
#[derive(Debug)]
pub(crate) struct Thinker {
    oracle: Oracle,
    timers: Timers,
    coverage: Arc<Coverage>,
    process: u64,
}

impl Thinker {
    /// Creates a handler for a process.
    pub(crate) fn new((oracle, timers, coverage): (Oracle, Timers, Arc<Coverage>), process: u64) -> Self {
        Self { oracle, timers, coverage, process }
    }

    fn entered(&self, id: u64, method: &str) {
        self.oracle.entered(id, (self.process, method), &[]);
        self.coverage.count(Kind::HandlerPooled);
        if Context::current().is_none_or(|call| call.is_cancelled()) {
            self.oracle.fail(format!(
                "call {id} ({method}) starts in the pool although it was over, or without its context"
            ));
        }
    }
}

impl Pooled for Thinker {
    async fn ponder(&self, id: u64, wait_us: u64) -> Result<u64, Status> {
        self.entered(id, "ponder");
        let (began, wait) = (self.timers.now(), Duration::from_micros(wait_us));
        trunkline::sleep(wait).await;
        if self.timers.now() < began + wait {
            self.oracle.fail(format!("the sleep of call {id} ends before its time"));
        }
        self.oracle.returned(id);
        Ok(id)
    }

    async fn grind(&self, id: u64, block_us: u64, wait_us: u64) -> Result<u64, Status> {
        self.entered(id, "grind");
        self.timers.block(Duration::from_micros(block_us));
        trunkline::sleep(Duration::from_micros(wait_us)).await;
        self.oracle.returned(id);
        Ok(id)
    }

    async fn brood(&self, id: u64) -> Result<u64, Status> {
        self.entered(id, "brood");
        self.oracle.handler(id, "never returns");
        trunkline::sleep(Duration::from_secs(3600)).await;
        Err(Status::internal("an hour has passed"))
    }
}
