//! Attributes of a QP, and changes to them.

use crate::{Access, Gid, Mtu, Psn, QpNumber, QpState, QpType};

/// Path of packets to the peer of a connected QP (`ibv_ah_attr` for RoCE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressVector {
    /// Index of the local GID.
    pub source_gid_index: u16,
    /// The peer's GID.
    pub destination: Gid,
    /// Local port, from 1; must equal the QP's port (contract E4).
    pub port: u8,
    /// IPv6 flow label, which is also the entropy for the UDP source port.
    pub flow_label: u32,
    /// Hop limit, or TTL in IPv4.
    pub hop_limit: u8,
    /// Traffic class: DSCP and ECN bits.
    pub traffic_class: u8,
}

/// A change to a QP. Each `Some` corresponds to one bit of the attribute mask of `ibv_modify_qp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[allow(missing_docs, reason = "the fields are those of ibv_qp_attr; those with units have docs")]
pub struct QpModify {
    pub state: Option<QpState>,
    /// The state that the caller expects the QP to be in; a mismatch is an error.
    pub current_state: Option<QpState>,
    pub pkey_index: Option<u16>,
    pub port: Option<u8>,
    /// Access rights of the peer.
    pub access: Option<Access>,
    pub address_vector: Option<AddressVector>,
    pub path_mtu: Option<Mtu>,
    pub destination_qp: Option<QpNumber>,
    pub rq_psn: Option<Psn>,
    pub sq_psn: Option<Psn>,
    /// Number of READs and atomics accepted from the peer at a time.
    pub max_dest_rd_atomic: Option<u8>,
    /// Number of outstanding READs and atomics.
    pub max_rd_atomic: Option<u8>,
    /// Code of the RNR NAK timer, 0 to 31 (contract rocev2 6.3).
    pub min_rnr_timer: Option<u8>,
    /// Exponent n of the local ACK timeout, 4.096 us * 2^n, from 1 to 31; 0 disables the timeout.
    pub timeout: Option<u8>,
    /// Number of transport retries, 0 to 7.
    pub retry_count: Option<u8>,
    /// Number of RNR retries, 0 to 7; 7 means no limit.
    pub rnr_retry: Option<u8>,
}

/// All attributes of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of QpModify")]
pub struct QpAttributes {
    pub qp_type: QpType,
    pub state: QpState,
    pub pkey_index: u16,
    pub port: u8,
    pub access: Access,
    pub address_vector: Option<AddressVector>,
    pub path_mtu: Mtu,
    pub destination_qp: QpNumber,
    pub rq_psn: Psn,
    pub sq_psn: Psn,
    pub max_dest_rd_atomic: u8,
    pub max_rd_atomic: u8,
    pub min_rnr_timer: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
}

impl QpAttributes {
    /// Creates the attributes of a new QP.
    #[must_use]
    pub fn new(qp_type: QpType) -> Self {
        Self {
            qp_type,
            state: QpState::Reset,
            pkey_index: 0,
            port: 0,
            access: Access::empty(),
            address_vector: None,
            path_mtu: Mtu::Mtu256,
            destination_qp: QpNumber::new(0),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            max_dest_rd_atomic: 0,
            max_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
        }
    }

    /// Applies the attributes of `change`. [`crate::check_transition`] must have accepted the change.
    pub fn apply(&mut self, change: &QpModify) {
        fn put<T: Copy>(field: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *field = value;
            }
        }
        put(&mut self.state, change.state);
        put(&mut self.pkey_index, change.pkey_index);
        put(&mut self.port, change.port);
        put(&mut self.access, change.access);
        if change.address_vector.is_some() {
            self.address_vector = change.address_vector;
        }
        put(&mut self.path_mtu, change.path_mtu);
        put(&mut self.destination_qp, change.destination_qp);
        put(&mut self.rq_psn, change.rq_psn);
        put(&mut self.sq_psn, change.sq_psn);
        put(&mut self.max_dest_rd_atomic, change.max_dest_rd_atomic);
        put(&mut self.max_rd_atomic, change.max_rd_atomic);
        put(&mut self.min_rnr_timer, change.min_rnr_timer);
        put(&mut self.timeout, change.timeout);
        put(&mut self.retry_count, change.retry_count);
        put(&mut self.rnr_retry, change.rnr_retry);
    }
}
