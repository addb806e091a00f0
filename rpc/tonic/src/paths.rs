//! Counts calls by gRPC path, for the node's report.
//!
//! All exchanges are calls to one Trunkline method. A path gets a row when its first call succeeds, so that invented paths
//! do not add rows. Each poller has separate rows, which the report adds up.

use http::{HeaderMap, Uri};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trunkline::report::{FailedCalls, Histogram, MethodReport, NodeReport};
use trunkline::stub::CODES;
use trunkline::{Code, Context};

/// Maximum number of paths with rows.
const MOST_PATHS: usize = 256;
/// Code number of successful calls.
const OK: u8 = 0;

/// Names of a service and a method.
type Name = (&'static str, &'static str);

/// The calls to a server.
#[derive(Default)]
pub(crate) struct Paths {
    names: Mutex<BTreeMap<String, Name>>,
    pollers: Mutex<Vec<Arc<OfPoller>>>,
}

/// The calls on one poller, by path.
#[derive(Default)]
struct OfPoller(Mutex<BTreeMap<String, Row>>);

struct Row {
    name: Name,
    running: u64,
    /// Number of calls that ended with each code.
    ended: [u64; CODES.len()],
    latency: Histogram,
}

impl Row {
    fn new(name: Name) -> Self {
        Self { name, running: 0, ended: [0; CODES.len()], latency: Histogram::default() }
    }

    fn ended(&mut self, code: u8, latency: Duration) {
        let unknown = usize::from(Code::Unknown.number());
        let code = Some(usize::from(code)).filter(|code| *code < CODES.len()).unwrap_or(unknown);
        self.ended[code] += 1;
        self.latency.record(latency);
    }

    fn add(&mut self, other: &Self) {
        self.running += other.running;
        self.ended.iter_mut().zip(&other.ended).for_each(|(sum, calls)| *sum += calls);
        self.latency.merge(&other.latency);
    }

    fn into_report(self) -> MethodReport {
        let (service, method) = self.name;
        // The first code is skipped. It stands for errors of a method's own type, which gRPC does not have.
        let failed = CODES.iter().zip(self.ended).skip(1).filter(|(_, calls)| *calls > 0);
        MethodReport {
            service,
            method,
            calls: self.latency.count(),
            failed: failed.map(|(code, calls)| FailedCalls { code, calls }).collect(),
            refused: 0,
            running: self.running,
            latency: self.latency,
            queued: Histogram::default(),
        }
    }
}

impl Paths {
    /// Adds a poller.
    pub(crate) fn poller(self: &Arc<Self>) -> PollerPaths {
        let poller = Arc::<OfPoller>::default();
        lock(&self.pollers).push(Arc::clone(&poller));
        PollerPaths { of_poller: poller, all: Arc::clone(self) }
    }

    /// Adds the sums of all pollers' rows to a report.
    pub(crate) fn report(&self, report: &mut NodeReport) {
        let mut rows = BTreeMap::new();
        for poller in &*lock(&self.pollers) {
            for row in lock(&poller.0).values() {
                rows.entry(row.name).or_insert_with(|| Row::new(row.name)).add(row);
            }
        }
        report.served.extend(rows.into_values().map(Row::into_report));
    }

    /// Returns a poller's row for a path. A missing row is added if other pollers have rows for the path, or if `adds` is
    /// true and the limit permits another path.
    fn row<'r>(&self, rows: &'r mut BTreeMap<String, Row>, path: &str, adds: bool) -> Option<&'r mut Row> {
        if !rows.contains_key(path) {
            rows.insert(path.to_owned(), Row::new(self.name(path, adds)?));
        }
        rows.get_mut(path)
    }

    fn name(&self, path: &str, adds: bool) -> Option<Name> {
        let mut names = lock(&self.names);
        if let Some(name) = names.get(path) {
            return Some(*name);
        }
        if !adds || names.len() >= MOST_PATHS {
            return None;
        }
        let (service, method) = path.rsplit_once('/')?;
        // Reports need `'static` names. At most `MOST_PATHS` paths are leaked.
        let leak = |name: &str| -> &'static str { Box::leak(name.into()) };
        let name = (leak(service), leak(method));
        names.insert(path.to_owned(), name);
        Some(name)
    }
}

/// The calls on one poller, as updated by the poller's handler.
pub(crate) struct PollerPaths {
    of_poller: Arc<OfPoller>,
    all: Arc<Paths>,
}

