//! The calls of each method are counted on the path of every call, and read by the node's report.
//!
//! A poller has one set of counters per method and side, and is their only writer, so that it loads and stores them
//! relaxed, and neither locks nor allocates. The report adds the pollers' counters up.

use crate::name::MethodName;
use crate::status::Code;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use trunkline_transport::histogram::{HistogramWriter, add};
use trunkline_transport::{FailedCalls, MethodReport};

/// The names of the codes by their numbers, and of errors of a method's own type in place of 0.
const CODES: [&str; 17] = [
    "ERROR",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// Name of all methods that a node does not serve.
const OTHER: &str = "_OTHER";

/// The counters of one method on one side of one poller.
#[derive(Debug)]
pub(crate) struct MethodCounters {
    /// Service and method.
    name: (&'static str, &'static str),
    /// Calls that have begun, except those that ended in the same turn.
    begun: AtomicU64,
    /// Calls among them that have ended.
    ended: AtomicU64,
    refused: AtomicU64,
    failed: [AtomicU64; CODES.len()],
    latency: HistogramWriter,
    /// Present once a call has waited.
    queued: OnceLock<Box<HistogramWriter>>,
}

impl MethodCounters {
    fn new(name: (&'static str, &'static str)) -> Self {
        Self {
            name,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: [const { AtomicU64::new(0) }; CODES.len()],
            latency: HistogramWriter::default(),
            queued: OnceLock::new(),
        }
    }

    /// Counts a call that begins and does not end in the same turn.
    #[inline]
    pub(crate) fn began(&self) {
        add(&self.begun, 1);
    }

    /// Counts the end of such a call.
    #[inline]
    pub(crate) fn ended(&self, ns: u64) {
        add(&self.ended, 1);
        self.latency.record(ns);
    }

    /// Takes back a call that has begun, and whose handler never ran.
    #[cold]
    pub(crate) fn withdrawn(&self) {
        add(&self.ended, 1);
    }

    /// Counts a call that ended in the turn in which it began.
    #[inline]
    pub(crate) fn ended_at_once(&self) {
        self.latency.record_zero();
    }

    /// Counts a call that ends before it begins. Its failure is counted apart.
    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
    }

    /// Counts the failure of a call.
    pub(crate) fn failed(&self, code: Code) {
        self.failed.get(usize::from(code.number())).into_iter().for_each(|count| add(count, 1));
    }

    /// Counts a call that ended with an error of its method's own type.
    pub(crate) fn failed_by_error(&self) {
        add(&self.failed[0], 1);
    }

    /// Counts the wait of a call.
    #[cold]
    pub(crate) fn waited(&self, ns: u64) {
        self.queued.get_or_init(Box::default).record(ns);
    }

    fn add_to(&self, report: &mut MethodReport, failed: &mut [u64; CODES.len()]) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // Read in this order, so that no call has ended before it began.
        let ended = load(&self.ended);
        report.running += load(&self.begun).saturating_sub(ended);
        report.refused += load(&self.refused);
        failed.iter_mut().zip(&self.failed).for_each(|(sum, count)| *sum += load(count));
        self.latency.add_to(&mut report.latency);
        self.queued.get().into_iter().for_each(|queued| queued.add_to(&mut report.queued));
    }
}

/// The counters of the methods on one side of one poller.
#[derive(Debug, Default)]
pub(crate) struct CountedMethods(Mutex<Vec<Arc<MethodCounters>>>);

impl CountedMethods {
    /// Adds the counters of a method.
    pub(crate) fn add(&self, method: &'static MethodName) -> Arc<MethodCounters> {
        self.add_named((method.service.name, method.name))
    }

    /// Adds the counters of all methods that the node does not serve.
    pub(crate) fn add_others(&self) -> Arc<MethodCounters> {
        self.add_named(("", OTHER))
    }

    fn add_named(&self, name: (&'static str, &'static str)) -> Arc<MethodCounters> {
        let counters = Arc::new(MethodCounters::new(name));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }
}

/// Adds the counters of all pollers up. The row of other methods is left out while it is empty.
pub(crate) fn report<'a>(pollers: impl Iterator<Item = &'a CountedMethods>) -> Vec<MethodReport> {
    let mut rows = BTreeMap::new();
    for poller in pollers {
        for counters in poller.0.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let (service, method) = counters.name;
            let (row, failed) = rows.entry(counters.name).or_insert_with(|| {
                let row = MethodReport {
                    service,
                    method,
                    calls: 0,
                    failed: Vec::new(),
                    refused: 0,
                    running: 0,
                    latency: Default::default(),
                    queued: Default::default(),
                };
                (row, [0; CODES.len()])
            });
            counters.add_to(row, failed);
        }
    }
    let complete = |(mut row, failed): (MethodReport, [u64; CODES.len()])| {
        row.calls = row.refused + row.latency.count();
        let codes = CODES.iter().zip(failed).filter(|(_, calls)| *calls > 0);
        row.failed = codes.map(|(code, calls)| FailedCalls { code, calls }).collect();
        row
    };
    rows.into_values()
        .map(complete)
        .filter(|row| (row.service, row.method) != ("", OTHER) || row.calls > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_the_name_of_grpc() {
        for (number, name) in (1_u8..).zip(&CODES[1..]) {
            let code = format!("{:?}", Code::from_number(number));
            assert_eq!(code.to_uppercase(), name.replace('_', ""));
        }
    }

    #[test]
    fn pollers_add_up() {
        let pollers = [CountedMethods::default(), CountedMethods::default()];
        for (poller, ns) in pollers.iter().zip([1000, 2000]) {
            let _others = poller.add_others();
            let counters = poller.add_named(("Kv", "get"));
            (0..3).for_each(|_| counters.began());
            counters.ended(ns);
            counters.ended_at_once();
            counters.waited(ns);
            counters.refused();
            counters.failed(Code::Unavailable);
        }
        let rows = report(pollers.iter());
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.calls, row.refused, row.running, row.queued.count()), (6, 2, 4, 2));
        assert_eq!(row.failed, [FailedCalls { code: "UNAVAILABLE", calls: 2 }]);
        assert_eq!(row.latency.sum().as_nanos(), 3000);
    }
}
