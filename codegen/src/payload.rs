//! The encoding of a method's result.

/// The encoding of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Encoded by the codec.
    Coded,
    /// Raw bytes: `Bytes`.
    Bytes,
    /// An encoded flag, then raw bytes: `Option<Bytes>`.
    OptionalBytes,
}
