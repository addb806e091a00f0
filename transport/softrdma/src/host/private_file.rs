//! Files in the members' folder that only their user may access, regardless of the umask.
#![forbid(unsafe_code)]

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat, fstatat};
use nix::unistd::geteuid;
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use trunkline_verbs::descriptors::above_stdio;

/// Permissions of the files.
const MODE: u32 = 0o600;

/// Opens a file for reading and writing, or creates it. A relative path starts at `directory`.
pub(super) fn open_private(directory: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let mode = Mode::from_bits_truncate(MODE);
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let open = || above_stdio(|| Ok(File::from(openat(directory, path, flags, mode)?)));
    let file = match open() {
        // The umask of the process that made the file had removed the permissions.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
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
pub(super) fn open_to_check(directory: BorrowedFd<'_>, path: &Path) -> io::Result<File> {
    let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    above_stdio(|| Ok(File::from(openat(directory, path, flags, Mode::empty())?)))
}

/// Returns true if the open file is still the file at the path, or if that cannot be determined.
pub(super) fn is_at(file: &File, directory: BorrowedFd<'_>, path: &Path) -> bool {
    match (fstatat(directory, path, AtFlags::empty()), file.metadata()) {
        (Ok(there), Ok(open)) => (there.st_dev, there.st_ino) == (open.dev(), open.ino()),
        (Err(Errno::ENOENT | Errno::ENOTDIR), _) => false,
        _ => true,
    }
}
