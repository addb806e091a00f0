//! Connects an INI to a TGT, with `modify_qp` or through the CM.

use crate::check::{Deviation, Verdict, equal};
use crate::lab::remote_rights;
use crate::{Lab, Side};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_verbs::{
    Access, AddressVector, AttributeMask, CmChannel, CmEvent, CmEventKind, CmId, CompletionQueue,
    ConnectParameters, EndpointRequest, EndpointSide, Gid, Mtu, PortSpace, Psn, QpModify, QpNumber, QpState,
    QpType, QueuePair, SharedReceiveQueue, SrqNumber, XrcDomain,
};

/// Attributes of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Terms {
    pub(crate) timeout: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry: u8,
    pub(crate) access: Access,
    /// Final state of the TGT.
    pub(crate) tgt_state: QpState,
    pub(crate) signal_all: bool,
    /// `max_rd_atomic` of the INI and `max_dest_rd_atomic` of the TGT.
    pub(crate) rd_atomic: (u8, u8),
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            // Eight attempts of 268 ms each, because a process on a loaded machine may wait that long for a processor.
            timeout: 16,
            retry_count: 7,
            rnr_retry: 7,
            access: remote_rights(),
            tgt_state: QpState::ReadyToSend,
            signal_all: false,
            rd_atomic: (4, 4),
        }
    }
}

/// Returns terms with two attempts of 67 ms each. They are only for requests that a correct peer does not answer, because a
/// peer on a loaded machine may answer later.
pub(crate) fn few_retries() -> Terms {
    Terms { timeout: 14, retry_count: 1, ..Terms::default() }
}

/// A connected pair of INI and TGT, with an SRQ in the TGT's domain.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) ini: Arc<dyn QueuePair>,
    pub(crate) tgt: Arc<dyn QueuePair>,
    pub(crate) xrcd: Arc<dyn XrcDomain>,
    pub(crate) srq: Arc<dyn SharedReceiveQueue>,
    pub(crate) srq_number: SrqNumber,
    /// The SRQ's CQ.
    pub(crate) cq: Arc<dyn CompletionQueue>,
}

/// First PSNs. The first is close to 2^24, so that every route soon crosses the wraparound.
const INI_PSN: Psn = Psn::new(0xff_fffd);
const TGT_PSN: Psn = Psn::new(0x12_3456);

/// Returns a change to state `to` that sets every attribute. It is valid for a QP at `side` whose peer is the QP `peer` at
/// the GID `other`.
pub(crate) fn every_attribute(
    side: &Side,
    other: Gid,
    peer: QpNumber,
    from: QpState,
    to: QpState,
    terms: &Terms,
) -> QpModify {
    QpModify {
        state: Some(to),
        current_state: Some(from),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(terms.access),
        address_vector: Some(AddressVector {
            source_gid_index: side.gid_index,
            destination: other,
            port: 1,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        }),
        path_mtu: Some(Mtu::Mtu1024),
        destination_qp: Some(peer),
        rq_psn: Some(INI_PSN),
        sq_psn: Some(INI_PSN),
        max_dest_rd_atomic: Some(terms.rd_atomic.1),
        max_rd_atomic: Some(terms.rd_atomic.0),
        // Senders wait 0.01 ms after an RNR NAK (contract rocev2 6.3), so that RNR NAKs do not delay the suite.
        min_rnr_timer: Some(1),
        timeout: Some(terms.timeout),
        retry_count: Some(terms.retry_count),
        rnr_retry: Some(terms.rnr_retry),
    }
}

