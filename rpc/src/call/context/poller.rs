//! The poller that a task or handler runs on.

use super::{CurrentCall, Draining};
use crate::call::LocalQueue;
use crate::client::routes::Routes;
use crate::executor::runtime_guard::RuntimeGuard;
use crate::executor::timers::Timers;
use crate::node::lifecycle::Drain;
use crate::stream::StreamHost;
use std::cell::RefCell;
use std::fmt;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_transport::PollerIndex;
use trunkline_verbs::Clock;

/// A task of a poller.
pub(crate) type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A closure that creates a future on the poller that runs the closure. The closure is `Send`; the future need not be.
pub(crate) type Spawn = Box<dyn FnOnce(&PollerContext) -> Task + Send>;

/// The poller that a task or handler runs on, through which local clients connect.
///
/// ```
/// use trunkline::{Node, PollerIndex, Status, block_on};
/// # #[trunkline::service]
/// # trait Greeter {
/// #     async fn greet(&self, name: String) -> Result<String, Status>;
/// # }
/// # struct Polite;
/// # impl Greeter for Polite {
/// #     async fn greet(&self, name: String) -> Result<String, Status> {
/// #         Ok(format!("Good day, {name}!"))
/// #     }
/// # }
///
/// let (server, node) = Node::in_process(GreeterServer::new(Polite))?;
/// let address = server.local_address();
/// let greeting = node.run_on(PollerIndex(0), move |poller| async move {
///     let client = GreeterLocal::connect(&poller, address)?;
///     client.greet("trunk".into()).await
/// });
/// assert_eq!(block_on(greeting)??, "Good day, trunk!");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PollerContext(Rc<OfPoller>);

struct OfPoller {
    poller: PollerIndex,
    clock: Clock,
    calls: Rc<LocalQueue>,
    call: Rc<CurrentCall>,
    runtime_guard: RuntimeGuard,
    timers: Arc<Timers>,
    /// Tasks spawned since the poller's last turn.
    spawned: RefCell<Vec<Task>>,
    routes: Arc<Routes>,
    owner: Arc<dyn StreamHost>,
}

impl PollerContext {
    pub(crate) fn new(
        poller: PollerIndex,
        clock: Clock,
        runtime_guard: RuntimeGuard,
        routes: Arc<Routes>,
        owner: Arc<dyn StreamHost>,
        drain: Arc<Drain>,
        has_identity: bool,
    ) -> Self {
        let call = Rc::new(CurrentCall::new(clock.clone(), drain, has_identity));
        let (timers, spawned) = (Arc::new(Timers::new(clock.clone())), RefCell::default());
        Self(Rc::new(OfPoller {
            poller,
            clock,
            calls: Rc::default(),
            call,
            runtime_guard,
            timers,
            spawned,
            routes,
            owner,
        }))
    }

    /// Returns the poller's index within its node, from 0.
    #[must_use]
    pub fn poller(&self) -> PollerIndex {
        self.0.poller
    }

    /// Returns true if the node is draining or shutting down. See [`PollerContext::draining`].
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.call.drain().has_begun()
    }

    /// Completes when the node begins to drain or shut down, like [`Context::draining`](crate::Context::draining). A
    /// shutdown does not wait for tasks. Tasks that still run when the node's handlers have ended are dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use trunkline::{Node, PollerIndex, block_on, timeout};
    ///
    /// # #[trunkline::service]
    /// # trait Nothing {}
    /// # struct Handler;
    /// # impl Nothing for Handler {}
    /// let (server, _client) = Node::in_process(NothingServer::new(Handler))?;
    /// let rounds = server.run_on(PollerIndex(0), |poller| async move {
    ///     let mut rounds = 0;
    ///     while timeout(Duration::from_millis(10), poller.draining()).await.is_err() {
    ///         rounds += 1; // periodic work
    ///     }
    ///     rounds
    /// });
    /// server.begin_drain();
    /// block_on(rounds)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn draining(&self) -> Draining<'_> {
        Draining::new(Some(self.0.call.drain()))
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.0.clock
    }

    pub(crate) fn calls(&self) -> Rc<LocalQueue> {
        Rc::clone(&self.0.calls)
    }

    pub(crate) fn queue(&self) -> &LocalQueue {
        &self.0.calls
    }

    /// Returns the owner of the streams of this poller's calls.
    pub(crate) fn owner(&self) -> &Arc<dyn StreamHost> {
        &self.0.owner
    }

    pub(crate) fn routes(&self) -> &Arc<Routes> {
        &self.0.routes
    }

    /// Returns the foreign runtime to enter while the program's code runs.
    pub(crate) fn runtime_guard(&self) -> &RuntimeGuard {
        &self.0.runtime_guard
    }

    /// Returns the timers of the poller's handlers and tasks.
    pub(crate) fn timers(&self) -> &Arc<Timers> {
        &self.0.timers
    }

    /// Adds a task, which first runs in the poller's next turn.
    pub(crate) fn spawn(&self, task: Task) {
        self.0.spawned.borrow_mut().push(task);
    }

    /// Returns true if spawned tasks wait to be taken.
    #[inline]
    pub(crate) fn has_spawned(&self) -> bool {
        !self.0.spawned.borrow().is_empty()
    }

    pub(crate) fn take_spawned(&self) -> Vec<Task> {
        self.0.spawned.take()
    }

    /// Returns the call of the current handler.
    pub(crate) fn call(&self) -> &Rc<CurrentCall> {
        &self.0.call
    }
}

impl fmt::Debug for PollerContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollerContext").field("poller", &self.0.poller).finish_non_exhaustive()
    }
}
