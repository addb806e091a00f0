//! Handlers need their call's deadline, peer and cancellation without passing them through every function. The
//! dispatcher sets the current call around each poll of a handler, and [`Context::scope`] around polls of other
//! futures. Calls inherit their deadline from it. Nothing here blocks.

mod ambient;
mod call;
mod current;
mod peer;
mod poller;
mod scoped;

pub(crate) use ambient::{Entered, InPool, Inherited, Scope, current_timers, inherited};
pub use call::{Cancelled, Context, Draining};
pub(crate) use current::CurrentCall;
pub use peer::Peer;
pub use poller::PollerContext;
pub(crate) use poller::{Spawn, Task};
pub use scoped::Scoped;
