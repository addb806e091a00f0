//! Errors of a host's registry.
#![forbid(unsafe_code)]

use std::io;
use std::path::PathBuf;
use trunkline_verbs::headroom::{self, FileTooLarge, NoRoom};
use trunkline_verbs::{VerbsError, WILDCARD_TAKEN};

/// Reason why the registry, or an object in it, is not available.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// Other users may write to the directory, or it is not a directory.
    #[error(
        "the runtime directory {path:?} {fault}; it must be a directory of this user with mode 0700: {remedy}"
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Fault of the directory, as a verb phrase.
        fault: &'static str,
        /// Remedy for the fault.
        remedy: &'static str,
    },
    /// The directory does not exist. Only functions that do not create it return this.
    #[error(
        "the runtime directory {path:?} does not exist: no node of this user has created it, or it was removed; {origin}"
    )]
    Absent {
        /// The directory.
        path: PathBuf,
        /// Setting that selected the directory.
        origin: &'static str,
    },
    /// The operating system refused an operation.
    #[error("cannot {doing} {path:?}: {source}{}", remedy(source))]
    Os {
        /// The failed operation, as a verb.
        doing: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A limit of the process does not permit enough address space.
    #[error("cannot map {path:?}: {cause}")]
    NoRoom {
        /// The file.
        path: PathBuf,
        /// The limit.
        cause: NoRoom,
    },
    /// A limit of the process does not permit a file of the required length.
    #[error("cannot make {path:?}: {cause}")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The limit.
        cause: FileTooLarge,
    },
    /// The file was created by another version of this software, or is damaged.
    #[error(
        "{0:?} was made by another version of Trunkline, or is damaged: end the programs that use it \
         and remove it, or name another directory in TRUNKLINE_RUNTIME_DIR"
    )]
    OtherVersion(PathBuf),
    /// A table of the registry is full.
    #[error("the host's registry holds no more {0}; end programs that are not needed")]
    Full(&'static str),
    /// Another member has claimed the service.
    #[error(
        "something listens there already; take another port, or port 0 for a free one; `trunkctl nodes` lists the process"
    )]
    InUse,
    /// Another member has claimed the service, and one of the two claims is for all addresses.
    #[error("{WILDCARD_TAKEN}")]
    WildcardInUse,
}

fn remedy(error: &io::Error) -> String {
    let text = match error.raw_os_error() {
        errno @ Some(libc::EMFILE | libc::ENFILE | libc::EFBIG) => {
            return headroom::remedy(errno).to_string();
        }
        Some(libc::ENOMEM) => "raise the limit on memory (ulimit -v), or end what uses it up",
        Some(libc::ENOSPC | libc::EDQUOT) => {
            "make room on that file system, or name a directory on another one in TRUNKLINE_RUNTIME_DIR"
        }
        Some(libc::EISDIR) => "remove it, or name another directory in TRUNKLINE_RUNTIME_DIR",
        _ => "name another directory in TRUNKLINE_RUNTIME_DIR",
    };
    format!("; {text}")
}

impl From<HostError> for VerbsError {
    fn from(error: HostError) -> Self {
        match error {
            HostError::Unsafe { .. } => Self::Os(libc::EACCES),
            HostError::Absent { .. } => Self::Os(libc::ENOENT),
            HostError::Os { source, .. } => source.into(),
            HostError::NoRoom { .. } => Self::Os(libc::ENOMEM),
            HostError::TooLarge { .. } => Self::Os(libc::EFBIG),
            HostError::OtherVersion(_) => Self::Os(libc::EPROTO),
            HostError::Full(what) => Self::OutOfResources(what),
            HostError::InUse => Self::AddressInUse(
                "something listens there already; take another port, or port 0 for a free one; `trunkctl nodes` lists the process",
            ),
            HostError::WildcardInUse => Self::AddressInUse(WILDCARD_TAKEN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claimed_service_is_reported_with_command_that_lists_process() {
        let text = HostError::InUse.to_string();
        assert!(text.contains("`trunkctl nodes` lists the process"), "{text}");
        assert!(VerbsError::from(HostError::InUse).to_string().contains(&text), "{text}");
    }

    #[test]
    fn error_without_known_cause_has_remedy() {
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let error = HostError::Os { doing: "open", path: "/run".into(), source };
        assert!(error.to_string().ends_with("; name another directory in TRUNKLINE_RUNTIME_DIR"), "{error}");
    }
}
