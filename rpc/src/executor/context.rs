//! What tasks of a poller are given.

use crate::client::LocalQueue;
use std::pin::Pin;
use std::rc::Rc;
use trunkline_transport::PollerIndex;

/// A future to run on a poller, made there: it need not be `Send`, the closure must be.
pub(crate) type Spawn = Box<dyn FnOnce(&PollerContext) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// A poller, for the tasks and handlers that run on it. Local clients are connected from it.
#[derive(Debug, Clone)]
pub struct PollerContext {
    poller: PollerIndex,
    calls: Rc<LocalQueue>,
}

impl PollerContext {
    pub(crate) fn new(poller: PollerIndex) -> Self {
        Self { poller, calls: Rc::default() }
    }

    /// Which poller this is.
    #[must_use]
    pub fn poller(&self) -> PollerIndex {
        self.poller
    }

    pub(crate) fn calls(&self) -> Rc<LocalQueue> {
        Rc::clone(&self.calls)
    }
}
