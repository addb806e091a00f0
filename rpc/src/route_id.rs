//! Identifier of a route, for calls and messages to pollers. The routes themselves are in `routes`.

use std::num::NonZeroU32;

/// A route of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteId(pub(crate) NonZeroU32);
