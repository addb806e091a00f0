//! Files of the served directory tree, and their contents.
//!
//! A client identifies a file by its position in the listing and never by a path, so files outside the tree are
//! inaccessible.

use crate::service::Entry;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Directories that are skipped if the tree is the checkout itself.
pub(crate) const CHECKOUT_SKIPS: &[&str] = &["target", ".git"];

/// The regular files below a directory, sorted by path.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    files: Vec<Entry>,
}

impl Tree {
    /// Walks `root`, except the top-level directories named in `skips`. Links and special files are also skipped, because
    /// a link could lead out of the tree.
    pub(crate) fn walk(root: &Path, skips: &[&str]) -> io::Result<Self> {
        let root = root.canonicalize()?;
        let mut files = Vec::new();
        let mut waiting = vec![PathBuf::new()];
        while let Some(directory) = waiting.pop() {
            for entry in std::fs::read_dir(root.join(&directory))? {
                let entry = entry?;
                let path = directory.join(entry.file_name());
                let kind = entry.file_type()?;
                let is_skipped = directory.as_os_str().is_empty()
                    && skips.iter().any(|name| entry.file_name().as_bytes() == name.as_bytes());
                if kind.is_dir() && !is_skipped {
                    waiting.push(path);
                } else if kind.is_file() {
                    let path = path.into_os_string().into_vec();
                    files.push(Entry { path, bytes: entry.metadata()?.len() });
                }
            }
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { root, files })
    }

    /// Returns the files. The number of a file is its index.
    pub(crate) fn files(&self) -> &[Entry] {
        &self.files
    }

    /// Reads up to `length` bytes of a file, starting at `offset`. Reads fewer at the end of the file. Returns `None` if
    /// no file has this number.
    pub(crate) fn read(&self, file: u32, offset: u64, length: u32) -> Option<io::Result<Vec<u8>>> {
        let entry = self.files.get(usize::try_from(file).ok()?)?;
        Some(read_part(&self.root.join(OsStr::from_bytes(&entry.path)), offset, length))
    }
}

fn read_part(path: &Path, offset: u64, length: u32) -> io::Result<Vec<u8>> {
    let file = File::open(path)?;
    let left = file.metadata()?.len().saturating_sub(offset);
    let length = usize::try_from(left.min(u64::from(length))).unwrap_or(usize::MAX);
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            more => filled += more,
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn walks_regular_files_only_and_reads_by_number() {
        let folder = trunkline_testkit::Folder::new().unwrap();
        let root = folder.path();
        std::fs::create_dir_all(root.join("sub/target")).unwrap();
        std::fs::create_dir_all(root.join("target")).unwrap();
        std::fs::write(root.join("a"), b"hello").unwrap();
        std::fs::write(root.join("sub/target/b"), b"").unwrap();
        std::fs::write(root.join("target/c"), b"left out").unwrap();
        std::os::unix::fs::symlink("/etc/hostname", root.join("link")).unwrap();
        let tree = Tree::walk(root, CHECKOUT_SKIPS).unwrap();
        let all = Tree::walk(root, &[]).unwrap();
        let part = tree.read(0, 1, 3).unwrap().unwrap();
        let past = tree.read(0, 9, 3).unwrap().unwrap();
        let none = tree.read(2, 0, 1);
        let paths: Vec<_> = tree.files().iter().map(|file| &file.path[..]).collect();
        assert_eq!(paths, [&b"a"[..], b"sub/target/b"]);
        assert_eq!(all.files().len(), 3);
        assert_eq!(part, b"ell");
        assert_eq!(past, b"");
        assert!(none.is_none());
    }
}
