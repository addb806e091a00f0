//! A health service modelled on gRPC's health checking protocol. Clients query or watch whether a service accepts calls.
//!
//! [`NodeBuilder::health`](crate::NodeBuilder::health) adds it to a node. The program changes the statuses through its
//! [`HealthReporter`]. A drain sets each watched status to [`ServingStatus::NotServing`] at once.

use crate::call::context::{Context, Draining};
use crate::executor::wakes::Waiters;
use crate::node::fork_lock::ForkLock;
use crate::status::{Code, Status, cut};
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{self, Poll};
use trunkline_verbs::fork::FORKED;

/// Maximum length, in bytes, to which a refusal truncates the service's name. The caller chooses the name, and escaping can
/// make it up to six times as long.
const MOST_NAME_BYTES: usize = 256;

/// The health of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ServingStatus {
    /// The service accepts calls.
    Serving,
    /// The service does not accept calls at present.
    NotServing,
    /// The node does not have this service. Only [`HealthCalls::watch`] returns this status.
    ServiceUnknown,
}

/// The health of a node's services, by name. The empty name represents the whole node.
#[crate::service(name = "trunkline.health.v1.Health", version = 1)]
pub trait Health {
    /// Returns the health of a service, or fails with `NotFound` if the node does not have the service. A draining node
    /// refuses this call, like any other call, with `Unavailable` and the reason [`Draining`](crate::Reason::Draining).
    async fn check(&self, service: String) -> Result<ServingStatus, Status>;

    /// Streams the health of a service, first the current status and then each change. A drain ends the stream after
    /// `NotServing`.
    async fn watch(
        &self,
        cx: &Context,
        service: String,
    ) -> Result<impl Stream<Item = Result<ServingStatus, Status>>, Status>;
}

/// The statuses that a node's health service reports. Clones share the statuses.
///
/// ```
/// use trunkline::health::{HealthClient, HealthReporter, ServingStatus};
/// use trunkline::{InProcessNetwork, Node, block_on};
///
/// let (network, health) = (InProcessNetwork::new(), HealthReporter::new());
/// let server = Node::builder().in_process(&network).health(&health).start()?;
/// let node = Node::builder().in_process(&network).start()?;
/// let client = HealthClient::new(node.channel(server.local_address()));
/// assert_eq!(block_on(client.check(String::new()))?, ServingStatus::Serving);
/// health.set("", ServingStatus::NotServing);
/// assert_eq!(block_on(client.check(String::new()))?, ServingStatus::NotServing);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct HealthReporter(Arc<HealthTable>);

#[derive(Debug, Default)]
struct HealthTable {
    statuses: ForkLock<BTreeMap<String, ServingStatus>>,
    watching: Waiters,
}

impl HealthReporter {
    /// Creates a reporter without services. A node adds its services to the reporter when it starts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the health of a service and notifies its watchers. [`ServingStatus::ServiceUnknown`] removes the service.
    ///
    /// In a forked child, this logs an error and does nothing if a thread of the parent was using the statuses during the
    /// fork.
    pub fn set(&self, service: impl Into<String>, status: ServingStatus) {
        let service = service.into();
        let Some(mut statuses) = self.0.statuses.lock() else {
            return tracing::error!(service, cause = FORKED, "health of a service not set");
        };
        match status {
            ServingStatus::ServiceUnknown => drop(statuses.remove(&service)),
            status => drop(statuses.insert(service, status)),
        }
        drop(statuses);
        self.0.watching.wake_all();
    }

    /// Returns the health of a service, as set by the program.
    #[must_use]
    pub fn status(&self, service: &str) -> ServingStatus {
        let statuses = self.0.statuses.lock();
        let status = statuses.and_then(|statuses| statuses.get(service).copied());
        status.unwrap_or(ServingStatus::ServiceUnknown)
    }

    /// Adds the services of a starting node. Their status is `Serving`, unless the program has set another status.
    pub(crate) fn add<'a>(&self, services: impl Iterator<Item = &'a str>) {
        let Some(mut statuses) = self.0.statuses.lock() else {
            return tracing::error!(cause = FORKED, "health of the node's services not set");
        };
        for service in services.chain([""]) {
            statuses.entry(service.to_owned()).or_insert(ServingStatus::Serving);
        }
        drop(statuses);
        self.0.watching.wake_all();
    }
}

impl Health for HealthReporter {
    async fn check(&self, service: String) -> Result<ServingStatus, Status> {
        match self.status(&service) {
            ServingStatus::ServiceUnknown => {
                let name = cut(&service, MOST_NAME_BYTES);
                let text = format!("the node does not know the service {name:?}: give its full name");
                Err(Status::new(Code::NotFound, text))
            }
            status => Ok(status),
        }
    }

    async fn watch(
        &self,
        cx: &Context,
        service: String,
    ) -> Result<impl Stream<Item = Result<ServingStatus, Status>>, Status> {
        let (context, reporter) = (cx.clone(), self.clone());
        Ok(Watch { context, reporter, service, last: None, of_change: None, of_drain: None })
    }
}

/// Watches the health of one service.
struct Watch {
    context: Context,
    reporter: HealthReporter,
    service: String,
    /// The last status that was sent.
    last: Option<ServingStatus>,
    /// Keys of the registered wakers.
    of_change: Option<usize>,
    of_drain: Option<usize>,
}

impl Stream for Watch {
    type Item = Result<ServingStatus, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut task::Context<'_>) -> Poll<Option<Self::Item>> {
        let watch = &mut *self;
        watch.reporter.0.watching.register(&mut watch.of_change, task.waker());
        let is_draining = Draining::poll_of(&watch.context, &mut watch.of_drain, task).is_ready();
        let status = match watch.reporter.status(&watch.service) {
            ServingStatus::Serving if is_draining => ServingStatus::NotServing,
            status => status,
        };
        if watch.last.replace(status) != Some(status) {
            return Poll::Ready(Some(Ok(status)));
        }
        if is_draining { Poll::Ready(None) } else { Poll::Pending }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.reporter.0.watching.remove(&mut self.of_change);
        Draining::remove(&self.context, &mut self.of_drain);
    }
}
