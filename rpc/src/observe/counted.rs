//! Counts the calls of each method on the path of every call, for the node's report.
//!
//! A poller has one set of counters per method and side. Only the poller writes them, so relaxed loads and stores suffice,
//! without locks or allocations. The report adds up the counters of all pollers.

use crate::node::fork_lock::Lock;
#[cfg(feature = "metrics")]
use crate::observe::published::Published;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::name::MethodName;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use trunkline_transport::histogram::{HistogramWriter, add};
use trunkline_transport::{FailedCalls, MethodReport};

/// Names of the codes by number. Number 0 is for errors of a method's own type.
pub const CODES: [&str; 17] = [
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

/// Sampling interval, in ended calls of a method.
const SAMPLED: u64 = 64;

/// Name that represents all methods that the node does not serve.
const OTHER: &str = "_OTHER";

/// Numeric code and reason of a failed call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallFailure {
    /// Index in [`CODES`].
    pub(super) code: u8,
    /// Number of the reason, or 0.
    pub(super) reason: u8,
}

impl CallFailure {
    /// An error of the method's own type.
    pub(crate) const ERROR: Self = Self { code: 0, reason: 0 };

    /// Returns a failure caused by a node.
    pub(crate) fn because(code: Code, reason: Reason) -> Self {
        Self { code: code.number(), reason: reason.number() }
    }
}

impl From<&Status> for CallFailure {
    fn from(status: &Status) -> Self {
        Self { code: status.code().number(), reason: status.reason().map_or(0, Reason::number) }
    }
}

/// The counters of one method on one side of one poller.
#[derive(Debug)]
pub(crate) struct MethodCounters {
    /// Service and method.
    name: (&'static str, &'static str),
    /// Number of the method in the poller's record, which is twice the method's index, plus 1 on the client side.
    number: u32,
    /// Number of calls that have begun, excluding calls that ended in their first turn.
    begun: AtomicU64,
    /// Number of calls in `begun` that have ended.
    ended: AtomicU64,
    refused: AtomicU64,
    failed: [AtomicU64; CODES.len()],
    latency: HistogramWriter,
    /// Waiting times; present after a call has waited.
    queued: OnceLock<Box<HistogramWriter>>,
    #[cfg(feature = "metrics")]
    published: Published<{ CODES.len() }>,
}

impl MethodCounters {
    fn new(side: &'static str, name: (&'static str, &'static str), number: u32) -> Self {
        #[cfg(not(feature = "metrics"))]
        let _ = side;
        Self {
            name,
            number,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: [const { AtomicU64::new(0) }; CODES.len()],
            latency: HistogramWriter::default(),
            queued: OnceLock::new(),
            #[cfg(feature = "metrics")]
            published: Published::new(side, name),
        }
    }

    /// Counts a call that has begun and continues after this turn.
    #[inline]
    pub(crate) fn began(&self) {
        add(&self.begun, 1);
    }

    /// Returns the number of the method in the poller's record.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Counts the end of a call that was counted by [`Self::began`]. Returns true if the call is to be recorded as a sample.
    #[inline]
    #[must_use]
    pub(crate) fn ended(&self, ns: u64) -> bool {
        let before = add(&self.ended, 1);
        self.latency.record(ns);
        #[cfg(feature = "metrics")]
        self.published.ended(ns);
        before.is_multiple_of(SAMPLED)
    }

    /// Removes a call that was counted by [`Self::began`] but whose handler did not run.
    #[cold]
    pub(crate) fn withdrawn(&self) {
        add(&self.ended, 1);
    }

    /// Counts a call that ended in its first turn. Returns true if the call is to be recorded as a sample.
    #[inline]
    #[must_use]
    pub(crate) fn ended_at_once(&self) -> bool {
        let before = self.latency.record_zero();
        #[cfg(feature = "metrics")]
        self.published.ended(0);
        before.is_multiple_of(SAMPLED)
    }

    /// Counts a call that ended before it began. Its failure is counted separately.
    pub(crate) fn refused(&self) {
        add(&self.refused, 1);
        #[cfg(feature = "metrics")]
        self.published.refused();
    }

    pub(crate) fn failed(&self, failure: CallFailure) {
        let at = usize::from(failure.code);
        self.failed.get(at).map(|count| add(count, 1));
        #[cfg(feature = "metrics")]
        CODES.get(at).into_iter().for_each(|code| self.published.failed(at, code));
    }

    #[cold]
    pub(crate) fn waited(&self, ns: u64) {
        self.queued.get_or_init(Box::default).record(ns);
    }

    fn add_to(&self, report: &mut MethodReport, failed: &mut [u64; CODES.len()]) {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // `ended` is read before `begun`, so that no call counts as ended before it counts as begun.
        let ended = load(&self.ended);
        report.running += load(&self.begun).saturating_sub(ended);
        report.refused += load(&self.refused);
        failed.iter_mut().zip(&self.failed).for_each(|(sum, count)| *sum += load(count));
        self.latency.add_to(&mut report.latency);
        self.queued.get().into_iter().for_each(|queued| queued.add_to(&mut report.queued));
    }
}

/// The counters of the methods on one side of one poller.
#[derive(Debug)]
pub(crate) struct CountedMethods {
    /// `server` or `client`.
    side: &'static str,
    methods: Lock<Vec<Arc<MethodCounters>>>,
}

