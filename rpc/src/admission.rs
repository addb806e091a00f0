//! Admission of a call when a limit of its node is reached.

/// The behaviour of a call when a limit of its node on calls in flight or queued messages is reached. See
/// [`CallOptions::admission`](crate::CallOptions::admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// Waits for room, at most until the call's time limit.
    #[default]
    Wait,
    /// Fails at once.
    Try,
}
