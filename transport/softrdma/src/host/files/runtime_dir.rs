//! The directory shared by the processes of one user in one network namespace.
//!
//! Owns the choice of the directory, and the names of the folders in it. Each folder is named after a network
//! namespace, since addresses are valid only within one.
#![forbid(unsafe_code)]

use super::default_dir::DefaultDirectory;
use super::private_file::{is_private_directory, private_directory};
use crate::host::HostError;
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Format version of the files in a folder, which changes with the format of any of the files. It is part of the
/// folder's name, so that programs of two versions do not read each other's tables. If they share an address
/// and a UDP port, one of them finds the port in use.
pub(in crate::host) const FORMAT: u32 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::host) struct FolderName {
    /// Inode of the network namespace; `None` without `/proc`. All processes of this user are then assumed to
    /// share one namespace.
    pub(in crate::host) namespace: Option<u64>,
    /// Format of the files inside.
    pub(in crate::host) format: u32,
}

impl FolderName {
    const PREFIX: &str = "net-";
    const UNKNOWN: &str = "any";

    /// Parses a name that [`fmt::Display`] wrote. Returns `None` for any other text.
    pub(in crate::host) fn parse(text: &str) -> Option<Self> {
        let (namespace, format) = text.strip_prefix(Self::PREFIX)?.split_once('.')?;
        let namespace = if namespace == Self::UNKNOWN { None } else { Some(namespace.parse::<u64>().ok()?) };
        let name = Self { namespace, format: format.parse().ok()? };
        (name.to_string() == text).then_some(name)
    }

    fn of_this_thread() -> Self {
        let found =
            std::fs::metadata("/proc/thread-self/ns/net").or_else(|_| std::fs::metadata("/proc/self/ns/net"));
        Self { namespace: found.ok().map(|found| found.ino()), format: FORMAT }
    }
}

impl fmt::Display for FolderName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(Self::PREFIX)?;
        match self.namespace {
            Some(inode) => write!(out, "{inode}")?,
            None => out.write_str(Self::UNKNOWN)?,
        }
        write!(out, ".{}", self.format)
    }
}

/// Returns the folder of this process's network namespace, and creates it if it does not exist.
///
/// `named` is the runtime directory, if the program chose one. Otherwise the directory comes from the environment:
/// `TRUNKLINE_RUNTIME_DIR`, `XDG_RUNTIME_DIR`, or the directory for temporary files.
pub(in crate::host) fn namespace_folder(named: Option<&Path>) -> Result<PathBuf, HostError> {
    let name = FolderName::of_this_thread().to_string();
    let path = match Root::choose(named) {
        Root::Set { path, .. } => private_directory(&path).map(|()| path)?,
        Root::Default(directory) => directory.choose(&name)?,
    };
    let folder = path.join(name);
    private_directory(&folder)?;
    Ok(folder)
}

/// Returns the folder of this process's network namespace without creating it, or `None` if the runtime directory does
/// not contain it. If `named` is `None`, the directory comes from the environment.
///
/// # Errors
/// Returns [`HostError::Absent`] if the directory does not exist, and other errors if it cannot be used.
pub fn existing_folder(named: Option<&Path>) -> Result<Option<PathBuf>, HostError> {
    let folder = runtime_directory(named)?.join(FolderName::of_this_thread().to_string());
    Ok(is_private_directory(&folder)?.then_some(folder))
}

/// Returns the runtime directory without creating it. If `named` is `None`, the directory comes from the environment.
///
/// # Errors
/// Returns [`HostError::Absent`] if the directory does not exist, and other errors if it cannot be used.
pub fn runtime_directory(named: Option<&Path>) -> Result<PathBuf, HostError> {
    match Root::choose(named) {
        Root::Set { path, .. } if is_private_directory(&path)? => Ok(path),
        Root::Set { path, origin } => Err(HostError::Absent { path, origin }),
        Root::Default(directory) => directory.existing()?.ok_or_else(|| HostError::Absent {
            path: directory.plain_path(),
            origin: "it is the default, and TRUNKLINE_RUNTIME_DIR sets another",
        }),
    }
}

/// The choice of the runtime directory.
#[derive(Debug)]
enum Root {
    /// A directory given by a setting.
    Set {
        path: PathBuf,
        /// The setting, for errors.
        origin: &'static str,
    },
    /// A directory for temporary files. The name of the runtime directory in it may have a suffix.
    Default(DefaultDirectory),
}

