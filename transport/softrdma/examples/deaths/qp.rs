//! Bringing a QP up without the connection manager, and what the messages look like.

use crate::Outcome;
use crate::pattern::{bytes_of, key};
use std::net::IpAddr;
use trunkline_verbs::{Access, AddressVector, Gid, Mtu, Psn, QpModify, QpNumber, QpState, QueuePair};

/// Longest message.
pub(super) const LONGEST: usize = 2000;
/// 134 ms, eight times: a process that a loaded machine holds up for a second is not taken for dead.
const ACK_TIMEOUT: u8 = 15;
const FIRST_PSN: Psn = Psn::new(0xff_fff0);

/// From RESET to RTS.
pub(super) fn bring_up(qp: &dyn QueuePair, peer: IpAddr, peer_qp: QpNumber) -> Outcome<()> {
    let init = QpModify {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC),
        ..QpModify::default()
    };
    let rtr = QpModify {
        state: Some(QpState::ReadyToReceive),
        address_vector: Some(AddressVector {
            source_gid_index: 0,
            destination: Gid::from(peer),
            port: 1,
            flow_label: 0,
            hop_limit: 64,
            traffic_class: 0,
        }),
        path_mtu: Some(Mtu::Mtu1024),
        destination_qp: Some(peer_qp),
        rq_psn: Some(FIRST_PSN),
        max_dest_rd_atomic: Some(4),
        min_rnr_timer: Some(12),
        ..QpModify::default()
    };
    let rts = QpModify {
        state: Some(QpState::ReadyToSend),
        timeout: Some(ACK_TIMEOUT),
        retry_count: Some(7),
        rnr_retry: Some(7),
        sq_psn: Some(FIRST_PSN),
        max_rd_atomic: Some(4),
        ..QpModify::default()
    };
    for step in [init, rtr, rts] {
        qp.modify(&step)?;
    }
    Ok(())
}

/// Message `number` of a stream.
pub(super) fn message(stream: u64, number: u64) -> Vec<u8> {
    let mut bytes = stream.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    let seed = key(&[stream, number]);
    bytes.extend(bytes_of(seed, usize::try_from(seed).unwrap_or(0) % (LONGEST - 16)));
    bytes
}

/// Stream and number of a message, if its bytes are those that belong to them.
pub(super) fn parse(bytes: &[u8]) -> Option<(u64, u64)> {
    let (stream, rest) = bytes.split_first_chunk::<8>()?;
    let number = u64::from_be_bytes(*rest.first_chunk()?);
    let stream = u64::from_be_bytes(*stream);
    (message(stream, number) == bytes).then_some((stream, number))
}
