//! Metadata errors. They contain the key, but never the value.

/// The reason why an entry is not valid metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is empty or too long.
    #[error("a key of {bytes} bytes: expected 1 to 255")]
    KeyLength {
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// The key contains a character that is not allowed in keys.
    #[error("key {key:?} contains {found:?}: expected lower-case ASCII letters, digits, '-', '_' and '.'")]
    KeyCharacter {
        /// The key.
        key: String,
        /// The first character that is not allowed.
        found: char,
    },
    /// The key is reserved for Trunkline and its adapters.
    #[error("key {key:?} is reserved, as are all that begin with {prefix}")]
    ReservedKey {
        /// The key.
        key: String,
        /// The reserved prefix.
        prefix: &'static str,
    },
    /// A text was passed for a key with binary values.
    #[error("key {key:?} ends in -bin and takes bytes: expected insert_bin or append_bin")]
    BinaryKey {
        /// The key.
        key: String,
    },
    /// Bytes were passed for a key with text values.
    #[error("key {key:?} takes text: expected one that ends in -bin")]
    TextKey {
        /// The key.
        key: String,
    },
    /// The value is too long.
    #[error("the value of key {key:?} has {bytes} bytes: expected 65535 at most")]
    ValueLength {
        /// The key.
        key: String,
        /// Length of the value, in bytes.
        bytes: usize,
    },
    /// The value of a text key contains a byte that is not allowed in text values.
    #[error(
        "the value of key {key:?} has a byte at {at} that is not printable ASCII: use a key that ends in -bin"
    )]
    ValueCharacter {
        /// The key.
        key: String,
        /// Position of the first byte that is not allowed.
        at: usize,
    },
    /// The lengths in entries from a peer do not match the entries.
    #[error("the entries are malformed")]
    Malformed,
}
