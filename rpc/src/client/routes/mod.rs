//! A channel's target can be a name, several addresses or a resolver. Its calls wait until it is resolved and connected.
//!
//! ```text
//! Channel ──► Link ──► Route: where the server is, or why it cannot be reached    (any thread, under a lock)
//!                        │  ▲
//!        calls that wait │  │ rounds: look up, try each address, publish
//!                        ▼  │
//!               Parked (each poller)      Connector (the node's first poller) ──► Lookups: threads, or tasks of a simulation
//! ```
//!
//! While a route is up, a poller finds its address in its own tables, and a call costs as much as one to an
//! address. Otherwise the call waits in its poller, and the first poller makes a *round*: it looks up the addresses,
//! and tries them in turn until a session is up. Only the threads that look up names block.

mod balance;
mod connector;
mod failure;
pub(crate) mod id;
mod link;
mod lookups;
mod parked;
mod pollers;
mod ready;
mod resolve;
mod round;
mod route;
mod table;
mod target;

pub use balance::{Balance, Policy};
pub(crate) use balance::{Balanced, Chosen, Tried};
pub(crate) use connector::Connector;
pub(crate) use link::Link;
pub(crate) use lookups::Lookups;
pub(crate) use parked::Parked;
pub(crate) use pollers::Pollers;
pub use ready::Ready;
pub use resolve::{AddressWatcher, Dns, Resolve, ResolveError, Resolving, ServerList};
pub(crate) use table::{Routes, Started};
pub use target::Target;
pub(crate) use target::misuse;
