//! Temporary directories that are removed when their test ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that only the current user can open. Dropping it removes the directory and its contents.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates a directory under the system's temporary directory.
    ///
    /// # Errors
    /// Returns the operating system's error if the directory cannot be created.
    pub fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("trunkline-test-{}-{number}", std::process::id()));
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                // A killed process with the same process id, perhaps in another container, has left this directory.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => return made.map(|()| Self(path)),
            }
        }
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of an entry in the directory.
    #[must_use]
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.0.join(name)
    }

    /// Creates a file in the directory, and opens it for reading and writing.
    ///
    /// # Errors
    /// Returns the operating system's error. A file with that name must not exist.
    pub fn create(&self, name: impl AsRef<Path>) -> io::Result<File> {
        File::options().read(true).write(true).create_new(true).open(self.join(name))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_folder_removes_directory_and_content() {
        let folder = Folder::new().expect("a temporary directory");
        let path = folder.path().to_owned();
        std::fs::create_dir(folder.join("below")).expect("a directory in it");
        folder.create("below/file").expect("a file in it");
        assert!(folder.create("below/file").is_err(), "it is there");
        drop(folder);
        assert!(!path.exists());
    }

    #[test]
    fn existing_directory_is_passed_over() {
        let first = Folder::new().expect("a temporary directory");
        let text = first.path().to_str().expect("a name of ASCII");
        let (start, number) = text.rsplit_once('-').expect("a number at the end");
        let number: u32 = number.parse().expect("a number at the end");
        // Other tests may already have created some of these directories.
        let left: Vec<_> = (1..50).map(|next| format!("{start}-{}", number + next)).collect();
        let made: Vec<_> = left.iter().filter(|path| std::fs::create_dir(path).is_ok()).collect();
        let second = Folder::new();
        made.into_iter().for_each(|path| std::fs::remove_dir(path).expect("it is empty"));
        assert_ne!(second.expect("another directory").path(), first.path());
    }
}
