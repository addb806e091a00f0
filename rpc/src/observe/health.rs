//! A health service, after gRPC's health checking protocol: clients query or watch whether a service takes calls.
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

/// Maximum number of bytes of a name that a refusal repeats. The caller chooses the name, and escaping can make it six times
/// as long.
const MOST_NAME_BYTES: usize = 256;

/// Maximum number of services that a refusal names.
const MOST_NAMES: usize = 8;

/// The health of a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ServingStatus {
    /// The service takes calls.
    Serving,
    /// The service takes no calls now.
    NotServing,
    /// The node has no such service. Only [`HealthCalls::watch`] returns this status.
    ServiceUnknown,
}

/// The health of a node's services, by their names. The empty name is the node as a whole.
#[crate::service(name = "trunkline.health.v1.Health", version = 1)]
pub trait Health {
    /// Returns the health of a service, or the error `NotFound` if the node has no such service. A draining node refuses this
    /// call like any other, as `Unavailable` with the reason [`Draining`](crate::Reason::Draining).
    async fn check(&self, service: String) -> Result<ServingStatus, Status>;

    /// Returns the health of a service, and each change of it. A drain ends the stream, after `NotServing`.
    async fn watch(
        &self,
        cx: &Context,
        service: String,
    ) -> Result<impl Stream<Item = Result<ServingStatus, Status>>, Status>;
}

/// The statuses that a node's health service reports. Clones share them.
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
    /// Creates a reporter without services. A node adds its services when it starts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the health of a service, and notifies its watchers. [`ServingStatus::ServiceUnknown`] removes the service.
    ///
    /// In a forked child this logs an error and does nothing if a thread of the parent was using the statuses.
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

    /// Returns the health of a service, as the program has set it.
    #[must_use]
    pub fn status(&self, service: &str) -> ServingStatus {
        let statuses = self.0.statuses.lock();
        let status = statuses.and_then(|statuses| statuses.get(service).copied());
        status.unwrap_or(ServingStatus::ServiceUnknown)
    }

    /// Returns the names of the services, if they are few.
    fn known(&self) -> Option<String> {
        let statuses = self.0.statuses.lock()?;
        let names: Vec<_> = statuses.keys().filter(|name| !name.is_empty()).map(|name| &**name).collect();
        let is_short =
            (1..=MOST_NAMES).contains(&names.len()) && names.iter().all(|name| name.len() <= MOST_NAME_BYTES);
        is_short.then(|| names.join(", "))
    }

    /// Adds the services of a node that starts. Their status is `Serving`, unless the program has set another one.
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
                let known = self.known().map(|known| format!("; it knows {known}")).unwrap_or_default();
                let text = format!("the node does not know the service {name:?}: give the full name{known}");
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

/// A watch of one service's health.
struct Watch {
    context: Context,
    reporter: HealthReporter,
    service: String,
    /// The last status sent.
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
