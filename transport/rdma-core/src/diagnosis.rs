//! Reasons why devices or connections cannot be opened.
//!
//! librdmacm returns ENODEV or EPERM for nearly every cause, or omits a device from its list. This module checks the files
//! in /dev/infiniband, because a missing kernel module requires a different remedy than a file without permission.

use crate::listing;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::path::Path;
use trunkline_verbs::VerbsError;

/// The directory with the kernel's RDMA device files.
const FOLDER: &str = "/dev/infiniband";

/// Returns the error to report when librdmacm's list of all devices failed with `returned`.
pub(crate) fn of(returned: VerbsError) -> VerbsError {
    // If there are no devices, that is the explanation.
    match listing::devices() {
        Ok(_) => of_files(Path::new(FOLDER)).unwrap_or(returned),
        Err(none) => none,
    }
}

/// Returns the error to report for a device that librdmacm does not list. `returned` is librdmacm's error.
pub(crate) fn of_device(name: &str, returned: VerbsError) -> VerbsError {
    match listing::devices() {
        Ok(devices) if devices.iter().any(|info| info.name == name) => {
            of_files(Path::new(FOLDER)).unwrap_or(returned)
        }
        _ => returned,
    }
}

/// Returns an error if a file in the folder is missing or inaccessible. libibverbs must list at least one device.
fn of_files(folder: &Path) -> Option<VerbsError> {
    let names = folder.read_dir().into_iter().flatten().filter_map(Result::ok).map(|entry| entry.file_name());
    let mut verbs: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("uverbs")).collect();
    verbs.sort();
    if verbs.is_empty() {
        return Some(VerbsError::Missing(
            "the kernel has RDMA devices, but /dev/infiniband has no uverbs file for them: load ib_uverbs \
             (`modprobe ib_uverbs`), and in a container pass /dev/infiniband in",
        ));
    }
    for name in verbs.iter().map(|name| folder.join(name)).chain([folder.join("rdma_cm")]) {
        let Err(error) = OpenOptions::new().read(true).write(true).open(&name) else { continue };
        tracing::warn!(path = %name.display(), %error, "RDMA device file not opened");
        match error.kind() {
            ErrorKind::PermissionDenied => {
                return Some(VerbsError::Denied(
                    "/dev/infiniband/uverbs* and /dev/infiniband/rdma_cm must be readable and writable: \
                     check their mode and owner, in a container also its list of devices",
                ));
            }
            ErrorKind::NotFound => {
                return Some(VerbsError::Missing(
                    "/dev/infiniband/rdma_cm is not there: load rdma_ucm (`modprobe rdma_ucm`), and in a \
                     container pass /dev/infiniband in",
                ));
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn missing_file_is_named() {
        let folder = std::env::temp_dir().join(format!("trunkline-diagnosis-{}", std::process::id()));
        // A killed process with the same process id may have left the folder.
        let _left = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let without_verbs = of_files(&folder).unwrap();
        fs::write(folder.join("uverbs0"), "").unwrap();
        let without_cm = of_files(&folder).unwrap();
        fs::write(folder.join("rdma_cm"), "").unwrap();
        let whole = of_files(&folder);
        fs::remove_dir_all(&folder).unwrap();
        assert!(without_verbs.to_string().contains("modprobe ib_uverbs"), "{without_verbs}");
        assert!(without_cm.to_string().contains("modprobe rdma_ucm"), "{without_cm}");
        assert_eq!(whole, None);
    }
}
