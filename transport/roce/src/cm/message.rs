//! Builds the messages that the machine sends.

use super::config::{MAX_CM_RETRIES, RESPONSE_TIMEOUT};
use super::connection::Connection;
use super::parameters::Answer;
use super::questions::QuestionKey;
use super::{Accept, CmConfig, Connect, ConnectionId, Transport};
use crate::wire::ROCE_PORT;
use crate::wire::cm::{
    ADDRESS_HEADER_BYTES, AddressHeader, Answered, CmMessage, Dreq, Ids, MRA_PRIVATE_BYTES, Mra, Path,
    REJ_INFO_BYTES, REJ_PRIVATE_BYTES, REP_PRIVATE_BYTES, REQ_PRIVATE_BYTES, RTU_PRIVATE_BYTES, Rej, Rep,
    Req, SIDR_REP_INFO_BYTES, SIDR_REP_PRIVATE_BYTES, SIDR_REQ_PRIVATE_BYTES, ServiceId, SidrRep, SidrReq,
};
use std::net::SocketAddr;
use trunkline_verbs::{Gid, Mtu, OneFlow, PKEY_DEFAULT, Psn, QpNumber, RejectReason, SidrStatus, UdpPorts};

/// LID of a RoCE path that may contain routers (contract rocev2 11.5).
const LID_ROUTED: u16 = 0xffff;
const HOP_LIMIT: u8 = 64;
/// Codes for failover. Either no alternate path was offered, or the offered one is not supported.
const FAILOVER_NONE: u8 = 0;
const FAILOVER_UNSUPPORTED: u8 = 1;
/// Code of the time that an MRA requests, 1.07 s. The time is short, so that the peer soon retransmits its message and
/// detects the death of this side.
const SERVICE_TIMEOUT: u8 = 18;

/// Returns `bytes` padded with zeros. Callers refuse longer input.
fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = *from;
    }
    field
}

/// Returns the address header, then `bytes`, padded with zeros.
fn with_header<const N: usize>(header: &AddressHeader, bytes: &[u8]) -> [u8; N] {
    let mut field = [0; N];
    header.emit(&mut field);
    for (to, from) in field[ADDRESS_HEADER_BYTES..].iter_mut().zip(bytes) {
        *to = *from;
    }
    field
}

/// Returns a REQ with or without the bit for one flow. The two forms contain different ports.
pub(super) fn in_form(config: &CmConfig, req: Req, ports: &UdpPorts, is_one_flow: bool) -> Req {
    let (own, dialled) = match ports.view {
        _ if !is_one_flow => (config.udp_port, ROCE_PORT),
        Some(view) => (view.own.port(), view.peer.port()),
        None => (ports.own.unwrap_or(config.udp_port), ports.peer),
    };
    // A foreign peer ignores reserved fields; with the usual ports they are 0.
    req.with_one_flow(is_one_flow).with_ports(own, dialled)
}

