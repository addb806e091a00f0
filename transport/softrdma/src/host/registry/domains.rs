//! XRC domains of all members, by inode.
//!
//! Owns the references of members to domains (contract A1 to A5, A12, A14). A domain has no record itself: it
//! exists while a living member refers to it, so a member that dies at any point leaves either its reference
//! or none. Opening checks the locks of the members that refer to the file.
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

/// A reference to a domain; dropping it releases the domain. Its owner keeps the file open, so that its inode
/// cannot name another file meanwhile (contract A3).
#[derive(Debug)]
pub(crate) struct DomainClaim {
    id: u64,
    _record: Claim,
}

impl DomainClaim {
    /// Returns the domain's number, which no other domain of this host ever has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }
}

impl Host {
    /// Opens the domain of a file according to the table of contract A5. The lock makes lookup and creation
    /// one step for all members (contract A4).
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

    /// Returns a number for a domain that no file names (contract A6).
    pub(crate) fn new_domain_id(&self) -> u64 {
        self.registry.word64(LAST_DOMAIN).fetch_add(1, Ordering::Relaxed).wrapping_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::hosts;

    const FILE: FileId = FileId { device: 1, inode: 2 };

    #[test]
    fn outcomes_of_an_open_follow_the_table() {
        let (_folder, members) = hosts::<2>();
        let open = |member: usize, flags| members[member].open_domain(FILE, flags);
        let (none, create, exclusive) = (XrcdFlags::empty(), XrcdFlags::CREATE, XrcdFlags::EXCLUSIVE);
        for member in [0, 1] {
            assert_eq!(open(member, none).unwrap_err(), VerbsError::NoSuchDomain);
            assert_eq!(open(member, exclusive).unwrap_err(), VerbsError::NoSuchDomain);
        }
        let first = open(0, create | exclusive).unwrap();
        for member in [0, 1] {
            assert_eq!(open(member, none).unwrap().id(), first.id());
            assert_eq!(open(member, create).unwrap().id(), first.id());
            assert_eq!(open(member, create | exclusive).unwrap_err().errno(), libc::EINVAL);
            assert_eq!(open(member, exclusive).unwrap_err().errno(), libc::EINVAL);
        }
        let second = open(1, none).unwrap();
        drop(first);
        assert_eq!(open(0, none).unwrap().id(), second.id(), "it lives with its last reference");
        drop(second);
        assert_eq!(open(0, none).unwrap_err(), VerbsError::NoSuchDomain, "contract A12");
        let again = open(1, create).unwrap();
        let other = members[0].open_domain(FileId { inode: 3, ..FILE }, create).unwrap();
        let private = members[0].new_domain_id();
        assert!(again.id() != other.id() && private != again.id() && private != other.id());
    }

    #[test]
    fn a_reference_of_a_dead_member_does_not_keep_a_domain() {
        let (_folder, [host]) = hosts();
        let claim = host.open_domain(FILE, XrcdFlags::CREATE).unwrap();
        let id = claim.id();
        // The reference looks as if a killed member had left it in slot 9.
        drop(claim);
        std::fs::write(host.directory().unwrap().join("slot-9"), "").unwrap();
        host.registry.word64(super::super::layout::slot(9)).store(77, Ordering::Release);
        let at = DOMAINS.record(0);
        host.registry.write(at, &[77 << 16 | 9, FILE.device, FILE.inode, id]);
        assert_eq!(host.records(&DOMAINS).count(), 1);
        assert_eq!(host.open_domain(FILE, XrcdFlags::empty()).unwrap_err(), VerbsError::NoSuchDomain);
        assert_ne!(host.open_domain(FILE, XrcdFlags::CREATE).unwrap().id(), id);
    }
}
