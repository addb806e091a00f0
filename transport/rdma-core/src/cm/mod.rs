//! Connections: the rdma_cm endpoints of [`trunkline_verbs`] over librdmacm.
//!
//! | file | owns |
//! |---|---|
//! | `manager` | what all endpoints of a device share, the table of endpoints, and how they are made |
//! | `resolver` | the threads that look for the way to a peer |
//! | `endpoint` | `rdma_create_ep`, the one call of librdmacm that waits |
//! | `id` | an endpoint |
//! | `bring_up` | the states of an attached QP |
//! | `channel` | where endpoints report: one descriptor for all of them |
//! | `event` | copies of librdmacm's events |
//! | `address`, `error` | their forms in C |
//!
//! Called by the device, which has one [`Manager`]; what programs see are the traits.
//!
//! Rules that hold everywhere here:
//! - An id's C structure is touched under the manager's lock alone, but for its destruction, which
//!   comes after it left the table. Nothing that waits for the network is done under that lock.
//! - An event is copied and acknowledged before the lock is given back, so an id that is destroyed
//!   never has one outstanding, and its destruction waits for nobody.
//! - The context pointer of an id is its number and is never followed.
//! - librdmacm is not told of QPs: it would use them when it pleases, also after they are destroyed.
//!   What it does for an id with a QP is done here, with the QP held (`bring_up`).

mod address;
mod bring_up;
mod channel;
mod endpoint;
mod error;
mod event;
mod id;
mod manager;
mod resolver;

pub use endpoint::device_for;
pub(crate) use manager::Manager;
