//! Figures that other systems report.

/// Results of one measurement of a system. Other projects' programs do not report all values.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct Figures {
    /// Nanoseconds of a round trip.
    pub(crate) p50_ns: Option<f64>,
    pub(crate) p99_ns: Option<f64>,
    pub(crate) mean_ns: Option<f64>,
    /// Requests, or messages in one direction, per second.
    pub(crate) per_s: Option<f64>,
}
