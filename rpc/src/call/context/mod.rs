//! Gives handlers access to their call's deadline, peer and cancellation without passing them through every function. The
//! dispatcher sets the current call around each poll of a handler, and [`Context::scope`] around polls of other futures. Nested
//! calls inherit the deadline of that call. This module never blocks.

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
