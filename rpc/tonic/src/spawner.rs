//! Exchanges become tasks of a runtime whose thread may share a core with the poller.
//!
//! A spawn from another thread wakes the runtime, and the kernel often runs its thread at once: two switches of threads for
//! each exchange. So the exchanges of a poller's turn wait for its end, and one task of the runtime spawns them all.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinHandle};
use trunkline::Status;
use trunkline::stub::after_turn;

/// An exchange. Its response goes elsewhere.
type Exchange = Pin<Box<dyn Future<Output = Result<(), Status>> + Send>>;

/// Spawns exchanges of a poller in a runtime. Their number is bounded by the node's limits on handlers.
pub(crate) struct Spawner(UnboundedSender<(Exchange, oneshot::Sender<Task>)>);

impl Spawner {
    pub(crate) fn new(runtime: &Handle) -> Self {
        let (sender, exchanges) = unbounded_channel();
        // It ends with the spawner, or with the runtime.
        runtime.spawn(spawn_all(exchanges));
        Self(sender)
    }

    /// Spawns an exchange. Dropping the result aborts it.
    pub(crate) fn spawn(
        &self,
        exchange: impl Future<Output = Result<(), Status>> + Send + 'static,
    ) -> Spawned {
        let (spawned, task) = oneshot::channel();
        // After the end of the runtime both are dropped.
        let _ended = self.0.send((Box::pin(exchange), spawned));
        Spawned::Waits(task)
    }
}

async fn spawn_all(mut exchanges: UnboundedReceiver<(Exchange, oneshot::Sender<Task>)>) {
    let mut waker = Waker::noop().clone();
    let mut plain = waker.clone();
    let mut next = |task: &mut Context<'_>| {
        if !plain.will_wake(task.waker()) {
            plain.clone_from(task.waker());
            waker = after_turn(task.waker().clone());
        }
        exchanges.poll_recv(&mut Context::from_waker(&waker))
    };
    while let Some((exchange, spawned)) = poll_fn(&mut next).await {
        // Not if its call has ended meanwhile.
        if !spawned.is_closed() {
            // A task that is not taken any more is aborted.
            let _ended = spawned.send(Task(tokio::spawn(exchange)));
        }
    }
}

/// An exchange in a runtime. Dropping it aborts the exchange.
pub(crate) enum Spawned {
    Waits(oneshot::Receiver<Task>),
    Runs(Task),
}

impl Spawned {
    /// Returns the outcome, once.
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        loop {
            match self {
                Self::Waits(task) => match std::task::ready!(Pin::new(task).poll(context)) {
                    Ok(task) => *self = Self::Runs(task),
                    Err(_) => return Poll::Ready(Err(ended())),
                },
                Self::Runs(Task(task)) => {
                    let outcome = std::task::ready!(Pin::new(task).poll(context));
                    return Poll::Ready(outcome.unwrap_or_else(|error| Err(aborted(&error))));
                }
            }
        }
    }
}

/// A task that is aborted when this is dropped.
pub(crate) struct Task(JoinHandle<Result<(), Status>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn aborted(error: &JoinError) -> Status {
    if error.is_panic() { Status::internal("the handler panicked") } else { ended() }
}

fn ended() -> Status {
    Status::unavailable("the runtime of the service has ended")
}
