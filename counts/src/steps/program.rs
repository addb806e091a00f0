//! The measured program: the handler, and tasks that call it. Their cost is not counted for any layer.

use super::echo::{Echo, EchoLocal};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trunkline::{Bytes, Node, PollerContext, PollerIndex, Status};

/// Bytes of an argument and of a reply.
pub(crate) const PAYLOAD_BYTES: usize = 64;
/// Byte that fills them.
pub(crate) const FILL: u8 = 0x5a;

/// The handler.
#[derive(Debug)]
pub(crate) struct Mirror;

impl Echo for Mirror {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        Ok(payload)
    }
}

/// Progress of the tasks.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    done: AtomicU64,
    failed: AtomicBool,
}

impl Calls {
    /// Calls that have returned their payload.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns true if a call has failed, or returned something else.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Starts the tasks on the node's poller. Each makes one call after another, without end.
pub(crate) fn call_on(node: &Node, server: SocketAddr, tasks: u32, calls: &Arc<Calls>) {
    for _ in 0..tasks {
        let calls = Arc::clone(calls);
        // The task goes on although nobody waits for it.
        drop(node.run_on(PollerIndex(0), move |context| repeat(context, server, calls)));
    }
}

async fn repeat(context: PollerContext, server: SocketAddr, calls: Arc<Calls>) {
    let Ok(client) = EchoLocal::connect(&context, server) else {
        return calls.failed.store(true, Ordering::Relaxed);
    };
    let payload = Bytes::from_static(&[FILL; PAYLOAD_BYTES]);
    loop {
        match client.echo(payload.clone()).await {
            Ok(reply) if reply == payload => {
                calls.done.fetch_add(1, Ordering::Relaxed);
            }
            _ => return calls.failed.store(true, Ordering::Relaxed),
        }
    }
}
