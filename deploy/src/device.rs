//! `trunkctl device`: takes software devices away under their users, and puts them back.
//!
//! For trying what a program does when its RDMA device is removed, without one: devices that were
//! opened with `TRUNKLINE_REMOVABLE=on` and this runtime directory obey, also below the drop-in
//! libraries.

use clap::{Args, Subcommand};
use std::net::IpAddr;
use std::process::ExitCode;
use trunkline_softrdma::device::{put_back, take_away};

/// What to do with devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Take devices away, as `rdma link delete` does: their users are told, and all they have of them
    /// answers EIO. Obeyed within a tenth of a second by programs that run with
    /// TRUNKLINE_REMOVABLE=on
    Remove(Which),
    /// Put devices back
    Restore(Which),
}

/// Which devices.
#[derive(Debug, Args)]
pub struct Which {
    /// That at this address; all of this user and network namespace when it is not given
    address: Option<IpAddr>,
}

/// Does it. 1 when there was nothing to do, or it could not be done.
#[must_use]
pub fn run(command: &DeviceCommand) -> ExitCode {
    let done = match command {
        DeviceCommand::Remove(which) => take_away(None, which.address),
        DeviceCommand::Restore(which) => put_back(None, which.address),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => {
            eprintln!("trunkctl: nothing to do: that was done before");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("trunkctl: {error}");
            ExitCode::FAILURE
        }
    }
}
