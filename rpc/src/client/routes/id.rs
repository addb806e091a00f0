//! Identifiers of routes and expected names, and the results of lookups.

use std::num::NonZeroU32;
use trunkline_transport::PeerKey;

/// Identifier of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(crate) NonZeroU32);

/// Number of the name that a channel's servers must prove. Calls carry the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ExpectedId(#[cfg(feature = "identity")] u32);

impl ExpectedId {
    /// Requires each server to prove its IP address.
    pub(crate) const ADDRESS: Self = Self(
        #[cfg(feature = "identity")]
        0,
    );

    /// Bit that marks names given by the program.
    #[cfg(feature = "identity")]
    const GIVEN: u32 = 1 << 31;

    /// Returns the next number. `is_given` is true for a name given by the program.
    #[cfg(feature = "identity")]
    pub(super) fn next(self, is_given: bool) -> Self {
        let number = self.0.wrapping_add(1) & !Self::GIVEN;
        Self(if is_given { number | Self::GIVEN } else { number })
    }

    /// Returns true if the name was given by the program.
    #[cfg(feature = "identity")]
    #[inline]
    pub(crate) fn is_given(self) -> bool {
        self.0 & Self::GIVEN != 0
    }
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) route: RouteId,
    pub(crate) number: u64,
    /// The usable addresses, or the texts of an error and its sources.
    pub(crate) outcome: Result<Vec<PeerKey>, Vec<String>>,
}
