//! Why the handler of a service cannot be made. Pollers return it, and it ends the start of their node.

/// Why a handler cannot be made.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// A service whose handler cannot be made on a poller.
#[derive(Debug, thiserror::Error)]
#[error("the handler of {service} cannot be made: {cause}")]
pub(crate) struct NotMade {
    pub(crate) service: &'static str,
    pub(crate) cause: Cause,
}
