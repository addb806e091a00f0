//! Constant load from an honest node, with small calls in one thread and large calls in another.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline::Bytes;
use trunkline_testkit::bytes_of;

/// Size of a large call, in bytes. It is announced and READ in both directions.
const LARGE: usize = 256 << 10;
/// Pause between two large calls.
const PAUSE: Duration = Duration::from_millis(2);
/// Time limit of a call. Faults that a session survives end earlier.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// Statistics of the calls.
#[derive(Debug, Default)]
pub(super) struct Tally {
    small: AtomicU64,
    large: AtomicU64,
    wrong: AtomicU64,
    failed: AtomicU64,
    /// Durations of the small calls, in microseconds.
    took_us: Mutex<Vec<u32>>,
    /// Longest duration of a large call, in microseconds.
    large_most_us: AtomicU64,
}

impl Tally {
    fn took(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.took_us.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a call. Returns true unless the call failed.
    fn count<E: Display>(&self, calls: &AtomicU64, outcome: Result<bool, E>) -> bool {
        match outcome {
            Ok(is_right) => {
                self.wrong.fetch_add(u64::from(!is_right), Ordering::Relaxed);
                calls.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(error) => {
                eprintln!("call failed: {error}");
                self.failed.fetch_add(1, Ordering::Relaxed);
                // Refusals are immediate, so without a pause they would be repeated millions of times.
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        }
    }

    /// Returns the counts since the start and the percentiles since the previous call of this function.
    pub(super) fn line(&self) -> String {
        let mut took = std::mem::take(&mut *self.took());
        took.sort_unstable();
        let at = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(0);
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        format!(
            "small={} large={} wrong={} failed={} sampled={} p50_us={} p99_us={} most_us={} large_most_us={}",
            count(&self.small),
            count(&self.large),
            count(&self.wrong),
            count(&self.failed),
            took.len(),
            at(50),
            at(99),
            took.last().copied().unwrap_or(0),
            self.large_most_us.swap(0, Ordering::Relaxed),
        )
    }
}

/// Starts both threads, which run until the process ends. `small` and `large` return true if the reply is correct.
pub(super) fn start<E: Display + 'static>(
    tally: &Arc<Tally>,
    small: impl Fn(u64) -> Result<bool, E> + Send + 'static,
    large: impl Fn(Bytes) -> Result<bool, E> + Send + 'static,
) {
    let (of_small, of_large) = (Arc::clone(tally), Arc::clone(tally));
    std::thread::spawn(move || {
        for number in 0.. {
            let start = Instant::now();
            if of_small.count(&of_small.small, small(number)) {
                let took = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
                of_small.took().push(took);
            }
        }
    });
    std::thread::spawn(move || {
        for round in 0_u64.. {
            let (bytes, start) = (Bytes::from(bytes_of(round, LARGE)), Instant::now());
            if of_large.count(&of_large.large, large(bytes)) {
                let took = u64::try_from(start.elapsed().as_micros()).unwrap_or(u64::MAX);
                of_large.large_most_us.fetch_max(took, Ordering::Relaxed);
            }
            std::thread::sleep(PAUSE);
        }
    });
}
