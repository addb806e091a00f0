//! A node's policy, read from a file. [`PolicyFile::reload`] is called on a thread other than the pollers' threads, so that
//! pollers do not wait for the disk. If the file is invalid, the earlier policy stays in force.

use super::{AccessPolicy, MAX_BYTES, PolicyDecision, PolicyError, PolicyPeer};
use crate::call::context::Peer;
use crate::server::{Authorize, IncomingCall};
use crate::status::Status;
use std::fs::{File, Metadata};
use std::io::{self, Read, Take};
use std::mem;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
#[cfg(feature = "identity")]
use trunkline_transport::{PeerIdentity, identity::Name};
use trunkline_transport::{open_without_waiting, printable};

/// Error of reading a policy from a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyFileError {
    /// The file cannot be read.
    #[error("{}: {cause}", printable(&path.to_string_lossy()))]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        cause: io::Error,
    },
    /// The file is invalid.
    #[error("{}: {cause}", printable(&path.to_string_lossy()))]
    Invalid {
        /// Path of the file.
        path: PathBuf,
        /// The line, the problem and the remedy.
        cause: PolicyError,
    },
}

impl AccessPolicy {
    /// Reads a policy from a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid.
    pub fn read(path: &Path) -> Result<Self, PolicyFileError> {
        let text = read(path).map_err(|cause| PolicyFileError::Read { path: path.into(), cause })?;
        Self::parse(&text).map_err(|cause| PolicyFileError::Invalid { path: path.into(), cause })
    }
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_bounded(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// Opens a regular file for reading. At most one byte more than [`MAX_BYTES`] can be read.
pub(crate) fn open_bounded(path: &Path) -> io::Result<Take<File>> {
    let file = open_without_waiting(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(file.take(MAX_BYTES as u64 + 1))
}

/// Version of a file, identified by device, inode, size, modification time and status change time.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stamp([u64; 3], [i64; 4]);

impl Stamp {
    fn new(file: &Metadata) -> Self {
        let times = [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()];
        Self([file.dev(), file.ino(), file.size()], times)
    }

    pub(crate) fn of(path: &Path) -> Result<Self, io::ErrorKind> {
        path.metadata().map(|file| Self::new(&file)).map_err(|error| error.kind())
    }
}

/// A node's policy, read from a file. Clones share the policy.
///
/// Replace the file with `rename`, because a partially written file can be a valid policy.
#[derive(Debug, Clone)]
pub struct PolicyFile(Arc<Loaded>);

#[derive(Debug)]
struct Loaded {
    path: PathBuf,
    policy: RwLock<AccessPolicy>,
    /// Version that was last read, valid or not.
    seen: Mutex<Result<Stamp, io::ErrorKind>>,
}

impl PolicyFile {
    /// Reads a policy from a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is invalid.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self, PolicyFileError> {
        let path = path.into();
        // A file that changes after this line is read again by the next `reload`.
        let seen = Mutex::new(Stamp::of(&path));
        let policy = RwLock::new(AccessPolicy::read(&path)?);
        Ok(Self(Arc::new(Loaded { path, policy, seen })))
    }

    /// Reads the file again if it has changed. Returns true if a new policy is now in force. If the file is invalid, the
    /// earlier policy stays in force, and the cause is logged once per change. Blocks, so pollers must not call it.
    pub fn reload(&self) -> bool {
        let Loaded { path, policy, seen } = &*self.0;
        let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = Stamp::of(path);
        if *seen == stamp {
            return false;
        }
        *seen = stamp;
        match AccessPolicy::read(path) {
            Ok(read) => {
                tracing::info!(path = %path.display(), rules = read.rules().len(), "policy file reloaded; new calls use it");
                // The earlier policy is freed after the lock is released, so that pollers do not wait for it.
                let earlier =
                    mem::replace(&mut *policy.write().unwrap_or_else(PoisonError::into_inner), read);
                drop(earlier);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "policy file not reloaded; earlier policy stays in force");
                false
            }
        }
    }
}

impl Authorize for PolicyFile {
    fn authorize(&self, call: &IncomingCall<'_>) -> Result<(), Status> {
        let (peer, path) = (call.peer(), call.path());
        let policy = self.0.policy.read().unwrap_or_else(PoisonError::into_inner);
        let PolicyDecision::Denied(cause) = policy.decide(names(peer), &path) else { return Ok(()) };
        let path = path.escape_debug();
        let name = names(peer).next().unwrap_or(PolicyPeer::Unproven);
        call.set_cause(format!("policy: {name} called {path}: {cause}"));
        Err(Status::permission_denied(format!(
            "the policy of the server does not allow {name} to call {path}"
        )))
    }
}

/// Returns the names of a caller, with its principal first.
#[cfg(feature = "identity")]
fn names(peer: &Peer) -> impl Iterator<Item = PolicyPeer<'_>> {
    let (proven, other) = match peer.identity() {
        PeerIdentity::Proven(proven) => (proven.names(), None),
        PeerIdentity::LocalUser(uid) => (&[][..], Some(PolicyPeer::Local(*uid))),
        _ => (&[][..], Some(PolicyPeer::Unproven)),
    };
    proven
        .iter()
        .map(|name| match name {
            Name::Spiffe(uri) => PolicyPeer::Spiffe(uri),
            Name::Dns(name) => PolicyPeer::Dns(name),
            Name::Ip(address) => PolicyPeer::Ip(*address),
        })
        .chain(other)
}

/// Returns the names of a caller.
#[cfg(not(feature = "identity"))]
fn names(_: &Peer) -> impl Iterator<Item = PolicyPeer<'_>> {
    std::iter::once(PolicyPeer::Unproven)
}
