//! Why bytes are not a packet.

use super::Opcode;

/// Why a datagram was refused. All of them are the sender's fault, or that of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Shorter than a base transport header.
    #[error("{0} bytes are too few for a base transport header")]
    ShortBth(usize),
    /// The transport version is not 0.
    #[error("transport version {0} is not 0")]
    Version(u8),
    /// The opcode does not exist, or is one that this device does not speak.
    #[error("opcode {:#04x} is unknown", .0.0)]
    UnknownOpcode(Opcode),
    /// Shorter than the headers of its opcode.
    #[error("{length} bytes are too few for {opcode}, whose headers take {needed}")]
    ShortHeaders {
        /// What the packet says it is.
        opcode: Opcode,
        /// Bytes that its headers take.
        needed: usize,
        /// Bytes that there are.
        length: usize,
    },
    /// The pad count is larger than what stands behind the headers.
    #[error("{opcode} counts {pad} pad bytes behind {length} bytes of payload")]
    ShortPad {
        /// What the packet says it is.
        opcode: Opcode,
        /// Pad bytes counted in the BTH.
        pad: u8,
        /// Bytes behind the headers.
        length: usize,
    },
    /// Payload and pad together are no multiple of 4 (contract rocev2 3.1).
    #[error("{opcode} has {length} bytes of payload and pad, no multiple of 4")]
    WrongPad {
        /// What the packet says it is.
        opcode: Opcode,
        /// Bytes behind the headers.
        length: usize,
    },
    /// FIRST and MIDDLE carry one path MTU: never less than 256 bytes, never pad.
    #[error("{opcode} carries {length} bytes, which is no path MTU")]
    PartialPayload {
        /// What the packet says it is.
        opcode: Opcode,
        /// Bytes of payload.
        length: usize,
    },
    /// LAST carries at least one byte.
    #[error("{0} carries no payload")]
    EmptyPayload(Opcode),
    /// The opcode carries no payload.
    #[error("{opcode} carries {length} bytes of payload, and may carry none")]
    UnexpectedPayload {
        /// What the packet says it is.
        opcode: Opcode,
        /// Bytes behind the headers.
        length: usize,
    },
}

impl WireError {
    /// Whether the headers were sound and only the payload's length breaks the opcode's rule: a
    /// responder that finds such a request in sequence answers it with a NAK for an invalid
    /// request (contract rocev2 7.9) after reading the header by [`super::Bth::parse`]. All other
    /// packets are dropped in silence.
    #[must_use]
    pub const fn is_answerable(&self) -> bool {
        matches!(
            self,
            Self::WrongPad { .. }
                | Self::PartialPayload { .. }
                | Self::EmptyPayload(_)
                | Self::UnexpectedPayload { .. }
        )
    }
}
