//! Queue pairs.

use crate::QpPath;
use crate::{
    CompletionQueue, PostError, ProtectionDomain, QpAttributes, QpModify, QpNumber, QpType, ReceiveRequest,
    SendRequest, SharedReceiveQueue, VerbsError, XrcDomain,
};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// Capacities of a QP's queues. The actual values may be larger than the requested ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QueueCapacities {
    /// Maximum number of outstanding send requests.
    pub max_send_wr: u32,
    /// Maximum number of posted receives; ignored with an SRQ and for XRC types (contract C2).
    pub max_receive_wr: u32,
    /// Maximum number of SGEs per send request.
    pub max_send_sge: u32,
    /// Maximum number of SGEs per receive request.
    pub max_receive_sge: u32,
    /// Maximum number of inline bytes per send request.
    pub max_inline_data: u32,
}

/// The parameters for creating a QP. An INI requires `pd` and `send_cq`, a TGT only `xrcd`. An RC QP requires `pd` and both
/// CQs, and may use a basic SRQ.
#[derive(Debug, Clone)]
pub struct QpInit {
    /// Transport type.
    pub qp_type: QpType,
    /// Protection domain of the QP's memory accesses.
    pub pd: Option<Arc<dyn ProtectionDomain>>,
    /// The CQ that sends complete into.
    pub send_cq: Option<Arc<dyn CompletionQueue>>,
    /// The CQ that receives complete into.
    pub receive_cq: Option<Arc<dyn CompletionQueue>>,
    /// The basic SRQ of an RC QP.
    pub srq: Option<Arc<dyn SharedReceiveQueue>>,
    /// The XRC domain of a TGT.
    pub xrcd: Option<Arc<dyn XrcDomain>>,
    /// Requested capacities of the queues.
    pub capacities: QueueCapacities,
    /// True if every send generates a completion, not only signalled ones.
    pub signal_all: bool,
    /// The group of CQs ([`crate::CqInit::group`]) whose thread does the work of a TGT, which has no CQ.
    /// Other QPs belong to the group of their send CQ.
    pub group: u32,
}

impl QpInit {
    /// Creates the parameters for a type, with defaults for all other fields.
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
            group: 0,
        }
    }
}

/// Amount of data that READs on a path may request at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadAllowance {
    /// Packets of data that new READs may request without waiting.
    pub packets: u32,
    /// Maximum number of packets per READ, so that several READs are in flight at a time; at least 1.
    pub per_read: u32,
    /// Payload bytes of a packet; at least 1.
    pub packet_bytes: u32,
}

/// A queue pair, or one of the handles to a TGT.
pub trait QueuePair: Any + Send + Sync + Debug {
    /// Returns the QP number.
    fn number(&self) -> QpNumber;

    /// Returns the transport type.
    fn qp_type(&self) -> QpType;

    /// Returns the actual capacities of the queues.
    fn capacities(&self) -> QueueCapacities;

    /// Changes state and attributes (contract E1 to E4).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a transition or a mask that the table does not allow.
    fn modify(&self, change: &QpModify) -> Result<(), VerbsError>;

    /// Returns the current state and attributes.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the QP is destroyed.
    fn query(&self) -> Result<QpAttributes, VerbsError>;

    /// Returns the current path of the QP's packets; `None` if the device has only one path, or does not
    /// execute the QP.
    fn path(&self) -> Option<QpPath> {
        None
    }

    /// Returns the number of packets that the QP has received in order; `None` if the device neither reports
    /// it nor executes the QP.
    fn received_packets(&self) -> Option<u64> {
        None
    }

    /// Returns the amount of data that new READs may request; `None` if the device does not limit it. A READ beyond this
    /// amount is accepted, but waits in the send queue together with all later work.
    fn read_allowance(&self) -> Option<ReadAllowance> {
        None
    }

    /// Posts send requests, with one doorbell for all of them.
    ///
    /// # Errors
    /// The index of the first refused request, with the reason: the QP is a TGT or not yet in RTS, or the queue is full
    /// (contract C10, E8).
    fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Like [`QueuePair::post_send`], but posts all requests or none (`ibv_wr_complete`).
    ///
    /// # Errors
    /// Same as [`QueuePair::post_send`]. In this case no request is posted.
    fn post_send_whole(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError>;

    /// Posts receives to an RC QP without an SRQ.
    ///
    /// # Errors
    /// The index of the first refused request, with the reason: the QP is of another kind (contract C10), or the queue is
    /// full.
    fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError>;

    /// Destroys the QP, or for a TGT drops this handle. Outstanding work no longer completes; to reuse
    /// its buffers safely, first move the QP to ERR and poll the flushed completions.
    ///
    /// # Errors
    /// [`VerbsError::Gone`] if the QP is already destroyed.
    fn destroy(&self) -> Result<(), VerbsError>;
}
