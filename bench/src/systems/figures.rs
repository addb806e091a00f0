//! Figures that other systems report.

use crate::meter::recorder::Sample;

/// Results of one measurement of a system. Programs of other projects do not report all values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Figures {
    /// Median round-trip time, in nanoseconds.
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) mean_ns: Option<f64>,
    /// Requests per second, or messages per second in one direction.
    pub(crate) per_s: Option<f64>,
}

impl Figures {
    pub(crate) fn of(Sample { times, per_s }: &Sample) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
        let at = |quantile| Some(times.value_at_quantile(quantile) as f64);
        Self { p50_ns: at(0.5), p99_ns: at(0.99), mean_ns: Some(times.mean()), per_s: Some(*per_s) }
    }
}
