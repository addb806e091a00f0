//! Publishes call metrics through the `metrics` facade, for programs that export metrics.
//!
//! Histograms use the names and units of OpenTelemetry's conventions for RPC, and the span attributes of the feature
//! `opentelemetry`. The conventions count failures only in duration histograms. Failures are therefore also published as
//! counters, with the names of `NodeReport::prometheus`.

use metrics::{Counter, Histogram, Label, Unit};
use std::fmt;
use std::sync::OnceLock;

const NS_PER_S: f64 = 1e9;

/// The metrics of one method on one side of one poller. They use the recorder that is installed when the method is added.
pub(crate) struct Published<const CODES: usize> {
    /// `server` or `client`.
    side: &'static str,
    /// Service and method.
    name: (&'static str, &'static str),
    duration: Histogram,
    refused: Counter,
    /// Counters of failures, by code. Each is created at the first failure with its code.
    failed: [OnceLock<Counter>; CODES],
}

impl<const CODES: usize> Published<CODES> {
    pub(crate) fn new(side: &'static str, name: (&'static str, &'static str)) -> Self {
        let duration = format!("rpc.{side}.call.duration");
        let (refused, failed) = (format!("trunkline.{side}.calls.refused"), name_of_failures(side));
        metrics::describe_histogram!(duration.clone(), Unit::Seconds, "Time of calls that were not refused.");
        metrics::describe_counter!(refused.clone(), Unit::Count, "Calls that ended before they began.");
        metrics::describe_counter!(failed, Unit::Count, "Calls that have failed, by code.");
        Self {
            side,
            name,
            duration: metrics::histogram!(duration, labels(name)),
            refused: metrics::counter!(refused, labels(name)),
            failed: [const { OnceLock::new() }; CODES],
        }
    }

    /// Records the duration of a call.
    pub(crate) fn ended(&self, ns: u64) {
        #[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
        self.duration.record(ns as f64 / NS_PER_S);
    }

    /// Counts a call that ended before it began.
    pub(crate) fn refused(&self) {
        self.refused.increment(1);
    }

    /// Counts a failure. `at` and `code` are the index and the name of its code.
    pub(crate) fn failed(&self, at: usize, code: &'static str) {
        let Some(counter) = self.failed.get(at) else { return };
        let register = || {
            let mut labels = labels(self.name);
            labels.push(Label::from_static_parts("rpc.response.status_code", code));
            metrics::counter!(name_of_failures(self.side), labels)
        };
        counter.get_or_init(register).increment(1);
    }
}

fn name_of_failures(side: &str) -> String {
    format!("trunkline.{side}.calls.failed")
}

fn labels((service, method): (&'static str, &'static str)) -> Vec<Label> {
    // Methods that the node does not serve have an empty service name.
    let separator = if service.is_empty() { "" } else { "/" };
    let method = Label::new("rpc.method", format!("{service}{separator}{method}"));
    vec![Label::from_static_parts("rpc.system.name", "trunkline"), method]
}

impl<const CODES: usize> fmt::Debug for Published<CODES> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("name", &self.name).finish_non_exhaustive()
    }
}
