//! Recorder for one measurement. It records the time of each call, and the number of calls that end in each slice of
//! time.
//!
//! Times are passed in as nanoseconds since the measurement began, so that tests need no clock. Calls that end during the
//! first fifth are a warm-up and do not count. The rate is the median over slices of at least 1 ms. If the host takes the
//! processor away for some milliseconds, a few slices are slower, but the median does not change. If such pauses are part
//! of the result, the rate is the mean over the measured time.

use crate::meter::spread::Spread;
use hdrhistogram::Histogram;

const SLICE_NS: u64 = 1_000_000;
/// Number of significant digits in histograms.
const DIGITS: u8 = 3;
/// Maximum recorded time, 1,000 s. Longer times are recorded as this value.
const LONGEST_NS: u64 = 1_000_000_000_000;

/// Recorder of latencies until the measurement is over.
#[derive(Debug, Clone)]
pub(crate) struct Recorder {
    times: Histogram<u64>,
    warm_ns: u64,
    end_ns: u64,
    /// Start time of the current slice; `None` during the warm-up.
    slice_began_ns: Option<u64>,
    in_slice: u64,
    rates: Vec<f64>,
    is_mean: bool,
    /// Times at which the first and the last call after the warm-up ended.
    span_ns: Option<(u64, u64)>,
    failed: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Sample {
    /// Nanoseconds per call.
    pub(crate) times: Histogram<u64>,
    /// Calls per second.
    pub(crate) per_s: f64,
}

impl Recorder {
    /// Creates a recorder that measures for `measured_ns`, after a warm-up of a quarter of this time.
    pub(crate) fn new(measured_ns: u64) -> Self {
        let warm_ns = measured_ns / 4;
        let end_ns = warm_ns + measured_ns;
        Self {
            times: histogram(),
            warm_ns,
            end_ns,
            slice_began_ns: None,
            in_slice: 0,
            rates: Vec::new(),
            is_mean: false,
            span_ns: None,
            failed: None,
        }
    }

    /// Selects the mean over the measured time as the rate, if `is_mean` is true.
    pub(crate) fn mean(self, is_mean: bool) -> Self {
        Self { is_mean, ..self }
    }

    /// Records the scheduled start and the end of a call. Returns true if the measurement continues.
    pub(crate) fn ended(&mut self, due_ns: u64, now_ns: u64) -> bool {
        self.ended_many(due_ns, now_ns, 1)
    }

    /// Records several calls with the same scheduled start and the same end.
    pub(crate) fn ended_many(&mut self, due_ns: u64, now_ns: u64, calls: u64) -> bool {
        if now_ns < self.warm_ns {
            return self.failed.is_none();
        }
        self.times.saturating_record_n(now_ns.saturating_sub(due_ns).max(1), calls);
        self.span_ns = Some((self.span_ns.map_or(now_ns, |(first_ns, _)| first_ns), now_ns));
        // The first call after the warm-up starts the first slice and is not counted.
        let Some(began_ns) = self.slice_began_ns else {
            self.slice_began_ns = Some(now_ns);
            return self.goes_on(now_ns);
        };
        self.in_slice += calls;
        let lasted_ns = now_ns.saturating_sub(began_ns);
        if lasted_ns >= SLICE_NS {
            #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
            self.rates.push(self.in_slice as f64 * 1e9 / lasted_ns as f64);
            self.in_slice = 0;
            self.slice_began_ns = Some(now_ns);
        }
        self.goes_on(now_ns)
    }

    /// Records that a call failed, which ends the measurement.
    pub(crate) fn failed(&mut self, why: String) {
        self.failed.get_or_insert(why);
    }

    /// Returns the result of the measurement.
    ///
    /// # Errors
    /// Returns an error if a call failed, or if too few calls completed.
    pub(crate) fn finish(self) -> Result<Sample, String> {
        if let Some(why) = self.failed {
            return Err(why);
        }
        let rates = Spread::of(&self.rates).ok_or("too few calls have ended; use a larger --seconds")?;
        let per_s = if self.is_mean { self.mean_per_s() } else { rates.median };
        Ok(Sample { times: self.times, per_s })
    }

