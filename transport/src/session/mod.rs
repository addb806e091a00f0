//! Sessions: the agreement between two nodes before messages flow, and the handshake that reaches it.
//!
//! [`machine`] decides, without I/O. [`private_data`] is carried in the connection manager's messages.
//! [`cm_machine`] performs, with the [`endpoints`] and the [`peers`] that it owns: it dials ([`dialling`]),
//! judges requests ([`requests`]) by their proof ([`proof`]), accepts them ([`accepting`]) and handles the
//! events of connections ([`events`]) and the handshakes (`handshaking`, `renewing`, `proving`).
//!
//! Pollers receive sessions through commands and never wait for one.

mod absence;
mod accepting;
mod awaited_packets;
mod backoff;
pub(crate) mod cm_machine;
mod dialling;
mod endpoints;
mod events;
#[cfg(feature = "identity")]
mod handshaking;
pub(crate) mod machine;
mod peers;
pub(crate) mod private_data;
mod proof;
#[cfg(feature = "identity")]
mod proving;
#[cfg(feature = "identity")]
mod renewing;
mod requests;
