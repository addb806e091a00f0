//! What must fit between a client and a server: the version of a service's schema, and its codec.
//!
//! Used by the frames and by names; knows of no other module.

/// What the stubs of a service were generated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Schema {
    /// Its version.
    pub(crate) version: u32,
    /// How many earlier versions they can do with, too.
    pub(crate) older: u8,
    /// The number of the codec.
    pub(crate) codec: u8,
}
