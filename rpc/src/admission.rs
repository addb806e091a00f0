//! What a call does for which there is no room.

/// What a call does when as many calls are under way, or as much waits to be sent, as the limits of its node allow; see
/// [`CallOptions::admission`](crate::CallOptions::admission).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Admission {
    /// It waits for room, at most until its time limit.
    #[default]
    Wait,
    /// It fails at once.
    Try,
}
