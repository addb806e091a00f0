//! Registered memory: receive slots, send slots, and blocks for large messages.
//!
//! Contains all memory that the device accesses, and all `unsafe` code of this crate. The types allow slices only of
//! memory that the device is not writing to. Called by pollers. Received messages and the application's buffers return
//! here when they are dropped, on any thread.

mod block;
mod body;
mod received;
mod registered;
mod short;
mod slots;

#[cfg(test)]
pub(crate) use block::pool;
pub(crate) use block::{Block, BlockPool, MOST_WRITING, NotNow};
pub use body::Body;
pub(crate) use received::{ReceiveSlots, Received};
pub use registered::RegisteredBuffer;
pub(crate) use registered::{Announced, Registry};
pub(crate) use slots::SendSlots;
