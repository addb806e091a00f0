//! Requests of a node's machines to each other, and the handles of the machines.
//!
//! Every other module may use it. It holds queues and wakers and decides nothing: pollers perform
//! [`Command`]s, the CM machine performs [`CmCommand`]s, and neither waits for the other.
#![forbid(unsafe_code)]

mod cm;
mod handle;
mod poller;

pub(crate) use cm::{CmCommand, CmHandle, DialOutcome};
pub use handle::PollerHandle;
pub(crate) use poller::{Command, SessionUp};
