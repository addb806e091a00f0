//! Commands between a node's machines, and the handles of the machines.
//!
//! Every other module may use this. It holds queues and wakers and decides nothing: pollers perform
//! [`Command`]s, the CM machine performs [`CmCommand`]s, and neither waits for the other.
#![forbid(unsafe_code)]

mod cm;
mod handle;
mod poller;

pub(crate) use cm::{CmCommand, CmHandle, DialOutcome};
pub use handle::PollerHandle;
pub(crate) use poller::{Command, SessionUp};
