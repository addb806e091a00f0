//! The default runtime directory, created in a directory in which other users can create files.
//!
//! Another user may create `trunkline-UID` first, as a file of any kind, which this user cannot remove from a
//! sticky directory. Only a directory of this user with mode 0700 is accepted: `trunkline-UID`, or otherwise
//! one whose name has a random suffix. Other entries are ignored.
//!
//! All processes of the user must choose the same directory, while other users create and remove entries. The
//! directory that is not empty is the chosen one. If there is none, a process locks all directories of the
//! user, lists them again, and creates a folder in one of them if the two lists agree. Each process creates a
//! directory before it lists them. The lists of two processes therefore always have a directory in common,
//! whose lock only one of them holds. Other users cannot open these directories, so they cannot hold the
//! locks.
#![forbid(unsafe_code)]

use super::private_file::{create_private, fault, is_private_directory, private_directory};
use crate::host::HostError;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions, read_dir, remove_dir, symlink_metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use trunkline_machine::Runtime;
use trunkline_verbs::descriptors::above_stdio;

/// Maximum number of entries in the directory for temporary files that a process reads.
const MAX_EXAMINED: usize = 1 << 20;
/// Maximum number of attempts to choose a directory. An attempt fails only if another process has changed the
/// list.
const MAX_ATTEMPTS: usize = 1000;

/// The default runtime directory of a user.
#[derive(Debug)]
pub(in crate::host) struct DefaultDirectory {
    /// The directory for temporary files.
    parent: PathBuf,
    /// `trunkline-UID`.
    name: String,
}

/// A directory that only this user can open.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Private {
    path: PathBuf,
    inode: u64,
}

impl Private {
    fn find(path: PathBuf) -> Option<Self> {
        let is_private = is_private_directory(&path).is_ok_and(|exists| exists);
        let inode = symlink_metadata(&path).ok().filter(|found| fault(found).is_none())?.ino();
        is_private.then_some(Self { path, inode })
    }

    /// Returns true if a process has chosen the directory.
    fn is_chosen(&self) -> bool {
        read_dir(&self.path).is_ok_and(|mut inside| inside.next().is_some())
    }

    /// Waits for the lock. Returns `None` if the directory was removed.
    fn lock(&self) -> Result<Option<Flock<File>>, HostError> {
        let failed = |source| HostError::Os { doing: "lock", path: self.path.clone(), source };
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let opened = above_stdio(|| OpenOptions::new().read(true).custom_flags(flags).open(&self.path));
        let mut file = match opened {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        let found = file.metadata().map_err(failed)?;
        if found.ino() != self.inode || fault(&found).is_some() {
            return Ok(None);
        }
        loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(held) => return Ok(Some(held)),
                Err((again, Errno::EINTR)) => file = again,
                Err((_file, errno)) => return Err(failed(errno.into())),
            }
        }
    }
}

impl DefaultDirectory {
    pub(in crate::host) fn new(parent: PathBuf) -> Self {
        Self { parent, name: format!("trunkline-{}", nix::unistd::geteuid()) }
    }

