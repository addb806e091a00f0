//! The lock around slow changes of the members' shared state.
//!
//! Owns the open folder and the open lock file. Both are opened when a member joins and kept, since a process
//! that changes its user or its root directory may not be able to open them again. A lock file that a cleaner
//! of old files has removed is created again. Called by `member` only.
#![forbid(unsafe_code)]

use super::HostError;
use super::private_file::{is_at, open_private};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use trunkline_verbs::descriptors::above_stdio;

/// The name of the lock file.
pub(super) const NAME: &str = "lock";

/// The folder and its lock.
#[derive(Debug)]
pub(super) struct FolderLock {
    path: PathBuf,
    directory: File,
    /// `None` while the lock is held, and after a failure.
    file: Mutex<Option<File>>,
}

/// The host's lock, held; the kernel frees it if this process dies. In a simulation it is empty: a process
/// holds it for a part of a turn, in which no other process runs.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    held: Option<Flock<File>>,
    /// Place that the file returns to. Its mutex excludes the threads of one process from each other.
    kept: Option<MutexGuard<'a, Option<File>>>,
}

impl FolderLock {
    /// Opens the folder and the lock file.
    pub(super) fn open(path: &Path) -> Result<Self, HostError> {
        let failed = |source| HostError::Os { doing: "open", path: path.to_owned(), source };
        let directory = above_stdio(|| File::open(path)).map_err(failed)?;
        let lock = Self { path: path.to_owned(), directory, file: Mutex::default() };
        *lock.kept() = Some(lock.open_file()?);
        Ok(lock)
    }

    /// Returns the folder's path when it was opened.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the open folder.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Waits for the lock.
    pub(super) fn lock(&self) -> Result<Locked<'_>, HostError> {
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
            // The file may have been removed meanwhile, and other members then lock another one.
            if self.is_current(&held) {
                return Ok(Locked { held: Some(held), kept: Some(kept) });
            }
        }
    }

    /// Waits for the lock through a file opened anew: after a fork, a child shares the kept file with its
    /// parent.
    pub(super) fn lock_anew(&self) -> Result<Locked<'_>, HostError> {
        loop {
            let held = self.wait_for(self.open_file()?).map_err(|(_file, error)| error)?;
            if self.is_current(&held) {
                return Ok(Locked { held: Some(held), kept: None });
            }
        }
    }

    fn wait_for(&self, mut file: File) -> Result<Flock<File>, (File, HostError)> {
        loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(held) => return Ok(held),
                Err((again, Errno::EINTR)) => file = again,
                Err((file, errno)) => {
                    let path = self.path.join(NAME);
                    return Err((file, HostError::Os { doing: "lock", path, source: errno.into() }));
                }
            }
        }
    }

    fn open_file(&self) -> Result<File, HostError> {
        open_private(self.directory(), Path::new(NAME)).map_err(|source| HostError::Os {
            doing: "open",
            path: self.path.join(NAME),
            source,
        })
    }

    fn is_current(&self, file: &File) -> bool {
        is_at(file, self.directory(), Path::new(NAME))
    }

    fn kept(&self) -> MutexGuard<'_, Option<File>> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Locked<'_> {
    /// Creates the lock of a simulation.
    pub(super) const fn simulated() -> Self {
        Self { held: None, kept: None }
    }

    /// Returns the lock file.
    pub(super) fn file(&self) -> Option<&File> {
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

/// Fails with `NotFound` if the folder's path no longer leads to its lock file: a folder that is not in use may be removed
/// before it is locked.
pub(super) fn is_in_place(lock: &FolderLock, held: &Locked<'_>) -> io::Result<()> {
    let path = lock.path().join(NAME);
    match held.file().is_none_or(|file| is_at(file, nix::fcntl::AT_FDCWD, &path)) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotFound.into()),
    }
}
