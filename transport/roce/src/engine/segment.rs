//! Packets of a message, for both halves, with their kinds, positions and lengths.

use crate::wire::{Opcode, Operation, Packet, Service};
use trunkline_verbs::{Psn, QpAttributes, QpNumber, QpType};

/// Maximum number of PSNs that a message, or everything outstanding, may cover. It is a quarter of the PSN space, so that
/// "before" and "after" stay unambiguous on both sides (contract rocev2 7.1).
pub(super) const PSN_SPAN_MAX: u32 = 1 << 22;

/// Maximum payload of a joined packet, in bytes. It is a multiple of every path MTU.
pub const JOINED_BYTES: u32 = 16 << 10;

/// A packet written to the caller's buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transmit {
    /// PSN of the packet.
    pub psn: Psn,
    /// True if the packet repeats an earlier one.
    pub retransmission: bool,
}

/// Returns true for the opcode of a request, and false for the opcode of a response.
#[must_use]
pub fn is_request(opcode: Opcode) -> bool {
    !opcode.operation().is_response()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestKind {
    /// Writes into a posted receive.
    Send,
    Write,
    Read,
    /// Compare-and-swap or fetch-and-add.
    Atomic,
}

/// The meaning of a request opcode apart from its service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Class {
    pub(super) kind: RequestKind,
    pub(super) first: bool,
    pub(super) last: bool,
}

/// Classifies a request's operation; `None` for responses, reserved operations and SENDs with invalidation.
pub(super) fn classify(operation: Operation) -> Option<Class> {
    use Operation as O;
    let (kind, first, last) = match operation {
        O::SEND_FIRST => (RequestKind::Send, true, false),
        O::SEND_MIDDLE => (RequestKind::Send, false, false),
        O::SEND_LAST | O::SEND_LAST_IMM => (RequestKind::Send, false, true),
        O::SEND_ONLY | O::SEND_ONLY_IMM => (RequestKind::Send, true, true),
        O::WRITE_FIRST => (RequestKind::Write, true, false),
        O::WRITE_MIDDLE => (RequestKind::Write, false, false),
        O::WRITE_LAST | O::WRITE_LAST_IMM => (RequestKind::Write, false, true),
        O::WRITE_ONLY | O::WRITE_ONLY_IMM => (RequestKind::Write, true, true),
        O::READ_REQUEST => (RequestKind::Read, true, true),
        O::COMPARE_SWAP | O::FETCH_ADD => (RequestKind::Atomic, true, true),
        _ => return None,
    };
    Some(Class { kind, first, last })
}

/// Returns the number of packets that `length` bytes take, at least 1 (contract rocev2 3.4).
pub(super) fn packets(length: u32, mtu: u32) -> u32 {
    // Divisions are slow, and most messages are short.
    if length <= mtu { 1 } else { length.div_ceil(mtu) }
}

/// Properties common to all packets of a connected QP.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    pub(super) service: Service,
    pub(super) destination: QpNumber,
    pub(super) mtu: u32,
}

impl Geometry {
    pub(super) fn new(attributes: &QpAttributes) -> Self {
        Self {
            service: service_of(attributes.qp_type),
            destination: attributes.destination_qp,
            mtu: attributes.path_mtu.bytes(),
        }
    }

    /// Returns a packet without payload and extension headers.
    pub(super) fn packet(&self, operation: Operation, psn: Psn) -> Packet<'static> {
        Packet::new(Opcode::new(self.service, operation), self.destination, psn, &[])
    }
}

/// Returns the service for a QP type, which the opcodes contain.
pub(super) fn service_of(qp_type: QpType) -> Service {
    match qp_type {
        QpType::Rc => Service::RC,
        QpType::XrcIni | QpType::XrcTgt => Service::XRC,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// The oracle counts in 64 bits and never wraps (contract rocev2 7.1).
        #[test]
        fn psns_order_like_unwrapped_numbers(start in 0_u64..1 << 40, step in 0_u64..1 << 23) {
            let psn = |number: u64| Psn::new(u32::try_from(number % (1 << 24)).expect("24 bits"));
            let (early, late) = (psn(start), psn(start + step));
            let step = i32::try_from(step).expect("23 bits");
            assert_eq!(late.after(early), step);
            assert_eq!(early.after(late), -step);
            assert_eq!(early.plus(step.cast_unsigned()), late);
            assert_eq!(late.minus(step.cast_unsigned()), early);
        }
    }

    #[test]
    fn empty_messages_take_one_packet() {
        assert_eq!(packets(0, 256), 1);
        assert_eq!(packets(256, 256), 1);
        assert_eq!(packets(257, 256), 2);
        assert_eq!(packets(u32::MAX, 256), 1 << 24);
    }

    #[test]
    fn requests_are_distinguished_from_responses() {
        for operation in (0..0x20).map(Operation) {
            let opcode = Opcode::new(Service::XRC, operation);
            assert!(classify(operation).is_none() || is_request(opcode), "{operation:?}");
        }
        assert!(!is_request(Opcode::new(Service::RC, Operation::READ_RESPONSE_MIDDLE)));
        assert!(is_request(Opcode::new(Service::RC, Operation::READ_REQUEST)));
    }
}
