//! The poller that a task or handler runs on, as that sees it.

use crate::call::LocalQueue;
use std::pin::Pin;
use std::rc::Rc;
use trunkline_transport::PollerIndex;
use trunkline_verbs::Clock;

/// Creates a future on the poller that is to run it. The closure is `Send`, the future need not be.
pub(crate) type Spawn = Box<dyn FnOnce(&PollerContext) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The poller that a task or handler runs on. Local clients are connected with it.
#[derive(Debug, Clone)]
pub struct PollerContext {
    poller: PollerIndex,
    clock: Clock,
    calls: Rc<LocalQueue>,
}

impl PollerContext {
    pub(crate) fn new(poller: PollerIndex, clock: Clock) -> Self {
        Self { poller, clock, calls: Rc::default() }
    }

    /// The poller's index within its node, from 0.
    #[must_use]
    pub fn poller(&self) -> PollerIndex {
        self.poller
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn calls(&self) -> Rc<LocalQueue> {
        Rc::clone(&self.calls)
    }
}
