//! Tasks of a poller: the ready queue, spawning, sleeping and yielding, for handlers and for tasks alongside them.

mod elapsed;
mod ready;
mod sleeping;
mod spawned;
mod tasks;
mod time_limit;
mod yielded;

pub use elapsed::Elapsed;
pub(crate) use ready::{Ready, TaskId, TaskWaker, Turn};
pub use sleeping::{Sleep, sleep};
pub use spawned::{Spawned, spawn};
pub(crate) use tasks::Tasks;
pub use time_limit::timeout;
pub use yielded::{Yielded, yield_now};
