//! Tasks of a poller: the ready queue, spawning, sleeping and yielding, for handlers and for tasks alongside them.

pub(crate) mod block_on;
mod elapsed;
pub(crate) mod inbox;
pub(crate) mod on_poller;
pub(crate) mod pool;
mod ready;
pub(crate) mod runtime_guard;
mod sleeping;
mod spawned;
mod tasks;
pub(crate) mod waking;
pub(crate) mod watchdog;
mod yielded;

pub use elapsed::{Elapsed, timeout};
pub(crate) use ready::{Ready, TaskId, TaskWaker, Turn};
pub use sleeping::{Sleep, sleep};
pub use spawned::{Spawned, spawn};
pub(crate) use tasks::Tasks;
pub use yielded::{Yielded, yield_now};