    /// Returns the mean rate over the measured time, which starts when the first call ends. The first call is not
    /// counted.
    #[expect(clippy::cast_precision_loss, reason = "counts and times stay far below 2^52")]
    pub(crate) fn mean_per_s(&self) -> f64 {
        self.span_ns.map_or(0.0, |(first_ns, last_ns)| {
            (self.times.len() - 1) as f64 * 1e9 / (last_ns - first_ns).max(1) as f64
        })
    }

    /// Returns the results up to the end or to a failure, and the reason for the failure.
    pub(crate) fn finish_partly(mut self) -> (Option<Sample>, Option<String>) {
        let failed = self.failed.take();
        match self.finish() {
            Ok(sample) => (Some(sample), failed),
            Err(why) => (None, failed.or(Some(why))),
        }
    }

    /// Returns true if the measurement continues. A measurement contains at least one slice, regardless of the duration
    /// of a call.
    fn goes_on(&self, now_ns: u64) -> bool {
        self.failed.is_none() && (now_ns < self.end_ns || self.rates.is_empty())
    }
}

pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LONGEST_NS, DIGITS)
        .unwrap_or_else(|_| unreachable!("{DIGITS} digits are in range"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn warm_up_does_not_count_and_rate_is_median_over_slices() {
        let mut recorder = Recorder::new(100 * MS);
        // One call takes place every 0.1 ms, with one stall of 30 ms.
        let mut now = 0;
        loop {
            let due = now;
            now += if now == 50 * MS { 30 * MS } else { MS / 10 };
            if !recorder.ended(due, now) {
                break;
            }
        }
        let mean = recorder.clone().mean(true).finish().unwrap();
        let sample = recorder.finish().unwrap();
        assert!((mean.per_s - 7_010.0).abs() < 1.0, "{}", mean.per_s);
        assert!((sample.per_s - 10_000.0).abs() < 1.0, "{}", sample.per_s);
        assert_eq!(sample.times.value_at_quantile(0.5) / 1000, 100);
        // One call takes 30 of the 100 measured milliseconds.
        assert_eq!(sample.times.len(), 702);
    }

    #[test]
    fn server_stall_adds_latency_to_every_due_call() {
        // In this open loop, one call begins each millisecond, and the server stalls for 50 ms.
        let mut recorder = Recorder::new(200 * MS);
        let mut free = 0;
        for call in 0_u64.. {
            let due = call * MS;
            free = free.max(due) + if call == 100 { 50 * MS } else { MS / 10 };
            if !recorder.ended(due, free) {
                break;
            }
        }
        let sample = recorder.finish().unwrap();
        // More than 40 of 200 calls wait for at least 10 ms. In a closed loop, only one would.
        assert!(sample.times.value_at_quantile(0.8) > 10 * MS, "{}", sample.times.value_at_quantile(0.8));
    }

    #[test]
    fn call_longer_than_measurement_is_still_measured() {
        let mut recorder = Recorder::new(MS);
        assert!(recorder.ended(0, 10 * MS), "it began before the warm-up ended");
        assert!(!recorder.ended(10 * MS, 20 * MS));
        assert!((recorder.finish().unwrap().per_s - 100.0).abs() < 0.1);
    }

    #[test]
    fn failure_ends_measurement_and_is_its_result() {
        let mut recorder = Recorder::new(MS);
        recorder.failed("first".to_owned());
        recorder.failed("second".to_owned());
        assert!(!recorder.ended(0, 1));
        assert_eq!(recorder.finish().unwrap_err(), "first");
        assert!(Recorder::new(MS).finish().unwrap_err().contains("--seconds"));
    }

    #[test]
    fn failure_keeps_earlier_measurements() {
        let mut recorder = Recorder::new(100 * MS);
        let mut now = 0;
        while now < 60 * MS {
            recorder.ended(now, now + MS);
            now += MS;
        }
        recorder.failed("gone".to_owned());
        let (sample, failed) = recorder.finish_partly();
        assert!((sample.unwrap().per_s - 1000.0).abs() < 1.0);
        assert_eq!(failed.as_deref(), Some("gone"));
        let (sample, failed) = Recorder::new(MS).finish_partly();
        assert!(sample.is_none() && failed.unwrap().contains("too few"));
    }
}
