//! Services that a node can serve, and the registration of their methods on each poller.

use super::interceptor::{Intercepted, ServerInterceptor, ServerInterceptors};
use super::limits::{LimitReports, MethodLimits, ServiceLimits};
use super::method::{Method, MethodTable};
use super::{Failure, Reply, Request};
use crate::call::context::PollerContext;
use crate::executor::pool::Pool;
use crate::node::fork_lock::Lock;
use crate::node::start_error::{Cause, HandlerInitError, StartError};
use crate::wire::name::{MethodName, ServiceName};
use std::fmt;
use std::sync::Arc;
use trunkline_machine::rings::panics::catch_or;
use trunkline_transport::NodeReport;

/// Adds a service's rows to the report of its node.
pub(crate) type AddRows = Arc<dyn Fn(&mut NodeReport) + Send + Sync>;

type Make = dyn Fn(&PollerContext, &mut Methods) -> Result<(), Cause> + Send + Sync;

/// A service that a node can serve. Generated servers convert into it.
pub struct Service {
    pub(crate) name: &'static ServiceName,
    make: Box<Make>,
    /// True if any method runs in the worker pool.
    is_pooled: bool,
    limits: ServiceLimits,
    interceptors: ServerInterceptors,
    /// Functions that add rows to the node's report.
    rows: Vec<AddRows>,
}

impl Service {
    /// Creates a service. `make` registers the service's methods, and is called once on each poller. If `make` fails, the
    /// node does not start.
    #[must_use]
    pub fn new(
        name: &'static ServiceName,
        make: impl Fn(&PollerContext, &mut Methods) -> Result<(), Cause> + Send + Sync + 'static,
    ) -> Self {
        let (limits, interceptors) = (ServiceLimits::default(), ServerInterceptors::NONE);
        Self { name, make: Box::new(make), is_pooled: false, limits, interceptors, rows: Vec::new() }
    }

    /// Records that the service has methods for the worker pool, so that its nodes start a pool.
    #[must_use]
    pub fn pooled(self) -> Self {
        Self { is_pooled: true, ..self }
    }

    /// Returns true if the service needs a worker pool.
    pub(crate) fn is_pooled(&self) -> bool {
        self.is_pooled
    }

    /// Limits how many calls to the service run concurrently.
    #[must_use]
    pub fn limit(mut self, most: u32) -> Self {
        self.limits.of_service(self.name, most);
        self
    }

    /// Limits how many calls to one method run concurrently.
    #[must_use]
    pub fn limit_method(mut self, method: &'static MethodName, most: u32) -> Self {
        self.limits.of_method(method, most);
        self
    }

    /// Passes each call through `interceptor`, after interceptors that were added earlier.
    #[must_use]
    pub fn interceptor(mut self, interceptor: impl ServerInterceptor) -> Self {
        self.interceptors = self.interceptors.with(Arc::new(interceptor));
        self
    }

    /// Adds rows to each report of the node, such as rows for methods that only the service distinguishes.
    #[must_use]
    pub fn reports(mut self, add_rows: impl Fn(&mut NodeReport) + Send + Sync + 'static) -> Self {
        self.rows.push(Arc::new(add_rows));
        self
    }

    /// Returns the functions that add the service's rows to the node's report.
    pub(crate) fn rows(&self) -> impl Iterator<Item = AddRows> + '_ {
        self.rows.iter().cloned()
    }

    /// Returns an error if a limit is 0.
    pub(crate) fn check(&self) -> Result<(), StartError> {
        self.limits.check()
    }

    /// Adds the service's limits to the node's report.
    pub(crate) fn report_limits(&self, reports: &mut LimitReports) {
        reports.add(&self.limits);
    }

    /// Returns the limits that apply to calls to a method.
    pub(super) fn limits_of(&self, method: &MethodName) -> MethodLimits {
        self.limits.under(method)
    }

    /// Creates the service's methods for a poller.
    ///
    /// # Errors
    /// Returns the error of `make`, or its panic message.
    pub(crate) fn methods(&self, context: &PollerContext, pool: &Pool) -> Result<Methods, HandlerInitError> {
        let mut methods =
            Methods { all: Vec::new(), pool: pool.clone(), interceptors: self.interceptors.clone() };
        let panicked = |message: Option<&str>| match message {
            Some(message) => format!("its factory panicked: {message}").into(),
            None => "its factory panicked".into(),
        };
        match catch_or(|| (self.make)(context, &mut methods), panicked) {
            Ok(Ok(())) => Ok(methods),
            Ok(Err(cause)) | Err(cause) => Err(HandlerInitError { service: self.name.name, cause }),
        }
    }
}

impl fmt::Debug for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Service").field(self.name).finish()
    }
}

/// Methods of a service on one poller, filled during registration.
pub struct Methods {
    pub(crate) all: Vec<(&'static MethodName, Box<dyn Method>)>,
    pool: Pool,
    interceptors: ServerInterceptors,
}

impl Methods {
    /// Adds a method. `run` creates the future of one call.
    pub fn add<F>(&mut self, name: &'static MethodName, run: impl Fn(Request) -> F + 'static)
    where
        F: Future<Output = Result<Reply, Failure>> + 'static,
    {
        if self.interceptors.is_empty() {
            return self.all.push((name, Box::new(MethodTable::new(run))));
        }
        let interceptors = self.interceptors.clone();
        // The closure is boxed so that the methods of all services have the same type.
        let intercepted: Box<dyn Fn(Request) -> Intercepted> = Box::new(move |request| {
            Intercepted::start(&interceptors, name, request, |request| Box::pin(run(request)))
        });
        self.all.push((name, Box::new(MethodTable::new(intercepted))));
    }

    /// Returns the worker pool of the node.
    #[must_use]
    pub fn pool(&self) -> Pool {
        self.pool.clone()
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.all.iter().map(|(name, _)| name)).finish()
    }
}

/// Hashes of methods by number. Callers send a short number in place of a method's hash, so the number must refer to the
/// same method on every poller. A number is assigned once and stays valid for the lifetime of the node. All pollers share
/// the table, even if their services differ.
#[derive(Debug, Default)]
pub(crate) struct MethodNumbers(Lock<Vec<u64>>);

impl MethodNumbers {
    /// Returns the number of the method with this hash, and assigns one if necessary. Returns `None` if all numbers are
    /// used.
    pub(crate) fn of(&self, hash: u64) -> Option<u16> {
        let mut methods = self.0.lock();
        let known = methods.iter().position(|method| *method == hash);
        let number =
            u16::try_from(known.unwrap_or(methods.len())).ok().filter(|number| *number < u16::MAX)?;
        if known.is_none() {
            methods.push(hash);
        }
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unique_and_exclude_reserved_value() {
        let numbers = MethodNumbers::default();
        assert_eq!([7, 9, 7, 8].map(|hash| numbers.of(hash)), [Some(0), Some(1), Some(0), Some(2)]);
        numbers.0.lock().resize(usize::from(u16::MAX), 0);
        assert_eq!((numbers.of(9), numbers.of(99)), (Some(1), None));
    }
}
