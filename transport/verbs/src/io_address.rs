//! Addresses as used by devices.

/// An address in work requests and packets. Code only adds to it, and never dereferences it.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct IoAddress(pub u64);

impl IoAddress {
    /// Returns the address `bytes` bytes after this one. It wraps at 2^64, beyond all regions.
    #[must_use]
    pub const fn plus(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }

    /// Returns a start address for [`crate::ProtectionDomain::register_at`] that depends only on `random`, so that the
    /// memory's address in this process is not disclosed to peers. The result is in 2^46 .. 2^47, and a multiple of the page
    /// size, as NICs require for page-aligned memory. Regions may overlap in this range, because each access names a key.
    #[must_use]
    pub const fn from_random(random: u64) -> Self {
        // Use the high bits, because the low bits of simple generators are weak.
        Self((1 << 46) | ((random >> 30) << 12))
    }

    /// Like [`Self::from_random`], for memory that begins at `like` in this process, which need not be page-aligned.
    #[must_use]
    pub const fn from_random_like(random: u64, like: Self) -> Self {
        Self::from_random(random).plus(like.0 & 0xfff)
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

    #[test]
    fn random_start_keeps_offset_in_page() {
        let page = IoAddress::from_random(77 << 30);
        assert_eq!(IoAddress::from_random_like(77 << 30, IoAddress(0x7f00_1234_5000)), page);
        assert_eq!(IoAddress::from_random_like(77 << 30, IoAddress(0x7f00_1234_5fff)), page.plus(4095));
    }
}
