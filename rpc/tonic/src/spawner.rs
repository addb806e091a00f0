//! Spawns exchanges as tasks of a runtime whose thread may share a core with the poller.
//!
//! A spawn from another thread wakes the runtime, and the kernel often runs the runtime's thread immediately. Each exchange
//! would then cost two thread switches. All exchanges of a poller's turn therefore wait until the end of the turn, when one
//! task of the runtime spawns them.
//!
//! A runtime polls its tasks in the order in which they are spawned, so a peer with thousands of calls would delay the
//! calls of other peers. Exchanges therefore wait in one queue per peer, and peers take turns. Exchanges are spawned in
//! batches, and the runtime polls all exchanges of a batch before the next batch is spawned.
//!
//! A handler no longer counts towards the budget when its call ends, but a busy runtime may drop the exchange later.
//! Exchanges that outlive their calls therefore have a separate limit, of which each peer has a share.

use crate::peer_share::{Share, Shares, Taken};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle, unconstrained, yield_now};
use trunkline::stub::after_turn;
use trunkline::{Code, Status};

/// Maximum number of exchanges on one poller that outlive their calls. Further calls of a peer are refused if as many outlive
/// its calls as are left.
const MOST_ENDED: usize = 16_384;
/// Maximum total size of the response pieces that wait for one poller, in addition to one piece per exchange, in bytes.
const WAITING_BYTES: usize = 64 << 20;
/// Maximum number of exchanges that one poller spawns before the runtime polls them.
const BATCH: usize = 32;

/// An exchange. Its response is sent separately.
type Exchange = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Spawns a poller's exchanges in a runtime. The node's limits on handlers and [`MOST_ENDED`] bound their number.
pub(crate) struct Spawner {
    queue: UnboundedSender<Waiting>,
    /// Number of exchanges that outlive their calls.
    ended: Shares,
    /// Number of bytes in response pieces that wait for the poller.
    waiting: Arc<Shares>,
}

impl Spawner {
    pub(crate) fn new(runtime: &Handle) -> Self {
        let (queue, exchanges) = unbounded_channel();
        // The task ends with the spawner or the runtime. It collects all waiting exchanges before it spawns the first.
        runtime.spawn(unconstrained(spawn_all(exchanges)));
        Self { queue, ended: Shares::new(MOST_ENDED), waiting: Arc::new(Shares::new(WAITING_BYTES)) }
    }

    /// Returns what all exchanges share for response pieces that wait for the poller, in bytes.
    pub(crate) fn waiting(&self) -> &Arc<Shares> {
        &self.waiting
    }

    /// Spawns an exchange for a peer. The exchange is aborted when the returned value is dropped.
    ///
    /// # Errors
    /// Returns a status if the runtime has ended, or if too many exchanges have outlived their calls from this peer.
    pub(crate) fn spawn(
        &self,
        peer: Option<SocketAddr>,
        exchange: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Result<Spawned, Status> {
        let share = self.ended.of(peer.map(|peer| peer.ip()));
        if !share.has_room(1) {
            let text = "the runtime has yet to drop the handlers of many calls of this peer that have ended";
            return Err(Status::new(Code::ResourceExhausted, text));
        }
        let ((spawned, task), running) = (oneshot::channel(), Arc::new(OnceLock::new()));
        let call = Call { share, exchange: Arc::downgrade(&running) };
        let exchange = async move {
            let _running = running;
            exchange.await
        };
        let _refused = self.queue.send(Waiting { peer, exchange: Box::pin(exchange), spawned });
        // An exchange that is sent while the runtime ends may remain in the queue.
        if self.queue.is_closed() {
            return Err(ended());
        }
        Ok(Spawned { state: Job::Waits(task), _call: call })
    }
}

/// A call. If it ends before its exchange is dropped, the exchange counts towards the peer's share.
struct Call {
    share: Arc<Share>,
    exchange: Weak<OnceLock<Taken>>,
}

impl Drop for Call {
    fn drop(&mut self) {
        if let Some(exchange) = self.exchange.upgrade() {
            exchange.get_or_init(|| self.share.take(1));
        }
    }
}

/// An exchange that waits to be spawned.
struct Waiting {
    /// `None` if the caller has no address.
    peer: Option<SocketAddr>,
    exchange: Exchange,
    spawned: oneshot::Sender<Task>,
}

/// One queue for each peer with waiting exchanges.
#[derive(Default)]
struct PeerQueues {
    queues: BTreeMap<Option<SocketAddr>, VecDeque<Waiting>>,
    /// Peers with waiting exchanges, in the order in which they are served.
    turns: VecDeque<Option<SocketAddr>>,
}

impl PeerQueues {
    fn push(&mut self, waiting: Waiting) {
        let queue = self.queues.entry(waiting.peer).or_default();
        if queue.is_empty() {
            self.turns.push_back(waiting.peer);
        }
        queue.push_back(waiting);
    }

