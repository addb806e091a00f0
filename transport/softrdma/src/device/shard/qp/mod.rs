//! A queue pair of a shard.
//!
//! Owns the QP's requester and responder, its attributes, its route and its reception. Called by the shard, with the
//! shard's resources. A QP must never access another QP.
//!
//! | part | what it owns |
//! |---|---|
//! | `traffic` | the QP's packets |
//! | `path`, `route` | the path of the QP's packets, and their addresses |
//! | `reception`, `receives` | the receives in progress, and the queue that a message takes its receive from |
//! | `target`, `memory` | memory that the peer accesses, and memory of the QP's own requests |

pub(super) mod memory;
mod path;
pub(super) mod receives;
pub(super) mod reception;
pub(super) mod route;
pub(super) mod target;
mod traffic;

use self::reception::{ReceiveSource, Reception};
use self::route::{Heard, Route};
use super::local::QpPath;
use super::paths::OnPath;
use super::resources::Resources;
use super::shared_tgt::SharedTgt;
use crate::device::MAX_MESSAGE;
use crate::device::objects::async_events::AsyncEvents;
use crate::device::objects::cq_ring::CqRing;
use crate::device::objects::receive_queue::{ReceiveQueue, post_all};
use crate::device::tables::domain_table::{Domain, DomainNumber};
use crate::device::tables::keys::PdNumber;
use crate::link::{Datagram, Origin};
use std::sync::Arc;
use trunkline_roce::engine::{
    PostRefused, Requester, RequesterCounters, ResponderCounters, ResponderState, Tuning,
};
use trunkline_roce::wire::IpUdp;
use trunkline_verbs::{
    AsyncEventKind, AsyncSubject, PostError, QpAttributes, QpNumber, QpState, QpType, QueueCapacities,
    ReceiveRequest, SendRequest, SrqNumber, UdpPorts, VerbsError,
};

/// Source of a new QP's receives.
#[derive(Debug)]
pub(in crate::device) enum ReceiveSide {
    /// INI.
    None,
    /// RC with a separate queue.
    Own { queue: ReceiveQueue, cq: Arc<CqRing> },
    /// RC with a basic SRQ.
    Basic { srq: u32, cq: Arc<CqRing> },
    /// TGT.
    Xrc { domain: Arc<Domain> },
}

/// Parts from which a QP is created.
#[derive(Debug)]
pub(in crate::device) struct QpParts {
    pub(in crate::device) qp_type: QpType,
    /// `None` for a TGT.
    pub(in crate::device) pd: Option<PdNumber>,
    pub(in crate::device) send_cq: Option<Arc<CqRing>>,
    pub(in crate::device) receive: ReceiveSide,
    pub(in crate::device) capacities: QueueCapacities,
    pub(in crate::device) signal_all: bool,
}

/// Remaining state of a TGT that another process executed.
#[derive(Debug)]
pub(in crate::device) struct TgtRemains<'a> {
    pub(in crate::device) attributes: QpAttributes,
    /// The published state of the responder.
    pub(in crate::device) responder: &'a [u64],
    pub(in crate::device) domain: Arc<Domain>,
    /// Reception in this process, if it has placed packets of the TGT.
    pub(in crate::device) reception: Option<Reception>,
    pub(in crate::device) route: Option<Route>,
    pub(in crate::device) shared: Box<dyn SharedTgt>,
}

#[derive(Debug)]
pub(super) struct Qp {
    number: QpNumber,
    attributes: QpAttributes,
    requester: Option<Requester>,
    responder: Option<ResponderState>,
    reception: Reception,
    pd: PdNumber,
    send_cq: Option<Arc<CqRing>>,
    route: Option<Route>,
    path: QpPath,
    on_path: OnPath,
    /// Source of a request that is being placed in another process. The source is proven if the placement
    /// succeeds.
    awaits_proof: Option<Heard>,
    /// True if the first packet is to be reported to control in place of the RTU of its connection.
    awaits_rtu: bool,
    /// True if the next response has to report that a request was marked (ECN).
    owes_echo: bool,
    /// Keeps the XRC domain of a TGT alive (contract A12).
    domain: Option<Arc<Domain>>,
    /// Number of open handles of a QP that is not shared. Only a TGT can have more than one.
    handles: usize,
    /// State for sharing a TGT among processes; `None` for other QPs.
    shared: Option<Box<dyn SharedTgt>>,
}

