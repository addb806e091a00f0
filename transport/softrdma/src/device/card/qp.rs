//! Queue pairs of the card: making, changing and destroying them.
//!
//! Owns a QP's two engine halves, its attributes and its route. Receiving and sending are in
//! `receive` and `transmit`.

use super::Card;
use super::completions::Completer;
use super::route::Route;
use super::sharing::Executor;
use super::srq::post_all;
use super::target::{ReceiveSource, Reception};
use super::timers::Scheduled;
use crate::device::cq_ring::CqRing;
use crate::device::domain_table::Domain;
use crate::device::keys::PdNumber;
use crate::device::limits::{MAX_MESSAGE, MAX_QPS, MAX_RD_ATOMIC};
use crate::device::receive_queue::ReceiveQueue;
use std::sync::Arc;
use trunkline_roce::engine::{PostRefused, Requester, ResponderState, Tuning};
use trunkline_verbs::{
    AsyncEventKind, Mtu, PostError, QpAttributes, QpModify, QpNumber, QpState, QpType, QueueCapacities,
    ReceiveRequest, SendRequest, Time, VerbsError, check_transition,
};

/// Where the receives of a new QP come from.
#[derive(Debug)]
pub(in crate::device) enum ReceiveSide {
    /// INI.
    None,
    /// RC with a queue of its own.
    Own { queue: ReceiveQueue, cq: Arc<CqRing> },
    /// RC with a basic SRQ.
    Basic { srq: u32, cq: Arc<CqRing> },
    /// TGT.
    Xrc { domain: Arc<Domain> },
}

/// What a QP is made of.
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

/// A queue pair.
#[derive(Debug)]
pub(super) struct Qp {
    pub(super) number: QpNumber,
    pub(super) attributes: QpAttributes,
    pub(super) requester: Option<Requester>,
    pub(super) responder: Option<ResponderState>,
    pub(super) reception: Reception,
    pub(super) pd: PdNumber,
    pub(super) send_cq: Option<Arc<CqRing>>,
    pub(super) route: Option<Route>,
    pub(super) scheduled: Scheduled,
    /// It stands in the list of QPs that want service.
    pub(super) is_ready: bool,
    /// The first packet stands for the RTU of its connection.
    pub(super) awaits_rtu: bool,
    /// Keeps the XRC domain of a TGT (contract A12).
    domain: Option<Arc<Domain>>,
    /// Open handles of a QP that is not shared; more than one only for a TGT.
    handles: usize,
    /// A TGT that other members share.
    pub(super) executor: Option<Box<Executor>>,
}

impl Card {
    /// Makes a QP in RESET; answers its number.
    pub(in crate::device) fn create_qp(&mut self, parts: QpParts) -> Result<QpNumber, VerbsError> {
        self.present()?;
        if self.qps.len() >= MAX_QPS {
            return Err(VerbsError::OutOfResources("the device holds no more QPs"));
        }
        let number = loop {
            let number = self.qp_numbers.take(|number| self.qps.contains(number))?;
            // A TGT that outlived its maker may stand in a block that was given away again.
            if !self.sharing.as_ref().is_some_and(|sharing| sharing.is_taken(number)) {
                break number;
            }
        };
        let number24 = QpNumber::new(number);
        let qp_type = parts.qp_type;
        // A TGT has no PD (contract C3); its keys are those of SRQs.
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
        let qp = Qp {
            number: number24,
            attributes: QpAttributes::new(qp_type),
            requester: sends.then(|| {
                Requester::new(number24, qp_type, parts.capacities, parts.signal_all, Tuning::default())
            }),
            responder: (qp_type != QpType::XrcIni).then(|| {
                let mut responder = ResponderState::new(number24);
                responder.limit_message(MAX_MESSAGE);
                responder
            }),
            reception: Reception::new(source),
            pd,
            send_cq: parts.send_cq,
            route: None,
            scheduled: Scheduled::default(),
            is_ready: false,
            awaits_rtu: false,
            handles: 1,
            executor: match &domain {
                Some(domain) => self.share(number, domain)?,
                None => None,
            },
            domain,
        };
        self.qps.insert(number, Box::new(qp));
        self.publish(number);
        Ok(number24)
    }

    /// A TGT that another member executed, from what it left; not yet in the table.
    pub(super) fn qp_from_image(
        &self,
        number: QpNumber,
        responder: &[u64],
        domain: Arc<Domain>,
        reception: Option<Reception>,
        executor: Box<Executor>,
    ) -> Box<Qp> {
        let source = ReceiveSource::Xrc { domain: domain.number() };
        Box::new(Qp {
            number,
            attributes: QpAttributes::new(QpType::XrcTgt),
            requester: None,
            responder: Some(ResponderState::from_image(number, responder)),
            reception: reception.unwrap_or_else(|| Reception::new(source)),
            pd: PdNumber(0),
            send_cq: None,
            route: None,
            scheduled: Scheduled::default(),
            is_ready: false,
            awaits_rtu: false,
            domain: Some(domain),
            handles: 0,
            executor: Some(executor),
        })
    }

