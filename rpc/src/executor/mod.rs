//! Tasks of a poller: the ready queue, spawning, sleeping and yielding, for handlers and for tasks alongside them.

pub(crate) mod inbox;
pub(crate) mod on_poller;
pub(crate) mod pool;
pub(crate) mod runtime_guard;
mod tasks;
pub(crate) mod timers;
pub(crate) mod wait;
pub(crate) mod wakes;
pub(crate) mod watchdog;

pub(crate) use tasks::{Ready, TaskId, TaskWaker, Tasks, Turn};
pub use tasks::{Spawned, Yielded, spawn, yield_now};
pub use timers::{Elapsed, Sleep, sleep, timeout};
