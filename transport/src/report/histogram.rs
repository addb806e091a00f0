//! Histogram of latencies. One thread records the latency of every call, and another thread reads the counts.
//!
//! The histogram is log-linear: each power of two of nanoseconds has four buckets of equal width, so a bucket is at
//! most a quarter as wide as its lower bound. Memory is fixed. Recording takes a few instructions and no lock. The
//! writer uses relaxed loads and stores, so a report may miss concurrent records.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Binary logarithm of the number of buckets per power of two.
const SUB_BITS: u32 = 2;
const SUB: usize = 1 << SUB_BITS;
/// Maximum time. Longer times are counted in the last bucket, which ends at 18 minutes.
const MOST_NS: u64 = (1 << 40) - 1;
const BUCKETS: usize = bucket(MOST_NS) + 1;

/// Returns the bucket of a time.
#[inline]
#[allow(clippy::cast_possible_truncation, reason = "at most MOST_NS >> 38, and its low bits")]
const fn bucket(ns: u64) -> usize {
    let ns = if ns > MOST_NS { MOST_NS } else { ns };
    if ns < SUB as u64 {
        ns as usize
    } else {
        let exponent = ns.ilog2();
        ((exponent - 1) as usize) * SUB + ((ns >> (exponent - SUB_BITS)) as usize & (SUB - 1))
    }
}

/// Returns the longest time in a bucket, in nanoseconds.
const fn top_ns(bucket: usize) -> u64 {
    if bucket < SUB {
        return bucket as u64;
    }
    ((SUB + bucket % SUB + 1) as u64) * (1 << (bucket / SUB - 1)) - 1
}

/// Adds to a counter that has a single writer. Returns the previous value.
#[inline]
pub fn add(counter: &AtomicU64, more: u64) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(more), Ordering::Relaxed);
    before
}

/// Write half of a histogram, for a single thread.
#[derive(Debug)]
pub struct HistogramWriter {
    counts: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Default for HistogramWriter {
    fn default() -> Self {
        Self { counts: [const { AtomicU64::new(0) }; BUCKETS], sum_ns: AtomicU64::new(0) }
    }
}

impl HistogramWriter {
    /// Records a time.
    #[inline]
    pub fn record(&self, ns: u64) {
        add(&self.counts[bucket(ns)], 1);
        add(&self.sum_ns, ns);
    }

    /// Records a time of 0. Returns how many were recorded before.
    #[inline]
    pub fn record_zero(&self) -> u64 {
        add(&self.counts[0], 1)
    }

    /// Adds the recorded times to a report.
    pub fn add_to(&self, report: &mut Histogram) {
        report.counts.resize(BUCKETS, 0);
        for (sum, count) in report.counts.iter_mut().zip(&self.counts) {
            *sum += count.load(Ordering::Relaxed);
        }
        report.sum_ns = report.sum_ns.wrapping_add(self.sum_ns.load(Ordering::Relaxed));
    }
}

/// Histogram of times.
///
/// A bucket is at most a quarter as wide as its lower bound, so the result of [`Self::quantile`] is never too low and
/// at most 25 % too high. Times above 18 minutes count as 18 minutes in it; [`Self::sum`] is exact.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Empty until something is added.
    counts: Vec<u64>,
    sum_ns: u64,
}

impl Histogram {
    /// Adds a time.
    pub fn record(&mut self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.counts.resize(BUCKETS, 0);
        self.counts[bucket(ns)] += 1;
        self.sum_ns = self.sum_ns.wrapping_add(ns);
    }

    /// Adds the times of another histogram.
    pub fn merge(&mut self, other: &Self) {
        self.counts.resize(BUCKETS, 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// Returns the difference between this histogram and an earlier state of it.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let earlier_counts = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(earlier_counts).map(|(now, earlier)| now.saturating_sub(earlier));
        Self { counts: counts.collect(), sum_ns: self.sum_ns.wrapping_sub(earlier.sum_ns) }
    }

    /// Returns the histogram as text, which is the sum, then the index and the count of each nonempty bucket.
    pub(super) fn to_text(&self) -> String {
        let mut text = self.sum_ns.to_string();
        for (index, count) in self.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            // Writing to a string does not fail.
            let _written = write!(text, ",{index}:{count}");
        }
        text
    }

