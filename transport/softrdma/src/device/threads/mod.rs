//! Threads that work in a device: when they work, sleep and wake each other.
//!
//! `progress` holds the words that hand a shard's work from thread to thread, `background` the shard's
//! thread, `wait` the sleep of a program's thread. `wake_up` and `signal` wake them.
#![forbid(unsafe_code)]

pub(super) mod background;
pub(super) mod progress;
pub(super) mod signal;
pub(super) mod wait;
pub(super) mod wake_up;
