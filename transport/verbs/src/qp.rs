//! Queue pairs.

use crate::{
    CompletionQueue, PostError, ProtectionDomain, QpAttributes, QpModify, QpNumber, QpType, ReceiveRequest,
    SendRequest, SharedReceiveQueue, VerbsError, XrcDomain,
};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Sizes of a QP's queues. Returned values may be larger than asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCapacities {
    /// Send requests.
    pub max_send_wr: u32,
    /// Receive requests; ignored with an SRQ and for XRC types (contract C2).
    pub max_receive_wr: u32,
    /// SGEs of a send request.
    pub max_send_sge: u32,
    /// SGEs of a receive request.
    pub max_receive_sge: u32,
    /// Inline bytes of a send request.
    pub max_inline_data: u32,
}

/// What a QP is made with. INI: `pd` and `send_cq`. TGT: `xrcd` alone. RC: `pd`, both CQs,
/// perhaps a basic SRQ.
#[derive(Debug, Clone)]
pub struct QpInit {
    /// Type.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: Option<Arc<dyn ProtectionDomain>>,
    /// Where sends complete.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// Where receives complete.
    pub receive_cq: Option<Arc<dyn CompletionQueue>>,
    /// Basic SRQ of an RC QP.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// Domain of a TGT.
    pub xrcd: Option<Arc<dyn XrcDomain>>,
    /// Sizes.
    pub capacities: QueueCapacities,
    /// Report the success of each send, not only of signalled ones.
    pub signal_all: bool,
}

impl QpInit {
    /// An empty request of a type, to fill in.
    #[must_use]
    pub fn new(qp_type: QpType) -> Self {
        Self {
            qp_type,
            pd: None,
            send_cq: None,
            receive_cq: None,
            srq: None,
            xrcd: None,
            capacities: QueueCapacities::default(),
            signal_all: false,
        }
    }
}

/// A queue pair (for a TGT: one handle on it).
pub trait QueuePair: Any + Send + Sync + Debug {
    /// Its number.
    fn number(&self) -> QpNumber;

    /// Its type.
    fn qp_type(&self) -> QpType;

    /// The sizes it got.
    fn capacities(&self) -> QueueCapacities;

    /// Changes its state and attributes (contract E1 to E4).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a transition or a mask outside the table.
    fn modify(&self, change: &QpModify) -> Result<(), VerbsError>;

    /// Its state and attributes now.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] after it was destroyed.
    fn query(&self) -> Result<QpAttributes, VerbsError>;

    /// Posts sends; one doorbell for all.
    ///
    /// # Errors
    /// At the first request that is refused: on a TGT, before RTS, when the queue is full
    /// (contract C10, E8).
    fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts sends as [`QueuePair::post_send`], but all or none (`ibv_wr_complete`).
    ///
    /// # Errors
    /// As `post_send`; then nothing was posted.
    fn post_send_whole(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts receives on an RC QP without SRQ.
    ///
    /// # Errors
    /// On any other QP (contract C10), or when the queue is full.
    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// Destroys it, or for a TGT drops this handle. Outstanding work gives no completions any
    /// more; move the QP to ERR and drain first when its buffers matter.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] when it was destroyed before.
    fn destroy(&self) -> Result<(), VerbsError>;
}