    /// Parses the text form. Returns `None` if it is malformed.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(',');
        let sum_ns = parts.next()?.parse().ok()?;
        let mut counts = vec![0_u64; BUCKETS];
        for part in parts {
            let (index, count) = part.split_once(':')?;
            // Limit the count, so that the sum of a hostile node's counts does not overflow.
            let count = count.parse::<u64>().ok()?.min(u64::MAX / BUCKETS as u64);
            *counts.get_mut(index.parse::<usize>().ok()?)? = count;
        }
        Some(Self { counts, sum_ns })
    }

    /// Returns the number of times.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of all times.
    #[must_use]
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.sum_ns)
    }

    /// Returns a time that the share `q` (such as 0.99) of all times does not exceed; `None` if the histogram is
    /// empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<Duration> {
        let count = self.count();
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "a rank, bounded by the count"
        )]
        let rank = ((q.clamp(0.0, 1.0) * count as f64).ceil() as u64).clamp(1, count.max(1));
        let mut below = 0;
        self.buckets().find_map(|(top, count)| {
            below += count;
            (below >= rank).then_some(top)
        })
    }

    /// Returns the longest time of each nonempty bucket and the number of times in the bucket, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        let all = self.counts.iter().enumerate().filter(|(_, count)| **count > 0);
        all.map(|(bucket, count)| (Duration::from_nanos(top_ns(bucket)), *count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_histogram_matches_local_histogram() {
        let (writer, mut one, mut other) =
            (HistogramWriter::default(), Histogram::default(), Histogram::default());
        for ns in [0, 7, 1_000_000, MOST_NS + 1] {
            writer.record(ns);
            writer.record(ns);
            one.record(Duration::from_nanos(ns));
            other.record(Duration::from_nanos(ns));
        }
        let mut written = Histogram::default();
        writer.add_to(&mut written);
        one.merge(&other);
        one.merge(&Histogram::default());
        assert_eq!(one, written);
    }

    #[test]
    fn bucket_holds_times_above_previous_top_and_up_to_its_own() {
        let near = (0..41)
            .flat_map(|power| [1_u64 << power, (1 << power) + 1, (1 << power) * 5 / 4, (1 << power) - 1]);
        for ns in near.chain(0..5000).filter(|ns| *ns <= MOST_NS) {
            let at = bucket(ns);
            let top = top_ns(at);
            assert!(ns <= top && (at == 0 || ns > top_ns(at - 1)), "{ns} in bucket {at} up to {top}");
            assert!(top - ns <= ns / 4, "{top} for {ns}");
        }
        assert_eq!((bucket(u64::MAX), top_ns(BUCKETS - 1)), (BUCKETS - 1, MOST_NS));
    }

    #[test]
    fn quantiles_count_from_shortest() {
        let writer = HistogramWriter::default();
        for us in 1..=100 {
            writer.record(us * 1000);
        }
        let mut report = Histogram::default();
        assert_eq!((report.quantile(0.5), report.count()), (None, 0));
        writer.add_to(&mut report);
        for (q, exact_us) in [(0.0, 1), (0.5, 50), (0.99, 99), (1.0, 100)] {
            let (exact, found) = (Duration::from_micros(exact_us), report.quantile(q).unwrap());
            assert!(found >= exact && found <= exact * 5 / 4, "{q}: {found:?} for {exact:?}");
        }
        assert_eq!((report.count(), report.sum()), (100, Duration::from_micros(5050)));
        // Another poller records a time.
        writer.record_zero();
        writer.add_to(&mut report);
        assert_eq!((report.count(), report.quantile(0.001)), (201, Some(Duration::ZERO)));
    }
}
