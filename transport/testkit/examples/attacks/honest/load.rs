//! Constant load by an honest node: small calls in one thread, large ones in another.

use super::service::HonestClient;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trunkline::{Bytes, block_on};
use trunkline_testkit::bytes_of;

/// Length of a large call in bytes, announced and READ in both directions.
const LARGE: usize = 256 << 10;
/// Pause between two large calls.
const PAUSE: Duration = Duration::from_millis(2);
/// Time limit of a call. Every fault that a session survives has ended by then.
const LIMIT: Duration = Duration::from_secs(5);

/// Tally of the calls.
#[derive(Debug, Default)]
pub(super) struct Tally {
    small: AtomicU64,
    large: AtomicU64,
    wrong: AtomicU64,
    failed: AtomicU64,
    /// Durations of the small calls in microseconds.
    took_us: Mutex<Vec<u32>>,
}

impl Tally {
    fn took(&self) -> std::sync::MutexGuard<'_, Vec<u32>> {
        self.took_us.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns all counts since the start, and the percentiles of the calls since the last call.
    pub(super) fn line(&self) -> String {
        let mut took = std::mem::take(&mut *self.took());
        took.sort_unstable();
        let at = |percent: usize| took.get(took.len() * percent / 100).copied().unwrap_or(0);
        let count = |number: &AtomicU64| number.load(Ordering::Relaxed);
        format!(
            "small={} large={} wrong={} failed={} sampled={} p50_us={} p99_us={} most_us={}",
            count(&self.small),
            count(&self.large),
            count(&self.wrong),
            count(&self.failed),
            took.len(),
            at(50),
            at(99),
            took.last().copied().unwrap_or(0),
        )
    }
}

/// Starts both threads, which end with the process.
pub(super) fn start(client: &HonestClient, tally: &Arc<Tally>) {
    let (small, large) = (client.clone().with_timeout(LIMIT), client.clone().with_timeout(LIMIT));
    let (of_small, of_large) = (Arc::clone(tally), Arc::clone(tally));
    std::thread::spawn(move || {
        for number in 0.. {
            let start = Instant::now();
            match block_on(small.echo(number)) {
                Ok(back) => {
                    of_small.wrong.fetch_add(u64::from(back != number), Ordering::Relaxed);
                    of_small.small.fetch_add(1, Ordering::Relaxed);
                    let took = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
                    of_small.took().push(took);
                }
                Err(status) => fail(&of_small, &status),
            }
        }
    });
    std::thread::spawn(move || {
        for round in 0_u64.. {
            let bytes = Bytes::from(bytes_of(round, LARGE));
            match block_on(large.mirror(bytes.clone())) {
                Ok(back) => {
                    of_large.wrong.fetch_add(u64::from(back != bytes), Ordering::Relaxed);
                    of_large.large.fetch_add(1, Ordering::Relaxed);
                }
                Err(status) => fail(&of_large, &status),
            }
            std::thread::sleep(PAUSE);
        }
    });
}

fn fail(tally: &Tally, status: &trunkline::Status) {
    eprintln!("call failed: {status}");
    tally.failed.fetch_add(1, Ordering::Relaxed);
    // A refusal is immediate. Without a pause it would be repeated millions of times.
    std::thread::sleep(Duration::from_millis(10));
}
