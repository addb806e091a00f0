//! A service whose handlers call each other, back and forth between two nodes.

use crate::timers::Timers;
use std::net::SocketAddr;
use std::time::Duration;
use trunkline::{Bytes, PollerContext, Status};

/// Time limit of each call, by programs and by handlers. No call may reach it.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// Calls that need further calls.
#[trunkline::service(name = "trunkline.simulate.Chain", version = 1)]
pub(crate) trait Chain {
    /// Makes the rest of a chain of calls: the next one at `to`, whose next one is at `back`.
    async fn chain(&self, rest: u8, to: String, back: String) -> Result<(), Status>;

    /// Waits for this time.
    async fn hold(&self, wait_us: u64);

    /// Takes bytes.
    async fn take(&self, bytes: Bytes);

    /// Returns the given number of bytes.
    async fn give(&self, bytes: u32) -> Result<Bytes, Status>;
}

/// Handler of the service.
#[derive(Debug)]
pub(crate) struct Link {
    poller: PollerContext,
    timers: Timers,
}

impl Link {
    pub(crate) fn new(poller: PollerContext, timers: Timers) -> Self {
        Self { poller, timers }
    }
}

impl Chain for Link {
    async fn chain(&self, rest: u8, to: String, back: String) -> Result<(), Status> {
        let Some(rest) = rest.checked_sub(1) else { return Ok(()) };
        let server: SocketAddr = to.parse().map_err(|_| Status::invalid_argument("no address"))?;
        let next = ChainLocal::connect(&self.poller, server)?.with_timeout(TIMEOUT);
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
