//! Detection of servers whose calls fail or lag while the channel's other servers are healthy.
//!
//! The [`Record`] of each server counts the outcomes of calls in the current and the previous period, in relaxed atomics.
//! The first call that ends after a period triggers a comparison of the servers. So do five failures in a row.
//!
//! A server is an outlier only in comparison with more than half of the others, so servers are not left out for a fault that
//! all of them have. Mean latencies are geometric, because a few slow calls hardly raise a geometric mean. Latencies are
//! compared only if there are at least two other servers. Otherwise a hostile server that replies at once could make the
//! only other server look slow.

use crate::status::reason::{Origin, Reason};
use crate::status::{Code, Status};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Time after which the servers of a channel are compared.
pub(super) const PERIOD: Duration = Duration::from_secs(1);
/// Minimum number of calls in the current and the previous period for judging a server.
const FEWEST: u64 = 10;
/// Minimum number of other servers for comparing latencies.
const FEWEST_OTHERS: usize = 2;
/// Number of consecutive failures after which a server may be left out before the period ends.
const IN_A_ROW: u32 = 5;
/// Minimum share of failed calls, in thousandths, at a server that is left out.
const FAILING: u64 = 500;
/// Maximum share of failed calls, in thousandths, at the other servers.
const HEALTHY: u64 = 200;
/// Maximum share of failed calls at the other servers, for a server with [`IN_A_ROW`] failures. Such series are common if a
/// fifth of all calls fail.
const HEALTHY_AT_ONCE: u64 = 50;
/// Minimum ratio of a slow server's latency to the latency of the other servers.
const RATIO: u64 = 5;
/// Minimum difference between these latencies, in nanoseconds.
const DIFFERENCE_NS: u64 = 1_000_000;
/// Binary logarithm of the number of steps between two powers of two.
const STEP_BITS: u32 = 6;

/// The reason why a server is an outlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    Fails,
    Slow,
}

impl Fault {
    /// Returns the state of the server in reports.
    pub(super) fn state(self) -> &'static str {
        match self {
            Self::Fails => "left out: fails",
            Self::Slow => "left out: slow",
        }
    }
}

/// Outcomes of calls.
#[derive(Debug, Clone, Copy, Default)]
struct Counts<T> {
    failures: T,
    /// Successes without a latency.
    streams: T,
    /// Successes with a latency.
    successes: T,
    /// Sum of the logarithms of the latencies, in steps.
    steps: T,
}

/// The outcomes of a server's calls.
#[derive(Debug, Default)]
pub(super) struct Record {
    current: Counts<AtomicU64>,
    last: Counts<AtomicU64>,
    /// Failures since the last success.
    in_a_row: AtomicU32,
}

/// The outcomes of a server's calls in the current and the previous period.
#[derive(Debug, Clone, Copy)]
pub(super) struct Recent(Counts<u64>);

/// Medians over the servers of a channel.
#[derive(Debug)]
pub(super) struct Typical {
    /// Share of failed calls, in thousandths; `None` if fewer than two servers have enough calls.
    failed: Option<u64>,
    /// `None` if fewer than three servers have enough calls.
    latency_ns: Option<u64>,
}

