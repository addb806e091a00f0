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

    /// Opens two devices that can reach each other. Each item opens its own pair. A provider with only two devices may
    /// return the same devices each time.
    ///
    /// # Errors
    /// Returns an error if a device cannot be opened. The item then fails.
    fn open_pair(&self) -> Result<[Port; 2], VerbsError>;

    /// Returns true if both ports are one device that was opened twice, as if by two processes (contract A2).
    fn is_one_device(&self) -> bool {
        false
    }

    /// Returns true if completions show that the sender requested a solicited event. Completions of the C API do not
    /// show this.
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

    /// Returns the possible completions of a send to an SRQ number that does not exist in the target's domain. Devices
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
