//! Errors of metadata. They name the key and the rule, never the value.

/// The reason why an entry cannot be metadata.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataError {
    /// The key is empty or too long.
    #[error("a key of {bytes} bytes: expected 1 to 255")]
    KeyLength {
        /// Length of the key, in bytes.
        bytes: usize,
    },
    /// The key contains a character that keys cannot have.
    #[error("key {key:?} contains {found:?}: expected lower-case ASCII letters, digits, '-', '_' and '.'")]
    KeyCharacter {
        /// The key.
        key: String,
        /// The first such character.
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
    /// A text was given for a key of binary values.
    #[error("key {key:?} ends in -bin and takes bytes: expected insert_bin or append_bin")]
    BinaryKey {
        /// The key.
        key: String,
    },
    /// Bytes were given for a key of text values.
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
    /// The value of a text key contains a byte that text values cannot have.
    #[error(
        "the value of key {key:?} has a byte at {at} that is not printable ASCII: use a key that ends in -bin"
    )]
    ValueCharacter {
        /// The key.
        key: String,
        /// Position of the first such byte.
        at: usize,
    },
    /// The entries that a peer has sent do not fit their lengths.
    #[error("the entries are malformed")]
    Malformed,
}
