//! `trunkctl device`: lists, removes and restores software devices.
//!
//! Lets users test without RDMA hardware how a program handles the removal of an RDMA device. Affects devices opened with
//! `TRUNKLINE_REMOVABLE=on` in the same runtime directory, including devices of the drop-in libraries.

use crate::nodes::unless_absent;
use crate::streams::{finish, warn};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{DeviceList, HostError, list_devices, put_back, take_away};
use trunkline_verbs::VerbsError;

/// Time limit for devices to close. A removable device checks ten times a second whether it has been removed.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval at which the remaining devices are counted.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Operation on devices.
#[derive(Debug, Subcommand)]
pub enum DeviceCommand {
    /// List the addresses at which devices of this user and network namespace are in use or removed, and how many
    /// devices are in use at each. A device uses an address while it has a listener or a QP there
    List(Format),
    /// Remove devices, as `rdma link delete` does: their users get an event, and all calls on them return
    /// EIO. Only devices that were opened with TRUNKLINE_REMOVABLE=on can be removed. Programs with this setting cannot
    /// open the device until it is restored. Fails if no device is in use at the address, or if one stays in use for
    /// 3 seconds; if all stay in use, nothing is changed
    Remove(Which),
    /// Restore devices that were removed: programs can open them again. Fails if none was removed
    Restore(Which),
}

/// Output format of `list`.
#[derive(Debug, Args)]
pub struct Format {
    /// Print one JSON object: `devices`, each with `address`, `state` and `in_use`, and `all_removed`
    #[arg(long)]
    json: bool,
}

