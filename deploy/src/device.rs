//! `trunkctl device`: lists software devices, removes those that are in use, and restores them.
//!
//! This tests how a program handles the removal of its RDMA device without such a device. It affects devices
//! that were opened with `TRUNKLINE_REMOVABLE=on` and this runtime directory, also by the drop-in
//! libraries.

use clap::{Args, Subcommand};
use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use trunkline_softrdma::device::{DeviceList, HostError, list_devices, put_back, take_away};

/// The operation on devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the addresses at which devices of this user and network namespace are in use or removed, and how many
    /// devices are in use at each. A device uses an address while it has a listener or a QP there
    List,
    /// Remove devices, as `rdma link delete` does: their users get an event, and all calls on them return
    /// EIO. This takes effect within a tenth of a second in programs that run with TRUNKLINE_REMOVABLE=on, and in those
    /// that start before the devices are restored. Fails if no device is in use there
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
    match outcome(command, None) {
        Ok(text) => {
            // It is done, whether anybody reads about it or not.
            let _closed = writeln!(io::stdout(), "{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("trunkctl: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns what to print. `directory` is the runtime directory; `None` is the environment's choice.
fn outcome(command: &DeviceCommand, directory: Option<&Path>) -> Result<String, String> {
    let text = |error: HostError| error.to_string();
    let list = || list_devices(directory).map_err(text);
    match command {
        DeviceCommand::List => Ok(table(&list()?)),
        DeviceCommand::Remove(which) => {
            let DeviceList { in_use, away, all_away, .. } = list()?;
            let is_away =
                all_away || which.address.is_some_and(|address| away.contains(&address.to_canonical()));
            if is_away {
                return Err(format!("{which}: removed before"));
            }
            let is_in_use = match which.address {
                Some(address) => in_use.contains_key(&address.to_canonical()),
                None => !in_use.is_empty(),
            };
            if !is_in_use {
                let others: Vec<_> = in_use.keys().map(ToString::to_string).collect();
                let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
                return Err(format!("{which}: not in use; devices in use: {others}"));
            }
            take_away(directory, which.address).map_err(text)?;
            Ok(format!("removed: {which}"))
        }
        DeviceCommand::Restore(which) => match put_back(directory, which.address).map_err(text)? {
            true => Ok(format!("restored: {which}")),
            false => Err(format!("{which}: not removed")),
        },
    }
}

/// One line for each address.
fn table(list: &DeviceList) -> String {
    let addresses: BTreeSet<_> = list.in_use.keys().chain(&list.away).collect();
    let line = |address: &&IpAddr| {
        let opened = list.in_use.get(*address).copied().unwrap_or_default();
        let state = if list.all_away || list.away.contains(*address) { "removed" } else { "present" };
        format!("{:<39} {state:<8} {opened:>7}", address.to_string())
    };
    let mut lines = vec![format!("{:<39} {:<8} {:>7}", "ADDRESS", "STATE", "DEVICES")];
    lines.extend(addresses.iter().map(line));
    if list.all_away {
        lines.push("all removable devices are removed; `trunkctl device restore` restores them".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use trunkline_softrdma::device::{SoftDevice, SoftOptions};
    use trunkline_verbs::{Device as _, PortSpace, QpType};

    #[test]
    fn only_devices_that_are_there_are_removed_and_all_are_listed() {
        let directory = std::env::temp_dir().join(format!("trunkctl-device-{}", std::process::id()));
        let [here, elsewhere]: [IpAddr; 2] =
            ["127.83.7.1", "127.83.7.2"].map(|text| text.parse().expect("an address"));
        let run = |command: &DeviceCommand| outcome(command, Some(&directory));
        let remove = |address| run(&DeviceCommand::Remove(Which { address }));
        let restore = |address| run(&DeviceCommand::Restore(Which { address }));
        for address in [None, Some(here)] {
            let error = remove(address).expect_err("nothing is open");
            assert!(error.contains("not in use; devices in use: none"), "{error}");
        }
        assert!(restore(None).expect_err("nothing is removed").contains("not removed"));
        let options = SoftOptions {
            addresses: vec![here],
            runtime_directory: Some(directory.clone()),
            ..SoftOptions::default()
        };
        let device = SoftDevice::open(options).expect("a device");
        // A device takes an address with its first listener or QP there.
        let manager = device.connection_manager();
        let channel = manager.create_channel().expect("a channel");
        let listener = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel).expect("an endpoint");
        listener.bind(SocketAddr::new(here, 0)).expect("a port");
        listener.listen(1).expect("a listener");
        let listed = |state: &str| {
            let table = run(&DeviceCommand::List).expect("a list");
            table.lines().any(|line| line.split_whitespace().eq(["127.83.7.1", state, "1"]))
        };
        assert!(listed("present"));
        let error = remove(Some(elsewhere)).expect_err("another address");
        assert!(error.contains("127.83.7.2: not in use; devices in use: 127.83.7.1"), "{error}");
        for address in [Some(here), None] {
            assert!(remove(address).expect("it is there").starts_with("removed: "));
            assert!(listed("removed"));
            assert!(remove(address).expect_err("once only").contains("removed before"));
            assert!(restore(address).expect("it was removed").starts_with("restored: "));
        }
        drop((listener, channel, device));
        std::fs::remove_dir_all(&directory).expect("ours");
    }
}
