//! The interface of a provider under test.

use std::net::IpAddr;
use std::sync::Arc;
use trunkline_verbs::{CompletionStatus, Device, VerbsError};

/// An open device and one of its addresses.
#[derive(Debug, Clone)]
pub struct Port {
    /// The open device.
    pub device: Arc<dyn Device>,
    /// IP address of one of the device's GIDs.
    pub address: IpAddr,
    /// Index of this GID.
    pub gid_index: u16,
}

/// A provider and a link to be tested.
pub trait Bench: Send + Sync {
    /// Returns the provider's name.
    fn provider(&self) -> &str;

    /// Returns the link's name.
    fn link(&self) -> &str;

    /// Opens two devices that can reach each other. Called once per item. A provider with only two devices may return the
    /// same devices each time.
    ///
    /// # Errors
    /// Returns an error if a device cannot be opened, which fails the item.
    fn open_pair(&self) -> Result<[Port; 2], VerbsError>;

    /// Returns true if both ports belong to one device that is open twice, as if by two processes (contract A2).
    fn is_one_device(&self) -> bool {
        false
    }

    /// Returns true if completions contain the solicited-event flag of the request. Completions of the C API do not.
    fn shows_solicited(&self) -> bool {
        true
    }

    /// Returns true if a receive that is posted to a QP in ERR is flushed immediately.
    fn flushes_late_receives(&self) -> bool {
        true
    }

    /// Returns the allowed statuses of a send over RC that is longer than its receive.
    fn length_violation(&self) -> &[CompletionStatus] {
        &[CompletionStatus::RemoteInvalidRequest]
    }

    /// Returns the reason why an item cannot be checked on this device, other than missing XRC. The item is then skipped.
    fn excuse(&self, _id: &str) -> Option<&str> {
        None
    }

    /// Returns the allowed statuses of a send to an SRQ number that does not exist in the target's domain. Devices differ
    /// (contract G7).
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
