//! Tasks of a poller: which are ready, and what runs beside handlers.

mod context;
mod ready;
mod spare;
mod tasks;

pub use context::PollerContext;
pub(crate) use context::Spawn;
pub(crate) use ready::{Ready, TaskId, TaskWaker};
pub(crate) use spare::Spare;
pub(crate) use tasks::Tasks;
