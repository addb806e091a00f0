//! Shared receive queues.

use crate::{CompletionQueue, PostError, ProtectionDomain, ReceiveRequest, SrqNumber, VerbsError, XrcDomain};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// The kind of an SRQ.
#[derive(Debug, Clone)]
pub enum SrqKind {
    /// An SRQ for RC QPs, which are created with it and use their own CQs.
    Basic,
    /// An SRQ reached by number through any TGT of the domain. Its receives complete into its own CQ.
    Xrc {
        /// The XRC domain that it belongs to.
        xrcd: Arc<dyn XrcDomain>,
        /// The CQ that its receives complete into.
        cq: Arc<dyn CompletionQueue>,
    },
}

/// The parameters for creating an SRQ.
#[derive(Debug, Clone)]
pub struct SrqInit {
    /// Protection domain of the SRQ's buffers, and of the rkeys in messages that name the SRQ (contract G4, G5).
    pub pd: Arc<dyn ProtectionDomain>,
    /// Basic or XRC.
    pub kind: SrqKind,
    /// Minimum number of work requests.
    pub max_wr: u32,
    /// Minimum number of SGEs per request.
    pub max_sge: u32,
    /// The caller's value that asynchronous events of the SRQ carry.
    pub context: u64,
}

/// Current attributes of an SRQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Number of work requests that the SRQ can hold.
    pub max_wr: u32,
    /// Number of SGEs per request.
    pub max_sge: u32,
    /// The armed limit in work requests; 0 when disarmed.
    pub limit: u32,
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Any + Send + Sync + Debug {
    /// Returns the SRQ number of an XRC SRQ.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a basic SRQ.
    fn number(&self) -> Result<SrqNumber, VerbsError>;

    /// Posts receives.
    ///
    /// # Errors
    /// The index of the first refused request, with the reason: too many SGEs, or a full queue.
    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// Returns the current size and limit.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the SRQ is destroyed.
    fn query(&self) -> Result<SrqAttributes, VerbsError>;

    /// Arms the limit. One event is raised when fewer than `limit` requests are posted (contract D6). 0 disarms it.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a limit above the queue's size.
    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError>;

    /// Changes the size to at least `max_wr` requests and keeps the posted ones (contract D7), on devices
    /// with `SRQ_RESIZE`.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] below the armed limit or the number of posted requests, or above the
    /// device's maximum; [`VerbsError::NotSupported`].
    fn resize(&self, max_wr: u32) -> Result<(), VerbsError>;

    /// Destroys the SRQ. Posted requests are dropped without completions (contract D9).
    ///
    /// # Errors
    /// [`VerbsError::Busy`] for a basic SRQ that QPs use (contract D8).
    fn destroy(&self) -> Result<(), VerbsError>;
}
