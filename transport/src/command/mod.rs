//! What the machines of a node ask of each other, and the handles that they are reached by.
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
