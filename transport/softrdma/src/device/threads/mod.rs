//! Work, sleep and wake-ups of the threads in a device.
//!
//! `progress` contains the words that hand a shard's work from thread to thread, `background` is the shard's machine,
//! and `wait` is the sleep of a program's thread. `wake_up` and `signal` wake these threads.
#![forbid(unsafe_code)]

pub(super) mod background;
pub(super) mod progress;
pub(super) mod signal;
pub(super) mod wait;
pub(super) mod wake_up;
