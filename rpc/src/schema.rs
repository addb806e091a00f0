//! The schema version and the codec, which a client and a server must agree on. Depends on no other module.

/// The schema that a service's stubs were generated from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Schema {
    /// Version of the schema.
    pub(crate) version: u32,
    /// Number of earlier versions that are also compatible.
    pub(crate) older: u8,
    /// Number of the codec.
    pub(crate) codec: u8,
}
