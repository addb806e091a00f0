//! Operator tools: the library behind `trunkctl`.
//!
//! Each subcommand is a module with its arguments and a `run`; [`cli`] only chooses. What a
//! subcommand finds goes to standard output, progress and errors go to standard error.

#![forbid(unsafe_code)]

pub mod cli;
pub mod device;
pub mod pcap_check;
