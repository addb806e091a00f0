//! Removal of folders whose network namespaces no longer exist.
//!
//! Without this, the registry of a namespace that was used once would occupy memory forever. Called when a member
//! joins, in any namespace. A folder is removed if all its members are dead and the last member joined at least an hour
//! ago. A member that joins during the removal detects the removal, and joins again. Each call examines a limited
//! number of folders, and the next call continues.
#![forbid(unsafe_code)]

use super::folder_lock::try_lock;
use super::runtime_dir::{FORMAT, FolderName};
use super::slot_locks::any_lives;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Minimum time since the last member joined before a folder is removed.
const UNUSED: Duration = Duration::from_secs(3600);
/// Maximum numbers of folders that one call examines and removes. A folder contains up to a few thousand files.
const MAX_EXAMINED: usize = 256;
const MAX_REMOVED: usize = 8;
/// Prefix of the name of a folder during its removal. The folder is renamed first, so that a process that
/// joins creates a new folder. If the removing process dies, the next call continues.
const REMOVED: &str = "removed-";

/// Removes unused folders next to `own`. `random` selects the folder with which the search starts, so that folders that
/// must stay do not exhaust every search.
pub(in crate::host) fn remove_unused(own: &Path, random: u64) {
    let Some(siblings) = own.parent().and_then(|root| std::fs::read_dir(root).ok()) else { return };
    let folders = siblings.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    let mut found: Vec<PathBuf> =
        folders.map(|entry| entry.path()).filter(|path| path != own && is_ours(path)).collect();
    found.sort_unstable();
    let start = usize::try_from(random % found.len().max(1) as u64).unwrap_or(0);
    found.rotate_left(start);
    let removed = found.iter().take(MAX_EXAMINED).filter(|path| remove_if_unused(path));
    let _bounded = removed.take(MAX_REMOVED).count();
}

/// Returns true if this version or an earlier one created the folder, judging by its name.
fn is_ours(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|name| {
        let name = name.strip_prefix(REMOVED).unwrap_or(name);
        FolderName::parse(name).is_some_and(|name| name.format <= FORMAT)
    })
}

/// Removes a folder if it is unused. Returns false if it is in use.
fn remove_if_unused(folder: &Path) -> bool {
    let Some(name) = folder.file_name().and_then(OsStr::to_str) else { return false };
    if name.starts_with(REMOVED) {
        remove(folder);
        return true;
    }
    // Joining updates the modification time of the lock file.
    let joined = std::fs::symlink_metadata(folder.join("lock")).and_then(|found| found.modified());
    let is_old = joined.is_ok_and(|joined| joined.elapsed().is_ok_and(|since| since > UNUSED));
    if !is_old {
        return false;
    }
    let Some(_locked) = try_lock(folder) else { return false };
    if any_lives(folder) {
        return false;
    }
    let renamed = folder.with_file_name(format!("{REMOVED}{name}"));
    match std::fs::rename(folder, &renamed) {
        Ok(()) => remove(&renamed),
        // A process that died during a removal has left a folder of that name. Remove that folder first.
        Err(error) => {
            tracing::debug!(%error, path = %folder.display(), "unused folder not renamed");
            remove(&renamed);
        }
    }
    true
}