    /// Opens a further handle on a TGT (contract C4).
    pub(in crate::device) fn open_tgt(
        &mut self,
        number: QpNumber,
        domain: &Arc<Domain>,
        now: Time,
    ) -> Result<(), VerbsError> {
        if let Some(()) = self.open_shared(number.get(), domain, now)? {
            return Ok(());
        }
        let found = self
            .qps
            .get_mut(number.get())
            .filter(|qp| qp.domain.as_ref().is_some_and(|of| of.number() == domain.number()));
        let qp = found.ok_or(VerbsError::Invalid("no TGT of this number is in the XRC domain"))?;
        qp.handles += 1;
        Ok(())
    }

    /// Drops a handle, and with the last one the QP (contract C6).
    pub(in crate::device) fn close_qp(&mut self, number: QpNumber) {
        if self.close_shared(number.get()).is_some() {
            return;
        }
        let Some(qp) = self.qps.get_mut(number.get()) else { return };
        qp.handles -= 1;
        if qp.handles == 0 {
            self.remove_qp(number.get());
        }
    }

    /// Destroys a QP.
    pub(super) fn remove_qp(&mut self, number: u32) {
        self.send_final_ack(number);
        if let Some(qp) = self.qps.remove(number) {
            self.qp_numbers.free(number);
            let responder = qp.responder.as_ref().map(ResponderState::counters);
            self.counters.retired.add(qp.requester.as_ref().map(Requester::counters), responder);
        }
    }

    /// Attributes and state.
    pub(in crate::device) fn query_qp(&self, number: QpNumber) -> Result<QpAttributes, VerbsError> {
        let own = self.qps.get(number.get()).map(|qp| qp.attributes);
        own.or_else(|| self.query_shared(number.get())).ok_or(VerbsError::Gone)
    }

    /// Changes a QP (contract E1 to E4).
    pub(in crate::device) fn modify_qp(
        &mut self,
        number: QpNumber,
        change: &QpModify,
    ) -> Result<(), VerbsError> {
        let before = match self.qps.get(number.get()) {
            Some(qp) => qp.attributes,
            // Whoever holds a handle asks that process; the connection manager cannot wait for it.
            None if self.query_shared(number.get()).is_some() => {
                return Err(VerbsError::Invalid("another process executes this TGT; connect it there"));
            }
            None => return Err(VerbsError::Gone),
        };
        let state = check_transition(before.qp_type, before.state, change).map_err(|_| {
            VerbsError::Invalid("no such transition, or its attributes are not those it needs")
        })?;
        let change = without_dropped(before.qp_type, change);
        let mut after = if state == QpState::Reset { QpAttributes::new(before.qp_type) } else { before };
        after.apply(&change);
        after.state = state;
        check_attributes(&after, &change)?;
        let route = match change.address_vector {
            Some(_) => Some(self.open_route(&after)?),
            None => None,
        };
        let entered = before.state != state;
        if entered && matches!(state, QpState::Error | QpState::Reset) {
            self.send_final_ack(number.get());
        }
        let Self { qps, srqs, counters, events, .. } = self;
        let Some(qp) = qps.get_mut(number.get()) else { return Err(VerbsError::Gone) };
        if let Some(route) = route {
            qp.route = Some(route);
        }
        qp.attributes = after;
        if entered && state == QpState::Reset {
            qp.route = None;
            qp.reception.reset();
        }
        if let Some(requester) = &mut qp.requester {
            requester.modify(&after);
        }
        if let Some(responder) = &mut qp.responder {
            responder.modify(&after);
        }
        if entered && state == QpState::Error {
            let mut completer = Completer { events, counters };
            qp.enter_error(srqs, &mut completer);
        }
        if entered && matches!(state, QpState::Error | QpState::Reset) {
            self.end_remote_message(number.get(), state == QpState::Error);
        }
        // Whoever asks another member sees it as soon as this call is over.
        self.publish(number.get());
        self.mark_ready(number.get());
        Ok(())
    }

    /// Opens the local address of a route, and says what it is.
    pub(super) fn open_route(&mut self, attributes: &QpAttributes) -> Result<Route, VerbsError> {
        let vector = attributes.address_vector.ok_or(VerbsError::Invalid("no address vector"))?;
        let source = self
            .gids
            .at(vector.source_gid_index)
            .ok_or(VerbsError::Invalid("no such index in the GID table"))?;
        let destination = vector.destination.ip();
        if source.is_ipv4() != destination.is_ipv4() {
            return Err(VerbsError::Invalid("the two GIDs are of different address families"));
        }
        self.open_address(source)?;
        Ok(Route::new(self.link.source(source), destination))
    }

