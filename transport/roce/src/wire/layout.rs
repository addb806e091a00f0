//! Headers of each opcode, and their offsets (contract rocev2 1.2 to 1.4, 2.2).
//!
//! This module contains every offset of the transport headers, which the view and the emitter use. No other module may
//! contain such an offset.

use super::{Opcode, Operation, Service};

bitflags::bitflags! {
    /// A set of extension headers after a BTH.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct Headers: u8 {
        /// XRCETH.
        const XRCETH = 1;
        /// DETH.
        const DETH = 1 << 1;
        /// RETH.
        const RETH = 1 << 2;
        /// AtomicETH.
        const ATOMIC = 1 << 3;
        /// AETH.
        const AETH = 1 << 4;
        /// AtomicAckETH.
        const ATOMIC_ACK = 1 << 5;
        /// ImmDt.
        const IMMEDIATE = 1 << 6;
        /// IETH.
        const INVALIDATE = 1 << 7;
    }
}

/// Length rule for an opcode's payload, without rules that depend on the path MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadRule {
    /// No payload, for READ requests, atomics and acknowledgements.
    None,
    /// Any number of bytes, for ONLY and for opcodes that are not part of a message.
    Any,
    /// At least one byte, for LAST.
    Some,
    /// Exactly one path MTU, so at least 256 bytes and no pad, for FIRST and MIDDLE.
    Full,
}

/// Length of the BTH in bytes.
pub const BTH_LENGTH: usize = 12;
/// Length in bytes of the ICRC at the end of each packet.
pub const ICRC_LENGTH: usize = 4;
/// Maximum length in bytes of all headers, reached by BTH, XRCETH and AtomicETH.
pub const HEADERS_LENGTH_MAX: usize = BTH_LENGTH + 4 + 28;
/// The smallest path MTU in bytes, which is the minimum payload of a FIRST or MIDDLE.
pub(super) const MTU_MIN: usize = 256;

/// Offsets inside the BTH.
pub(super) mod bth {
    pub(in crate::wire) const OPCODE: usize = 0;
    pub(in crate::wire) const FLAGS: usize = 1;
    pub(in crate::wire) const PKEY: usize = 2;
    pub(in crate::wire) const CONGESTION: usize = 4;
    pub(in crate::wire) const DESTINATION: usize = 5;
    pub(in crate::wire) const ACK_REQUEST: usize = 8;
    pub(in crate::wire) const PSN: usize = 9;
}

impl Headers {
    /// Returns the length in bytes of a set that contains a single header.
    const fn one_length(self) -> u8 {
        match self {
            Self::DETH | Self::ATOMIC_ACK => 8,
            Self::RETH => 16,
            Self::ATOMIC => 28,
            _ => 4,
        }
    }

    /// Returns the headers of the set that precede `header`. The order on the wire is the order of the bits. Requests
    /// contain XRCETH or DETH, then RETH or AtomicETH, then immediate data or a key. Responses contain AETH, then
    /// AtomicAckETH.
    fn before(self, header: Self) -> Self {
        self & Self::from_bits_retain(header.bits() - 1)
    }

    /// Returns the total length in bytes of the headers in the set, without the BTH.
    #[must_use]
    pub fn length(self) -> usize {
        const LENGTHS: [u8; 256] = lengths();
        LENGTHS[usize::from(self.bits())].into()
    }

    /// Returns the offset of `header` from the start of the BTH, if the set contains it.
    #[must_use]
    pub fn offset(self, header: Self) -> Option<usize> {
        self.contains(header).then(|| BTH_LENGTH + self.before(header).length())
    }
}

/// Returns the length of each set of headers, indexed by its bits.
const fn lengths() -> [u8; 256] {
    let mut lengths = [0; 256];
    let mut set = 0;
    while set < lengths.len() {
        let mut bit = 0;
        while bit < 8 {
            if set >> bit & 1 == 1 {
                lengths[set] += Headers::from_bits_retain(1 << bit).one_length();
            }
            bit += 1;
        }
        set += 1;
    }
    lengths
}

/// Layout of the packet after a BTH.
type Layout = Option<(Headers, PayloadRule)>;

impl Opcode {
    /// Returns the headers and the payload rule for an opcode, or `None` for opcodes that do not exist or that this device
    /// does not implement.
    #[must_use]
    pub fn layout(self) -> Layout {
        static LAYOUTS: [Layout; 256] = layouts();
        LAYOUTS[usize::from(self.0)]
    }
}

