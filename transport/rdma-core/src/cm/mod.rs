//! The rdma_cm endpoints of [`trunkline_verbs`], over librdmacm.
//!
//! | file | owns |
//! |---|---|
//! | `manager` | the table of a device's endpoints, and the creation of endpoints |
//! | `resolver` | the threads that resolve peers and create endpoints to them |
//! | `endpoint` | `rdma_create_ep`, the one call of librdmacm that waits for the network |
//! | `id` | an endpoint |
//! | `bring_up` | the states of an attached QP |
//! | `channel` | the descriptor that announces the events of endpoints, and their readers |
//! | `progress` | translation of librdmacm's events to the program's: requests become endpoints, QPs are brought up |
//! | `event` | copies of librdmacm's events |
//! | `address`, `error` | conversions |
//!
//! Each device has one [`Manager`]. Programs use the traits.
//!
//! Rules for this module:
//!
//! - An id's C structure is accessed only with the manager's lock held, except for its destruction, which
//!   happens after the id is removed from the table. Code under that lock does not wait for the network.
//! - An event is copied and acknowledged before the lock is released. So an id never has an
//!   unacknowledged event when it is destroyed, and its destruction does not wait.
//! - The context pointer of an id is its number and is never followed.
//! - librdmacm is not given the QPs, since it would use them at any time, even after they are destroyed.
//!   Instead, `bring_up` performs librdmacm's steps for an id with a QP, and keeps the QP from being
//!   destroyed during them.

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