/// Selection of devices.
#[derive(Debug, Args)]
pub struct Which {
    /// The device at this address; by default all devices of this user and network namespace
    #[arg(value_parser = device_address)]
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

/// Parses the address of a device. Rejects link-local addresses, with or without an interface.
fn device_address(text: &str) -> Result<IpAddr, String> {
    let alone = text.split_once('%').map_or(text, |(address, _interface)| address);
    if let Ok(address) = alone.parse::<Ipv6Addr>() {
        VerbsError::check_scope(address.into()).map_err(|error| error.to_string())?;
    }
    text.parse().map_err(|_| "expected an IP address".to_owned())
}

/// Runs the operation. Returns exit status 1 if it had no effect or failed.
#[must_use]
pub fn run(command: &DeviceCommand) -> ExitCode {
    match outcome(command, None, PATIENCE) {
        Ok(text) => finish(&text, 0),
        Err(error) => {
            warn(error);
            ExitCode::FAILURE
        }
    }
}

/// Runs the operation and returns the text to print. `directory` is the runtime directory; `None` selects the default of
/// the environment. `patience` is the time limit for removed devices to close.
fn outcome(command: &DeviceCommand, directory: Option<&Path>, patience: Duration) -> Result<String, String> {
    let text = |error: HostError| error.to_string();
    let list = || list_devices(directory).map_err(text);
    let shown = || unless_absent(list_devices(directory), true, DeviceList::default).map_err(text);
    match command {
        DeviceCommand::List(Format { json: false }) => Ok(table(&shown()?)),
        DeviceCommand::List(Format { json: true }) => {
            serde_json::to_string(&Listing::new(&shown()?)).map_err(|error| error.to_string())
        }
        DeviceCommand::Remove(which) => {
            let found = list()?;
            let DeviceList { in_use, away, all_away, .. } = &found;
            let is_away =
                *all_away || which.address.is_some_and(|address| away.contains(&address.to_canonical()));
            if is_away {
                return Err(format!("{which}: removed before"));
            }
            let count = |list: &DeviceList| match which.address {
                Some(address) => list.in_use.get(&address.to_canonical()).copied().unwrap_or_default(),
                None => list.in_use.values().sum(),
            };
            let before = count(&found);
            if before == 0 {
                let others: Vec<_> = in_use.keys().map(ToString::to_string).collect();
                let others = if others.is_empty() { "none".to_owned() } else { others.join(", ") };
                return Err(format!("{which}: not in use; devices in use: {others}"));
            }
            take_away(directory, which.address).map_err(text)?;
            let until = Instant::now() + patience;
            let mut left = count(&list()?);
            while left > 0 && Instant::now() < until {
                thread::sleep(LOOK_EVERY);
                left = count(&list()?);
            }
            if left == 0 {
                return Ok(format!("removed: {which}"));
            }
            let why = "not opened with TRUNKLINE_REMOVABLE=on, or their programs do not run";
            if left < before {
                return Err(format!(
                    "{which}: {left} of {before} still in use: {why}; the others are removed"
                ));
            }
            put_back(directory, which.address).map_err(text)?;
            // If all devices are selected, `put_back` has also restored devices removed by address before. Remove them again.
            for address in away {
                take_away(directory, Some(*address)).map_err(text)?;
            }
            Err(format!("{which}: not removed, {left} in use: {why}"))
        }
        DeviceCommand::Restore(which) => match put_back(directory, which.address).map_err(text)? {
            true => Ok(format!("restored: {which}")),
            false => Err(format!("{which}: not removed")),
        },
    }
}

/// The device list, as JSON.
#[derive(Debug, Serialize)]
struct Listing {
    devices: Vec<AtAddress>,
    /// True if all removable devices are removed, including those at addresses that are not listed.
    all_removed: bool,
}

#[derive(Debug, Serialize)]
struct AtAddress {
    address: IpAddr,
    /// `present` if a device is in use, whether or not it is removable.
    state: &'static str,
    in_use: usize,
}

impl Listing {
    fn new(list: &DeviceList) -> Self {
        let addresses: BTreeSet<_> = list.in_use.keys().chain(&list.away).collect();
        let at = |address: &IpAddr| {
            let in_use = list.in_use.get(address).copied().unwrap_or_default();
            AtAddress { address: *address, state: if in_use > 0 { "present" } else { "removed" }, in_use }
        };
        Self { devices: addresses.into_iter().map(at).collect(), all_removed: list.all_away }
    }
}

/// Returns a table with one line per address.
fn table(list: &DeviceList) -> String {
    let Listing { devices, all_removed } = Listing::new(list);
    let line = |AtAddress { address, state, in_use }: &AtAddress| {
        format!("{:<39} {state:<8} {in_use:>7}", address.to_string())
    };
    let mut lines = vec![format!("{:<39} {:<8} {:>7}", "ADDRESS", "STATE", "DEVICES")];
    lines.extend(devices.iter().map(line));
    if all_removed {
        lines.push("all removable devices are removed; `trunkctl device restore` restores them".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use std::path::PathBuf;
    use std::sync::Arc;
    use trunkline_softrdma::device::{SoftDevice, SoftOptions};
    use trunkline_testkit::{Folder, fresh_ip};
    use trunkline_verbs::{Device as _, PortSpace, QpType};

    /// A runtime directory that is removed when dropped, and its path.
    struct Directory(#[expect(dead_code, reason = "it is removed when dropped")] Folder, PathBuf);

    impl Directory {
        fn new() -> Self {
            let folder = Folder::new().expect("a temporary directory");
            let runtime = folder.path().to_owned();
            Self(folder, runtime)
        }

        /// Runs an operation. `patience` is the time limit for devices to close.
        fn run(&self, command: &DeviceCommand, patience: Duration) -> Result<String, String> {
            outcome(command, Some(&self.1), patience)
        }

        fn restore(&self, address: Option<IpAddr>) -> Result<String, String> {
            self.run(&DeviceCommand::Restore(Which { address }), Duration::ZERO)
        }

        /// Returns true if the list has this line. Asserts that the JSON agrees.
        fn lists(&self, address: IpAddr, state: &str, in_use: usize) -> bool {
            let list =
                |json| self.run(&DeviceCommand::List(Format { json }), Duration::ZERO).expect("a list");
            let expected = [address.to_string(), state.to_owned(), in_use.to_string()];
            let is_in_table = list(false).lines().any(|line| line.split_whitespace().eq(&expected));
            let json: serde_json::Value = serde_json::from_str(&list(true)).expect("JSON");
            let object =
                serde_json::json!({"address": address.to_string(), "state": state, "in_use": in_use});
            let is_in_json = json["devices"].as_array().expect("devices").contains(&object);
            assert_eq!(is_in_table, is_in_json, "{json}");
            is_in_table
        }

        /// Opens a device that listens at `address`.
        fn device(&self, address: IpAddr, removable: bool) -> (impl Sized + use<>, Arc<SoftDevice>) {
            let options = SoftOptions {
                addresses: vec![address],
                runtime_directory: Some(self.1.clone()),
                removable,
                ..SoftOptions::default()
            };
            let device = SoftDevice::open(options).expect("a device");
            let manager = device.connection_manager();
            let channel = manager.create_channel().expect("a channel");
            let listener = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel).expect("an endpoint");
            listener.bind(SocketAddr::new(address, 0)).expect("a port");
            listener.listen(1).expect("a listener");
            ((listener, channel), device)
        }
    }

    /// Returns two addresses that no other test uses.
    fn addresses() -> [IpAddr; 2] {
        [(); 2].map(|()| fresh_ip().into())
    }

    fn remove(address: Option<IpAddr>) -> DeviceCommand {
        DeviceCommand::Remove(Which { address })
    }

    #[test]
    fn removable_devices_in_use_are_removed_and_listed() {
        let directory = Directory::new();
        let [here, elsewhere] = addresses();
        let patience = Duration::from_secs(60);
        for address in [None, Some(here)] {
            let error = directory.run(&remove(address), patience).expect_err("nothing is open");
            assert!(error.contains("not in use; devices in use: none"), "{error}");
        }
        assert!(directory.restore(None).expect_err("nothing is removed").contains("not removed"));
        for address in [Some(here), None] {
            let device = directory.device(here, true);
            assert!(directory.lists(here, "present", 1));
            let error = directory.run(&remove(Some(elsewhere)), patience).expect_err("another address");
            let text = format!("{elsewhere}: not in use; devices in use: {here}");
            assert!(error.contains(&text), "{error}");
            assert!(directory.run(&remove(address), patience).expect("it goes").starts_with("removed: "));
            // Without an address argument, the command finds only addresses of devices in use.
            assert_eq!(directory.lists(here, "removed", 0), address.is_some());
            let error = directory.run(&remove(address), patience).expect_err("once only");
            assert!(error.contains("removed before"), "{error}");
            assert!(directory.restore(address).expect("it was removed").starts_with("restored: "));
            drop(device);
        }
    }

    #[test]
    fn non_removable_device_stays_unchanged() {
        let directory = Directory::new();
        let [here, elsewhere] = addresses();
        let _device = directory.device(here, false);
        // Another command removes the device at this address first.
        take_away(Some(&directory.1), Some(elsewhere)).expect("a directory");
        for address in [Some(here), None] {
            let error = directory.run(&remove(address), Duration::ZERO).expect_err("it stays");
            assert!(
                error.contains("not removed, 1 in use: not opened with TRUNKLINE_REMOVABLE=on"),
                "{error}"
            );
            assert!(directory.lists(here, "present", 1) && directory.lists(elsewhere, "removed", 0));
            assert!(directory.restore(Some(here)).expect_err("nothing has changed").contains("not removed"));
        }
    }
}
