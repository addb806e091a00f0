//! The worker pool of a node. It runs `#[offload]` and `#[blocking]` methods, which must not occupy a poller.
//!
//! ```text
//!   poller                            pool                                     worker (a machine)
//!   submits the stub's future    ---> queue, bounded by peer, host and all --> begins the oldest job
//!   drops the ticket             ---> removes or marks the job                 drops an offloaded future at its next poll
//!   completes the ticket         <-------------------------------------------- passes on the handler's outcome
//! ```
//!
//! The poller decodes arguments and encodes the reply. The pool only polls the handler's future. A job counts as queued
//! until a worker begins it. Any worker may poll an offloaded future, which releases the worker between polls. A blocking
//! future stays on its worker until it ends, even if its caller has gone.
//!
//! Methods without these attributes do not use this module. Only code of the program blocks.

mod shared;
mod threads;
mod ticket;
mod work;
mod worker;

pub(crate) use shared::{PoolSettings, SharedPool};
pub(crate) use threads::PoolThreads;
pub use ticket::{Pool, Ticket};
