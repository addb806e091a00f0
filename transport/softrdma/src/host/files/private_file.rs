//! Files and directories of the members, which only their user can access, regardless of the umask.
#![forbid(unsafe_code)]

use crate::host::HostError;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstatat};
use nix::unistd::geteuid;
use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;
use trunkline_verbs::descriptors::above_stdio;

/// Permissions of the files.
const MODE: u32 = 0o600;

/// Permissions of the directories.
const PRIVATE: u32 = 0o700;

/// Fault of a file that another user owns.
const OF_ANOTHER_USER: &str = "belongs to another user";

/// Fault of a directory that other users can access.
const OPEN: &str = "is open to other users";

/// Opens a file for reading and writing, or creates it. A relative path is resolved against `directory`.
pub(in crate::host) fn open_private(directory: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let mode = Mode::from_bits_truncate(MODE);
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || above_stdio(|| Ok(File::from(openat(directory, path, flags, mode)?)));
    let file = match open() {
        // The umask of the process that created the file has removed the permissions.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            let found = fstatat(directory, path, AtFlags::AT_SYMLINK_NOFOLLOW)?;
            let is_file = found.st_mode & libc::S_IFMT == libc::S_IFREG;
            if !is_file || found.st_uid != geteuid().as_raw() {
                return Err(error);
            }
            fchmodat(directory, path, mode, FchmodatFlags::FollowSymlink)?;
            open()?
        }
        opened => opened?,
    };
    if file.metadata()?.mode() & MODE != MODE {
        file.set_permissions(Permissions::from_mode(MODE))?;
    }
    Ok(file)
}

/// Opens a file for reading.
pub(in crate::host) fn open_to_check(directory: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    above_stdio(|| Ok(File::from(openat(directory, path, flags, Mode::empty())?)))
}

/// Returns true if the open file is still the file at the path, or if that cannot be determined.
pub(in crate::host) fn is_at(file: &File, directory: BorrowedFd<'_>, path: &Path) -> bool {
    match (fstatat(directory, path, AtFlags::empty()), file.metadata()) {
        (Ok(there), Ok(open)) => (there.st_dev, there.st_ino) == (open.dev(), open.ino()),
        (Err(Errno::ENOENT | Errno::ENOTDIR), _) => false,
        _ => true,
    }
}

/// Creates the directory if it does not exist, and checks that only this user can write to it.
pub(in crate::host) fn private_directory(path: &Path) -> Result<(), HostError> {
    create_private(path)?;
    match is_private_directory(path)? {
        true => Ok(()),
        // The directory was removed after it was created.
        false => {
            let source = ErrorKind::NotFound.into();
            Err(HostError::Os { doing: "examine", path: path.to_owned(), source })
        }
    }
}

/// Creates the directory unless the path exists.
pub(in crate::host) fn create_private(path: &Path) -> Result<(), HostError> {
    match DirBuilder::new().mode(PRIVATE).create(path) {
        Err(source) if source.kind() != ErrorKind::AlreadyExists => {
            Err(HostError::Os { doing: "create the runtime directory", path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}

/// Returns true if the directory exists. Checks that only this user can write to it.
pub(in crate::host) fn is_private_directory(path: &Path) -> Result<bool, HostError> {
    let failed = |doing| move |source| HostError::Os { doing, path: path.to_owned(), source };
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        found => found.map_err(failed("examine"))?,
    };
    if let Some(fault) = fault(&found) {
        let remedy = match fault {
            OF_ANOTHER_USER => "run as that user, or name another one in TRUNKLINE_RUNTIME_DIR",
            // Other users could read the directory, but not change it.
            OPEN if found.mode() & 0o022 == 0 => {
                "run `chmod 700` on it, or name another one in TRUNKLINE_RUNTIME_DIR"
            }
            _ => "end the programs that use it and remove it, or name another one in TRUNKLINE_RUNTIME_DIR",
        };
        return Err(HostError::Unsafe { path: path.to_owned(), fault, remedy });
    }
    // The umask of the process that created the directory may have removed permissions of its user. Each
    // process that finds this restores them, since the creator may be slow or dead.
    if found.mode() & PRIVATE != PRIVATE {
        std::fs::set_permissions(path, Permissions::from_mode(PRIVATE))
            .map_err(failed("set the permissions of"))?;
    }
    Ok(true)
}

/// Returns the reason why a file is not accepted; `None` for a directory of this user to which other users cannot
/// write.
pub(in crate::host) fn fault(found: &Metadata) -> Option<&'static str> {
    // Report another owner first, since this user may be unable to remove the file.
    if found.uid() != geteuid().as_raw() {
        Some(OF_ANOTHER_USER)
    } else if found.file_type().is_symlink() {
        Some("is a symbolic link")
    } else if !found.is_dir() {
        Some("is not a directory")
    } else if found.mode() & 0o077 != 0 {
        Some(OPEN)
    } else {
        None
    }
}
