//! One frame of a capture.

/// What stands at the start of a frame: the registered LINKTYPE numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinkType(pub u16);

impl LinkType {
    /// BSD loopback: four bytes of address family in the capturing host's order.
    pub const NULL: Self = Self(0);
    /// Ethernet.
    pub const ETHERNET: Self = Self(1);
    /// Raw IP, as some systems number it.
    pub const RAW_OLD: Self = Self(12);
    /// Raw IP, version 4 or 6.
    pub const RAW: Self = Self(101);
    /// OpenBSD loopback: four bytes of address family in network order.
    pub const LOOP: Self = Self(108);
    /// Linux "any" device.
    pub const LINUX_SLL: Self = Self(113);
    /// Raw IPv4.
    pub const IPV4: Self = Self(228);
    /// Raw IPv6.
    pub const IPV6: Self = Self(229);
    /// Linux "any" device, second form.
    pub const LINUX_SLL2: Self = Self(276);
}

/// A frame as it was captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Counted from 1, as tshark counts.
    pub number: u64,
    /// When, in nanoseconds since 1970; 0 if the file does not say.
    pub time_ns: u64,
    /// What it starts with.
    pub link: LinkType,
    /// Its length on the wire; `bytes` may be shorter.
    pub original_length: u32,
    /// What was kept of it.
    pub bytes: &'a [u8],
}
