//! Counters, health and telemetry of a node.

pub(crate) mod counted;
pub mod health;
#[cfg(feature = "opentelemetry")]
pub(crate) mod otel;
#[cfg(feature = "metrics")]
pub(crate) mod published;
pub(crate) mod recorder;