impl Record {
    /// Records a success. Streams have no latency.
    pub(super) fn succeeded(&self, latency: Option<Duration>) {
        if self.in_a_row.load(Ordering::Relaxed) > 0 {
            self.in_a_row.store(0, Ordering::Relaxed);
        }
        let Some(latency) = latency else {
            self.current.streams.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.current.successes.fetch_add(1, Ordering::Relaxed);
        self.current.steps.fetch_add(to_steps(latency), Ordering::Relaxed);
    }

    /// Records a failure. Returns true after several failures in a row.
    pub(super) fn failed(&self) -> bool {
        self.current.failures.fetch_add(1, Ordering::Relaxed);
        let before = self.in_a_row.fetch_add(1, Ordering::Relaxed);
        before % IN_A_ROW == IN_A_ROW - 1
    }

    pub(super) fn recent(&self) -> Recent {
        let sum = |get: fn(&Counts<AtomicU64>) -> &AtomicU64| {
            let of = |counts| get(counts).load(Ordering::Relaxed);
            of(&self.current).saturating_add(of(&self.last))
        };
        Recent(Counts {
            failures: sum(|counts| &counts.failures),
            streams: sum(|counts| &counts.streams),
            successes: sum(|counts| &counts.successes),
            steps: sum(|counts| &counts.steps),
        })
    }

    pub(super) fn begin_period(&self) {
        for (current, last) in self.current.each().into_iter().zip(self.last.each()) {
            last.store(current.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    pub(super) fn clear(&self) {
        let all = self.current.each().into_iter().chain(self.last.each());
        all.for_each(|count| count.store(0, Ordering::Relaxed));
        self.in_a_row.store(0, Ordering::Relaxed);
    }
}

impl<T> Counts<T> {
    fn each(&self) -> [&T; 4] {
        [&self.failures, &self.streams, &self.successes, &self.steps]
    }
}

impl Recent {
    fn calls(&self) -> u64 {
        self.0.failures + self.0.streams + self.0.successes
    }

    pub(super) fn failed(&self) -> u64 {
        self.0.failures.saturating_mul(1000) / self.calls().max(1)
    }

    /// Returns the mean latency of the calls, if there are enough calls.
    fn latency_ns(&self) -> Option<u64> {
        (self.0.successes >= FEWEST).then(|| from_steps(self.0.steps / self.0.successes))
    }
}

impl Typical {
    /// Compares the servers that get calls.
    pub(super) fn new(servers: &[Recent]) -> Self {
        // Including a value above the median of the other values does not change the median.
        let of_others = |values: Vec<u64>| upper_median(values.len().checked_sub(1)?, values);
        let judged = servers.iter().filter(|recent| recent.calls() >= FEWEST);
        let mut latencies = servers.iter().filter_map(Recent::latency_ns).collect::<Vec<_>>();
        if latencies.len() <= FEWEST_OTHERS {
            latencies.clear();
        }
        Self { failed: of_others(judged.map(Recent::failed).collect()), latency_ns: of_others(latencies) }
    }

    /// Returns the fault if the server is an outlier.
    pub(super) fn judge(&self, recent: &Recent) -> Option<Fault> {
        let fails = recent.calls() >= FEWEST && recent.failed() >= FAILING;
        if fails && self.failed.is_some_and(|failed| failed <= HEALTHY) {
            return Some(Fault::Fails);
        }
        let (latency, typical) = (recent.latency_ns()?, self.latency_ns?);
        is_slow(latency, typical).then_some(Fault::Slow)
    }
}

fn is_slow(latency_ns: u64, typical_ns: u64) -> bool {
    latency_ns > typical_ns.saturating_mul(RATIO) && latency_ns - typical_ns > DIFFERENCE_NS
}

/// Returns true if a server would be left out if all its calls had this latency.
pub(super) fn lags(latency: Duration, others: impl Iterator<Item = Recent>) -> bool {
    let others = others.filter_map(|recent| recent.latency_ns()).collect::<Vec<_>>();
    let latency_ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    others.len() >= FEWEST_OTHERS
        && upper_median(others.len(), others).is_some_and(|typical| is_slow(latency_ns, typical))
}

/// Returns true if few calls fail at most of the other servers.
pub(super) fn most_succeed(others: impl Iterator<Item = Recent>) -> bool {
    let failed = others.filter(|recent| recent.calls() > 0).map(|recent| recent.failed()).collect::<Vec<_>>();
    upper_median(failed.len(), failed).is_some_and(|failed| failed <= HEALTHY_AT_ONCE)
}

/// Returns the median of `count` values, or the larger of two middle values. Values missing from `values` count as larger
/// than all others.
fn upper_median(count: usize, mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(count / 2).copied().filter(|_| count > 0)
}

/// Returns the binary logarithm of a time in nanoseconds, in steps.
fn to_steps(time: Duration) -> u64 {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1 << STEP_BITS);
    let whole = ns.ilog2();
    let part = (ns >> (whole - STEP_BITS)) - (1 << STEP_BITS);
    (u64::from(whole) << STEP_BITS) + part
}

/// Returns the time with this logarithm, in nanoseconds.
fn from_steps(steps: u64) -> u64 {
    let (whole, part) = ((steps >> STEP_BITS).clamp(u64::from(STEP_BITS), 63), steps % (1 << STEP_BITS));
    ((1 << STEP_BITS) + part) << (whole - u64::from(STEP_BITS))
}

/// Returns true if a call failed because of a fault of its server. Other codes indicate a fault of the call, or overload.
pub(crate) fn is_fault(status: &Status) -> bool {
    let has_reached = status.origin() != Origin::Local || status.may_have_run();
    has_reached
        && !status.is_own_error()
        && status.reason() != Some(Reason::Overloaded)
        && matches!(
            status.code(),
            Code::Unknown | Code::DeadlineExceeded | Code::Internal | Code::Unavailable | Code::DataLoss
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn answered(latencies: impl IntoIterator<Item = Duration>) -> Recent {
        let record = Record::default();
        latencies.into_iter().for_each(|latency| record.succeeded(Some(latency)));
        record.recent()
    }

    #[test]
    fn server_with_few_slow_calls_is_not_slow() {
        let tail = |slow: usize| answered((0..20).map(|at| if at < slow { 1000 * MS } else { MS }));
        let judge = |server: Recent| {
            let all = [server, answered([MS; 20]), answered([MS; 20])];
            Typical::new(&all).judge(&server)
        };
        assert_eq!([tail(1), tail(4), tail(10)].map(judge), [None, None, Some(Fault::Slow)]);
        assert_eq!([answered([8 * MS; 9]), answered([8 * MS; 10])].map(judge), [None, Some(Fault::Slow)]);
    }

    #[test]
    fn latencies_are_precise_to_two_percent() {
        for ns in (0..63).flat_map(|bit| [1, 2, 3].map(|part| (1_u64 << bit) / 3 * part)).chain([0, u64::MAX])
        {
            let counted = from_steps(to_steps(Duration::from_nanos(ns)));
            let ns = ns.max(64);
            assert!(counted <= ns && ns - counted <= ns / 50, "{ns} {counted}");
        }
    }
}
