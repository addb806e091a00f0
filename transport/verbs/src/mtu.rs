//! The path MTU.

/// Largest payload of one packet (`ibv_mtu`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names contain the sizes in bytes")]
pub enum Mtu {
    Mtu256 = 1,
    Mtu512 = 2,
    Mtu1024 = 3,
    Mtu2048 = 4,
    Mtu4096 = 5,
}

impl Mtu {
    /// All values, smallest first.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Returns the payload bytes per packet.
    #[must_use]
    pub const fn bytes(self) -> u32 {
        128 << (self as u32)
    }

    /// Returns the code that packets and verbs use, 1 to 5.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Returns the MTU of a code, if the code is valid.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|mtu| mtu.code() == code)
    }

    /// Returns the next smaller MTU.
    #[must_use]
    pub fn smaller(self) -> Option<Self> {
        Self::from_code(self.code() - 1)
    }

    /// Returns the largest path MTU for a link MTU in bytes, with 96 bytes reserved for headers including XRCETH (contract
    /// rocev2 3.3).
    #[must_use]
    pub fn for_link(link_mtu: u32) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() + 96 <= link_mtu)
    }
}
