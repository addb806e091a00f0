//! Limits the number of concurrent calls to a service or method, across all pollers of a node.
//!
//! The pollers share one counter per limit, so calls without a limit have no overhead. A call beyond a limit is refused at
//! once rather than queued, because the caller can use another server or retry later.

use crate::node::start_error::StartError;
use crate::wire::name::{MethodName, ServiceName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use trunkline_machine::mutant;
use trunkline_transport::LimitReport;

/// The service or method to which a limit applies.
#[derive(Debug, Clone, Copy)]
enum Of {
    Service(&'static ServiceName),
    Method(&'static MethodName),
}

/// A limit, and the number of running calls that count towards it.
#[derive(Debug)]
pub(super) struct RunningLimit {
    of: Of,
    most: u32,
    running: AtomicU32,
    refused: AtomicU64,
}

impl RunningLimit {
    fn new(of: Of, most: u32) -> Arc<Self> {
        Arc::new(Self { of, most, running: AtomicU32::new(0), refused: AtomicU64::new(0) })
    }

    /// Counts a call that is about to run. Returns false if the limit is reached.
    fn take(&self) -> bool {
        // Relaxed ordering suffices, because threads share only the number.
        let more = |running: u32| {
            (running < self.most || mutant!(limits_of_services_are_not_kept))
                .then(|| running.saturating_add(1))
        };
        let is_taken = self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok();
        if !is_taken {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
        is_taken
    }

    fn put_back(&self) {
        if !mutant!(ended_calls_count_in_limits) {
            self.running.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn name(&self) -> String {
        match self.of {
            Of::Service(service) => service.name.to_owned(),
            Of::Method(method) => method.to_string(),
        }
    }

    /// Returns the text of a refusal, which names the limit and its setting.
    fn refusal(&self) -> String {
        let (whose, setting) = match self.of {
            Of::Service(_) => ("service", "limit".to_owned()),
            Of::Method(method) => ("method", format!("limit_{}", method.name)),
        };
        let (most, calls) = (self.most, if self.most == 1 { "call" } else { "calls" });
        format!(
            "the server runs {most} {calls} of the {whose}, which is its limit (`{setting}` of the server)"
        )
    }

    fn report(&self) -> LimitReport {
        LimitReport {
            name: self.name(),
            running: self.running.load(Ordering::Relaxed),
            limit: self.most,
            refused: self.refused.load(Ordering::Relaxed),
        }
    }
}

/// The limits of one service.
#[derive(Debug, Default)]
pub(super) struct ServiceLimits {
    of_all: Option<Arc<RunningLimit>>,
    /// Limits by the method's hash.
    of_methods: BTreeMap<u64, Arc<RunningLimit>>,
}

impl ServiceLimits {
    /// Sets the limit on all calls to the service.
    pub(super) fn of_service(&mut self, service: &'static ServiceName, most: u32) {
        self.of_all = Some(RunningLimit::new(Of::Service(service), most));
    }

    /// Sets the limit on the calls to one method.
    pub(super) fn of_method(&mut self, method: &'static MethodName, most: u32) {
        self.of_methods.insert(method.hash, RunningLimit::new(Of::Method(method), most));
    }

    fn all(&self) -> impl Iterator<Item = &Arc<RunningLimit>> {
        self.of_all.iter().chain(self.of_methods.values())
    }

    /// Returns an error if a limit is 0, because a method that must not be called should not be served.
    pub(super) fn check(&self) -> Result<(), StartError> {
        match self.all().any(|limit| limit.most == 0) {
            true => Err(StartError::bad_option("limit of a service or method", 0, "choose 1 or more")),
            false => Ok(()),
        }
    }

    /// Returns the limits that apply to calls to a method.
    pub(super) fn under(&self, method: &MethodName) -> MethodLimits {
        let of_method = self.of_methods.get(&method.hash);
        MethodLimits(self.of_all.iter().chain(of_method).cloned().collect())
    }
}

/// The limits of a node's services, for the node's report. They outlive the services.
#[derive(Debug, Clone, Default)]
pub(crate) struct LimitReports(Vec<Arc<RunningLimit>>);

impl LimitReports {
    pub(super) fn add(&mut self, limits: &ServiceLimits) {
        self.0.extend(limits.all().cloned());
    }

    pub(crate) fn report(&self) -> impl Iterator<Item = LimitReport> + '_ {
        self.0.iter().map(|limit| limit.report())
    }
}

/// The limits that apply to calls to one method, usually none.
#[derive(Debug, Default)]
pub(super) struct MethodLimits(Box<[Arc<RunningLimit>]>);

impl MethodLimits {
    /// Counts a call towards all limits, or towards none on an error.
    ///
    /// # Errors
    /// Returns a text that names the reached limit and its setting.
    #[inline]
    pub(super) fn take(&self) -> Result<(), String> {
        for (at, limit) in self.0.iter().enumerate() {
            if !limit.take() {
                self.0[..at].iter().for_each(|taken| taken.put_back());
                return Err(limit.refusal());
            }
        }
        Ok(())
    }

    /// Records that a call has ended.
    #[inline]
    pub(super) fn put_back(&self) {
        self.0.iter().for_each(|limit| limit.put_back());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::poller::tests::service::{ECHO, HANG};

    #[test]
    fn call_counts_towards_limits_of_method_and_service() {
        let mut limits = ServiceLimits::default();
        limits.of_service(ECHO.service, 3);
        limits.of_method(HANG, 1);
        let mut reports = LimitReports::default();
        reports.add(&limits);
        // Two pollers share the limit of `hang`.
        let (echo, hang, other_hang) = (limits.under(ECHO), limits.under(HANG), limits.under(HANG));
        assert_eq!(hang.take(), Ok(()));
        let refused = other_hang.take().unwrap_err();
        assert_eq!(
            refused,
            "the server runs 1 call of the method, which is its limit (`limit_hang` of the server)"
        );
        assert_eq!((echo.take(), echo.take()), (Ok(()), Ok(())));
        assert!(echo.take().unwrap_err().contains("3 calls of the service, which is its limit (`limit` of"));
        // A call refused by one limit no longer counts towards the other.
        hang.put_back();
        assert_eq!((echo.take(), hang.take().is_err()), (Ok(()), true));
        echo.put_back();
        assert_eq!(other_hang.take(), Ok(()));
        let rows = reports.report().map(|row| (row.name, row.running, row.limit, row.refused));
        let expected = [("fake", 3, 3, 2), ("fake.hang", 1, 1, 1)];
        assert_eq!(rows.collect::<Vec<_>>(), expected.map(|(name, a, b, c)| (name.to_owned(), a, b, c)));
    }

    #[test]
    fn zero_limit_is_refused() {
        let mut limits = ServiceLimits::default();
        limits.of_method(ECHO, 0);
        assert!(limits.check().unwrap_err().to_string().contains("choose 1 or more"));
    }
}