    /// Takes the first exchange of the next peer.
    fn pop(&mut self) -> Option<Waiting> {
        let peer = self.turns.pop_front()?;
        let queue = self.queues.get_mut(&peer)?;
        let waiting = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&peer);
        } else {
            self.turns.push_back(peer);
        }
        waiting
    }
}

async fn spawn_all(mut exchanges: UnboundedReceiver<Waiting>) {
    let mut waker = Waker::noop().clone();
    let mut plain = waker.clone();
    let mut queues = PeerQueues::default();
    let mut next = |task: &mut Context<'_>| {
        if !plain.will_wake(task.waker()) {
            plain.clone_from(task.waker());
            waker = after_turn(task.waker().clone());
        }
        let is_open = loop {
            match exchanges.poll_recv(&mut Context::from_waker(&waker)) {
                Poll::Ready(Some(waiting)) => queues.push(waiting),
                Poll::Ready(None) => break false,
                Poll::Pending => break true,
            }
        };
        match queues.pop() {
            None if is_open => Poll::Pending,
            waiting => Poll::Ready(waiting),
        }
    };
    // Cloned by each exchange until the runtime polls it for the first time.
    let unpolled = Arc::new(());
    let mut taken = 0;
    while let Some(Waiting { exchange, spawned, .. }) = poll_fn(&mut next).await {
        if spawned.is_closed() {
            // The call has ended. A panic of the exchange must not end the spawner.
            let _dropped = catch_unwind(AssertUnwindSafe(|| drop(exchange)));
        } else {
            let counted = Arc::clone(&unpolled);
            let exchange = async move {
                drop(counted);
                exchange.await
            };
            // If the receiver has been dropped, the send fails and the task is aborted.
            let _ended = spawned.send(Task(tokio::spawn(exchange)));
        }
        taken += 1;
        if taken == BATCH {
            taken = 0;
            yield_now().await;
            while Arc::strong_count(&unpolled) > 1 {
                yield_now().await;
            }
        }
    }
}

/// An exchange in a runtime. The exchange is aborted when this value is dropped.
pub(crate) struct Spawned {
    state: Job,
    _call: Call,
}

enum Job {
    Waits(oneshot::Receiver<Task>),
    Runs(Task),
}

impl Spawned {
    /// Polls for the outcome, which is returned once.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            match &mut self.state {
                Job::Waits(task) => match std::task::ready!(Pin::new(task).poll(context)) {
                    Ok(task) => self.state = Job::Runs(task),
                    Err(_) => return Poll::Ready(Err(ended())),
                },
                Job::Runs(Task(task)) => {
                    let outcome = std::task::ready!(Pin::new(task).poll(context));
                    return Poll::Ready(outcome.unwrap_or_else(aborted));
                }
            }
        }
    }
}

/// A task that is aborted when this value is dropped.
struct Task(JoinHandle<Result<(), Status>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns the outcome of a task that was aborted or has panicked. The poller handles the panic like a panic of a handler.
fn aborted(error: JoinError) -> Result<(), Status> {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        Err(_) => Err(ended()),
    }
}