pub(super) fn req(config: &CmConfig, id: ConnectionId, connect: &Connect<'_>) -> CmMessage {
    let (local, remote) = match connect.ports.view {
        Some(view) => (view.own.ip(), view.peer.ip()),
        None => (connect.local.ip(), connect.remote.ip()),
    };
    let header = AddressHeader::new(SocketAddr::new(local, connect.local.port()), remote);
    let private: [u8; REQ_PRIVATE_BYTES] = with_header(&header, connect.private);
    let is_rc = connect.transport == Transport::Rc;
    // An INI has no receive side (contract rocev2 10.2).
    let rc = |value: u8| if is_rc { value } else { 0 };
    // contract rocev2 11.5
    let ports = u32::from(connect.local.port()) * 31 + u32::from(connect.remote.port());
    let req = Req {
        local_id: id.0,
        reserved_4: 0,
        vendor_id: 0,
        service_id: ServiceId::new(connect.port_space, connect.remote.port()),
        ca_guid: config.ca_guid,
        reserved_24: 0,
        qkey: 0,
        qpn: connect.qpn,
        responder_resources: rc(connect.responder_resources),
        eecn: 0,
        initiator_depth: connect.initiator_depth,
        remote_eecn: 0,
        remote_timeout: RESPONSE_TIMEOUT,
        transport: connect.transport.wire(),
        flow_control: connect.flow_control,
        starting_psn: connect.starting_psn,
        local_timeout: RESPONSE_TIMEOUT,
        retry_count: rc(connect.retry_count),
        pkey: PKEY_DEFAULT,
        mtu: connect.mtu.code(),
        rdc_exists: false,
        rnr_retry: rc(connect.rnr_retry),
        max_cm_retries: MAX_CM_RETRIES,
        srq: is_rc && connect.srq,
        primary: Path {
            local_lid: LID_ROUTED,
            remote_lid: LID_ROUTED,
            local_gid: Gid::from(local),
            remote_gid: Gid::from(remote),
            flow_label: ports & 0x000f_ffff,
            hop_limit: HOP_LIMIT,
            traffic_class: connect.traffic_class,
            ack_timeout: connect.ack_timeout,
            ..Path::default()
        },
        alternate: Path::default(),
        private,
    };
    let req = req.with_tries(connect.one_flow == OneFlow::Try);
    CmMessage::Req(in_form(config, req, &connect.ports, connect.one_flow == OneFlow::Yes))
}

pub(super) fn rep(config: &CmConfig, connection: &Connection, accept: &Accept<'_>) -> CmMessage {
    let is_rc = connection.transport == Transport::Rc;
    let zero = QpNumber::new(0);
    // A TGT's number is sent in the EECN field (contract rocev2 10.3).
    let (qpn, eecn) = if is_rc { (accept.qpn, 0) } else { (zero, accept.qpn.get()) };
    CmMessage::Rep(Rep {
        local_id: connection.id.0,
        remote_id: connection.remote_id,
        qkey: 0,
        qpn,
        vendor_15: 0,
        eecn,
        vendor_19: 0,
        starting_psn: accept.starting_psn,
        vendor_23: 0,
        responder_resources: accept.responder_resources,
        initiator_depth: if is_rc { accept.initiator_depth } else { 0 },
        ack_delay: config.ack_delay,
        failover: if connection.has_alternate { FAILOVER_UNSUPPORTED } else { FAILOVER_NONE },
        flow_control: accept.flow_control,
        rnr_retry: accept.rnr_retry,
        srq: !is_rc || accept.srq,
        reserved_27: 0,
        ca_guid: config.ca_guid,
        private: padded::<REP_PRIVATE_BYTES>(accept.private),
    })
}

pub(super) const fn rtu(connection: &Connection) -> CmMessage {
    let (local_id, remote_id) = (connection.id.0, connection.remote_id);
    CmMessage::Rtu(Ids { local_id, remote_id, private: [0; RTU_PRIVATE_BYTES] })
}

pub(super) const fn mra(connection: &Connection, answered: Answered) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id: connection.id.0,
        remote_id: connection.remote_id,
        answered,
        reserved_8: 0,
        service_timeout: SERVICE_TIMEOUT,
        reserved_9: 0,
        private: [0; MRA_PRIVATE_BYTES],
    })
}

pub(super) fn dreq(connection: &Connection, private: &[u8]) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_id: connection.id.0,
        remote_id: connection.remote_id,
        qpn: connection.peer.qpn,
        reserved_11: 0,
        private: padded(private),
    })
}

/// Returns the answer to a DREQ, for both existing and unknown connections.
pub(super) const fn drep(dreq: &Dreq) -> CmMessage {
    let (local_id, remote_id) = (dreq.remote_id, dreq.local_id);
    CmMessage::Drep(Ids { local_id, remote_id, private: [0; RTU_PRIVATE_BYTES] })
}

