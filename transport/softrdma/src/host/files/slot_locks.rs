//! Locks that show which members live.
//!
//! A living member holds a lock on the file of its slot, and a lock on a byte of the registry, called its mark.
//! The kernel frees both when the member dies. If the file is missing or cannot be opened, the mark decides.
#![forbid(unsafe_code)]

use super::private_file::open_to_check;
use crate::host::HostError;
use crate::host::registry::layout::{self, MAGIC, SLOTS};
use nix::fcntl::{AT_FDCWD, FcntlArg, Flock, FlockArg, fcntl};
use std::collections::BTreeSet;
use std::ffi::{OsStr, c_int};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use trunkline_verbs::descriptors::above_stdio;

/// The prefix of the names of the slots' lock files.
pub(in crate::host) const SLOT: &str = "slot-";
pub(in crate::host) const REGISTRY: &str = "registry";

/// Returns true if a member lives in a folder, or if that cannot be determined. The caller has locked the
/// folder. Reads files without mapping them, so that it works with files of another format and on a full file
/// system.
pub(in crate::host) fn any_lives(folder: &Path) -> bool {
    let slots = || (0..SLOTS).filter_map(|slot| u16::try_from(slot).ok());
    let Ok(present) = slots_present(folder) else { return true };
    let Ok(directory) = above_stdio(|| File::open(folder)) else { return true };
    if present.iter().any(|slot| holds_lock(directory.as_fd(), *slot, None)) {
        return true;
    }
    // A cleaner of old files may have removed the lock file of a member that lives.
    let Ok(words) = read_slots(&folder.join(REGISTRY)) else { return false };
    slots().zip(words).any(|(slot, word)| word != 0 && !present.contains(&slot))
}

/// Returns the slots that have a lock file.
fn slots_present(folder: &Path) -> io::Result<BTreeSet<u16>> {
    let mut present = BTreeSet::new();
    for entry in std::fs::read_dir(folder)? {
        let name = entry?.file_name();
        let slot =
            name.to_str().and_then(|name| name.strip_prefix(SLOT)).and_then(|slot| slot.parse::<u16>().ok());
        present.extend(slot);
    }
    Ok(present)
}

/// Reads the words of all slots from a registry of this format.
fn read_slots(path: &Path) -> io::Result<Vec<u64>> {
    let file = open_to_check(AT_FDCWD, path)?;
    let mut bytes = vec![0; layout::slot(0) + 8 * SLOTS];
    file.read_exact_at(&mut bytes, 0)?;
    let mut words = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_ne_bytes));
    if words.next() != Some(MAGIC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(words.skip(layout::slot(0) / 8 - 1).collect())
}

/// Returns true if the lock of a slot is held. If the slot's file is missing or cannot be opened, the mark
/// decides. If the mark cannot be checked either, the member counts as alive. Called while packets are
/// handled, so it does not allocate.
pub(in crate::host) fn holds_lock(folder: BorrowedFd<'_>, slot: u16, marks: Option<&Marks>) -> bool {
    let mut name = [0; 16];
    let mut rest = &mut name[..];
    let written = write!(rest, "{SLOT}{slot}").map(|()| rest.len());
    let Ok(left) = written else { return true };
    let name = Path::new(OsStr::from_bytes(&name[..name.len() - left]));
    match open_to_check(folder, name) {
        Ok(file) => Flock::lock(file, FlockArg::LockSharedNonblock).is_err(),
        Err(_) => marks.is_none_or(|marks| marks.is_set(slot)),
    }
}

/// Locks on single bytes of the registry, one for each living member, in addition to the lock on its slot. The locks
/// are checked through the open file, so a process that has changed its user or its root directory, or that is out of
/// descriptors, can still check them. All members of a registry share its file, even if its path has changed. A forked
/// child shares the open file, and so the lock of its parent.
#[derive(Debug)]
pub(in crate::host) struct Marks(File);

impl Marks {
    pub(in crate::host) fn open(folder: &Path) -> Result<Self, HostError> {
        let path = folder.join(REGISTRY);
        // Read-only, so that a program that writes to a wrong descriptor cannot change the file.
        let opened = open_to_check(AT_FDCWD, &path);
        opened.map(Self).map_err(|source| HostError::Os { doing: "open", path, source })
    }

    pub(in crate::host) fn set(&self, slot: u16) -> io::Result<()> {
        fcntl(&self.0, FcntlArg::F_OFD_SETLK(&byte(slot, libc::F_RDLCK)))?;
        Ok(())
    }

    pub(in crate::host) fn clear(&self, slot: u16) {
        // Unlock explicitly, since a forked child may share the open file and would keep the lock.
        let _unlocked = fcntl(&self.0, FcntlArg::F_OFD_SETLK(&byte(slot, libc::F_UNLCK)));
    }

    /// Returns true if another member has set the mark, or if that cannot be determined.
    fn is_set(&self, slot: u16) -> bool {
        let mut found = byte(slot, libc::F_WRLCK);
        let asked = fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found));
        asked.is_err() || c_int::from(found.l_type) != libc::F_UNLCK
    }
}

/// Returns a lock on the byte of a slot.
fn byte(slot: u16, kind: c_int) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or_default(),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or_default(),
        l_start: slot.into(),
        l_len: 1,
        l_pid: 0,
    }
}
