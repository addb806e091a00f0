//! The operator's requests to remove devices, recorded as files in the members' folder.
//!
//! Owns these files. Only devices that were opened as removable check them, a few times per second. The requests
//! serve to test how programs react to the removal of their device, for example by `rdma link delete`.
#![forbid(unsafe_code)]

use super::runtime_dir::{existing_folder, namespace_folder};
use crate::host::{Host, HostError};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Name of the file for all addresses. The name of the file for one address has the suffix `-ADDRESS`.
const NAME: &str = "away";

/// The software devices of a user in a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceList {
    /// Addresses at which devices hold UDP ports, with the number of devices at each.
    pub in_use: BTreeMap<IpAddr, usize>,
    /// UDP ports that devices hold at these addresses, in one set per device.
    pub ports: BTreeMap<IpAddr, Vec<BTreeSet<u16>>>,
    /// Addresses whose removable devices are taken away.
    pub away: BTreeSet<IpAddr>,
    /// True if the removable devices of all addresses are taken away.
    pub all_away: bool,
}

/// Lists the software devices that are in use or taken away. If `directory` is `None`, the runtime directory comes from
/// the environment.
///
/// # Errors
/// Fails if the runtime directory cannot be used, or does not exist ([`HostError::Absent`]).
pub fn list_devices(directory: Option<&Path>) -> Result<DeviceList, HostError> {
    let Some(folder) = existing_folder(directory)? else { return Ok(DeviceList::default()) };
    let ports = Host::join(directory)?.ports_in_use();
    let in_use = ports.iter().map(|(address, devices)| (*address, devices.len())).collect();
    let mut list = DeviceList { in_use, ports, ..DeviceList::default() };
    let unread = |source| HostError::Os { doing: "list", path: folder.clone(), source };
    for entry in fs::read_dir(&folder).map_err(unread)? {
        let entry = entry.map_err(unread)?.file_name();
        match entry.to_str().and_then(|name| name.strip_prefix(NAME)) {
            Some("") => list.all_away = true,
            Some(rest) => {
                list.away.extend(rest.strip_prefix('-').and_then(|text| text.parse::<IpAddr>().ok()))
            }
            None => {}
        }
    }
    Ok(list)
}

/// Takes away the removable devices at an address, or at all addresses if `address` is `None`. Returns false if they
/// were already taken away.
///
/// # Errors
/// Fails if the runtime directory cannot be used.
pub fn take_away(directory: Option<&Path>, address: Option<IpAddr>) -> Result<bool, HostError> {
    let path = namespace_folder(directory)?.join(name(address));
    let was_there = !path.exists();
    fs::write(&path, "").map_err(|source| HostError::Os { doing: "write", path, source })?;
    Ok(was_there)
}

/// Puts back the devices that [`take_away`] removed at the same address, or all devices if `address` is `None`. Returns
/// true if they were taken away.
///
/// # Errors
/// Fails under the same conditions as [`list_devices`].
pub fn put_back(directory: Option<&Path>, address: Option<IpAddr>) -> Result<bool, HostError> {
    let Some(folder) = existing_folder(directory)? else { return Ok(false) };
    let Some(address) = address else { return put_all_back(&folder) };
    remove(&folder.join(name(Some(address))))
}

fn put_all_back(folder: &Path) -> Result<bool, HostError> {
    let unread = |source| HostError::Os { doing: "list", path: folder.to_owned(), source };
    let mut were_away = false;
    for entry in fs::read_dir(folder).map_err(unread)? {
        let entry = entry.map_err(unread)?;
        let of_address = |name: &str| name.strip_prefix(NAME).is_some_and(|rest| rest.starts_with('-'));
        if entry.file_name().to_str().is_some_and(|name| name == NAME || of_address(name)) {
            were_away |= remove(&entry.path())?;
        }
    }
    Ok(were_away)
}

/// Removes a file. Returns false if it did not exist.
fn remove(path: &Path) -> Result<bool, HostError> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(source) => Err(HostError::Os { doing: "remove", path: path.to_owned(), source }),
    }
}

fn name(address: Option<IpAddr>) -> String {
    address.map_or_else(|| NAME.to_owned(), |address| format!("{NAME}-{}", address.to_canonical()))
}

/// The files that request the removal of one device.
#[derive(Debug)]
pub(crate) struct AwayFiles(Vec<PathBuf>);

impl AwayFiles {
    /// Lists the files for a device with these addresses.
    pub(crate) fn new(directory: Option<&Path>, addresses: &[IpAddr]) -> Result<Self, HostError> {
        let folder = namespace_folder(directory)?;
        let names = addresses.iter().map(|&address| name(Some(address))).chain([name(None)]);
        Ok(Self(names.map(|name| folder.join(name)).collect()))
    }

    /// Returns true if one of the files exists.
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(|path| path.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use trunkline_testkit::Folder;

    #[test]
    fn address_is_taken_away_and_put_back_alone() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let [one, other]: [IpAddr; 2] = ["127.0.0.8".parse().unwrap(), "fd00::1".parse().unwrap()];
        let files = |address| AwayFiles::new(Some(&root), &[address]).unwrap();
        assert!(!files(one).any());
        assert!(take_away(Some(&root), Some(other)).unwrap());
        assert!(!take_away(Some(&root), Some(other)).unwrap(), "it was away");
        assert!(files(other).any() && !files(one).any());
        assert!(take_away(Some(&root), None).unwrap());
        assert!(files(one).any());
        assert!(put_back(Some(&root), Some(other)).unwrap());
        assert!(!put_back(Some(&root), Some(other)).unwrap());
    }

    #[test]
    fn devices_are_listed_by_address_while_their_members_live() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let [v4, v6]: [IpAddr; 2] = ["127.0.0.8".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert!(matches!(list_devices(Some(&root)), Err(HostError::Absent { .. })));
        assert!(matches!(put_back(Some(&root), None), Err(HostError::Absent { .. })));
        assert!(!root.exists(), "neither creates it");
        let [one, other] = [(); 2].map(|()| Host::join(Some(&root)).unwrap());
        for (member, address, port) in
            [(&one, v4, 5000), (&one, v4, 5001), (&other, v4, 5002), (&other, v6, 5003)]
        {
            member.record_port(SocketAddr::new(address, port)).unwrap();
        }
        take_away(Some(&root), Some(v6)).unwrap();
        let list = list_devices(Some(&root)).unwrap();
        assert_eq!(list.in_use, BTreeMap::from([(v4, 2), (v6, 1)]));
        let mut at_v4 = list.ports[&v4].clone();
        at_v4.sort();
        assert_eq!(at_v4, [BTreeSet::from([5000, 5001]), BTreeSet::from([5002])]);
        assert_eq!((list.away, list.all_away), (BTreeSet::from([v6]), false));
        drop(other);
        take_away(Some(&root), None).unwrap();
        let list = list_devices(Some(&root)).unwrap();
        assert_eq!((list.in_use, list.all_away), (BTreeMap::from([(v4, 1)]), true));
    }

    #[test]
    fn restore_without_address_puts_back_all_devices() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let one: IpAddr = "127.0.0.8".parse().unwrap();
        let is_away = || AwayFiles::new(Some(&root), &[one]).unwrap().any();
        assert!(!is_away());
        assert!(!put_back(Some(&root), None).unwrap(), "none was away");
        for address in [None, Some(one)] {
            assert!(take_away(Some(&root), address).unwrap());
        }
        assert!(put_back(Some(&root), None).unwrap());
        assert!(!is_away());
    }
}