impl Root {
    fn choose(named: Option<&Path>) -> Self {
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        if let Some(path) = named {
            Self::Set { path: path.to_owned(), origin: "the program chose it" }
        } else if let Some(path) = set("TRUNKLINE_RUNTIME_DIR") {
            Self::Set { path, origin: "TRUNKLINE_RUNTIME_DIR sets it" }
        } else if let Some(directory) = set("XDG_RUNTIME_DIR") {
            let origin = "XDG_RUNTIME_DIR sets it, and TRUNKLINE_RUNTIME_DIR sets another";
            Self::Set { path: directory.join("trunkline"), origin }
        } else {
            Self::Default(DefaultDirectory::new(std::env::temp_dir()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;
    use trunkline_testkit::Folder;

    fn refusal(path: &Path) -> String {
        namespace_folder(Some(path)).unwrap_err().to_string()
    }

    #[test]
    fn new_directory_is_private_and_is_found_again() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let first = namespace_folder(Some(&root)).unwrap();
        assert_eq!(std::fs::metadata(&first).unwrap().mode() & 0o777, 0o700);
        assert_eq!(namespace_folder(Some(&root)).unwrap(), first);
    }

    #[test]
    fn lookup_does_not_create_folder() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let text = existing_folder(Some(&root)).unwrap_err().to_string();
        assert!(text.contains(&format!("{root:?} does not exist")), "{text}");
        assert!(!root.exists());
        std::fs::create_dir(&root).unwrap();
        std::fs::set_permissions(&root, Permissions::from_mode(0o700)).unwrap();
        assert_eq!(existing_folder(Some(&root)).unwrap(), None);
        assert_eq!(std::fs::read_dir(&root).unwrap().count(), 0);
        let made = namespace_folder(Some(&root)).unwrap();
        assert_eq!(existing_folder(Some(&root)).unwrap(), Some(made));
        std::fs::set_permissions(&root, Permissions::from_mode(0o755)).unwrap();
        let text = existing_folder(Some(&root)).unwrap_err().to_string();
        assert!(text.contains("open to other users"), "{text}");
    }

    /// A process that starts while another one creates the directory may find it in this state.
    #[test]
    fn directory_with_incomplete_permissions_is_repaired() {
        let folder = Folder::new().unwrap();
        let root = folder.join("run");
        let inside = namespace_folder(Some(&root)).unwrap();
        for mode in [0o500, 0o400, 0o000] {
            for path in [&inside, &root] {
                std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
            }
            assert_eq!(namespace_folder(Some(&root)).unwrap(), inside);
            for path in [&inside, &root] {
                assert_eq!(std::fs::metadata(path).unwrap().mode() & 0o777, 0o700);
            }
        }
    }

    #[test]
    fn folder_names_round_trip() {
        let folder = Folder::new().unwrap();
        let made = namespace_folder(Some(&folder.join("run"))).unwrap();
        let made = FolderName::parse(made.file_name().unwrap().to_str().unwrap()).unwrap();
        assert_eq!(made, FolderName::of_this_thread());
        for namespace in [None, Some(0), Some(4_026_531_840), Some(u64::MAX)] {
            for format in [0, FORMAT, u32::MAX] {
                let name = FolderName { namespace, format };
                assert_eq!(FolderName::parse(&name.to_string()), Some(name));
            }
        }
        for other in
            ["net-", "net-1", "net-1.", "net-.4", "net-01.4", "net-+1.4", "net-1.4.4", "xet-1.4", "notes"]
        {
            assert_eq!(FolderName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn unusable_runtime_directory_is_refused_with_remedy() {
        let folder = Folder::new().unwrap();
        let open = folder.join("open");
        std::fs::create_dir(&open).unwrap();
        for mode in [0o755, 0o770, 0o707] {
            std::fs::set_permissions(&open, Permissions::from_mode(mode)).unwrap();
            let text = refusal(&open);
            assert!(text.contains("open to other users") && text.contains("TRUNKLINE_RUNTIME_DIR"), "{text}");
            // Files in a directory that other users can write to may belong to those users.
            assert_eq!(text.contains("`chmod 700`"), mode == 0o755, "{text}");
        }
        std::fs::set_permissions(&open, Permissions::from_mode(0o700)).unwrap();
        let link = folder.join("link");
        std::os::unix::fs::symlink(folder.path(), &link).unwrap();
        assert!(refusal(&link).contains("symbolic link"));
        let file = folder.join("file");
        std::fs::write(&file, "").unwrap();
        assert!(refusal(&file).contains("not a directory"));
        assert!(refusal(&folder.join("a/b")).contains("cannot create"));
        // A user cannot remove another user's directory.
        if nix::unistd::geteuid().is_root() {
            nix::unistd::chown(&open, Some(nix::unistd::Uid::from_raw(65534)), None).unwrap();
            let text = refusal(&open);
            assert!(text.contains("belongs to another user") && !text.contains("remove it"), "{text}");
        } else {
            println!("skipped: only root can create the files of another user");
        }
    }
}
