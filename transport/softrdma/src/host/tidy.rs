//! Folders of network namespaces that are gone.
//!
//! Owns their removal: otherwise a namespace that was used once would keep its registry's memory
//! indefinitely. Called by each member that joins, in any namespace. A folder is removed when no
//! member lives there and none has joined for an hour; one that joins at that moment finds the lock
//! file removed, and starts again.
#![forbid(unsafe_code)]

use super::member::{any_lives, try_lock};
use super::runtime_dir::NAMESPACE;
use std::ffi::OsStr;
use std::path::Path;
use std::time::Duration;

/// How long a folder without members is kept.
const UNUSED: Duration = Duration::from_secs(3600);

/// Removes the folders next to `own` that are not in use any more.
pub(super) fn remove_unused(own: &Path) {
    let Some(siblings) = own.parent().and_then(|root| std::fs::read_dir(root).ok()) else { return };
    for entry in siblings.flatten() {
        let path = entry.path();
        let is_namespace = path.file_name().and_then(OsStr::to_str).is_some_and(|name| {
            name.strip_prefix(NAMESPACE).is_some_and(|inode| inode.parse::<u64>().is_ok())
        });
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_namespace && is_folder && path != own {
            remove_if_unused(&path);
        }
    }
}

fn remove_if_unused(folder: &Path) {
    // Joining touches the lock.
    let joined = std::fs::symlink_metadata(folder.join("lock")).and_then(|found| found.modified());
    let is_old = joined.is_ok_and(|joined| joined.elapsed().is_ok_and(|since| since > UNUSED));
    if !is_old {
        return;
    }
    let Some(_locked) = try_lock(folder) else { return };
    if any_lives(folder) {
        return;
    }
    if let Err(error) = std::fs::remove_dir_all(folder) {
        tracing::debug!(%error, ?folder, "an unused folder cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    use super::super::Host;
    use super::super::testing::Folder;
    use super::*;
    use std::fs::File;
    use std::path::PathBuf;
    use std::time::SystemTime;

    /// A folder as another namespace's members leave it.
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
    fn folders_without_members_are_removed_after_a_while() {
        let folder = Folder::new("tidy");
        let root = folder.path().join("run");
        let [old, young, stranger] = ["net-1", "net-2", "notes"].map(|name| other_namespace(&root, name));
        make_old(&old);
        make_old(&stranger);
        let own = Host::join(Some(&root)).unwrap();
        assert!(!old.exists());
        assert!(young.exists() && stranger.exists() && own.directory().unwrap().exists());
    }

    #[test]
    fn a_folder_with_a_member_stays() {
        let folder = Folder::new("tidy-living");
        let root = folder.path().join("run");
        let living = Host::join(Some(&root)).unwrap();
        let other = root.join("net-3");
        std::fs::rename(living.directory().unwrap(), &other).unwrap();
        make_old(&other);
        drop(Host::join(Some(&root)).unwrap());
        assert!(other.exists(), "its member holds a lock there");
        drop(living);
        drop(Host::join(Some(&root)).unwrap());
        assert!(!other.exists());
    }
}