impl CountedMethods {
    /// Creates the counters of this side, without methods.
    pub(crate) fn new(side: &'static str) -> Self {
        Self { side, methods: Lock::default() }
    }

    pub(crate) fn add(&self, method: &'static MethodName) -> Arc<MethodCounters> {
        self.add_named((method.service.name, method.name))
    }

    /// Adds the shared counters of all methods that the node does not serve.
    pub(crate) fn add_others(&self) -> Arc<MethodCounters> {
        self.add_named(("", OTHER))
    }

    fn add_named(&self, name: (&'static str, &'static str)) -> Arc<MethodCounters> {
        let mut methods = self.methods.lock();
        let number = self.number(methods.len());
        let counters = Arc::new(MethodCounters::new(self.side, name, number));
        methods.push(Arc::clone(&counters));
        counters
    }

    /// Returns the number for the method at this index.
    fn number(&self, index: usize) -> u32 {
        let index = u32::try_from(index).unwrap_or(u32::MAX / 2);
        index.wrapping_mul(2) | u32::from(self.side == "client")
    }

    /// Returns the side, service and method for a number, or `None` if the number belongs to the other side.
    pub(crate) fn name_of(&self, number: u32) -> Option<(&'static str, &'static str, &'static str)> {
        let index = usize::try_from(number / 2).ok()?;
        if self.number(index) != number {
            return None;
        }
        let (service, method) = self.methods.lock().get(index)?.name;
        Some((self.side, service, method))
    }
}

/// Adds up the counters of all pollers. Omits the row of unserved methods if it is empty.
pub(crate) fn report<'a>(pollers: impl Iterator<Item = &'a CountedMethods>) -> Vec<MethodReport> {
    let mut rows = BTreeMap::new();
    for poller in pollers {
        for counters in poller.methods.lock().iter() {
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
    fn each_code_has_grpc_name() {
        for (number, name) in (1_u8..).zip(&CODES[1..]) {
            let code = format!("{:?}", Code::from_number(number));
            assert_eq!(code.to_uppercase(), name.replace('_', ""));
        }
    }

    #[test]
    fn report_sums_counts_of_pollers() {
        let pollers = [(); 2].map(|()| CountedMethods::new("server"));
        for (poller, ns) in pollers.iter().zip([1000, 2000]) {
            let _others = poller.add_others();
            let counters = poller.add_named(("Kv", "get"));
            (0..3).for_each(|_| counters.began());
            assert!(counters.ended(ns) && counters.ended_at_once(), "the first calls are samples");
            counters.waited(ns);
            counters.refused();
            counters.failed(CallFailure::because(Code::Unavailable, Reason::Overloaded));
        }
        let rows = report(pollers.iter());
        let [row] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((row.calls, row.refused, row.running, row.queued.count()), (6, 2, 4, 2));
        assert_eq!(row.failed, [FailedCalls { code: "UNAVAILABLE", calls: 2 }]);
        assert_eq!(row.latency.sum().as_nanos(), 3000);
    }
}

#[cfg(all(test, feature = "metrics"))]
mod published_tests {
    use super::*;
    use metrics::{
        Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString,
        Unit,
    };

    /// A recorder that stores all values.
    #[derive(Default)]
    struct Notes(Arc<Lock<Vec<String>>>);

    struct Note(Arc<Lock<Vec<String>>>, Key);

    impl Note {
        fn write(&self, value: String) {
            let labels = self.1.labels().map(|label| format!("{}={}", label.key(), label.value()));
            let labels = labels.collect::<Vec<_>>().join(" ");
            self.0.lock().push(format!("{} {labels}: {value}", self.1.name()));
        }
    }

    impl CounterFn for Note {
        fn increment(&self, value: u64) {
            self.write(format!("+{value}"));
        }
        fn absolute(&self, value: u64) {
            self.write(format!("={value}"));
        }
    }

    impl HistogramFn for Note {
        fn record(&self, value: f64) {
            self.write(value.to_string());
        }
    }

    impl Recorder for Notes {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, _: SharedString) {
            assert_eq!(unit, Some(Unit::Seconds), "{}", name.as_str());
        }
        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(Arc::new(Note(Arc::clone(&self.0), key.clone())))
        }
        fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::noop()
        }
        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(Arc::new(Note(Arc::clone(&self.0), key.clone())))
        }
    }

    #[test]
    fn calls_are_published_by_side_with_their_codes() {
        let notes = Notes::default();
        metrics::with_local_recorder(&notes, || {
            for side in ["server", "client"] {
                let others = CountedMethods::new(side).add_others();
                others.began();
                let _sampled = (others.ended(1_500_000_000), others.ended_at_once());
                others.failed(CallFailure::because(Code::Unavailable, Reason::Overloaded));
                others.failed(CallFailure::ERROR);
                others.refused();
            }
        });
        let of = "rpc.system.name=trunkline rpc.method=_OTHER";
        let expected = ["server", "client"].iter().flat_map(|side| {
            [
                format!("rpc.{side}.call.duration {of}: 1.5"),
                format!("rpc.{side}.call.duration {of}: 0"),
                format!("trunkline.{side}.calls.failed {of} rpc.response.status_code=UNAVAILABLE: +1"),
                format!("trunkline.{side}.calls.failed {of} rpc.response.status_code=ERROR: +1"),
                format!("trunkline.{side}.calls.refused {of}: +1"),
            ]
        });
        assert_eq!(*notes.0.lock(), expected.collect::<Vec<_>>());
    }
}
