//! Shared receive queues.

use crate::{CompletionQueue, PostError, ProtectionDomain, ReceiveRequest, SrqNumber, VerbsError, XrcDomain};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// What kind of SRQ.
#[derive(Debug, Clone)]
pub enum SrqKind {
    /// For RC QPs, which name it at creation and have CQs of their own.
    Basic,
    /// Reached by number through any TGT of the domain; completes into its own CQ.
    Xrc {
        /// The domain.
        xrcd: Arc<dyn XrcDomain>,
        /// Where its receives complete.
        cq: Arc<dyn CompletionQueue>,
    },
}

/// What an SRQ is made with.
#[derive(Debug, Clone)]
pub struct SrqInit {
    /// Protection domain of its buffers, and of the rkeys of messages that name it
    /// (contract G4, G5).
    pub pd: Arc<dyn ProtectionDomain>,
    /// Kind.
    pub kind: SrqKind,
    /// Work requests it must hold.
    pub max_wr: u32,
    /// SGEs per request.
    pub max_sge: u32,
    /// Returned in asynchronous events.
    pub context: u64,
}

/// An SRQ now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Work requests it can hold.
    pub max_wr: u32,
    /// SGEs per request.
    pub max_sge: u32,
    /// The armed limit; 0 when disarmed.
    pub limit: u32,
}

/// A shared receive queue.
pub trait SharedReceiveQueue: Any + Send + Sync + Debug {
    /// Its number, for XRC.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a basic SRQ.
    fn number(&self) -> Result<SrqNumber, VerbsError>;

    /// Posts receives.
    ///
    /// # Errors
    /// At the first request with too many SGEs, or when the queue is full.
    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// Its sizes and limit.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] after it was destroyed.
    fn query(&self) -> Result<SrqAttributes, VerbsError>;

    /// Arms the limit: one event when fewer than `limit` requests are posted (contract D6);
    /// 0 disarms.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a limit above the queue's size.
    fn arm_limit(&self, limit: u32) -> Result<(), VerbsError>;

    /// Makes it hold `max_wr` requests (contract D7); what is posted stays. Devices with
    /// `SRQ_RESIZE` can.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] below the armed limit or the number of posted requests, or above the
    /// device's maximum; [`VerbsError::NotSupported`].
    fn resize(&self, max_wr: u32) -> Result<(), VerbsError>;

    /// Destroys it. Posted requests vanish without completions (contract D9).
    ///
    /// # Errors
    /// [`VerbsError::Busy`] for a basic SRQ that QPs use (contract D8).
    fn destroy(&self) -> Result<(), VerbsError>;
}