fn ended() -> Status {
    Status::unavailable("the runtime of the service has ended")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};
    use std::sync::Mutex;
    use tokio::runtime::{Builder, Runtime};

    /// Creates a runtime that runs tasks only inside `block_on`.
    fn stopped() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    async fn outcome(mut spawned: Spawned) -> Result<(), Status> {
        poll_fn(|task| spawned.poll(task)).await
    }

    #[test]
    fn exchanges_outliving_their_calls_are_limited() {
        let runtime = stopped();
        let spawner = Spawner::new(runtime.handle());
        let running = (0..10).map(|_| spawner.spawn(None, pending()).unwrap()).collect::<Vec<_>>();
        for _ in 0..MOST_ENDED / 2 {
            drop(spawner.spawn(None, pending()).unwrap());
        }
        assert_eq!(spawner.spawn(None, ready(Ok(()))).err().unwrap().code(), Code::ResourceExhausted);
        let other = SocketAddr::from(([10, 0, 0, 1], 1));
        let other = spawner.spawn(Some(other), ready(Ok(()))).unwrap();
        // Exchanges whose calls have not ended continue to wait. The runtime drops the others.
        runtime.block_on(async {
            while spawner.ended.used() > 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(outcome(other).await, Ok(()));
            assert_eq!(outcome(spawner.spawn(None, ready(Ok(()))).unwrap()).await, Ok(()));
            // A spawned task counts until it is dropped.
            drop(running);
            assert_eq!(spawner.ended.used(), 10);
            while spawner.ended.used() > 0 {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn exchanges_end_with_their_runtime() {
        let runtime = stopped();
        let spawner = Spawner::new(runtime.handle());
        let runs = spawner.spawn(None, pending()).unwrap();
        runtime.block_on(tokio::task::yield_now());
        let waits = spawner.spawn(None, pending()).unwrap();
        drop(runtime);
        let late = spawner.spawn(None, pending());
        let other = stopped();
        for (name, spawned) in [("runs", Ok(runs)), ("waits", Ok(waits)), ("late", late)] {
            let status = match spawned {
                Ok(spawned) => other.block_on(outcome(spawned)).unwrap_err(),
                Err(status) => status,
            };
            assert_eq!(status.code(), Code::Unavailable, "{name}");
        }
    }

    struct PanicsInDrop;

    impl Drop for PanicsInDrop {
        fn drop(&mut self) {
            panic!("a panic in a drop");
        }
    }

    #[test]
    fn panic_ends_only_its_exchange() {
        let runtime = stopped();
        let spawner = Spawner::new(runtime.handle());
        let panics = PanicsInDrop;
        drop(spawner.spawn(None, async move {
            let _panics = panics;
            Ok(())
        }));
        let panics = spawner.spawn(None, async { panic!("a panic in a handler") }).unwrap();
        let fine = spawner.spawn(None, ready(Ok(()))).unwrap();
        assert_eq!(runtime.block_on(outcome(fine)), Ok(()));
        let panicked = catch_unwind(AssertUnwindSafe(|| runtime.block_on(outcome(panics))));
        assert!(panicked.is_err(), "its poller learns of the panic");
        assert_eq!(runtime.block_on(outcome(spawner.spawn(None, ready(Ok(()))).unwrap())), Ok(()));
    }

    #[test]
    fn call_dropped_before_start_of_exchange_does_not_run() {
        let runtime = stopped();
        let spawner = Spawner::new(runtime.handle());
        let started = Arc::new(());
        let seen = Arc::clone(&started);
        drop(spawner.spawn(None, async move {
            std::mem::forget(seen);
            Ok(())
        }));
        assert_eq!(runtime.block_on(outcome(spawner.spawn(None, ready(Ok(()))).unwrap())), Ok(()));
        assert_eq!(Arc::strong_count(&started), 1);
    }

    #[test]
    fn peer_with_thousands_of_exchanges_does_not_delay_other_peer() {
        let (runtime, order) = (stopped(), Arc::new(Mutex::new(Vec::new())));
        let spawner = Arc::new(Spawner::new(runtime.handle()));
        let [busy, other] = [1, 2].map(|port| Some(SocketAddr::from(([127, 0, 0, 1], port))));
        let runs = |peer| {
            let order = Arc::clone(&order);
            async move {
                order.lock().unwrap().push(peer);
                Ok(())
            }
        };
        // The other peer's call arrives after the runtime has started.
        let (first, arriving, from) = (runs(busy), runs(other), Arc::clone(&spawner));
        let (call, arrived) = oneshot::channel();
        let begins = spawner.spawn(busy, async move {
            let _ = call.send(from.spawn(other, arriving)?);
            first.await
        });
        let calls = (1..10_000).map(|_| spawner.spawn(busy, runs(busy)).unwrap()).collect::<Vec<_>>();
        runtime.block_on(async {
            outcome(begins.unwrap()).await.unwrap();
            outcome(arrived.await.unwrap()).await.unwrap();
            for call in calls {
                outcome(call).await.unwrap();
            }
        });
        let order = order.lock().unwrap();
        assert_eq!(order.len(), 10_001);
        let before = order.iter().position(|peer| *peer == other).unwrap();
        assert!(before <= 2 * BATCH, "{before} exchanges of the busy peer ran before the other one's");
    }
}
