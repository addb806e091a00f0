//! Sessions, which two nodes establish before they exchange messages.
//!
//! [`machine`] decides, without I/O. [`private_data`] is carried in the connection manager's messages. [`cm_machine`]
//! executes the decisions, with the [`endpoints`] and the [`peers`] that it owns. It dials ([`dialling`]), checks
//! requests ([`requests`]) and their proof ([`proof`]), accepts them ([`accepting`]), and handles connection events
//! ([`events`]) and handshakes (`handshaking`, `renewing`, `proving`).
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
