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

/// A hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}
