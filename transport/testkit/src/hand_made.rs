//! QPs that a test connects with `modify_qp` instead of a connection manager.

use std::net::IpAddr;
use trunkline_verbs::{Access, AddressVector, Gid, Mtu, Psn, QpModify, QpNumber, QpState};

/// One end of a connection that a test establishes without a connection manager.
#[derive(Debug, Clone, Copy)]
pub struct HandMadeConnection {
    /// The peer's address.
    pub peer: IpAddr,
    /// The peer's QP.
    pub peer_qp: QpNumber,
    /// Path MTU, which both ends must share.
    pub mtu: Mtu,
    /// Exponent n of the local ACK timeout 4.096 us * 2^n, from 1 to 31.
    pub ack_timeout: u8,
    /// Maximum number of outstanding READs and atomics in each direction.
    pub rd_atomic: u8,
}

impl HandMadeConnection {
    /// First PSN in both directions. It is 16 below the wraparound, so that every test crosses the wraparound.
    pub const FIRST_PSN: Psn = Psn::new(0xff_fff0);

    /// Returns a connection with an MTU of 1024 bytes, an ACK timeout of 67 ms and 16 READs.
    #[must_use]
    pub const fn new(peer: IpAddr, peer_qp: QpNumber) -> Self {
        Self { peer, peer_qp, mtu: Mtu::Mtu1024, ack_timeout: 14, rd_atomic: 16 }
    }

    /// Returns the attributes that move a QP from RESET to RTS, one set per transition.
    #[must_use]
    pub fn steps(&self) -> [QpModify; 3] {
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
                destination: Gid::from(self.peer),
                port: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
            }),
            path_mtu: Some(self.mtu),
            destination_qp: Some(self.peer_qp),
            rq_psn: Some(Self::FIRST_PSN),
            max_dest_rd_atomic: Some(self.rd_atomic),
            min_rnr_timer: Some(12),
            ..QpModify::default()
        };
        let rts = QpModify {
            state: Some(QpState::ReadyToSend),
            timeout: Some(self.ack_timeout),
            retry_count: Some(7),
            rnr_retry: Some(7),
            sq_psn: Some(Self::FIRST_PSN),
            max_rd_atomic: Some(self.rd_atomic),
            ..QpModify::default()
        };
        [init, rtr, rts]
    }
}