    /// Returns the path without suffix.
    pub(in crate::host) fn plain_path(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Returns the chosen directory, or otherwise a candidate. Does not create a directory.
    pub(in crate::host) fn existing(&self) -> Result<Option<PathBuf>, HostError> {
        if let Some(plain) = self.chosen_plain() {
            return Ok(Some(plain));
        }
        let mut all = self.list()?;
        let chosen = all.iter().position(Private::is_chosen).unwrap_or(0);
        Ok((chosen < all.len()).then(|| all.swap_remove(chosen).path))
    }

    /// Returns the chosen directory. If none is chosen, creates one with a folder of this name in it.
    pub(in crate::host) fn choose(&self, folder: &str) -> Result<PathBuf, HostError> {
        if let Some(plain) = self.chosen_plain() {
            return Ok(plain);
        }
        for _ in 0..MAX_ATTEMPTS {
            let mut all = self.list()?;
            if let Some(chosen) = all.iter().position(Private::is_chosen) {
                return Ok(all.swap_remove(chosen).path);
            }
            if all.is_empty() {
                self.create()?;
                continue;
            }
            let locks: Option<Vec<_>> = all.iter().map(Private::lock).collect::<Result<_, _>>()?;
            if locks.is_none() || self.list()? != all {
                continue;
            }
            let chosen = all.iter().position(Private::is_chosen).unwrap_or(0);
            let chosen = all.swap_remove(chosen).path;
            private_directory(&chosen.join(folder))?;
            for unused in all {
                // Removing a directory fails unless it is empty.
                let _in_use = remove_dir(unused.path);
            }
            return Ok(chosen);
        }
        Err(self.failed("choose a runtime directory in", ErrorKind::WouldBlock.into()))
    }

    /// Returns the directory without suffix if it is the chosen one. Does not search for other directories.
    fn chosen_plain(&self) -> Option<PathBuf> {
        Private::find(self.plain_path()).filter(Private::is_chosen).map(|plain| plain.path)
    }

    /// Lists the directories of this user, the one without suffix first.
    fn list(&self) -> Result<Vec<Private>, HostError> {
        let names = match read_dir(&self.parent) {
            // The parent may be writable but not readable. All processes then use one fixed name.
            Err(error) if error.kind() == ErrorKind::PermissionDenied && !self.is_plain_taken() => {
                return Ok(Private::find(self.plain_path()).into_iter().collect());
            }
            names => names.map_err(|source| self.failed("list", source))?,
        };
        let mut all = Vec::new();
        for (examined, entry) in names.enumerate() {
            if examined == MAX_EXAMINED {
                let full = format!("it has more than {MAX_EXAMINED} entries");
                return Err(self.failed("find a runtime directory in", io::Error::other(full)));
            }
            let entry = entry.map_err(|source| self.failed("list", source))?.file_name();
            if entry.to_str().is_some_and(|entry| self.is_name(entry)) {
                all.extend(Private::find(self.parent.join(entry)));
            }
        }
        all.sort_unstable();
        Ok(all)
    }

    fn is_name(&self, entry: &str) -> bool {
        entry.strip_prefix(&self.name).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
    }

    /// Returns true if an unacceptable entry has the name without suffix.
    fn is_plain_taken(&self) -> bool {
        symlink_metadata(self.plain_path()).is_ok_and(|found| fault(&found).is_some())
    }

    /// Creates a directory. Its name has a suffix only if an unacceptable entry has the name without suffix.
    fn create(&self) -> Result<(), HostError> {
        create_private(&self.plain_path())?;
        // Do not use `is_plain_taken`: another user may have removed the entry and may create it again.
        if Private::find(self.plain_path()).is_none() {
            // Other users cannot guess the name, so it is free.
            create_private(&self.parent.join(format!("{}-{:016x}", self.name, Runtime::threads().random())))?;
        }
        Ok(())
    }

    fn failed(&self, doing: &'static str, source: io::Error) -> HostError {
        HostError::Os { doing, path: self.parent.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::stat::Mode;
    use nix::unistd::{Uid, chown, geteuid, mkfifo};
    use std::fs::{self, DirBuilder, Permissions};
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use trunkline_testkit::Folder;
    use trunkline_testkit::wait_until;

    const INSIDE: &str = "net-1.1";
    /// File that lists the locks on files, and the processes that wait for them.
    const LOCKS: &str = "/proc/locks";
    const BOUND: Duration = Duration::from_secs(60);

    fn directory(folder: &Folder) -> DefaultDirectory {
        DefaultDirectory::new(folder.path().to_owned())
    }

    /// Checks that the plain name is ignored, and that removing and creating it again has no effect.
    fn is_passed_over(folder: &Folder, kind: &str) {
        let (directory, plain) = (directory(folder), directory(folder).plain_path());
        assert_eq!(directory.existing().unwrap(), None, "{kind}");
        let chosen = directory.choose(INSIDE).unwrap();
        assert!(chosen != plain && chosen.join(INSIDE).is_dir(), "{kind}: {chosen:?}");
        assert_eq!(symlink_metadata(&chosen).unwrap().mode() & 0o777, 0o700);
        let moved = folder.join("moved");
        fs::rename(&plain, &moved).unwrap();
        let is_found = || {
            assert_eq!(directory.choose(INSIDE).unwrap(), chosen, "{kind}");
            assert_eq!(directory.existing().unwrap().as_ref(), Some(&chosen), "{kind}");
        };
        is_found();
        fs::rename(&moved, &plain).unwrap();
        is_found();
        assert_eq!(read_dir(folder.path()).unwrap().count(), 2, "{kind}: nothing else is left");
    }

    #[test]
    fn unusable_plain_name_is_passed_over() {
        let target = Folder::new().unwrap();
        fs::set_permissions(target.path(), Permissions::from_mode(0o700)).unwrap();
        for kind in ["file", "link", "dangling link", "fifo", "open directory"] {
            let folder = Folder::new().unwrap();
            let plain = directory(&folder).plain_path();
            match kind {
                "file" => fs::write(&plain, "").unwrap(),
                "link" => symlink(target.path(), &plain).unwrap(),
                "dangling link" => symlink(target.path().join("absent"), &plain).unwrap(),
                "fifo" => mkfifo(&plain, Mode::S_IRWXU).unwrap(),
                _ => {
                    fs::create_dir(&plain).unwrap();
                    fs::set_permissions(&plain, Permissions::from_mode(0o777)).unwrap();
                }
            }
            is_passed_over(&folder, kind);
        }
        assert_eq!(read_dir(target.path()).unwrap().count(), 0, "no link is followed");
    }

    #[test]
    fn names_taken_by_another_user_are_passed_over() {
        if !geteuid().is_root() {
            println!("skipped: only root can create the files of another user");
            return;
        }
        let other = Some(Uid::from_raw(65534));
        let folder = Folder::new().unwrap();
        let plain = directory(&folder).plain_path();
        DirBuilder::new().mode(0o700).create(&plain).unwrap();
        fs::create_dir(plain.join(INSIDE)).unwrap();
        chown(&plain, other, None).unwrap();
        is_passed_over(&folder, "directory of another user");
        // Names with a suffix are ignored, too.
        let folder = Folder::new().unwrap();
        fs::write(directory(&folder).plain_path(), "").unwrap();
        for suffix in ["", "0", "0000000000000000"] {
            let path = format!("{}-{suffix}", directory(&folder).plain_path().display());
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            fs::create_dir(format!("{path}/{INSIDE}")).unwrap();
            chown(&*path, other, None).unwrap();
        }
        let chosen = directory(&folder).choose(INSIDE).unwrap();
        assert_eq!(symlink_metadata(&chosen).unwrap().uid(), geteuid().as_raw());
        assert_eq!(directory(&folder).existing().unwrap(), Some(chosen));
    }

    #[test]
    fn free_name_and_empty_directory_are_used_without_suffix() {
        let folder = Folder::new().unwrap();
        let directory = directory(&folder);
        assert_eq!(directory.choose(INSIDE).unwrap(), directory.plain_path());
        remove_dir(directory.plain_path().join(INSIDE)).unwrap();
        assert_eq!(directory.existing().unwrap(), Some(directory.plain_path()));
        assert_eq!(directory.choose(INSIDE).unwrap(), directory.plain_path());
        assert!(directory.plain_path().join(INSIDE).is_dir());
    }

    /// Returns true if a thread waits for the lock of this directory.
    fn is_awaited(locks: &str, directory: &Private) -> bool {
        let inode = format!(":{} ", directory.inode);
        locks.lines().any(|lock| lock.contains("-> FLOCK") && lock.contains(&inode))
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the locks of real threads are tested")]
    fn process_waits_for_choosing_process_and_finds_its_choice() {
        let Ok(_) = fs::read_to_string(LOCKS) else {
            println!("skipped: {LOCKS} does not show who waits for a lock");
            return;
        };
        let folder = Folder::new().unwrap();
        let (directory, plain) = (directory(&folder), directory(&folder).plain_path());
        create_private(&folder.join(format!("{}-1", directory.name))).unwrap();
        let listed = directory.list().unwrap();
        std::thread::scope(|scope| {
            let choosing = listed[0].lock().unwrap();
            let late = scope.spawn(|| directory.choose(INSIDE));
            let is_over = || {
                let awaited = is_awaited(&fs::read_to_string(LOCKS).unwrap(), &listed[0]);
                (awaited || late.is_finished()).then_some(())
            };
            wait_until("the other process waits, or has chosen", BOUND, is_over);
            assert!(!late.is_finished(), "it has not waited");
            // The plain name is free again.
            create_private(&plain).unwrap();
            fs::create_dir(plain.join(INSIDE)).unwrap();
            drop(choosing);
            assert_eq!(late.join().unwrap().unwrap(), plain, "it has not listed them again");
        });
    }

    /// The processes are threads here, since a lock belongs to an open file.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "the locks of real threads are tested")]
    fn concurrent_processes_choose_same_directory_while_plain_name_changes() {
        for _ in 0..200 {
            let folder = Folder::new().unwrap();
            let (directory, is_over) = (directory(&folder), AtomicBool::new(false));
            let start = Barrier::new(5);
            let chosen = std::thread::scope(|scope| {
                scope.spawn(|| {
                    start.wait();
                    while !is_over.load(Ordering::Relaxed) {
                        let _exists = fs::write(directory.plain_path(), "");
                        let _absent = fs::remove_file(directory.plain_path());
                    }
                });
                let choose = || {
                    start.wait();
                    directory.choose(INSIDE)
                };
                let processes = [(); 4].map(|()| scope.spawn(choose));
                let chosen = processes.map(|process| process.join().unwrap());
                is_over.store(true, Ordering::Relaxed);
                chosen
            });
            let chosen = chosen.map(Result::unwrap);
            assert!(chosen.iter().all(|one| *one == chosen[0]), "{chosen:?}");
        }
    }
}
