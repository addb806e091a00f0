//! Reasons why captured frames are skipped.

/// Reason why no UDP datagram could be extracted from a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Skip {
    /// This module does not support the link type.
    UnknownLink,
    /// The frame contains something other than an IP packet, such as ARP or LLDP.
    NotIp,
    /// The packet contains something other than UDP, such as TCP or ICMP.
    NotUdp,
    /// The packet is a fragment. Senders never fragment RoCE packets, and fragmentation by a network makes them unusable.
    Fragment,
    /// The capture contains only a part of the packet.
    CutShort,
    /// IP or UDP lengths contradict each other.
    Malformed,
}

impl Skip {
    /// Returns a human-readable name, for summaries.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnknownLink => "unknown link type",
            Self::NotIp => "not IP",
            Self::NotUdp => "not UDP",
            Self::Fragment => "IP fragment",
            Self::CutShort => "cut short by the capture",
            Self::Malformed => "malformed IP or UDP lengths",
        }
    }
}