/// Returns a REJ between two comm ids. An unknown id is 0.
pub(super) fn rej(ids: (u32, u32), answered: Answered, reason: RejectReason, private: &[u8]) -> CmMessage {
    CmMessage::Rej(Rej {
        local_id: ids.0,
        remote_id: ids.1,
        answered,
        reserved_8: 0,
        info_length: 0,
        reserved_9: false,
        reason,
        info: [0; REJ_INFO_BYTES],
        private: padded::<REJ_PRIVATE_BYTES>(private),
    })
}

/// Returns a REJ for a REQ whose path MTU is too large. The REJ names the largest supported path MTU
/// (contract rocev2 9.8).
pub(super) fn rej_mtu(ids: (u32, u32), mtu: Mtu) -> CmMessage {
    CmMessage::Rej(Rej {
        local_id: ids.0,
        remote_id: ids.1,
        answered: Answered::REQ,
        reserved_8: 0,
        info_length: 1,
        reserved_9: false,
        reason: RejectReason::INVALID_PATH_MTU,
        info: padded::<REJ_INFO_BYTES>(&[mtu.code()]),
        private: [0; REJ_PRIVATE_BYTES],
    })
}

/// Returns the largest path MTU that the sender of a REJ from [`rej_mtu`] supports.
pub(super) fn mtu_of_rej(rej: &Rej) -> Option<Mtu> {
    let names_mtu = rej.reason == RejectReason::INVALID_PATH_MTU && rej.info_length >= 1;
    Mtu::from_code(rej.info[0]).filter(|_| names_mtu)
}

/// Returns a REJ that withdraws a REQ. The peer's id is unknown, so the additional information names the
/// adapter that the local id belongs to.
pub(super) fn rej_timeout(config: &CmConfig, id: ConnectionId) -> CmMessage {
    let guid = config.ca_guid.to_be_bytes();
    CmMessage::Rej(Rej {
        local_id: id.0,
        remote_id: 0,
        answered: Answered::OTHER,
        reserved_8: 0,
        info_length: 8,
        reserved_9: false,
        reason: RejectReason::TIMEOUT,
        info: padded::<REJ_INFO_BYTES>(&guid),
        private: [0; REJ_PRIVATE_BYTES],
    })
}

/// Returns the GUID in a REJ from [`rej_timeout`].
pub(super) fn guid_of_rej(rej: &Rej) -> Option<u64> {
    let guid = rej.info.first_chunk::<8>().copied().map(u64::from_be_bytes);
    guid.filter(|_| rej.reason == RejectReason::TIMEOUT && rej.info_length >= 8)
}

pub(super) fn sidr_req(key: &QuestionKey, local: SocketAddr, private: &[u8]) -> CmMessage {
    let header = AddressHeader::new(local, key.addresses.remote);
    CmMessage::SidrReq(SidrReq {
        request_id: key.request_id,
        pkey: PKEY_DEFAULT,
        reserved_6: 0,
        service_id: key.service_id,
        private: with_header::<SIDR_REQ_PRIVATE_BYTES>(&header, private),
    })
}

pub(super) fn sidr_rep(key: &QuestionKey, status: SidrStatus, answer: &Answer<'_>) -> CmMessage {
    CmMessage::SidrRep(SidrRep {
        request_id: key.request_id,
        status,
        info_length: 0,
        vendor_6: 0,
        qpn: answer.qpn,
        vendor_11: 0,
        service_id: key.service_id,
        qkey: answer.qkey,
        info: [0; SIDR_REP_INFO_BYTES],
        private: padded::<SIDR_REP_PRIVATE_BYTES>(answer.private),
    })
}

/// Returns the QP and the first PSN that the peer announces in a REP.
pub(super) const fn rep_qp(transport: Transport, rep: &Rep) -> (QpNumber, Psn) {
    let qpn = match transport {
        Transport::Rc => rep.qpn,
        Transport::Xrc => QpNumber::new(rep.eecn),
    };
    (qpn, rep.starting_psn)
}
