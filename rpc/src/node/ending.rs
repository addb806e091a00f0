//! Drains a node, shuts it down, and abandons threads that do not return.
//!
//! ```text
//! serving --- drain ---> draining --- shutdown ---> ending ---> ended
//!    `--------------------- shutdown -----------------^
//! ```
//!
//! | | requests from peers | calls made by handlers | other calls | sessions |
//! |---|---|---|---|---|
//! | serving | run | continue | continue | stay |
//! | draining | refused | continue | continue | stay |
//! | ending | refused | continue within the grace period | end, new ones are refused | stay while a handler runs, within the grace period |

use super::{Node, NodeInner, NodeState, elsewhere};
use crate::executor::on_poller;
#[cfg(feature = "identity")]
use crate::node::files::FilesThread;
use std::sync::Arc;
use std::time::Duration;
use trunkline_transport::PollerIndex;
use trunkline_verbs::fork::FORKED;

/// Default grace period of a node. It equals the default time limit of a call, after which callers no longer wait for the
/// handler. Service managers wait longer, 30 s or more, before they kill a process.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// Time after the grace period at which a worker that still runs is abandoned, like a poller.
const ABANDON_WORKERS_AFTER: Duration = Duration::from_secs(3);
/// Maximum grace period when a node is dropped.
const DROP_GRACE: Duration = Duration::from_millis(200);
/// Maximum time for which dropping a node blocks a worker thread of a runtime.
const DROP_BLOCKS: Duration = Duration::from_millis(50);

impl Node {
    /// Drains the node, and waits until its handlers have ended. Returns true if all handlers have ended.
    ///
    /// Requests from peers are refused with `Unavailable`, including requests that have arrived but whose handlers have not
    /// started. Running handlers continue, and so do their calls. Sessions stay open, and the program may still use the
    /// node.
    ///
    /// Waits at most for the grace period ([`crate::NodeBuilder::grace`]). On a thread of this node, does not wait. In a
    /// forked child, logs an error and returns false. Draining cannot be undone. [`Node::shutdown`] may follow, and has its
    /// own grace period. A shutdown without an earlier drain also drains the node.
    ///
    /// A call from a handler to the handler's own node is refused like any other request, and a one-way call is dropped. The
    /// counter `requests_refused_draining` in the report counts both.
    pub fn drain(&self) -> bool {
        if self.0.is_lost() {
            return false;
        }
        self.begin_drain();
        let cannot_wait = self.0.clock.as_virtual().is_some() || on_poller::is_of(&self.0.lifecycle);
        self.0.lifecycle.wait_drained(if cannot_wait { Duration::ZERO } else { self.0.grace })
    }

    /// Begins [`Node::drain`] without waiting.
    pub fn begin_drain(&self) {
        if self.0.lifecycle.is_forked() {
            return;
        }
        if self.0.lifecycle.begin_drain() {
            self.0.watchdog.drains();
        }
        self.0.refuse_jobs();
        for inbox in self.0.inboxes.iter() {
            inbox.wake();
        }
    }

    /// Returns true if the node is draining or shutting down, and all handlers have ended.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.0.lifecycle.is_drained()
    }

    /// Shuts the node down and waits until it has ended. The node first drains, as described for [`Node::drain`], and then
    /// closes its sessions.
    ///
    /// New calls from outside handlers are refused, and calls in flight from outside handlers end with `Unavailable`. Code
    /// on this node's pollers may make calls until the sessions are closed.
    ///
    /// Handlers that are still running at the end of the grace period ([`crate::NodeBuilder::grace`]) are dropped. If a
    /// handler or task does not return from a poll, its poller's thread is abandoned 3 s later, and the log names the
    /// handler or task. Calls in flight on that poller do not end then, and the poller's memory stays allocated until the
    /// code returns. The same applies to workers that run a `#[blocking]` method.
    ///
    /// A node can be shut down several times, by this method, by [`Node::shutdown_async`] and by dropping the node. The
    /// grace period that ends first then applies.
    ///
    /// In a forked child, which lacks the node's threads, this method logs an error and does nothing. Dropping the node in
    /// the child does nothing.
    ///
    /// On a thread of this node, this method begins the shutdown, logs a warning and does not wait. Dropping the node on
    /// such a thread has the same effect.
    pub fn shutdown(&self) {
        self.0.end(self.0.grace);
    }

    /// Begins [`Node::shutdown`] without waiting, for simulations. May shorten the grace period of an earlier shutdown.
    #[doc(hidden)]
    pub fn begin_shutdown(&self, grace: Duration) {
        if !self.0.lifecycle.is_forked() {
            self.0.begin_end(grace);
        }
    }

    /// Returns true if all machines of the node have ended, for simulations.
    #[doc(hidden)]
    #[must_use]
    pub fn is_ended(&self) -> bool {
        let workers_have = self.0.pool.as_ref().is_none_or(|pool| pool.pool().is_ended());
        workers_have && self.0.running().is_none_or(|node| node.is_ended())
    }

    /// Returns the number of queued and running jobs in the worker pool, for simulations.
    #[doc(hidden)]
    #[must_use]
    pub fn jobs(&self) -> usize {
        self.0.lifecycle.jobs()
    }

    /// Shuts the node down, like [`Node::shutdown`], for async code. The shutdown begins when this method is called. The
    /// future completes when the node has ended. Dropping the future does not stop the shutdown.
    pub fn shutdown_async(&self) -> impl Future<Output = ()> + Send + use<> {
        let (shared, grace) = (Arc::clone(&self.0), self.0.grace);
        self.begin_shutdown(grace);
        let ended = elsewhere::run("trunkline-end", move || shared.end(grace));
        // If the thread cannot be started, the shutdown continues, and dropping the node waits for it to end.
        async move { ended.await.unwrap_or_default() }
    }

    /// Drains the node, like [`Node::drain`], for async code. Draining begins when this method is called. The future
    /// resolves to true if all handlers have ended.
    pub fn drain_async(&self) -> impl Future<Output = bool> + Send + use<> {
        self.begin_drain();
        let (shared, grace) = (Arc::clone(&self.0), self.0.grace);
        let drained = elsewhere::run("trunkline-drain", move || shared.lifecycle.wait_drained(grace));
        async move { drained.await.unwrap_or_default() }
    }
}

