//! The lock that protects slow changes to the members' shared state.
//!
//! Owns the open folder and the open lock file. Both are opened when a member joins and kept open, since a
//! process that changes its user or its root directory may not be able to open them again. If a cleaner of
//! old files has removed the lock file, it is created again. Called by `member`, and by `tidy` for other
//! folders.
//!
//! A holder keeps the lock for microseconds, unless it is stopped, for example by SIGSTOP. The lock file names its
//! holder. If one holder has kept the lock for [`PAUSES`] pauses, a member that waits renames the file, and a new file
//! replaces it. The old holder may continue later, so records must stay valid when two members change them
//! simultaneously.
#![forbid(unsafe_code)]

use super::private_file::{is_at, open_private};
use crate::host::HostError;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, Flock, FlockArg, RenameFlags, renameat2};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::descriptors::above_stdio;
use trunkline_verbs::headroom;

pub(in crate::host) const NAME: &str = "lock";
/// Prefix of the names of lock files whose holders were stopped. The inode number of the file follows.
const REPLACED: &str = "lock.";
/// Number of first attempts to lock the file that are followed by a yield instead of a pause.
const YIELDS: u32 = 100;
/// Number of pauses, each of one millisecond, after which a holder counts as stopped.
const PAUSES: u32 = 500;

/// Content of the lock file: the holder's process id, and a number that is chosen at random each time the
/// lock is taken.
type Holder = [u8; 12];

/// The folder and its lock.
#[derive(Debug)]
pub(in crate::host) struct FolderLock {
    path: PathBuf,
    directory: File,
    /// `None` while the lock is held, and after an error.
    file: Mutex<Option<File>>,
}

/// Guard of the host's lock, which the kernel frees if this process dies. In a simulation it is empty, since a
/// process holds it only within a turn, during which no other process runs.
#[derive(Debug)]
pub(in crate::host) struct Locked<'a> {
    held: Option<Flock<File>>,
    /// Place to which the file returns. The mutex excludes other threads of this process.
    kept: Option<MutexGuard<'a, Option<File>>>,
}

impl FolderLock {
    /// Opens the folder and the lock file.
    pub(in crate::host) fn open(path: &Path) -> Result<Self, HostError> {
        let failed = |source| HostError::Os { doing: "open", path: path.to_owned(), source };
        let directory = above_stdio(|| File::open(path)).map_err(failed)?;
        let lock = Self { path: path.to_owned(), directory, file: Mutex::default() };
        *lock.kept() = Some(lock.open_file()?);
        Ok(lock)
    }

