//! The policy for unknown SRQ numbers.
#![forbid(unsafe_code)]

use trunkline_roce::engine::{NakCode, Placement};

/// Answer of a TGT to a packet whose SRQ number does not exist in its domain (contract G7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum UnknownSrq {
    /// NAK 0x64, invalid RD request; the TGT goes to ERR.
    #[default]
    Nak64,
    /// NAK 0x62, remote access error; the TGT goes to ERR.
    Nak62,
    /// The packet is dropped; the peer runs out of retries.
    Drop,
}

impl UnknownSrq {
    /// Returns the placement of the packet.
    pub(super) fn placement(self) -> Placement {
        match self {
            Self::Nak64 => Placement::Nak(NakCode::INVALID_RD_REQUEST),
            Self::Nak62 => Placement::Nak(NakCode::REMOTE_ACCESS),
            Self::Drop => Placement::Drop,
        }
    }
}
