//! How the result of a method is sent.

/// How a result is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// Encoded by the codec.
    Coded,
    /// As raw bytes: `Bytes`.
    Bytes,
    /// As an encoded flag, then raw bytes: `Option<Bytes>`.
    OptionalBytes,
}
