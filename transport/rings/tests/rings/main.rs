//! The rings and what wakes their owners, from plain threads. The loom models are in `src/models.rs`.

mod cell;
mod spsc;
mod wakeups;
