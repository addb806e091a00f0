//! The tasks of a poller: which ones are ready, and the tasks that run alongside handlers.

mod ready;
mod tasks;

pub(crate) use ready::{Ready, TaskId, TaskWaker, Turn};
pub(crate) use tasks::Tasks;
