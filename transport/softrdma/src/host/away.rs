//! Devices that the operator has taken away, as a file in the members' folder records.
//!
//! Owns those files. Only devices that were opened as removable look at them, a few times a second;
//! this tests what programs do when their device is removed, as by `rdma link delete`.
#![forbid(unsafe_code)]

use super::HostError;
use super::runtime_dir::namespace_folder;
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// The file for all addresses; with the suffix `-ADDRESS`, for one.
const NAME: &str = "away";

/// Takes away the removable devices at an address, or all of them. Returns whether they were there.
///
/// # Errors
/// When the runtime directory (`None`: the environment's) cannot be used.
pub fn take_away(directory: Option<&Path>, address: Option<IpAddr>) -> Result<bool, HostError> {
    let path = namespace_folder(directory)?.join(name(address));
    let was_there = !path.exists();
    fs::write(&path, "").map_err(|source| HostError::Os { doing: "write", path, source })?;
    Ok(was_there)
}

/// Puts back the devices that [`take_away`] removed with the same address, or all of them. Returns whether they were
/// away.
///
/// # Errors
/// As [`take_away`].
pub fn put_back(directory: Option<&Path>, address: Option<IpAddr>) -> Result<bool, HostError> {
    let folder = namespace_folder(directory)?;
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

/// Removes a file. Returns whether it was there.
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

/// The files that concern one device.
#[derive(Debug)]
pub(crate) struct AwayFiles(Vec<PathBuf>);

impl AwayFiles {
    /// For a device with these addresses.
    pub(crate) fn new(directory: Option<&Path>, addresses: &[IpAddr]) -> Result<Self, HostError> {
        let folder = namespace_folder(directory)?;
        let names = addresses.iter().map(|&address| name(Some(address))).chain([name(None)]);
        Ok(Self(names.map(|name| folder.join(name)).collect()))
    }

    /// Whether the device is away.
    pub(crate) fn any(&self) -> bool {
        self.0.iter().any(|path| path.exists())
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn an_address_is_taken_away_and_put_back_alone() {
        let folder = Folder::new("away");
        let root = folder.path().join("run");
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
    fn all_are_put_back_those_of_one_address_too() {
        let folder = Folder::new("all-away");
        let root = folder.path().join("run");
        let one: IpAddr = "127.0.0.8".parse().unwrap();
        let is_away = || AwayFiles::new(Some(&root), &[one]).unwrap().any();
        assert!(!put_back(Some(&root), None).unwrap(), "none was away");
        for address in [None, Some(one)] {
            assert!(take_away(Some(&root), address).unwrap());
        }
        assert!(put_back(Some(&root), None).unwrap());
        assert!(!is_away());
    }
}