impl Qp {
    /// Creates a QP in RESET.
    pub(super) fn new(number: QpNumber, parts: QpParts, shared: Option<Box<dyn SharedTgt>>) -> Self {
        let qp_type = parts.qp_type;
        // A TGT does not have a PD (contract C3), and uses the keys of SRQs.
        let pd = parts.pd.unwrap_or(PdNumber(0));
        let mut domain = None;
        let source = match parts.receive {
            ReceiveSide::None => ReceiveSource::None,
            ReceiveSide::Own { queue, cq } => ReceiveSource::Own { queue, pd, cq },
            ReceiveSide::Basic { srq, cq } => ReceiveSource::Basic { srq, pd, cq },
            ReceiveSide::Xrc { domain: of } => {
                let source = ReceiveSource::Xrc { domain: of.number() };
                domain = Some(of);
                source
            }
        };
        let sends = qp_type != QpType::XrcTgt;
        Self {
            number,
            attributes: QpAttributes::new(qp_type),
            requester: sends.then(|| {
                Requester::new(number, qp_type, parts.capacities, parts.signal_all, Tuning::default())
            }),
            responder: (qp_type != QpType::XrcIni).then(|| {
                let mut responder = ResponderState::new(number);
                responder.limit_message(MAX_MESSAGE);
                responder
            }),
            reception: Reception::new(source),
            pd,
            send_cq: parts.send_cq,
            route: None,
            path: QpPath::default(),
            on_path: OnPath::default(),
            awaits_proof: None,
            awaits_rtu: false,
            owes_echo: false,
            domain,
            handles: 1,
            shared,
        }
    }

    /// Creates a TGT that another process executed until now.
    pub(super) fn from_remains(number: QpNumber, remains: TgtRemains<'_>) -> Self {
        let TgtRemains { attributes, responder, domain, reception, route, shared } = remains;
        Self {
            number,
            attributes,
            requester: None,
            responder: Some(ResponderState::from_image(number, responder)),
            reception: reception.unwrap_or_else(|| Reception::of_domain(domain.number())),
            pd: PdNumber(0),
            send_cq: None,
            route,
            path: QpPath::default(),
            on_path: OnPath::default(),
            awaits_proof: None,
            awaits_rtu: false,
            owes_echo: false,
            domain: Some(domain),
            handles: 1,
            shared: Some(shared),
        }
    }

    /// Returns the attributes and state of the QP.
    pub(super) fn attributes(&self) -> &QpAttributes {
        &self.attributes
    }

    /// Returns true if the QP may receive this datagram. Both IP addresses must match, but the UDP source port need not
    /// (contract rocev2 8.3). After the first packet from a member of this host, only packets from members are
    /// accepted, since another user may take over the peer's address and ports when the peer dies.
    pub(super) fn is_connected(&self, datagram: &Datagram<'_>, origin: Origin) -> bool {
        self.route
            .as_ref()
            .is_some_and(|route| route.is_of(datagram) && (origin.is_member || !route.is_to_member()))
    }

    /// Returns the headers covered by the ICRC of the peer's packets; `None` unless an address translator rewrites the
    /// headers.
    pub(super) fn covered_by_peer(&self) -> Option<IpUdp> {
        self.route.as_ref()?.covered_by_peer()
    }

    /// Returns true if the peer named itself a software device in a message of the connection manager.
    pub(super) fn is_peer_named_soft(&self) -> bool {
        self.route.as_ref().is_some_and(Route::is_named_soft)
    }

