//! Handlers, and the tasks that call them. Their cost is not attributed to a layer.

use super::echo::{Echo, EchoClient, EchoLocal, Feed, FeedLocal};
use crate::side::Shape;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use trunkline::{Bytes, Node, PollerContext, PollerIndex, Status, Stream, Streaming};

#[derive(Debug)]
pub(crate) struct Mirror {
    pub(crate) yields: bool,
}

impl Echo for Mirror {
    async fn echo(&self, payload: Bytes) -> Result<Bytes, Status> {
        if self.yields {
            trunkline::yield_now().await;
        }
        Ok(payload)
    }
}

/// Handler for streams.
#[derive(Debug)]
pub(crate) struct Source {
    /// Number of items read.
    pub(crate) items: Arc<Calls>,
}

impl Feed for Source {
    async fn watch(&self) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        Ok(Payloads(Ok))
    }

    async fn upload(&self, items: Streaming<Bytes>) -> Result<(), Status> {
        read(items, &self.items).await;
        Ok(())
    }
}

/// An endless stream of payloads. The function converts each payload to an item.
struct Payloads<T>(fn(Bytes) -> T);

impl<T> Stream for Payloads<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(Some((self.0)(Bytes::from_static(Shape::Plain.payload()))))
    }
}

/// Counts the items of a stream. Returns only if the stream fails.
async fn read(mut items: Streaming<Bytes>, calls: &Calls) {
    while let Ok(Some(item)) = items.message().await {
        if item[..] != *Shape::Plain.payload() {
            break;
        }
        calls.done.fetch_add(1, Ordering::Relaxed);
    }
    calls.failed.store(true, Ordering::Relaxed);
}

#[derive(Debug, Default)]
pub(crate) struct Calls {
    done: AtomicU64,
    failed: AtomicBool,
}

impl Calls {
    /// Returns the number of calls that returned their payload, or of stream items that were read.
    pub(crate) fn done(&self) -> u64 {
        self.done.load(Ordering::Relaxed)
    }

    /// Returns true if a call failed or returned a different payload.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

/// Starts `tasks` tasks, distributed over the node's pollers. Each makes one call after another, or opens an endless
/// stream.
pub(crate) fn call_on(node: &Node, shape: Shape, server: SocketAddr, tasks: u32, calls: &Arc<Calls>) {
    for (_, poller) in (0..tasks).zip((0..shape.pollers()).cycle()) {
        let (calls, poller) = (Arc::clone(calls), PollerIndex(poller));
        // A task continues after its handle is dropped.
        match shape {
            Shape::ServerStream | Shape::ClientStream => {
                drop(node.run_on(poller, move |context| stream(context, shape, server, calls)));
            }
            _ => drop(node.run_on(poller, move |context| repeat(context, shape, server, calls))),
        }
    }
}

#[derive(Default)]
pub(crate) struct Outside(Vec<OutsideCaller>);

struct OutsideCaller {
    calls: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Woken>,
    waker: Waker,
}

#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Outside {
    /// Creates callers that share one channel. Each makes one call after another.
    pub(crate) fn new(node: &Node, server: SocketAddr, callers: u32, calls: &Arc<Calls>) -> Self {
        let client = EchoClient::new(node.channel(server));
        let caller = || {
            let woken = Arc::new(Woken(AtomicBool::new(true)));
            let waker = Waker::from(Arc::clone(&woken));
            let calls = Box::pin(repeat_outside(client.clone(), Arc::clone(calls)));
            OutsideCaller { calls, woken, waker }
        };
        Self((0..callers).map(|_| caller()).collect())
    }

    pub(crate) fn is_woken(&self) -> bool {
        self.0.iter().any(|caller| caller.woken.0.load(Ordering::Relaxed))
    }

    /// Polls the callers that were woken. A caller ends only if a call fails.
    pub(crate) fn poll(&mut self) {
        for OutsideCaller { calls, woken, waker } in &mut self.0 {
            if woken.0.swap(false, Ordering::Relaxed) {
                let _pending = calls.as_mut().poll(&mut Context::from_waker(waker));
            }
        }
    }
}

impl fmt::Debug for Outside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outside").field(&self.0.len()).finish()
    }
}

async fn repeat_outside(client: EchoClient, calls: Arc<Calls>) {
    let payload = Bytes::from_static(Shape::Channel.payload());
    loop {
        match client.echo(payload.clone()).await {
            Ok(reply) if reply == payload => {
                calls.done.fetch_add(1, Ordering::Relaxed);
            }
            _ => return calls.failed.store(true, Ordering::Relaxed),
        }
    }
}

async fn repeat(context: PollerContext, shape: Shape, server: SocketAddr, calls: Arc<Calls>) {
    let Ok(client) = EchoLocal::connect(&context, server) else {
        return calls.failed.store(true, Ordering::Relaxed);
    };
    let payload = Bytes::from_static(shape.payload());
    loop {
        match client.echo(payload.clone()).await {
            Ok(reply) if reply == payload => {
                calls.done.fetch_add(1, Ordering::Relaxed);
            }
            _ => return calls.failed.store(true, Ordering::Relaxed),
        }
    }
}

async fn stream(context: PollerContext, shape: Shape, server: SocketAddr, calls: Arc<Calls>) {
    if let Ok(client) = FeedLocal::connect(&context, server) {
        if shape == Shape::ClientStream {
            // The call returns only if it fails.
            let _ended = client.upload(Payloads(|payload| payload)).await;
        } else if let Ok(items) = client.watch().await {
            read(items, &calls).await;
        }
    }
    calls.failed.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;

    #[test]
    fn yielding_handler_is_polled_twice() {
        for yields in [false, true] {
            let mirror = Mirror { yields };
            let mut echo = pin!(mirror.echo(Bytes::new()));
            let mut poll = || echo.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(poll().is_pending(), yields);
            assert!(!yields || poll().is_ready());
        }
    }
}
