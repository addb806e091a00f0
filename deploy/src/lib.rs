//! The library behind `trunkctl`, the operator tool.
//!
//! Each subcommand is a module with its arguments and a `run` function, which [`cli`] calls. Subcommands write their
//! results to standard output, and progress and errors to standard error.

#![forbid(unsafe_code)]

pub mod cli;
pub mod client;
pub mod device;
pub mod doctor;
pub mod health;
#[cfg(feature = "identity")]
pub mod keys;
pub mod nodes;
pub mod pcap_check;
pub mod ping;
pub mod policy;
pub mod record;
mod setup_log;
mod streams;
pub mod top;
