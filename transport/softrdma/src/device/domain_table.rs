//! XRC domains by inode.
//!
//! Owns which file names which domain (contract A1 to A7). The table is the device's own, within
//! this process; a domain lives as long as anything holds its `Arc`: open handles, SRQs, TGTs.
#![forbid(unsafe_code)]

use super::signal::lock;
use std::collections::HashMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};
use trunkline_verbs::{VerbsError, XrcdFlags};

/// Names a domain inside the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct DomainNumber(pub(super) u64);

/// An XRC domain.
#[derive(Debug)]
pub(super) struct Domain {
    number: DomainNumber,
    /// Keeps the inode, so that its number names no other file meanwhile (contract A3).
    _file: Option<File>,
}

impl Domain {
    /// Its name.
    pub(super) fn number(&self) -> DomainNumber {
        self.number
    }
}

/// Device and inode.
type FileId = (u64, u64);

#[derive(Debug, Default)]
struct Table {
    by_file: HashMap<FileId, Weak<Domain>>,
    next: u64,
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct DomainTable(Mutex<Table>);

impl DomainTable {
    /// Opens a domain by the table of contract A5. One lock makes lookup and creation one step
    /// (contract A4).
    pub(super) fn open(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<Domain>, VerbsError> {
        let mut table = lock(&self.0);
        let Some(fd) = file else {
            return Ok(table.make(None));
        };
        let file = File::from(fd.try_clone_to_owned().map_err(|_| VerbsError::BadFile)?);
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let present = table.by_file.get(&id).and_then(Weak::upgrade);
        match present {
            Some(_) if flags.contains(XrcdFlags::EXCLUSIVE) => {
                Err(VerbsError::Invalid("an XRC domain exists for this file, and O_EXCL was given"))
            }
            Some(domain) => Ok(domain),
            None if !flags.contains(XrcdFlags::CREATE) => Err(VerbsError::NoSuchDomain),
            None => {
                let domain = table.make(Some(file));
                table.by_file.retain(|_, domain| domain.strong_count() > 0);
                table.by_file.insert(id, Arc::downgrade(&domain));
                Ok(domain)
            }
        }
    }
}

impl Table {
    fn make(&mut self, file: Option<File>) -> Arc<Domain> {
        self.next += 1;
        Arc::new(Domain { number: DomainNumber(self.next), _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    fn file(name: &str) -> (std::path::PathBuf, File) {
        let path = std::env::temp_dir().join(format!("trunkline-domain-{name}-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        (path, file)
    }

    #[test]
    fn outcomes_follow_the_table() {
        let (path, file) = file("a5");
        let table = DomainTable::default();
        let open = |flags| table.open(Some(file.as_fd()), flags);
        let none = XrcdFlags::empty();
        let create = XrcdFlags::CREATE;
        let exclusive = XrcdFlags::EXCLUSIVE;
        assert_eq!(open(none).unwrap_err(), VerbsError::NoSuchDomain);
        assert_eq!(open(exclusive).unwrap_err(), VerbsError::NoSuchDomain);
        let first = open(create | exclusive).unwrap();
        assert_eq!(open(none).unwrap().number(), first.number());
        assert_eq!(open(create).unwrap().number(), first.number());
        assert_eq!(open(create | exclusive).unwrap_err().errno(), 22);
        assert_eq!(open(exclusive).unwrap_err().errno(), 22);
        drop(first);
        assert_eq!(open(none).unwrap_err(), VerbsError::NoSuchDomain, "contract A12");
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn identity_is_the_inode() {
        let (path, first) = file("a1");
        let table = DomainTable::default();
        let one = table.open(Some(first.as_fd()), XrcdFlags::CREATE).unwrap();
        let link = path.with_extension("link");
        std::fs::hard_link(&path, &link).unwrap();
        let linked = File::open(&link).unwrap();
        assert_eq!(table.open(Some(linked.as_fd()), XrcdFlags::empty()).unwrap().number(), one.number());
        drop((first, linked));
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_file(&link).unwrap();
        let again = File::create(&path).unwrap();
        let other = table.open(Some(again.as_fd()), XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE).unwrap();
        assert_ne!(other.number(), one.number(), "contract A3");
        std::fs::remove_file(&path).unwrap();
        let private = table.open(None, XrcdFlags::empty()).unwrap();
        assert_ne!(private.number(), table.open(None, XrcdFlags::empty()).unwrap().number());
    }
}
