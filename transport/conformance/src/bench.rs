//! The interface of a provider under test.

use std::net::IpAddr;
use std::sync::Arc;
use trunkline_verbs::{CompletionStatus, Device, VerbsError};

/// An opened device and one of its addresses.
#[derive(Debug, Clone)]
pub struct Port {
    /// The opened device.
    pub device: Arc<dyn Device>,
    /// Address of one of its GIDs.
    pub address: IpAddr,
    /// Index of that GID.
    pub gid_index: u16,
}

/// A provider on a link.
pub trait Bench: Send + Sync {
    /// Returns the provider's name.
    fn provider(&self) -> &str;

    /// Returns the link's name.
    fn link(&self) -> &str;

    /// Opens two devices that reach each other. Each item opens its own pair; a provider with only
    /// two devices may return the same ones each time.
    ///
    /// # Errors
    /// If they cannot be opened; the item then fails.
    fn open_pair(&self) -> Result<[Port; 2], VerbsError>;

    /// Returns true if both ports are one device that was opened twice, as two processes do (contract A2).
    fn is_one_device(&self) -> bool {
        false
    }

    /// Returns true if completions indicate that the sender requested a solicited event; completions of the C
    /// API do not.
    fn shows_solicited(&self) -> bool {
        true
    }

    /// Returns true if a receive that is posted to a QP in ERR is flushed at once.
    fn flushes_late_receives(&self) -> bool {
        true
    }

    /// Returns the possible completions of a send over RC that is longer than its receive.
    fn length_violation(&self) -> &[CompletionStatus] {
        &[CompletionStatus::RemoteInvalidRequest]
    }

    /// Returns the reason why an item cannot be checked on this device, other than missing XRC. Such an item
    /// is skipped.
    fn excuse(&self, _id: &str) -> Option<&str> {
        None
    }

    /// Returns the possible completions of a send to an SRQ number that the target's domain does not have. Devices
    /// differ (contract G7).
    fn xrc_violation(&self) -> &[CompletionStatus] {
        &[
            CompletionStatus::RemoteInvalidRdRequest,
            CompletionStatus::RemoteInvalidRequest,
            CompletionStatus::RemoteAccessError,
            CompletionStatus::GeneralError,
            CompletionStatus::RetryExceeded,
        ]
    }
}
