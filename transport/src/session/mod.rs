//! Sessions: what two nodes agree on before messages flow, and how they come to agree.
//!
//! [`machine`] decides (pure, no I/O), [`private_data`] is what travels in the connection
//! manager's messages, [`cm_machine`] performs, with the [`endpoints`] and the [`peers`] that it owns: it
//! dials ([`dialling`]), judges requests ([`requests`]) by the proof that they carry ([`proof`]), accepts them ([`accepting`]) and takes the events of
//! connections ([`events`]).
//! Pollers learn of sessions by commands and never wait for one.

mod absence;
mod accepting;
mod awaited_packets;
mod backoff;
pub(crate) mod cm_machine;
mod dialling;
mod endpoints;
mod events;
pub(crate) mod machine;
mod peers;
pub(crate) mod private_data;
mod proof;
mod requests;
