//! The worker pool of a node: where `#[offload]` and `#[blocking]` methods run, so that no poller waits for them.
//!
//! ```text
//!   poller                          pool                                    worker (a machine)
//!   the stub's future submits  ---> queue, bounded by peer, host and all --> begins the oldest job
//!   its ticket, when dropped   ---> takes the job out, or marks it          an offloaded future is dropped at its next poll
//!   is completed               <---------------------------------------- finishes: the outcome of the handler
//! ```
//!
//! The poller decodes arguments and encodes the reply; the pool has only the handler's future. A job is counted in the queue
//! until a worker begins it. An offloaded future may be polled by any worker; between two polls it occupies none. A blocking
//! one stays on its worker until it ends, even when its caller has gone.
//!
//! | file | what it is |
//! |---|---|
//! | `shared` | the queue, the workers' stages, and who wakes whom |
//! | `worker` | the machine: begins jobs, polls them, fires timers |
//! | `work` | a handler's future with its context and its waiter |
//! | `offloaded` | an offloaded future between its polls |
//! | `ticket` | the poller's half of a job |
//! | `handle` | what generated code submits jobs by |
//! | `threads` | the workers' threads, for the node that ends them |
//!
//! Nothing here is on the path of a method that is neither. Nothing blocks but the program's code.

mod handle;
mod offloaded;
mod shared;
mod threads;
mod ticket;
mod work;
mod worker;

pub use handle::Pool;
pub(crate) use shared::{PoolSettings, SharedPool};
pub(crate) use threads::PoolThreads;
pub use ticket::Ticket;
