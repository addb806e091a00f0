//! XRC domains by inode.
//!
//! Owns the mapping from files to domains (contract A1 to A7). For UDP, the registry of the host holds the mapping for
//! all processes of one user in one network namespace, since their devices act as the one device `trunkline0` (contract
//! A2). A device on an in-process network has a separate table. A domain exists while an open handle, an SRQ or a TGT
//! holds its `Arc`.
#![forbid(unsafe_code)]

use crate::device::threads::signal::lock;
use crate::host::{DomainClaim, FileId, Host};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, Weak};
use trunkline_verbs::{VerbsError, XrcdFlags};

/// Identifies a domain among all members of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::device) struct DomainNumber(pub(in crate::device) u64);

/// An XRC domain.
#[derive(Debug)]
pub(in crate::device) struct Domain {
    number: DomainNumber,
    /// Declared before the file, so that it is dropped first: the inode must stay in use until the claim is
    /// released.
    claim: Option<DomainClaim>,
    /// Keeps the inode in use, so that it cannot be reused for another file (contract A3).
    _file: Option<File>,
}

impl Domain {
    /// Returns the domain's number.
    pub(in crate::device) fn number(&self) -> DomainNumber {
        self.number
    }

    /// Returns the domain's number among all members of the host; `None` if the domain is not named by a file. TGTs of
    /// a domain that a file names are shared.
    pub(in crate::device) fn shared(&self) -> Option<u64> {
        self.claim.as_ref().map(DomainClaim::id)
    }
}

#[derive(Debug, Default)]
struct Table {
    by_file: BTreeMap<FileId, Weak<Domain>>,
    /// Number of the last domain of a device without a host.
    last: u64,
}

/// XRC domains of a device.
#[derive(Debug)]
pub(in crate::device) struct DomainTable {
    table: Mutex<Table>,
    host: Option<Arc<Host>>,
}

impl DomainTable {
    /// Creates a table. If `host` is given, all its members share the domains.
    pub(in crate::device) fn new(host: Option<Arc<Host>>) -> Self {
        Self { table: Mutex::default(), host }
    }

    /// Opens a domain according to the table of contract A5. Look-up and creation are one step under one lock (contract
    /// A4), which is the host's lock for members of a host.
    pub(in crate::device) fn open(
        &self,
        file: Option<BorrowedFd<'_>>,
        flags: XrcdFlags,
    ) -> Result<Arc<Domain>, VerbsError> {
        let mut table = lock(&self.table);
        let Some(fd) = file else {
            let number = self.host.as_ref().map_or_else(|| table.next(), |host| host.new_domain_id());
            return Ok(Arc::new(Domain { number: DomainNumber(number), claim: None, _file: None }));
        };
        let file = File::from(fd.try_clone_to_owned().map_err(|_| VerbsError::BadFile)?);
        let metadata = file.metadata()?;
        let id = FileId { device: metadata.dev(), inode: metadata.ino() };
        let present = table.by_file.get(&id).and_then(Weak::upgrade);
        let (number, claim) = match present {
            Some(_) if flags.contains(XrcdFlags::EXCLUSIVE) => {
                return Err(VerbsError::Invalid("an XRC domain exists for this file, and O_EXCL was given"));
            }
            Some(domain) => return Ok(domain),
            None => match &self.host {
                Some(host) => {
                    let claim = host.open_domain(id, flags)?;
                    (claim.id(), Some(claim))
                }
                None if !flags.contains(XrcdFlags::CREATE) => return Err(VerbsError::NoSuchDomain),
                None => (table.next(), None),
            },
        };
        let domain = Arc::new(Domain { number: DomainNumber(number), claim, _file: Some(file) });
        table.by_file.retain(|_, domain| domain.strong_count() > 0);
        table.by_file.insert(id, Arc::downgrade(&domain));
        Ok(domain)
    }
}

impl Table {
    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }
}