impl NodeInner {
    /// Refuses jobs that have not started, like new requests.
    fn refuse_jobs(&self) {
        if let Some(pool) = &self.pool {
            pool.pool().drain();
        }
    }

    /// Returns the transport's node, unless it has ended.
    pub(super) fn running(&self) -> Option<Arc<trunkline_transport::Node>> {
        match &*self.state.lock() {
            NodeState::Running(node) => Some(Arc::clone(node)),
            NodeState::Ended(_) => None,
        }
    }

    /// Returns true in a forked child, and logs that the call has no effect there.
    fn is_lost(&self) -> bool {
        let is_forked = self.lifecycle.is_forked();
        if is_forked {
            tracing::error!(
                address = %self.local_address,
                cause = FORKED,
                "drain or shutdown ignored in a forked process"
            );
        }
        is_forked
    }

    /// Begins the shutdown, or shortens the grace period of an earlier one.
    fn begin_end(&self, grace: Duration) {
        if self.lifecycle.begin_end() {
            self.watchdog.drains();
        }
        self.refuse_jobs();
        if let Some(pool) = &self.pool {
            pool.abandon_at(self.clock.now() + grace + ABANDON_WORKERS_AFTER);
        }
        #[cfg(feature = "identity")]
        self.files.iter().for_each(FilesThread::begin_end);
        if let Some(node) = self.running() {
            node.begin_shutdown(grace);
        }
    }

    fn end(&self, grace: Duration) {
        if self.is_lost() {
            return;
        }
        // The state is not locked during the shutdown, so that reports and other shutdowns can proceed.
        let Some(node) = self.running() else { return };
        let mut report = self.complete(node.report());
        self.begin_end(grace);
        let is_own_thread = on_poller::is_of(&self.lifecycle);
        if is_own_thread {
            tracing::warn!(
                address = %self.local_address,
                cause = "a handler or task of the node called it",
                "shutdown does not wait for the end of the node"
            );
        }
        if is_own_thread && on_poller::is_worker() {
            // The pollers wait for this worker's job, so waiting for the pollers here would deadlock.
            return;
        }
        let abandoned = node.shutdown(grace);
        if let Some(pool) = self.pool.as_ref().filter(|_| !is_own_thread) {
            pool.end();
        }
        #[cfg(feature = "identity")]
        if let Some(files) = self.files.as_ref().filter(|_| !is_own_thread) {
            files.end();
        }
        for poller in &abandoned {
            self.abandon(*poller);
        }
        if node.is_ended() || !abandoned.is_empty() {
            self.count(&mut report);
            let mut state = self.state.lock();
            if matches!(&*state, NodeState::Running(_)) {
                *state = NodeState::Ended(Box::new(report));
            }
        }
    }

    /// Logs which code occupies the thread of a stuck poller, and ends the calls in the poller's queue.
    fn abandon(&self, poller: PollerIndex) {
        let Some(inbox) = self.inboxes.get(usize::from(poller.0)) else { return };
        tracing::error!(
            poller = poller.0,
            occupied_by = %inbox.running().occupation(),
            remedy = "have the handler or task return: until then its thread keeps QPs, memory and the device",
            "poller not ended after the grace period; its thread is abandoned"
        );
        inbox.close();
        self.lifecycle.poller_cut();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.0.lifecycle.is_forked() {
            // The node belongs to the parent, and its memory and sockets are shared with other processes.
            return std::mem::forget(Arc::clone(&self.0));
        }
        let grace = self.0.grace.min(DROP_GRACE);
        if self.0.running().is_none() {
            return;
        }
        let waits_itself = self.0.clock.as_virtual().is_some()
            || on_poller::is_of(&self.0.lifecycle)
            || on_poller::is_worker();
        if waits_itself || !elsewhere::is_in_a_runtime() {
            return self.0.end(grace);
        }
        self.begin_shutdown(grace);
        let shared = Arc::clone(&self.0);
        if !elsewhere::run_for("trunkline-end", DROP_BLOCKS, move || shared.end(grace)) {
            tracing::warn!(
                address = %self.0.local_address,
                cause = "no thread could be started",
                "shutdown of a dropped node not completed"
            );
        }
    }
}
