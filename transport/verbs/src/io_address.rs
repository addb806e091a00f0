//! Addresses as devices see them.

/// An address as devices see it. Rust code never dereferences one; it only adds to it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IoAddress(pub u64);

impl IoAddress {
    /// The address `bytes` further on; wraps at 2^64, where no region lies.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// A start for [`crate::ProtectionDomain::register_at`] that depends on `random` alone: peers
    /// then learn nothing of where the memory is in this process. A multiple of the page size,
    /// which NICs need for memory that begins at a page; at least 2^46 and below 2^47. Regions that
    /// overlap there do not disturb each other, since each access names a key.
    #[must_use]
    pub const fn from_random(random: u64) -> Self {
        // The high bits: simple generators have weak low ones.
        Self((1 << 46) | ((random >> 30) << 12))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_starts_are_page_aligned_and_never_wrap() {
        for random in [0, 1, 1 << 30, u64::MAX / 3, u64::MAX] {
            let start = IoAddress::from_random(random).0;
            assert_eq!(start % 4096, 0, "{random:#x}");
            assert!((1 << 46..1 << 47).contains(&start), "{random:#x} {start:#x}");
        }
        assert_ne!(IoAddress::from_random(1 << 30), IoAddress::from_random(2 << 30));
    }
}
