//! Timers, and the ways in which threads and tasks wait and are woken.

pub(crate) mod timers;
pub(crate) mod wait;
pub(crate) mod waiters;
pub(crate) mod wakes;
