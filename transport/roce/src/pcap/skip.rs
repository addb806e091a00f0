//! Reasons for which captured frames are skipped.

/// Reason why no UDP datagram could be extracted from a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Skip {
    /// The link type is unknown to this module.
    UnknownLink,
    /// The frame does not contain an IP packet, but for example ARP or LLDP.
    NotIp,
    /// The packet is not UDP, but for example TCP or ICMP.
    NotUdp,
    /// A fragment. Senders never fragment RoCE packets; a network that fragments them makes them unusable.
    Fragment,
    /// The capture kept fewer bytes than the packet has.
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
