//! The number of a route. Calls and messages to pollers name routes by it; `routes` has what it is.

use std::num::NonZeroU32;

/// A route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(crate) NonZeroU32);
