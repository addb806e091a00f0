//! One end of a connection, with its requester, its responder, and the packets that wait for them.

use crate::target::{Deferred, Receive};
use std::collections::VecDeque;
use trunkline_roce::engine::{Requester, ResponderState};
use trunkline_verbs::QpNumber;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) node: usize,
    pub(crate) number: QpNumber,
    /// True if the node restarted and lost this QP. Packets to its number are then dropped.
    pub(crate) gone: bool,
    pub(crate) requester: Option<Requester>,
    pub(crate) responder: Option<ResponderState>,
    /// Index of the flow that this end sends. `incoming` is the flow that it receives.
    pub(crate) outgoing: Option<usize>,
    pub(crate) incoming: Option<usize>,
    pub(crate) own_queue: Option<usize>,
    pub(crate) requests: VecDeque<Vec<u8>>,
    pub(crate) responses: VecDeque<Vec<u8>>,
    pub(crate) deferred: Option<Deferred>,
    pub(crate) holding: Option<(usize, Receive)>,
    /// Time of the next service of the endpoint, if one is scheduled.
    pub(crate) service_at: Option<u64>,
}

/// Maximum number of packets that wait at an endpoint. Further packets are lost.
pub(crate) const INBOX: usize = 256;

impl Endpoint {
    pub(crate) fn new(node: usize, number: QpNumber) -> Self {
        Self {
            node,
            number,
            gone: false,
            requester: None,
            responder: None,
            outgoing: None,
            incoming: None,
            own_queue: None,
            requests: VecDeque::new(),
            responses: VecDeque::new(),
            deferred: None,
            holding: None,
            service_at: None,
        }
    }
}