    /// Sets the UDP ports of the connection. `is_soft` is true if the peer has named itself a software device.
    pub(super) fn set_ports(&mut self, ports: UdpPorts, is_soft: bool) {
        if let Some(route) = &mut self.route {
            route.set_ports(ports, is_soft);
        }
    }

    /// Adds a handle if this is a TGT of the domain. Returns false otherwise.
    pub(super) fn open_handle(&mut self, domain: DomainNumber) -> bool {
        let found = self.domain.as_ref().is_some_and(|of| of.number() == domain);
        self.handles += usize::from(found);
        found
    }

    /// Closes a handle. Returns true if it was the last.
    pub(super) fn close_handle(&mut self) -> bool {
        self.handles -= 1;
        self.handles == 0
    }

    /// Returns the counters of the requester and of the responder.
    pub(super) fn counters(&self) -> (Option<&RequesterCounters>, Option<&ResponderCounters>) {
        let responder = self.responder.as_ref().map(ResponderState::counters);
        (self.requester.as_ref().map(Requester::counters), responder)
    }

    /// Sets whether the next packet is reported to control in place of the RTU.
    pub(super) fn await_rtu(&mut self, awaits: bool) {
        self.awaits_rtu = awaits;
    }

    /// Returns the state for sharing a TGT, if the QP is a shared TGT.
    pub(super) fn shared(&mut self) -> Option<&mut (dyn SharedTgt + 'static)> {
        self.shared.as_deref_mut()
    }

    /// Returns the SRQ from which the message in progress holds a receive, in this process or another.
    pub(super) fn message_srq(&self) -> Option<SrqNumber> {
        self.responder.as_ref()?.message_srq()
    }

    /// Applies the attributes, which the caller has checked, and the route, if any.
    pub(super) fn apply(&mut self, after: &QpAttributes, route: Option<Route>, resources: &mut Resources) {
        let state = after.state;
        let entered = self.attributes.state != state;
        if let Some(route) = route {
            self.route = Some(route);
            self.leave_path(resources);
            self.forget_path();
        }
        self.attributes = *after;
        if entered && state == QpState::Reset {
            self.route = None;
            self.leave_path(resources);
            self.forget_path();
            self.awaits_proof = None;
            self.reception.reset();
        }
        self.follow();
        if entered && state == QpState::Error {
            self.enter_error(resources);
        }
        if entered && matches!(state, QpState::Error | QpState::Reset) {
            self.end_remote_message(state == QpState::Error, resources);
        }
        // The new state must be visible to other processes when this call returns.
        self.publish(resources);
    }

    /// Moves the QP to ERR after a failure, and raises an event of the given kind.
    pub(super) fn break_down(&mut self, kind: AsyncEventKind, resources: &mut Resources) {
        self.fail();
        self.enter_error(resources);
        self.raise(kind, &resources.events);
    }

    /// Moves to ERR a TGT whose published state or address is lost. Receives are not flushed.
    pub(super) fn abandon(&mut self, events: &AsyncEvents) {
        if self.attributes.state != QpState::Reset {
            self.fail();
            self.raise(AsyncEventKind::QpFatal, events);
        }
    }

    /// Returns true if the QP is not in ERR or RESET, and uses a CQ that has lost a completion.
    pub(super) fn has_overflowed(&self) -> bool {
        let sends = self.send_cq.as_ref().is_some_and(|cq| cq.is_overflowed());
        (sends || self.reception.source().is_overflowed())
            && !matches!(self.attributes.state, QpState::Error | QpState::Reset)
    }

    /// Raises an event for the QP. An event for a shared TGT is raised in each process with a handle.
    fn raise(&mut self, kind: AsyncEventKind, events: &AsyncEvents) {
        match &mut self.shared {
            Some(shared) => shared.raise(kind),
            None => events.raise(kind, AsyncSubject::Qp(self.number)),
        }
    }

