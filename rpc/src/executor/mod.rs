//! Tasks on a poller, with their ready queue, spawning, sleeping and yielding.

mod futures;
pub(crate) mod inbox;
pub(crate) mod on_poller;
pub(crate) mod pool;
pub(crate) mod running_handler;
pub(crate) mod runtime_guard;
mod tasks;
pub(crate) mod timers;
pub(crate) mod wait;
pub(crate) mod wakes;
pub(crate) mod watchdog;

pub use futures::{Elapsed, Sleep, block_on, sleep, timeout};
pub(crate) use tasks::{Ready, TaskId, TaskWaker, Tasks, Turn};
pub use tasks::{Spawned, Yielded, spawn, yield_now};
