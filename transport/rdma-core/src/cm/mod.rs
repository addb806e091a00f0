//! The rdma_cm endpoints of [`trunkline_verbs`], over librdmacm.
//!
//! | file | contents |
//! |---|---|
//! | `manager` | the table of a device's endpoints, and the creation of endpoints |
//! | `resolver` | the threads that resolve peers and create endpoints to them |
//! | `endpoint` | `rdma_create_ep`, the only librdmacm call that waits for the network |
//! | `id` | an endpoint |
//! | `bring_up` | the states of an attached QP |
//! | `channel` | the descriptor that signals events of endpoints, and the functions that read them |
//! | `progress` | translation of librdmacm's events to the program's events |
//! | `event` | copies of librdmacm's events |
//! | `address`, `error` | conversions |
//!
//! Each device has one [`Manager`]. Programs use the traits.
//!
//! Rules for this module:
//!
//! - An id's C structure is accessed only with the manager's lock held. The exception is its destruction, which happens
//!   after the id is removed from the table. Code under the lock does not wait for the network.
//! - An event is copied and acknowledged before the lock is released. An id therefore has no unacknowledged events when it
//!   is destroyed, and its destruction does not wait.
//! - The context pointer of an id is its number. It is never dereferenced.
//! - QPs are not passed to librdmacm, because it could use them at any time, even after their destruction. Instead,
//!   `bring_up` performs librdmacm's steps for an id with a QP, and prevents the QP's destruction during these steps.

mod address;
mod bring_up;
mod channel;
mod endpoint;
mod error;
mod event;
mod id;
mod manager;
mod progress;
mod resolver;

pub use endpoint::device_for;
pub(crate) use manager::Manager;
