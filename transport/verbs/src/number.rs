//! The 24-bit numbers in packets.

use std::fmt;

/// The default partition key, with full membership (contract rocev2 8.2).
pub const PKEY_DEFAULT: u16 = 0xffff;

const MASK: u32 = 0x00ff_ffff;

macro_rules! number24 {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// Creates a number from the low 24 bits of `value`.
            #[must_use]
            pub const fn new(value: u32) -> Self {
                Self(value & MASK)
            }

            /// Returns the value, below 2^24.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

number24! {
    /// A queue pair's number on its device. Number 1 is the general services QP, which the CM uses.
    QpNumber
}
number24! {
    /// An XRC SRQ's number, which senders put into XRCETH.
    SrqNumber
}

/// A 24-bit packet sequence number. Numbers are compared by the sign of their difference (contract rocev2 7.1), which is not
/// a total order, so there is no `Ord`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Psn(u32);

impl Psn {
    /// Creates a number from the low 24 bits of `value`.
    #[must_use]
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// Returns the value, below 2^24.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Returns the number `count` packets later.
    #[must_use]
    pub const fn plus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_add(count))
    }

    /// Returns the number `count` packets earlier.
    #[must_use]
    pub const fn minus(self, count: u32) -> Self {
        Self::new(self.0.wrapping_sub(count))
    }

    /// Returns the distance from `other` to `self` in packets, in -2^23 .. 2^23: negative if `self` is before
    /// `other`.
    #[must_use]
    pub const fn after(self, other: Self) -> i32 {
        // Shifted to the top of the word, the 24-bit difference has the word's sign.
        (self.0.wrapping_sub(other.0) << 8).cast_signed() >> 8
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn psns_are_ordered_across_wrap() {
        let last = Psn::new(0xff_ffff);
        assert_eq!(last.plus(1), Psn::new(0));
        assert_eq!(last.plus(1).after(last), 1);
        assert_eq!(last.after(last.plus(1)), -1);
        assert_eq!(Psn::new(0).minus(1), last);
        assert_eq!(Psn::new(0x7f_ffff).after(Psn::new(0)), 0x7f_ffff);
        assert_eq!(Psn::new(0x80_0000).after(Psn::new(0)), -0x80_0000);
    }

    #[test]
    fn numbers_keep_24_bits() {
        assert_eq!(QpNumber::new(0xff00_0011).get(), 0x11);
        assert_eq!(SrqNumber::new(0x0100_0000).get(), 0);
    }
}