    /// Completes the unfinished receives with errors. The requester flushes its own work.
    fn enter_error(&mut self, resources: &mut Resources) {
        self.leave_path(resources);
        self.flush_receives(resources);
        let events = &resources.events;
        if matches!(self.reception.source(), ReceiveSource::Basic { .. } | ReceiveSource::Xrc { .. }) {
            // contract H4
            self.raise(AsyncEventKind::QpLastWqeReached, events);
        }
    }

    fn flush_receives(&mut self, resources: &mut Resources) {
        let mut split = resources.split();
        let (intake, completer) = split.intake();
        self.reception.flush(self.number, intake, completer);
    }

    /// Moves the QP, its requester and its responder to ERR.
    fn fail(&mut self) {
        self.attributes.state = QpState::Error;
        self.follow();
    }

    fn follow(&mut self) {
        if let Some(requester) = &mut self.requester {
            requester.modify(&self.attributes);
        }
        if let Some(responder) = &mut self.responder {
            responder.modify(&self.attributes);
        }
    }

    /// Requests that another process end the message in progress. Its receive completes with an error if `is_error` is
    /// true, and is released otherwise.
    pub(super) fn end_remote_message(&mut self, is_error: bool, resources: &mut Resources) {
        if let Some(shared) = &mut self.shared {
            shared.end_message(self.number, is_error, &mut resources.outbox);
        }
    }

    /// Publishes the state of a shared TGT. Packets that reveal the new state must be sent afterwards.
    pub(super) fn publish(&self, resources: &mut Resources) {
        if let (Some(shared), Some(responder)) = (&self.shared, &self.responder) {
            let source = self.route.map(|route| route.source().ip());
            shared.publish(&self.attributes, source, responder, &mut resources.image);
        }
    }

    /// Posts send requests up to the first that is refused.
    pub(super) fn post_send(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        let none = VerbsError::Invalid("a TGT has no send queue");
        let requester = self.requester.as_mut().ok_or(PostError { index: 0, cause: none })?;
        for (index, request) in requests.iter().enumerate() {
            requester.post(request).map_err(|cause| PostError { index, cause: refusal(cause) })?;
        }
        Ok(())
    }

    /// Checks that all send requests can be posted.
    pub(super) fn check_send(&self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // If there is no requester, `post_send` returns the error.
        let Some(requester) = &self.requester else { return Ok(()) };
        for (index, request) in requests.iter().enumerate() {
            requester.check(request, index).map_err(|cause| PostError { index, cause: refusal(cause) })?;
        }
        Ok(())
    }

    /// Posts receives on an RC QP with a separate queue.
    pub(super) fn post_receive(
        &mut self,
        requests: &[ReceiveRequest<'_>],
        resources: &mut Resources,
    ) -> Result<(), PostError> {
        let refused = |why| PostError { index: 0, cause: VerbsError::Invalid(why) };
        let state = self.attributes.state;
        let own = self.reception.own_queue();
        let queue = own.ok_or(refused("this QP has no receive queue of its own"))?;
        if state == QpState::Reset {
            return Err(refused("receives are taken from INIT on"));
        }
        let result = post_all(queue, requests);
        if state == QpState::Error {
            self.flush_receives(resources);
        }
        result
    }
}

fn refusal(cause: PostRefused) -> VerbsError {
    match cause {
        PostRefused::NotReady(_) => VerbsError::Invalid("sends are taken from RTS on"),
        PostRefused::QueueFull => {
            VerbsError::OutOfResources("the send queue is full; take completions or make it larger")
        }
        PostRefused::TooManySges => VerbsError::Invalid("more SGEs than max_send_sge"),
        PostRefused::BadInline => {
            VerbsError::Invalid("inline data too long, or not allowed for this operation")
        }
        PostRefused::TooLong => VerbsError::Invalid("the message is longer than the port's maximum"),
        PostRefused::NoReadResources => VerbsError::Invalid("max_rd_atomic of the QP is 0"),
        PostRefused::BadAtomic => VerbsError::Invalid("the gather list of an atomic must have 8 bytes"),
    }
}
