//! XRC domains of all members, by inode.
//!
//! Owns the references of members to domains (contract A1 to A5, A12, A14). A domain does not have a record. It exists
//! while a living member refers to it. A member that dies at any point therefore leaves either a reference or nothing.
//! Opening a domain checks the locks of the members that refer to the file.
#![forbid(unsafe_code)]

use super::layout::{DOMAINS, LAST_DOMAIN};
use super::records::Claim;
use crate::host::Host;
use crate::host::files::folder_lock::Locked;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_verbs::{VerbsError, XrcdFlags};

/// Identifies a file by device and inode (contract A1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct FileId {
    /// Device number of the file system.
    pub(crate) device: u64,
    /// Inode number in that file system.
    pub(crate) inode: u64,
}

/// A reference to a domain, released when it is dropped. Its owner keeps the file open, so that the inode
/// cannot be reused for another file (contract A3).
#[derive(Debug)]
pub(crate) struct DomainClaim {
    id: u64,
    _record: Claim,
}

impl DomainClaim {
    /// Returns the domain's number. The host does not assign it to another domain.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Host {
    /// Opens the domain of a file according to the table of contract A5. Look-up and creation are one step
    /// for all members, under the lock (contract A4).
    pub(crate) fn open_domain(
        self: &Arc<Self>,
        file: FileId,
        flags: XrcdFlags,
    ) -> Result<DomainClaim, VerbsError> {
        loop {
            let locked = self.lock()?;
            let claim = self.open_locked(&locked, file, flags)?;
            if self.is_locked(&locked) {
                return Ok(claim);
            }
        }
    }

    fn open_locked(
        self: &Arc<Self>,
        locked: &Locked<'_>,
        file: FileId,
        flags: XrcdFlags,
    ) -> Result<DomainClaim, VerbsError> {
        let mut references =
            self.records(&DOMAINS).filter(|record| record.words[..2] == [file.device, file.inode]);
        let present = references.find(|record| self.is_alive(record.owner)).map(|record| record.words[2]);
        let id = match present {
            Some(_) if flags.contains(XrcdFlags::EXCLUSIVE) => {
                return Err(VerbsError::Invalid("an XRC domain exists for this file, and O_EXCL was given"));
            }
            Some(id) => id,
            None if !flags.contains(XrcdFlags::CREATE) => return Err(VerbsError::NoSuchDomain),
            None => self.new_domain_id(),
        };
        let record = self.claim(locked, &DOMAINS, [file.device, file.inode, id])?;
        Ok(DomainClaim { id, _record: record })
    }

    /// Returns a number for a domain without a file (contract A6).
    pub(crate) fn new_domain_id(&self) -> u64 {
        self.registry.word64(LAST_DOMAIN).fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}
