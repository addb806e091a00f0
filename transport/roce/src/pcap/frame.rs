//! A frame in a capture.

/// The link-layer header at the start of a frame, as a registered LINKTYPE number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback, with four bytes of address family in the capturing host's byte order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP, under the number that some systems use.
    pub const RAW_OLD: Self = Self(12);
    /// Raw IP, version 4 or 6.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback, with four bytes of address family in network byte order.
    pub const LOOP: Self = Self(108);
    /// Linux cooked capture from the device "any".
    pub const LINUX_SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux cooked capture, version 2.
    pub const LINUX_SLL2: Self = Self(276);
}

/// A frame as it was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The frame's number in the file, starting at 1 as in tshark.
    pub number: u64,
    /// Time of capture in nanoseconds since 1970; 0 if the file does not contain it.
    pub time_ns: u64,
    /// The type of the frame's link-layer header.
    pub link: LinkType,
    /// Length on the wire in bytes; `bytes` may be shorter.
    pub original_length: u32,
    /// The captured bytes, from the link-layer header on.
    pub bytes: &'a [u8],
}