impl PollerPaths {
    /// Counts a call that begins.
    pub(crate) fn began(&self, path: &Uri, cx: &Context) -> CountedCall {
        let mut rows = lock(&self.of_poller.0);
        let row = self.all.row(&mut rows, path.path(), false);
        let has_row = row.is_some();
        row.into_iter().for_each(|row| row.running += 1);
        CountedCall {
            of_poller: Arc::clone(&self.of_poller),
            all: Arc::clone(&self.all),
            path: path.clone(),
            cx: cx.clone(),
            began: now(),
            has_row,
            status: ResponseStatus::default(),
            code: None,
        }
    }
}

/// The status of a response, once headers or trailers have contained it.
#[derive(Clone)]
pub(crate) struct ResponseStatus(Arc<AtomicU8>);

impl Default for ResponseStatus {
    fn default() -> Self {
        Self(Arc::new(AtomicU8::new(Code::Unknown.number())))
    }
}

impl ResponseStatus {
    /// Reads the status from headers or trailers. Returns true if they contain it.
    pub(crate) fn set_from(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get("grpc-status") else { return false };
        let code = value.to_str().ok().and_then(|code| code.parse().ok());
        code.into_iter().for_each(|code| self.0.store(code, Ordering::Relaxed));
        true
    }
}

/// A call that counts as running until this value is dropped.
pub(crate) struct CountedCall {
    of_poller: Arc<OfPoller>,
    all: Arc<Paths>,
    path: Uri,
    cx: Context,
    began: Instant,
    /// True if the call counts as running in the row of its path.
    has_row: bool,
    status: ResponseStatus,
    /// Code of the call if it has ended.
    code: Option<u8>,
}

impl CountedCall {
    /// Returns a shared handle to the response's status.
    pub(crate) fn status(&self) -> ResponseStatus {
        self.status.clone()
    }

    /// Records that the response has ended.
    pub(crate) fn ended(&mut self) {
        self.code = Some(self.status.0.load(Ordering::Relaxed));
    }

    /// Records that the call has failed.
    pub(crate) fn failed(&mut self, code: Code) {
        self.code = Some(code.number());
    }
}

impl Drop for CountedCall {
    fn drop(&mut self) {
        let dropped = || match self.cx.time_left() {
            // The handler panicked on a poller.
            _ if std::thread::panicking() => Code::Internal.number(),
            Some(Duration::ZERO) => Code::DeadlineExceeded.number(),
            _ => Code::Cancelled.number(),
        };
        let code = self.code.unwrap_or_else(dropped);
        let (path, latency) = (self.path.path(), now().duration_since(self.began));
        if let Some(row) = self.all.row(&mut lock(&self.of_poller.0), path, code == OK) {
            row.running -= u64::from(self.has_row);
            row.ended(code, latency);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[expect(clippy::disallowed_methods, reason = "exchanges run in real time")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(poller: &PollerPaths, path: &str) -> CountedCall {
        poller.began(&path.parse().unwrap(), &Context::detached())
    }

    fn rows(poller: &PollerPaths) -> Vec<(String, u64, u64)> {
        let rows = lock(&poller.of_poller.0);
        let rows = rows.iter().map(|(path, row)| (path.clone(), row.running, row.latency.count()));
        rows.collect()
    }

    #[test]
    fn only_succeeded_paths_have_rows_up_to_limit() {
        let poller = Arc::<Paths>::default().poller();
        let ends = |path: &str, code: Option<Code>| {
            let mut call = call(&poller, path);
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
            call.status().set_from(&trailers);
            match code {
                Some(code) => call.failed(code),
                None => call.ended(),
            }
        };
        ends("/a.B/Unknown", Some(Code::Unimplemented));
        assert_eq!(rows(&poller), []);
        ends("/a.B/C", None);
        ends("/a.B/C", Some(Code::NotFound));
        let (running, cancelled) = (call(&poller, "/a.B/C"), call(&poller, "/a.B/C"));
        drop(cancelled);
        assert_eq!(rows(&poller), [("/a.B/C".to_owned(), 1, 3)]);
        drop(running);
        for other in 0..MOST_PATHS + 10 {
            ends(&format!("/a.B/D{other}"), None);
        }
        assert_eq!(rows(&poller).len(), MOST_PATHS);
        // Other pollers get rows for the same paths only.
        let other = poller.all.poller();
        let mut ended = call(&other, "/a.B/Late");
        ended.code = Some(OK);
        drop(ended);
        let _running = call(&other, "/a.B/D0");
        assert_eq!(rows(&other), [("/a.B/D0".to_owned(), 1, 0)]);
        let row = lock(&poller.of_poller.0).remove("/a.B/C").unwrap().into_report();
        assert_eq!((row.service, row.method, row.calls, row.running), ("/a.B", "C", 4, 0));
        let failed = row.failed.iter().map(|failed| (failed.code, failed.calls));
        assert_eq!(failed.collect::<Vec<_>>(), [("CANCELLED", 2), ("NOT_FOUND", 1)]);
    }
}
