//! A service that a node can offer: its name, and how each poller creates its methods.

use super::limits::{LimitReports, MethodLimits, ServiceLimits};
use super::method::{Method, MethodTable};
use super::{Failure, Reply, Request};
use crate::context::PollerContext;
use crate::name::{MethodName, ServiceName};
use crate::start_error::StartError;
use std::fmt;

type Make = dyn Fn(&PollerContext, &mut Methods) + Send + Sync;

/// A service that a node can offer; generated servers convert into it.
pub struct Service {
    pub(crate) name: &'static ServiceName,
    make: Box<Make>,
    limits: ServiceLimits,
}

impl Service {
    /// A service whose methods `make` registers; it is called once on each poller.
    #[must_use]
    pub fn new(
        name: &'static ServiceName,
        make: impl Fn(&PollerContext, &mut Methods) + Send + Sync + 'static,
    ) -> Self {
        Self { name, make: Box::new(make), limits: ServiceLimits::default() }
    }

    /// At most so many calls of the service run at once.
    #[must_use]
    pub fn limit(mut self, most: u32) -> Self {
        self.limits.of_service(self.name, most);
        self
    }

    /// At most so many calls of one method run at once.
    #[must_use]
    pub fn limit_method(mut self, method: &'static MethodName, most: u32) -> Self {
        self.limits.of_method(method, most);
        self
    }

    /// Refuses limits that make no sense.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        self.limits.check()
    }

    /// Adds its limits to those that a node reports.
    pub(crate) fn report_limits(&self, reports: &mut LimitReports) {
        reports.add(&self.limits);
    }

    /// The limits that a method's calls are under.
    pub(super) fn limits_of(&self, method: &MethodName) -> MethodLimits {
        self.limits.under(method)
    }

    pub(crate) fn methods(&self, context: &PollerContext) -> Methods {
        let mut methods = Methods(Vec::new());
        (self.make)(context, &mut methods);
        methods
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service").field(self.name).finish()
    }
}

/// The methods of a service on one poller, while they are being registered.
pub struct Methods(pub(crate) Vec<(&'static MethodName, Box<dyn Method>)>);

impl Methods {
    /// Adds a method: `run` creates the future of one call.
    pub fn add<F>(&mut self, name: &'static MethodName, run: impl Fn(Request) -> F + 'static)
    where
        F: Future<Output = Result<Reply, Failure>> + 'static,
    {
        self.0.push((name, Box::new(MethodTable::new(run))));
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
