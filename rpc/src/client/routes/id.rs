//! Identifier of a route, and the result of its lookup.

use std::num::NonZeroU32;
use trunkline_transport::PeerKey;

/// A route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(crate) NonZeroU32);

/// Number of the name that a channel expects of its servers. Calls carry the number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct ExpectedId(#[cfg(feature = "identity")] u32);

impl ExpectedId {
    /// Expectation that each server proves its IP address.
    pub(crate) const ADDRESS: Self = Self(
        #[cfg(feature = "identity")]
        0,
    );

    /// Bit that marks names given by the program.
    #[cfg(feature = "identity")]
    const GIVEN: u32 = 1 << 31;

    /// Returns the next number, for a name given by the program or not.
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
    /// The route that was looked up.
    pub(crate) route: RouteId,
    /// Number of the lookup.
    pub(crate) number: u64,
    /// The usable addresses, or an error and its sources.
    pub(crate) outcome: Result<Vec<PeerKey>, Vec<String>>,
}
