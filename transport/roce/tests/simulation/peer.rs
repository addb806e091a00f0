//! One end of a connection: the two halves, and what waits for them.

use crate::target::{Deferred, Receive};
use std::collections::VecDeque;
use trunkline_roce::engine::{Requester, ResponderState};
use trunkline_verbs::QpNumber;

#[derive(Debug)]
pub(crate) struct Endpoint {
    pub(crate) node: usize,
    pub(crate) number: QpNumber,
    /// Gone with its node: packets to its number find nobody.
    pub(crate) gone: bool,
    pub(crate) requester: Option<Requester>,
    pub(crate) responder: Option<ResponderState>,
    /// Flow this end sends, and flow it receives.
    pub(crate) outgoing: Option<usize>,
    pub(crate) incoming: Option<usize>,
    pub(crate) own_queue: Option<usize>,
    pub(crate) requests: VecDeque<Vec<u8>>,
    pub(crate) responses: VecDeque<Vec<u8>>,
    pub(crate) deferred: Option<Deferred>,
    pub(crate) holding: Option<(usize, Receive)>,
    /// When it is served next, if that is arranged.
    pub(crate) service_at: Option<u64>,
}

/// Packets that wait at an endpoint at most; more are lost.
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