/// Returns a copy of `change` with only the state and the attributes in `mask`.
pub(crate) fn only(change: &QpModify, mask: AttributeMask) -> QpModify {
    use AttributeMask as M;
    fn keep<T>(value: Option<T>, is_in: bool) -> Option<T> {
        value.filter(|_| is_in)
    }
    QpModify {
        state: change.state,
        current_state: keep(change.current_state, mask.contains(M::CURRENT_STATE)),
        pkey_index: keep(change.pkey_index, mask.contains(M::PKEY_INDEX)),
        port: keep(change.port, mask.contains(M::PORT)),
        access: keep(change.access, mask.contains(M::ACCESS_FLAGS)),
        address_vector: keep(change.address_vector, mask.contains(M::AV)),
        path_mtu: keep(change.path_mtu, mask.contains(M::PATH_MTU)),
        destination_qp: keep(change.destination_qp, mask.contains(M::DEST_QPN)),
        rq_psn: keep(change.rq_psn, mask.contains(M::RQ_PSN)),
        sq_psn: keep(change.sq_psn, mask.contains(M::SQ_PSN)),
        max_dest_rd_atomic: keep(change.max_dest_rd_atomic, mask.contains(M::MAX_DEST_RD_ATOMIC)),
        max_rd_atomic: keep(change.max_rd_atomic, mask.contains(M::MAX_QP_RD_ATOMIC)),
        min_rnr_timer: keep(change.min_rnr_timer, mask.contains(M::MIN_RNR_TIMER)),
        timeout: keep(change.timeout, mask.contains(M::TIMEOUT)),
        retry_count: keep(change.retry_count, mask.contains(M::RETRY_CNT)),
        rnr_retry: keep(change.rnr_retry, mask.contains(M::RNR_RETRY)),
    }
}

/// Returns the attributes that the transition from RESET to INIT requires.
pub(crate) fn init_mask() -> AttributeMask {
    AttributeMask::PKEY_INDEX | AttributeMask::PORT | AttributeMask::ACCESS_FLAGS
}

/// Returns the attributes that the transition from INIT to RTR requires.
pub(crate) fn rtr_mask(qp_type: QpType) -> AttributeMask {
    use AttributeMask as M;
    let both = M::AV | M::PATH_MTU | M::DEST_QPN | M::RQ_PSN;
    if qp_type == QpType::XrcIni { both } else { both | M::MAX_DEST_RD_ATOMIC | M::MIN_RNR_TIMER }
}

/// Returns the attributes that the transition from RTR to RTS requires.
pub(crate) fn rts_mask(qp_type: QpType) -> AttributeMask {
    use AttributeMask as M;
    let both = M::TIMEOUT | M::SQ_PSN;
    if qp_type == QpType::XrcTgt { both } else { both | M::RETRY_CNT | M::RNR_RETRY | M::MAX_QP_RD_ATOMIC }
}

/// One QP of a connection, and the address of its peer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct End<'a> {
    pub(crate) side: &'a Side,
    pub(crate) qp: &'a Arc<dyn QueuePair>,
    /// GID of the port of the other QP.
    pub(crate) other: Gid,
    pub(crate) peer: QpNumber,
}

impl End<'_> {
    /// Moves the QP from RESET through the usual states to `to`. Sets only the attributes that contract E1 requires.
    pub(crate) fn bring_to(&self, to: QpState, terms: &Terms) -> Verdict {
        let qp_type = self.qp.qp_type();
        let path = [
            (QpState::Reset, QpState::Init, init_mask()),
            (QpState::Init, QpState::ReadyToReceive, rtr_mask(qp_type)),
            (QpState::ReadyToReceive, QpState::ReadyToSend, rts_mask(qp_type)),
            (QpState::ReadyToSend, QpState::SendQueueDrained, AttributeMask::empty()),
        ];
        if to == QpState::Reset {
            return Ok(());
        }
        for (from, next, mask) in path {
            self.step(from, next, mask, terms).map_err(|error| {
                Deviation::Failed(format!("{qp_type:?} from {from:?} to {next:?} was refused: {error}"))
            })?;
            if next == to {
                return Ok(());
            }
        }
        Err(Deviation::Failed(format!("the suite has no sequence of states that ends in {to:?}")))
    }

    /// Moves the QP to another state, with the attributes in `mask`.
    pub(crate) fn step(
        &self,
        from: QpState,
        to: QpState,
        mask: AttributeMask,
        terms: &Terms,
    ) -> Result<(), trunkline_verbs::VerbsError> {
        let mut change = every_attribute(self.side, self.other, self.peer, from, to, terms);
        // In an RC connection, both directions start with the same PSN.
        match self.qp.qp_type() {
            QpType::XrcTgt => change.sq_psn = Some(TGT_PSN),
            QpType::XrcIni => change.rq_psn = Some(TGT_PSN),
            QpType::Rc => {}
        }
        self.qp.modify(&only(&change, mask))
    }
}

/// Moves a QP to a state that requires no attributes.
pub(crate) fn set_state(qp: &Arc<dyn QueuePair>, state: QpState) -> Verdict {
    Ok(qp.modify(&QpModify { state: Some(state), ..QpModify::default() })?)
}

