//! The rings and what wakes their owners, from plain threads. The loom models are in `src/models.rs`.

#![expect(clippy::disallowed_methods, reason = "rings connect real threads here")]

mod cell;
mod spsc;
mod wakeups;
