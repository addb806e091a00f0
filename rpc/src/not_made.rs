//! The error of a handler that cannot be created. Pollers return it, and the start of their node fails with it.

/// The error of a handler factory.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A service whose handler cannot be created on a poller.
#[derive(Debug, thiserror::Error)]
#[error("the handler of {service} cannot be made: {cause}")]
pub(crate) struct NotMade {
    pub(crate) service: &'static str,
    pub(crate) cause: Cause,
}
