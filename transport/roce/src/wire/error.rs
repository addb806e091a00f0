//! Errors in parsing a packet.

use super::Opcode;

/// Reason why a datagram is not a valid packet. The sender or the network is always at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// The packet is shorter than a base transport header.
    #[error("{0} bytes are too few for a base transport header")]
    ShortBth(usize),
    /// The transport version is not 0.
    #[error("transport version {0} is not 0")]
    Version(u8),
    /// The opcode does not exist, or this device does not implement it.
    #[error("opcode {:#04x} is unknown", .0.0)]
    UnknownOpcode(Opcode),
    /// The packet is shorter than the headers of its opcode.
    #[error("{length} bytes are too few for {opcode}, whose headers take {needed}")]
    ShortHeaders {
        /// The packet's opcode.
        opcode: Opcode,
        /// Length of the opcode's headers in bytes, including the BTH.
        needed: usize,
        /// Length of the packet in bytes, without ICRC.
        length: usize,
    },
    /// The pad count exceeds the bytes after the headers.
    #[error("{opcode} has a pad count of {pad}, but only {length} bytes after its headers")]
    ShortPad {
        /// The packet's opcode.
        opcode: Opcode,
        /// The pad count in the BTH.
        pad: u8,
        /// Number of bytes after the headers.
        length: usize,
    },
    /// The length of payload and pad is not a multiple of 4 (contract rocev2 3.1).
    #[error("{opcode} has {length} bytes of payload and pad, which is not a multiple of 4")]
    WrongPad {
        /// The packet's opcode.
        opcode: Opcode,
        /// Number of bytes after the headers.
        length: usize,
    },
    /// The payload of a FIRST or MIDDLE is not a path MTU, or has a pad.
    #[error("{opcode} carries {length} bytes, which is not a path MTU")]
    PartialPayload {
        /// The packet's opcode.
        opcode: Opcode,
        /// Length of the payload in bytes.
        length: usize,
    },
    /// A LAST contains no payload.
    #[error("{0} carries no payload")]
    EmptyPayload(Opcode),
    /// The packet contains payload, although its opcode does not allow payload.
    #[error("{opcode} carries {length} bytes of payload, but must not carry any")]
    UnexpectedPayload {
        /// The packet's opcode.
        opcode: Opcode,
        /// Number of bytes after the headers.
        length: usize,
    },
}

impl WireError {
    /// Returns true if the headers are valid and only the payload's length breaks the opcode's rule. A
    /// responder that receives such a request in sequence reads its header with
    /// [`super::Bth::parse`] and answers with a NAK for an invalid request (contract rocev2 7.9).
    /// Packets with other errors are dropped silently.
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
