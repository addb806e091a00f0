//! Files of certificates and keys, each of which is complete or absent.
//!
//! A file is first written to a temporary file in the same folder, which is created with `O_EXCL` and the final mode.
//! Symbolic links are not followed. Other users can never read a key, and a full disk leaves the old files intact.

use super::Failure;
use nix::unistd::geteuid;
use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use trunkline_transport::open_without_waiting;

/// Maximum length of a file, in bytes. It is four times the usual length of a bundle of public roots.
const MAX_BYTES: u64 = 1 << 20;

/// Paths of a certificate and its key, which are in the same folder.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) certificate: PathBuf,
    key: PathBuf,
}

impl Pair {
    pub(super) fn new(prefix: &Path) -> Self {
        let with = |ending| {
            let mut path = OsString::from(prefix);
            path.push(ending);
            path.into()
        };
        Self { certificate: with(".pem"), key: with(".key") }
    }

    /// Returns the path of the certificate if it exists, or of the key if only the key exists.
    pub(super) fn existing(&self) -> Result<Option<&Path>, Failure> {
        for path in [&self.certificate, &self.key] {
            match fs::symlink_metadata(path) {
                Ok(_) => return Ok(Some(path)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(Failure::unusable(format!("{}: {error}", path.display()))),
            }
        }
        Ok(None)
    }

    pub(super) fn read_certificate(&self) -> Result<Vec<u8>, Failure> {
        read(&self.certificate)
    }

    pub(super) fn read_key(&self) -> Result<Vec<u8>, Failure> {
        read(&self.key)
    }

    /// Writes both files, the key first, so that a reader of the new certificate finds its key. Existing files are an
    /// error unless `replace` is true.
    pub(super) fn write(&self, certificate: &str, key: &str, replace: bool) -> Result<(), Failure> {
        let unwritten = |path: &Path, error: io::Error| {
            Failure::new(format!("{} cannot be written: {error}; nothing has changed", path.display()))
        };
        let staged_key = Staged::new(&self.key, key, 0o600).map_err(|error| unwritten(&self.key, error))?;
        let staged_certificate = Staged::new(&self.certificate, certificate, 0o644)
            .map_err(|error| unwritten(&self.certificate, error))?;
        staged_key.publish(replace).map_err(|error| unwritten(&self.key, error))?;
        staged_certificate.publish(replace).map_err(|error| {
            if replace {
                let certificate = self.certificate.display();
                return Failure::new(format!(
                    "{certificate} is old, its key is new: {error}; run this again"
                ));
            }
            let _removed = fs::remove_file(&self.key);
            unwritten(&self.certificate, error)
        })?;
        let folder = staged_key.temporary.parent().filter(|folder| !folder.as_os_str().is_empty());
        let synced = File::open(folder.unwrap_or(Path::new("."))).and_then(|folder| folder.sync_all());
        synced.map_err(|error| {
            Failure::new(format!("{} may be lost by a crash: {error}", self.certificate.display()))
        })
    }
}

/// Reads a regular file of at most [`MAX_BYTES`] bytes.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let unusable = |cause: &dyn Display| Failure::unusable(format!("{}: {cause}", path.display()));
    let mut bytes = Vec::new();
    let file = open_without_waiting(path).map_err(|error| unusable(&error))?;
    if !file.metadata().map_err(|error| unusable(&error))?.is_file() {
        return Err(unusable(&"not a regular file"));
    }
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| unusable(&error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(unusable(&format_args!(
            "larger than {MAX_BYTES} bytes, so no file of certificates or keys"
        )));
    }
    Ok(bytes)
}

/// Creates a folder that only this user can open. If the folder exists, checks that only this user can open it.
pub(super) fn make_folder(path: &Path) -> Result<(), Failure> {
    let failure = |text: String| Failure::new(format!("{}: {text}", path.display()));
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made.map_err(|error| failure(error.to_string())),
    }
    let folder = fs::symlink_metadata(path).map_err(|error| failure(error.to_string()))?;
    let mode = folder.mode() & 0o777;
    if !folder.is_dir() {
        Err(failure("expected a folder, or a path where nothing exists".to_owned()))
    } else if mode & 0o077 != 0 {
        Err(failure(format!("mode {mode:04o}: expected 0700; use chmod, or name a new folder")))
    } else {
        check_owner(path)
    }
}

/// Checks that a folder belongs to this user. Its owner can replace all files in it.
pub(super) fn check_owner(path: &Path) -> Result<(), Failure> {
    let failure = |text: String| Failure::new(format!("{}: {text}", path.display()));
    let owner = path.metadata().map_err(|error| failure(error.to_string()))?.uid();
    if owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(failure(format!(
        "belongs to user {owner}, who can replace the keys in it: name a folder of this user"
    )))
}

/// A temporary file with the complete new contents of `target`, removed on drop.
#[derive(Debug)]
struct Staged<'a> {
    temporary: PathBuf,
    target: &'a Path,
}

impl<'a> Staged<'a> {
    fn new(target: &'a Path, contents: &str, mode: u32) -> io::Result<Self> {
        let mut name = OsString::from(".");
        name.push(target.file_name().ok_or(io::ErrorKind::InvalidFilename)?);
        // The name is random, because a killed process may have left a file, and process IDs repeat in containers.
        name.push(format!(".{:016x}", RandomState::new().hash_one(std::process::id())));
        let temporary = target.with_file_name(name);
        let mut file = File::options().write(true).create_new(true).mode(mode).open(&temporary)?;
        let staged = Self { temporary, target };
        file.write_all(contents.as_bytes())?;
        file.sync_all()?;
        Ok(staged)
    }

    fn publish(&self, replace: bool) -> io::Result<()> {
        // Like `O_EXCL`, `hard_link` fails if the target exists.
        let publish = if replace { fs::rename } else { fs::hard_link };
        publish(&self.temporary, self.target)
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let _renamed = fs::remove_file(&self.temporary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::chown;

    #[test]
    fn folder_of_other_user_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let folder = trunkline_testkit::Folder::new().unwrap();
        let path = folder.path().join("ca");
        make_folder(&path).unwrap();
        make_folder(&path).unwrap();
        chown(&path, Some(65534), None).unwrap();
        let failure = make_folder(&path).unwrap_err();
        assert!(failure.text.contains("belongs to user 65534"), "{}", failure.text);
    }
}
