//! Provides a call's deadline, peer and cancellation to all functions that its handler calls. The dispatcher sets the
//! current call for each poll of a handler, and [`Context::scope`] for polls of other futures. Nested calls inherit the
//! deadline of the current call. This module never blocks.

mod ambient;
mod call;
mod current;
mod poller;

pub use ambient::Scoped;
pub(crate) use ambient::{Entered, InPool, Scope, current_timers, inherited};
pub use call::{Cancelled, Context, Draining, Peer};
pub(crate) use current::{CurrentCall, Inherited};
pub use poller::PollerContext;
pub(crate) use poller::{Spawn, Task};
