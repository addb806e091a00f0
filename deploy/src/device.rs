//! `trunkctl device`: removes software devices that are in use, and restores them.
//!
//! This tests how a program handles the removal of its RDMA device without such a device. It affects devices
//! that were opened with `TRUNKLINE_REMOVABLE=on` and this runtime directory, also by the drop-in
//! libraries.

use clap::{Args, Subcommand};
use std::fmt;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::process::ExitCode;
use trunkline_softrdma::device::{put_back, take_away};

/// The operation on devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// Remove devices, as `rdma link delete` does: their users get an event, and all calls on them return
    /// EIO. It affects programs that run with TRUNKLINE_REMOVABLE=on, within a tenth of a second, and those that are
    /// started before the devices are restored
    Remove(Which),
    /// Restore devices that were removed
    Restore(Which),
}

/// Selects the devices.
#[derive(Debug, Args)]
pub struct Which {
    /// The device at this address; by default all devices of this user and network namespace
    address: Option<IpAddr>,
}

impl fmt::Display for Which {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(address) => write!(f, "the software device at {address}"),
            None => f.write_str("all software devices of this user and network namespace"),
        }
    }
}

/// Runs the operation. Exit status 1 if there was nothing to do or it failed.
#[must_use]
pub fn run(command: &DeviceCommand) -> ExitCode {
    let (done, which, verb, nothing) = match command {
        DeviceCommand::Remove(which) => {
            (take_away(None, which.address), which, "removed", "they were removed before")
        }
        DeviceCommand::Restore(which) => {
            (put_back(None, which.address), which, "restored", "none of them was removed")
        }
    };
    match done {
        Ok(true) => {
            // It is done, whether anybody reads about it or not.
            let _closed = writeln!(io::stdout(), "{verb}: {which}");
            ExitCode::SUCCESS
        }
        Ok(false) => {
            eprintln!("trunkctl: nothing to do: {nothing}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("trunkctl: {error}");
            ExitCode::FAILURE
        }
    }
}