fn remove(folder: &Path) {
    match std::fs::remove_dir_all(folder) {
        Ok(()) => {}
        // Another process has removed the folder.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::debug!(%error, path = %folder.display(), "unused folder not removed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Host;
    use crate::host::testing::hosts;
    use nix::errno::Errno;
    use nix::sched::{CloneFlags, unshare};
    use std::fs::File;
    use std::sync::Arc;
    use std::time::SystemTime;
    use trunkline_testkit::Folder;

    /// Returns the name of another network namespace's folder, with a number like the kernel's.
    fn name(number: u64, format: u32) -> String {
        FolderName { namespace: Some(4_026_532_000 + number), format }.to_string()
    }

    /// Creates a folder in the state in which members of another namespace leave it.
    fn other_namespace(root: &Path, name: &str) -> PathBuf {
        let host = Host::join(Some(root)).unwrap();
        let folder = root.join(name);
        let own = host.directory().unwrap().to_owned();
        drop(host);
        std::fs::rename(own, &folder).unwrap();
        folder
    }

    #[expect(clippy::disallowed_methods, reason = "compared with times of the file system")]
    fn make_old(folder: &Path) {
        let before = SystemTime::now() - 2 * UNUSED;
        File::options().write(true).open(folder.join("lock")).unwrap().set_modified(before).unwrap();
    }

    #[test]
    fn old_folders_without_members_are_removed() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let names =
            [name(1, FORMAT), name(2, FORMAT), name(3, FORMAT - 1), name(4, FORMAT + 1), "notes".into()];
        let [old, young, earlier, later, stranger] = names.map(|name| other_namespace(&root, &name));
        for path in [&old, &earlier, &later, &stranger] {
            make_old(path);
        }
        let own = Host::join(Some(&root)).unwrap();
        assert!(!old.exists() && !earlier.exists());
        assert!(young.exists() && later.exists() && stranger.exists() && own.directory().unwrap().exists());
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 4, "nothing else is left");
    }

    /// Joins in a network namespace that is removed afterwards. Returns `None`, and prints the reason, if
    /// this process may not create a network namespace.
    #[expect(clippy::disallowed_methods, reason = "a namespace can be that of one thread")]
    fn joined_in_a_namespace(root: &Path) -> Option<PathBuf> {
        let joined = std::thread::scope(|scope| {
            let thread = scope.spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
                Ok(()) => Some(Host::join(Some(root)).unwrap().directory().unwrap().to_owned()),
                Err(Errno::EPERM | Errno::ENOSPC | Errno::ENOSYS) => None,
                Err(errno) => panic!("unshare: {errno}"),
            });
            thread.join().unwrap()
        });
        if joined.is_none() {
            println!("skipped: this process may not make network namespaces");
        }
        joined
    }

    #[test]
    fn folder_of_ended_namespace_is_removed() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        std::fs::create_dir(&root).unwrap();
        std::fs::set_permissions(&root, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let Some(gone) = joined_in_a_namespace(&root) else { return };
        make_old(&gone);
        let own = Host::join(Some(&root)).unwrap();
        assert_ne!(own.directory(), Some(gone.as_path()));
        assert!(!gone.exists(), "{gone:?}");
    }

    #[test]
    fn folder_with_member_stays() {
        let (folder, [living]) = hosts();
        let root = folder.join("run");
        let other = root.join(name(3, FORMAT));
        std::fs::rename(living.directory().unwrap(), &other).unwrap();
        make_old(&other);
        drop(Host::join(Some(&root)).unwrap());
        assert!(other.exists(), "its member holds a lock there");
        std::fs::remove_file(other.join("registry")).unwrap();
        drop(Host::join(Some(&root)).unwrap());
        assert!(other.exists(), "also when its registry cannot be read");
        drop(living);
        drop(Host::join(Some(&root)).unwrap());
        assert!(!other.exists());
    }

    #[test]
    fn folder_of_living_member_without_lock_file_is_kept() {
        let (folder, [living]) = hosts();
        let root = folder.join("run");
        let other = root.join(name(3, FORMAT));
        std::fs::rename(living.directory().unwrap(), &other).unwrap();
        std::fs::remove_file(other.join(format!("slot-{}", living.me().slot))).unwrap();
        make_old(&other);
        drop(Host::join(Some(&root)).unwrap());
        assert!(other.exists());
    }

    #[test]
    fn each_start_removes_limited_number_of_folders() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let count = MAX_REMOVED + 3;
        let names = (0..count as u64).map(|number| name(number, FORMAT));
        let folders: Vec<_> = names.map(|name| other_namespace(&root, &name)).collect();
        folders.iter().for_each(|folder| make_old(folder));
        let left = |own: Arc<Host>| {
            let kept = std::fs::read_dir(&root).unwrap().count() - 1;
            drop(own);
            kept
        };
        assert_eq!(left(Host::join(Some(&root)).unwrap()), count - MAX_REMOVED);
        assert_eq!(left(Host::join(Some(&root)).unwrap()), 0);
    }

    #[test]
    fn leftovers_of_dead_remover_are_removed() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let left = root.join(format!("{REMOVED}{}", name(1, FORMAT)));
        std::fs::rename(other_namespace(&root, &name(1, FORMAT)), &left).unwrap();
        let _own = Host::join(Some(&root)).unwrap();
        assert!(!left.exists());
    }
}
