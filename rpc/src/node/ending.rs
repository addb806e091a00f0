//! How a node ends: draining, shutting down, and what is done about threads that do not return.
//!
//! ```text
//! serving --- drain ---> draining --- shutdown ---> ending ---> ended
//!    `--------------------- shutdown -----------------^
//! ```
//!
//! | | requests of peers | calls in handlers | other calls | sessions |
//! |---|---|---|---|---|
//! | serving | run | go on | go on | stay |
//! | draining | refused | go on | go on | stay |
//! | ending | refused | go on, within the grace period | refused; those under way end | stay as long as a handler runs, within the grace period |

use super::{Node, State};
use crate::on_poller;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use trunkline_transport::PollerIndex;

/// The grace period of a node that was not given another: the time limit of a call that was not given another. When
/// it is over nobody waits for such a handler any more. It is below the 30 s and more that service managers wait
/// before they kill a process.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(10);
/// How long dropping a node waits for handlers that still run.
const DROP_GRACE: Duration = Duration::from_millis(200);

impl Node {
    /// Drains the node, and waits for the end of that: requests of peers are refused with `Unavailable`, those included
    /// that have arrived and whose handlers have not started; handlers that run go on, with the calls that they
    /// make. Sessions stay, and so does everything else that the program does with this node.
    ///
    /// Waits up to the grace period ([`crate::NodeBuilder::grace`]), and returns whether all handlers have ended.
    /// On a poller's thread of this node it does not wait. Draining cannot be undone; [`Node::shutdown`]
    /// follows it, with a grace period of its own, or does both.
    ///
    /// A call that a handler makes to its own node is a request like any other, and refused. One-way calls are
    /// dropped. The report's counter `requests_refused_draining` counts both.
    pub fn drain(&self) -> bool {
        self.begin_drain();
        let cannot_wait = self.clock.as_virtual().is_some() || on_poller::is_of(&self.lifecycle);
        self.lifecycle.wait_drained(if cannot_wait { Duration::ZERO } else { self.grace })
    }

    /// Begins what [`Node::drain`] does, and does not wait for it.
    pub fn begin_drain(&self) {
        self.lifecycle.begin_drain();
        for inbox in self.inboxes.iter() {
            inbox.wake();
        }
    }

    /// Whether the node drains, or shuts down, and all handlers have ended.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.lifecycle.is_drained()
    }

    /// Shuts the node down and waits for the end: it drains, as [`Node::drain`] does, and then closes the sessions
    /// with peers. Meanwhile calls from outside of handlers are refused, and those under way end with
    /// `Unavailable`; what runs on this node's pollers may go on calling until the sessions are closed.
    ///
    /// Handlers have the grace period ([`crate::NodeBuilder::grace`]) to finish; what then still runs is dropped.
    /// When a poller cannot do that, because a handler or task does not return from a poll, its thread is abandoned
    /// 3 s later, and the log names what occupies it. Calls that the poller had under way do not end then; what
    /// it uses stays allocated until the code returns, and then ends as usual.
    ///
    /// On a poller's thread of this node, in a handler or a task, this begins the shutdown, logs a warning and does
    /// not wait: the threads end by themselves. So does dropping the node there.
    pub fn shutdown(&self) {
        self.end(self.grace);
    }

    /// For simulations: begins what [`Node::shutdown`] does and does not wait. Has no effect after the
    /// first shutdown.
    #[doc(hidden)]
    pub fn begin_shutdown(&self, grace: Duration) {
        self.lifecycle.begin_end();
        if let Some(node) = self.running() {
            node.begin_shutdown(grace);
        }
    }

    /// For simulations: whether all machines of the node have ended.
    #[doc(hidden)]
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.running().is_none_or(|node| node.is_ended())
    }

    /// The transport's node, unless it has ended.
    pub(super) fn running(&self) -> Option<Arc<trunkline_transport::Node>> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            State::Running(node) => Some(Arc::clone(node)),
            State::Ended(_) => None,
        }
    }

    fn end(&self, grace: Duration) {
        self.lifecycle.begin_end();
        // The lock is not held meanwhile: others may ask for a report, or shut down too.
        let Some(node) = self.running() else { return };
        if on_poller::is_of(&self.lifecycle) {
            tracing::warn!(
                node = %self.local_address,
                "a handler or task ends its own node: the shutdown begins, and is not waited for"
            );
        }
        let report = self.complete(node.report());
        let abandoned = node.shutdown(grace);
        for poller in &abandoned {
            self.abandon(*poller);
        }
        if node.is_ended() || !abandoned.is_empty() {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            if matches!(&*state, State::Running(_)) {
                *state = State::Ended(Box::new(report));
            }
        }
    }

    /// A poller's thread does not end: reports what occupies it, and ends the calls that wait in its queue.
    fn abandon(&self, poller: PollerIndex) {
        let Some(inbox) = self.inboxes.get(usize::from(poller.0)) else { return };
        tracing::error!(
            poller = poller.0,
            occupied_by = %inbox.occupant().occupation(),
            "a poller has not ended after the grace period, because this does not return; its thread is abandoned, and \
             keeps its QPs, its registered memory and the device until it returns or the process ends"
        );
        inbox.close();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.end(self.grace.min(DROP_GRACE));
    }
}