impl Lab {
    /// Connects an INI to a TGT in a new domain, with a new SRQ.
    pub(crate) fn route(&self, terms: &Terms) -> Verdict<Route> {
        let xrcd = self.far.new_xrcd()?;
        self.route_into(xrcd, terms)
    }

    /// Connects an INI to a TGT in an existing domain, with a new SRQ.
    pub(crate) fn route_into(&self, xrcd: Arc<dyn XrcDomain>, terms: &Terms) -> Verdict<Route> {
        let cq = self.far.new_cq()?;
        let srq = self.far.new_srq(&xrcd, &cq)?;
        let srq_number = srq.number()?;
        let init = trunkline_verbs::QpInit { signal_all: terms.signal_all, ..self.near.ini_init() };
        let ini = self.near.device.create_qp(init)?;
        let tgt = self.far.new_tgt(&xrcd)?;
        self.join(&ini, &tgt, terms)?;
        Ok(Route { ini, tgt, xrcd, srq, srq_number, cq })
    }

    /// Connects an INI on the near side to a TGT on the far side.
    pub(crate) fn join(&self, ini: &Arc<dyn QueuePair>, tgt: &Arc<dyn QueuePair>, terms: &Terms) -> Verdict {
        let target = End { side: &self.far, qp: tgt, other: self.near.gid(), peer: ini.number() };
        target.bring_to(terms.tgt_state, terms)?;
        let initiator = End { side: &self.near, qp: ini, other: self.far.gid(), peer: tgt.number() };
        initiator.bring_to(QpState::ReadyToSend, terms)
    }
}

impl Lab {
    /// Connects two RC QPs.
    pub(crate) fn join_rc(&self, near: &Arc<dyn QueuePair>, far: &Arc<dyn QueuePair>) -> Verdict {
        self.join_rc_by(near, far, &Terms::default())
    }

    /// Connects two RC QPs with the given attributes.
    pub(crate) fn join_rc_by(
        &self,
        near: &Arc<dyn QueuePair>,
        far: &Arc<dyn QueuePair>,
        terms: &Terms,
    ) -> Verdict {
        let end = End { side: &self.far, qp: far, other: self.near.gid(), peer: near.number() };
        end.bring_to(QpState::ReadyToSend, terms)?;
        let end = End { side: &self.near, qp: near, other: self.far.gid(), peer: far.number() };
        end.bring_to(QpState::ReadyToSend, terms)
    }
}

/// A connection opened through the CM.
#[derive(Debug)]
pub(crate) struct CmRoute {
    pub(crate) ini: Arc<dyn QueuePair>,
    pub(crate) ini_id: Arc<dyn CmId>,
    pub(crate) tgt: Arc<dyn QueuePair>,
    /// Private data of the reply.
    pub(crate) answer: Vec<u8>,
    /// The TGT's endpoint. Dropping an endpoint would end its side of the connection.
    pub(crate) tgt_id: Arc<dyn CmId>,
    pub(crate) active: Arc<dyn CmChannel>,
    pub(crate) passive: Arc<dyn CmChannel>,
}

/// Creates a listening endpoint in the XRC port space, and its event channel.
pub(crate) fn listen(side: &Side, qp_type: QpType) -> Verdict<(Arc<dyn CmId>, Arc<dyn CmChannel>)> {
    listen_in(side, PortSpace::Ib, qp_type)
}

/// Creates a listening endpoint and its event channel.
pub(crate) fn listen_in(
    side: &Side,
    port_space: PortSpace,
    qp_type: QpType,
) -> Verdict<(Arc<dyn CmId>, Arc<dyn CmChannel>)> {
    let cm = side.device.connection_manager();
    let channel = cm.create_channel()?;
    let request = EndpointRequest {
        side: EndpointSide::Passive { local: SocketAddr::new(side.address, 0) },
        port_space,
        qp_type,
    };
    let listener = cm.create_endpoint(&request, &channel)?;
    listener.listen(4)?;
    Ok((listener, channel))
}

/// Creates an active endpoint for a connection to a listener, and its event channel.
pub(crate) fn dial(
    side: &Side,
    remote: SocketAddr,
    port_space: PortSpace,
    qp_type: QpType,
) -> Verdict<(Arc<dyn CmId>, Arc<dyn CmChannel>)> {
    let cm = side.device.connection_manager();
    let channel = cm.create_channel()?;
    let request = EndpointRequest {
        side: EndpointSide::Active { remote, source: Some(side.address) },
        port_space,
        qp_type,
    };
    Ok((cm.create_endpoint(&request, &channel)?, channel))
}