    /// Posts sends and lets them leave.
    pub(in crate::device) fn post_send(
        &mut self,
        number: QpNumber,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        let refused = |index| move |cause| PostError { index, cause };
        let qp = self.qps.get_mut(number.get()).ok_or(VerbsError::Gone).map_err(refused(0))?;
        let none = VerbsError::Invalid("a TGT has no send queue");
        let requester = qp.requester.as_mut().ok_or(none).map_err(refused(0))?;
        let mut result = Ok(());
        for (index, request) in requests.iter().enumerate() {
            if let Err(cause) = requester.post(request) {
                result = Err(PostError { index, cause: refusal(cause) });
                break;
            }
        }
        self.mark_ready(number.get());
        self.flush(now);
        result
    }

    /// Posts all sends or, when one is refused, none.
    pub(in crate::device) fn post_send_whole(
        &mut self,
        number: QpNumber,
        requests: &[SendRequest<'_>],
        now: Time,
    ) -> Result<(), PostError> {
        let requester = self.qps.get(number.get()).and_then(|qp| qp.requester.as_ref());
        for (index, request) in requests.iter().enumerate() {
            // Without a requester `post_send` says why.
            let Some(requester) = requester else { break };
            requester.check(request, index).map_err(|cause| PostError { index, cause: refusal(cause) })?;
        }
        self.post_send(number, requests, now)
    }

    /// Posts receives on an RC QP with a queue of its own.
    pub(in crate::device) fn post_receive(
        &mut self,
        number: QpNumber,
        requests: &[ReceiveRequest<'_>],
    ) -> Result<(), PostError> {
        let refused = |cause| PostError { index: 0, cause };
        let Self { qps, srqs, counters, events, .. } = self;
        let qp = qps.get_mut(number.get()).ok_or(VerbsError::Gone).map_err(refused)?;
        let state = qp.attributes.state;
        let ReceiveSource::Own { queue, .. } = &mut qp.reception.source else {
            return Err(refused(VerbsError::Invalid("this QP has no receive queue of its own")));
        };
        if state == QpState::Reset {
            return Err(refused(VerbsError::Invalid("receives are taken from INIT on")));
        }
        let result = post_all(queue, requests);
        if state == QpState::Error {
            let mut completer = Completer { events, counters };
            qp.reception.flush(number, srqs, &mut completer);
        }
        result
    }
}

impl Qp {
    /// Ends what the receive side has begun. The requester flushes by itself.
    pub(super) fn enter_error(
        &mut self,
        srqs: &mut crate::device::numbers::NumberMap<super::srq::SrqState>,
        completer: &mut Completer<'_>,
    ) {
        self.reception.flush(self.number, srqs, completer);
        if matches!(self.reception.source, ReceiveSource::Basic { .. } | ReceiveSource::Xrc { .. }) {
            // contract H4
            self.raise(AsyncEventKind::QpLastWqeReached, completer.events);
        }
    }

    /// The halves follow each other into ERR.
    pub(super) fn fail(&mut self) {
        self.attributes.state = QpState::Error;
        if let Some(requester) = &mut self.requester {
            requester.modify(&self.attributes);
        }
        if let Some(responder) = &mut self.responder {
            responder.modify(&self.attributes);
        }
    }
}

/// The change without what the kernel silently drops for the type (contract E3).
fn without_dropped(qp_type: QpType, change: &QpModify) -> QpModify {
    match qp_type {
        QpType::Rc => *change,
        QpType::XrcIni => QpModify { max_dest_rd_atomic: None, min_rnr_timer: None, ..*change },
        QpType::XrcTgt => QpModify { max_rd_atomic: None, retry_count: None, rnr_retry: None, ..*change },
    }
}

/// Values that no transition table checks (contract E4).
fn check_attributes(after: &QpAttributes, change: &QpModify) -> Result<(), VerbsError> {
    let rules = [
        (change.port.is_some_and(|port| port != 1), "the device has port 1 only"),
        (change.pkey_index.is_some_and(|index| index != 0), "the P_Key table has index 0 only"),
        (
            change.address_vector.is_some_and(|vector| vector.port != after.port),
            "the port of the address vector is not that of the QP",
        ),
        (change.timeout.is_some_and(|code| code > 31), "the ACK timeout is a code from 0 to 31"),
        (change.min_rnr_timer.is_some_and(|code| code > 31), "the RNR timer is a code from 0 to 31"),
        (change.retry_count.is_some_and(|count| count > 7), "retry_count is at most 7"),
        (change.rnr_retry.is_some_and(|count| count > 7), "rnr_retry is at most 7"),
        (
            change.max_rd_atomic.is_some_and(|count| count > MAX_RD_ATOMIC)
                || change.max_dest_rd_atomic.is_some_and(|count| count > MAX_RD_ATOMIC),
            "more READs and atomics at once than the device has room for",
        ),
        (change.path_mtu.is_some_and(|mtu| mtu > Mtu::Mtu4096), "the path MTU is larger than the port's"),
    ];
    rules.into_iter().find(|(broken, _)| *broken).map_or(Ok(()), |(_, why)| Err(VerbsError::Invalid(why)))
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
        PostRefused::BadAtomic => VerbsError::Invalid("an atomic needs 8 aligned bytes at both ends"),
    }
}
