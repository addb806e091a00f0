//! Limits on services and methods, by gRPC path.
//!
//! A call counts until its handler is dropped. In a runtime, this may be after the end of the call. An interceptor refuses
//! calls while a limit is reached, before other interceptors run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use trunkline::report::LimitReport;
use trunkline::{Code, Status};

/// The limits of a server.
#[derive(Default)]
pub(crate) struct Limits(BTreeMap<String, Limit>);

/// The limits of one path.
#[derive(Default)]
struct Limit {
    calls: Option<Arc<RunningCalls>>,
    message_bytes: Option<usize>,
}

struct RunningCalls {
    path: String,
    most: u32,
    running: AtomicU32,
    refused: AtomicU64,
}

/// A call that counts as running until this value is dropped.
pub(crate) struct Permit(Arc<RunningCalls>);

/// The permits of one call. There is one for the service and one for the method, where these have limits.
pub(crate) type Permits = Vec<Permit>;

impl Limits {
    pub(crate) fn set_calls(&mut self, path: &str, most: u32) {
        let calls = RunningCalls {
            path: path.to_owned(),
            most,
            running: AtomicU32::new(0),
            refused: AtomicU64::new(0),
        };
        self.at(path).calls = Some(Arc::new(calls));
    }

    pub(crate) fn set_message_bytes(&mut self, path: &str, most: usize) {
        self.at(path).message_bytes = Some(most);
    }

    fn at(&mut self, path: &str) -> &mut Limit {
        self.0.entry(path.to_owned()).or_default()
    }

    pub(crate) fn counts_calls(&self) -> bool {
        self.0.values().any(|limit| limit.calls.is_some())
    }

    /// Returns an error if a path or a limit is invalid.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (path, limit) in &self.0 {
            let names = path.strip_prefix('/').map(|path| path.split('/').collect::<Vec<_>>());
            if !names.is_some_and(|names| names.len() <= 2 && names.iter().all(|name| !name.is_empty())) {
                return Err(format!(
                    "limit of {path:?}: expected /package.Service or /package.Service/Method"
                ));
            }
            if limit.calls.as_ref().is_some_and(|calls| calls.most == 0) {
                return Err(format!("limit of {path}: 0 calls; choose 1 or more"));
            }
        }
        Ok(())
    }

    /// Returns the limits for a path: the limits of its service and of its method.
    fn of(&self, path: &str) -> impl Iterator<Item = &Limit> {
        // Routes select the service by the first path segment alone.
        let end = path.match_indices('/').nth(1).map(|(end, _)| end);
        let service = end.and_then(|end| self.0.get(&path[..end]));
        service.into_iter().chain(self.0.get(path))
    }

    fn calls_of(&self, path: &str) -> impl Iterator<Item = &Arc<RunningCalls>> {
        self.of(path).filter_map(|limit| limit.calls.as_ref())
    }

    /// Returns an error if the number of running calls has reached a limit for the path.
    pub(crate) fn check_room(&self, path: &str) -> Result<(), Status> {
        self.calls_of(path).try_for_each(|calls| match calls.running.load(Ordering::Relaxed) < calls.most {
            true => Ok(()),
            false => Err(calls.refuse()),
        })
    }

    /// Counts a call until the permits are dropped. Fails only if another poller reached the limit after
    /// [`Self::check_room`].
    pub(crate) fn take(&self, path: &str) -> Result<Permits, Status> {
        self.calls_of(path).map(RunningCalls::take).collect()
    }

    /// Returns the limits on calls, with the number of running calls.
    pub(crate) fn report(&self) -> impl Iterator<Item = LimitReport> + '_ {
        self.0.values().filter_map(|limit| limit.calls.as_ref()).map(|calls| LimitReport {
            name: calls.path.clone(),
            running: calls.running.load(Ordering::Relaxed),
            limit: calls.most,
            refused: calls.refused.load(Ordering::Relaxed),
        })
    }

    /// Returns the maximum size of the messages in a request, in bytes, or `None` if it is unlimited.
    pub(crate) fn message_bytes(&self, path: &str) -> Option<usize> {
        self.of(path).filter_map(|limit| limit.message_bytes).min()
    }
}

impl RunningCalls {
    fn take(self: &Arc<Self>) -> Result<Permit, Status> {
        // Relaxed ordering suffices, because the counter guards no other data.
        let more = |running: u32| (running < self.most).then_some(running + 1);
        match self.running.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) {
            Ok(_) => Ok(Permit(Arc::clone(self))),
            Err(_) => Err(self.refuse()),
        }
    }

    fn refuse(&self) -> Status {
        self.refused.fetch_add(1, Ordering::Relaxed);
        let Self { path, most, .. } = self;
        let calls = if *most == 1 { "call" } else { "calls" };
        let text = format!("the server runs {most} {calls} of {path}, which is its limit");
        Status::new(Code::ResourceExhausted, text)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn call_counts_towards_method_and_service() {
        let mut limits = Limits::default();
        limits.set_calls("/a.B", 2);
        limits.set_calls("/a.B/C", 1);
        assert_eq!(limits.check_room("/a.B/C"), Ok(()));
        let first = limits.take("/a.B/C").unwrap();
        assert_eq!(limits.check_room("/a.B/C").unwrap_err().code(), Code::ResourceExhausted);
        let refused = limits.take("/a.B/C").err().unwrap();
        assert_eq!(refused.code(), Code::ResourceExhausted);
        assert_eq!(refused.message(), "the server runs 1 call of /a.B/C, which is its limit");
        // The refused call no longer counts towards the service's limit.
        let second = limits.take("/a.B/D").unwrap();
        assert!(limits.take("/a.B/D").err().unwrap().message().contains("2 calls of /a.B,"));
        // Routes also pass longer paths to the service.
        assert!(limits.take("/a.B/D/E").err().unwrap().message().contains("2 calls of /a.B,"));
        assert!(limits.take("/a.Bc/D").unwrap().is_empty());
        drop((first, second));
        assert_eq!(limits.take("/a.B/C").unwrap().len(), 2);
        let rows = limits.report().map(|row| (row.name, row.running, row.limit, row.refused));
        let expected = [("/a.B", 0, 2, 2), ("/a.B/C", 0, 1, 2)];
        assert_eq!(rows.collect::<Vec<_>>(), expected.map(|(name, a, b, c)| (name.to_owned(), a, b, c)));
    }

    #[test]
    fn malformed_limits_are_refused() {
        for path in ["", "/", "a.B", "/a.B/", "/a.B/C/D", "//C"] {
            let mut limits = Limits::default();
            limits.set_message_bytes(path, 1);
            assert!(limits.check().unwrap_err().contains("expected /package.Service"), "{path:?}");
        }
        let mut limits = Limits::default();
        limits.set_calls("/a.B", 0);
        assert!(limits.check().unwrap_err().contains("choose 1 or more"));
        limits.set_calls("/a.B", 1);
        assert_eq!(limits.check(), Ok(()));
    }
}