const fn layouts() -> [Layout; 256] {
    let mut layouts = [None; 256];
    let mut code = 0;
    while code <= u8::MAX as usize {
        #[expect(clippy::cast_possible_truncation, reason = "it is no larger than the largest byte")]
        let opcode = Opcode(code as u8);
        layouts[code] = layout(opcode);
        code += 1;
    }
    layouts
}

const fn layout(opcode: Opcode) -> Layout {
    if opcode.0 == Opcode::CNP.0 {
        return Some((Headers::empty(), PayloadRule::Any));
    }
    let operation = opcode.operation();
    let Some((headers, rule)) = reliable(operation) else { return None };
    match opcode.service() {
        Service::RC => Some((headers, rule)),
        Service::XRC if operation.is_response() => Some((headers, rule)),
        // contract rocev2 2.3: in each request and in no response.
        Service::XRC => Some((headers.union(Headers::XRCETH), rule)),
        // contract rocev2 2.1: UC has the SENDs and WRITEs only, and no invalidation.
        Service::UC if operation.0 <= Operation::WRITE_ONLY_IMM.0 => Some((headers, rule)),
        Service::UD if matches!(operation, Operation::SEND_ONLY | Operation::SEND_ONLY_IMM) => {
            Some((headers.union(Headers::DETH), rule))
        }
        _ => None,
    }
}

/// Returns the RC column of contract rocev2 2.2.
const fn reliable(operation: Operation) -> Layout {
    use Operation as O;
    let none = Headers::empty();
    Some(match operation {
        O::SEND_FIRST | O::SEND_MIDDLE | O::WRITE_MIDDLE | O::READ_RESPONSE_MIDDLE => {
            (none, PayloadRule::Full)
        }
        O::SEND_LAST | O::WRITE_LAST => (none, PayloadRule::Some),
        O::SEND_LAST_IMM | O::WRITE_LAST_IMM => (Headers::IMMEDIATE, PayloadRule::Some),
        O::SEND_ONLY => (none, PayloadRule::Any),
        O::SEND_ONLY_IMM => (Headers::IMMEDIATE, PayloadRule::Any),
        O::WRITE_FIRST => (Headers::RETH, PayloadRule::Full),
        O::WRITE_ONLY => (Headers::RETH, PayloadRule::Any),
        O::WRITE_ONLY_IMM => (Headers::RETH.union(Headers::IMMEDIATE), PayloadRule::Any),
        O::READ_REQUEST => (Headers::RETH, PayloadRule::None),
        O::READ_RESPONSE_FIRST => (Headers::AETH, PayloadRule::Full),
        O::READ_RESPONSE_LAST => (Headers::AETH, PayloadRule::Some),
        O::READ_RESPONSE_ONLY => (Headers::AETH, PayloadRule::Any),
        O::ACKNOWLEDGE => (Headers::AETH, PayloadRule::None),
        O::ATOMIC_ACKNOWLEDGE => (Headers::AETH.union(Headers::ATOMIC_ACK), PayloadRule::None),
        O::COMPARE_SWAP | O::FETCH_ADD => (Headers::ATOMIC, PayloadRule::None),
        O::SEND_LAST_INV => (Headers::INVALIDATE, PayloadRule::Some),
        O::SEND_ONLY_INV => (Headers::INVALIDATE, PayloadRule::Any),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_follow_order_of_headers() {
        let (headers, _) =
            Opcode::new(Service::XRC, Operation::WRITE_ONLY_IMM).layout().expect("a known opcode");
        assert_eq!(headers.offset(Headers::XRCETH), Some(12));
        assert_eq!(headers.offset(Headers::RETH), Some(16));
        assert_eq!(headers.offset(Headers::IMMEDIATE), Some(32));
        assert_eq!(headers.offset(Headers::AETH), None);
        assert_eq!(headers.length(), 24);
    }

    #[test]
    fn headers_of_opcodes_do_not_exceed_maximum_length() {
        let longest = (0..=u8::MAX).filter_map(|code| Opcode(code).layout()).map(|(h, _)| h.length()).max();
        assert_eq!(longest, Some(HEADERS_LENGTH_MAX - BTH_LENGTH));
    }

    #[test]
    fn services_have_operations_of_table() {
        let known = |base: u8| (base..base + 0x20).filter(|code| Opcode(*code).layout().is_some()).count();
        assert_eq!((known(0x00), known(0xa0)), (23, 23));
        assert_eq!((known(0x20), known(0x60)), (12, 2));
        assert_eq!((known(0x40), known(0x80), known(0xc0)), (0, 1, 0));
    }
}