    /// Returns the path at which the folder was opened.
    pub(in crate::host) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::host) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Takes the lock. Waits for its holder unless the holder is stopped.
    pub(in crate::host) fn lock(&self) -> Result<Locked<'_>, HostError> {
        let mut kept = self.kept();
        loop {
            let file = match kept.take() {
                Some(file) if self.is_current(&file) => file,
                _ => self.open_file()?,
            };
            let held = self.wait_for(file).map_err(|(file, error)| {
                *kept = Some(file);
                error
            })?;
            if let Some(held) = held {
                return Ok(Locked { held: Some(held), kept: Some(kept) });
            }
        }
    }

    /// Opens the lock file again and takes the lock. In a forked child, the kept file is shared with the
    /// parent.
    pub(in crate::host) fn lock_anew(&self) -> Result<Locked<'_>, HostError> {
        loop {
            if let Some(held) = self.wait_for(self.open_file()?).map_err(|(_file, error)| error)? {
                return Ok(Locked { held: Some(held), kept: None });
            }
        }
    }

    /// Waits for the lock. Returns `None` if the file is no longer the lock file, since members then lock its
    /// replacement.
    fn wait_for(&self, mut file: File) -> Result<Option<Flock<File>>, (File, HostError)> {
        let (mut tries, mut pauses) = (0, 0);
        let mut holder = None;
        loop {
            match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                Ok(held) => {
                    let is_current = self.is_current(&held);
                    if is_current {
                        name_holder(&held);
                    }
                    return Ok(is_current.then_some(held));
                }
                Err((again, Errno::EINTR)) => file = again,
                Err((again, Errno::EWOULDBLOCK)) => file = again,
                Err((file, errno)) => return Err((file, self.failed("lock", errno.into()))),
            }
            tries += 1;
            if tries < YIELDS {
                std::thread::yield_now();
                continue;
            }
            pause();
            let now = read_holder(&file);
            pauses = if holder == Some(now) { pauses + 1 } else { 0 };
            holder = Some(now);
            if pauses < PAUSES {
                continue;
            }
            if self.is_current(&file)
                && let Err(error) = self.replace(&file, now)
            {
                return Err((file, self.failed("replace, since its holder is stopped,", error)));
            }
            return Ok(None);
        }
    }

    /// Renames the lock file, so that members create a new one.
    fn replace(&self, file: &File, holder: Holder) -> io::Result<()> {
        // Only one member can rename the file, since its new name contains its inode number.
        let name = format!("{REPLACED}{}", file.metadata()?.ino());
        match renameat2(self.directory(), NAME, self.directory(), &*name, RenameFlags::RENAME_NOREPLACE) {
            Ok(()) => {
                let pid = u32::from_le_bytes([holder[0], holder[1], holder[2], holder[3]]);
                tracing::warn!(
                    pid,
                    cause = "the process kept it too long, and is probably stopped",
                    remedy = "continue (SIGCONT) or end the process",
                    "host lock taken over from an unresponsive process"
                );
                Ok(())
            }
            Err(Errno::EEXIST | Errno::ENOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Removes replaced lock files whose holders have continued or died.
    pub(in crate::host) fn remove_replaced(&self) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_replaced = name.to_str().is_some_and(|name| name.starts_with(REPLACED));
            let Some(file) =
                is_replaced.then(|| open_private(self.directory(), Path::new(&name)).ok()).flatten()
            else {
                continue;
            };
            if Flock::lock(file, FlockArg::LockExclusiveNonblock).is_ok() {
                let _gone = std::fs::remove_file(entry.path());
            }
        }
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> HostError {
        HostError::Os { doing, path: self.path.join(NAME), source }
    }

    fn open_file(&self) -> Result<File, HostError> {
        open_private(self.directory(), Path::new(NAME)).map_err(|source| HostError::Os {
            doing: "open",
            path: self.path.join(NAME),
            source,
        })
    }

    /// Returns true if the file is the current lock file.
    pub(in crate::host) fn is_current(&self, file: &File) -> bool {
        is_at(file, self.directory(), Path::new(NAME))
    }

    fn kept(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records this process as the holder in a lock file that it has locked. Without this, a lock that several members take
/// in turn would look like a lock that one member keeps.
fn name_holder(file: &File) {
    // A write beyond the limit on file sizes would end the process with SIGXFSZ.
    if headroom::check_file(size_of::<Holder>() as u64).is_err() {
        return;
    }
    let mut holder = Holder::default();
    holder[..4].copy_from_slice(&std::process::id().to_le_bytes());
    holder[4..].copy_from_slice(&Runtime::threads().random().to_le_bytes());
    let _full = file.write_all_at(&holder, 0);
}

fn read_holder(file: &File) -> Holder {
    let mut holder = Holder::default();
    let _short = file.read_at(&mut holder, 0);
    holder
}

#[expect(clippy::disallowed_methods, reason = "the lock belongs to another process, which runs in real time")]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

impl Locked<'_> {
    /// Creates the lock of a simulation.
    pub(in crate::host) const fn simulated() -> Self {
        Self { held: None, kept: None }
    }

    pub(in crate::host) fn file(&self) -> Option<&File> {
        self.held.as_deref()
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let file = self.held.take().map(Flock::unlock);
        if let (Some(kept), Some(Ok(file))) = (&mut self.kept, file) {
            **kept = Some(file);
        }
    }
}

/// Fails with `NotFound` if the folder's path no longer contains its lock file. An unused folder may be
/// removed before it is locked.
pub(in crate::host) fn is_in_place(lock: &FolderLock, held: &Locked<'_>) -> io::Result<()> {
    let path = lock.path().join(NAME);
    match held.file().is_none_or(|file| is_at(file, AT_FDCWD, &path)) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}

/// Takes the lock of a folder. Returns `None` if it is held.
pub(in crate::host) fn try_lock(folder: &Path) -> Option<Flock<File>> {
    let file = open_private(AT_FDCWD, &folder.join(NAME)).ok()?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()
}