impl Lab {
    /// Connects an INI at `from` to a TGT in `xrcd` at `to` through the CM. The TGT's side replies with the private data
    /// `reply`.
    pub(crate) fn connect_by_cm(
        &self,
        from: &Side,
        to: &Side,
        xrcd: &Arc<dyn XrcDomain>,
        reply: &ConnectParameters,
    ) -> Verdict<CmRoute> {
        let (listener, passive) = listen(to, QpType::XrcTgt)?;
        let (ini_id, active) = dial(from, listener.local_address(), PortSpace::Ib, QpType::XrcIni)?;
        let ini = from.new_ini()?;
        ini_id.attach(Arc::clone(&ini))?;
        let offer = ConnectParameters {
            private_data: b"offer".to_vec(),
            retry_count: reply.retry_count,
            ..ConnectParameters::default()
        };
        ini_id.connect(&offer)?;
        let incoming = self.next_cm("a connection request", &passive)?;
        equal("the request's private data", incoming.private_data.get(..5), Some(&b"offer"[..]))?;
        let CmEventKind::ConnectRequest { id: tgt_id, .. } = incoming.kind else {
            return Err(unexpected("the listener", &incoming));
        };
        let tgt = to.new_tgt(xrcd)?;
        tgt_id.attach(Arc::clone(&tgt))?;
        tgt_id.accept(reply)?;
        let established = self.next_cm("the active side", &active)?;
        if !matches!(established.kind, CmEventKind::Established) {
            return Err(unexpected("the active side", &established));
        }
        let accepted = self.next_cm("the passive side", &passive)?;
        if !matches!(accepted.kind, CmEventKind::Established) {
            return Err(unexpected("the passive side", &accepted));
        }
        Ok(CmRoute { ini, ini_id, tgt, answer: established.private_data, tgt_id, active, passive })
    }
}

/// Returns the deviation for an event of the wrong kind.
pub(crate) fn unexpected(at: &str, event: &CmEvent) -> Deviation {
    Deviation::Failed(format!("{at} got an unexpected event: {:?}", event.kind))
}

/// Answers a reported DREQ. Errors are ignored, because the provider may have answered it already.
pub(crate) fn answer_disconnect(id: &Arc<dyn CmId>) {
    let _ = id.disconnect();
}

/// Checks the end of a connection on both sides. `receiver` first gets the DREQ and answers it, and `sender` gets its event
/// when the answer arrives. A kernel leaves the answer to the program, so without one the sender gets no event until the
/// DREQ's last retransmission (contract rocev2 12.6).
pub(crate) fn both_sides_end(
    receiver: impl FnOnce() -> Verdict<CmEvent>,
    answer: impl FnOnce(),
    waiting: impl FnOnce() -> Verdict<CmEvent>,
) -> Verdict {
    let event = receiver()?;
    if !matches!(event.kind, CmEventKind::Disconnected { .. }) {
        return Err(unexpected("the side that gets the DREQ", &event));
    }
    answer();
    let event = waiting()?;
    if !matches!(event.kind, CmEventKind::Disconnected { .. }) {
        return Err(unexpected("the side that sent the DREQ", &event));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use trunkline_verbs::CmIdNumber;

    fn event(kind: CmEventKind) -> CmEvent {
        CmEvent { id: CmIdNumber(1), kind, private_data: Vec::new() }
    }

    /// With a kernel's connection manager, the DREQ's sender gets no event before the other program answers.
    #[test]
    fn j11_sender_of_dreq_is_checked_after_answer() {
        let answered = Cell::new(false);
        let outcome = both_sides_end(
            || Ok(event(CmEventKind::Disconnected { is_answered: true })),
            || answered.set(true),
            || {
                assert!(answered.get(), "checked before the answer, when a kernel has no event yet");
                Ok(event(CmEventKind::Disconnected { is_answered: true }))
            },
        );
        assert_eq!(outcome, Ok(()));
    }

    #[test]
    fn j11_another_event_on_either_side_is_deviation() {
        let ended = || Ok(event(CmEventKind::Disconnected { is_answered: true }));
        let other = || Ok(event(CmEventKind::Established));
        assert!(both_sides_end(other, || (), ended).is_err());
        assert!(both_sides_end(ended, || (), other).is_err());
    }
}
