//! Values that accompany the arguments of a call, such as a token or a tenant, identified by keys.
//!
//! [`Metadata`] stores its entries in wire format, so encoding copies one slice, and decoding checks and copies one slice.
//! Lookups are linear, and their time is bounded by the limit on a call's metadata. The bytes come from a peer, so every
//! length is checked, and parsing never panics. This module never formats a value, because values may be secrets.
//!
//! ```text
//! each entry: 0 length of the key (1)  1 length of the value (2)  3 the key  then the value
//! ```

mod error;
mod response;
mod trace;

pub use error::MetadataError;
pub use response::ResponseMetadata;
pub(crate) use response::{MetadataBytes, ReplyMetadata};
pub(crate) use trace::MOST_TRACE_BYTES;
pub use trace::TraceContext;

use std::fmt;

/// Number of bytes before the key of an entry.
const PREFIX: usize = 3;
/// Suffix of keys with binary values.
const BINARY: &str = "-bin";
/// Prefixes of keys that programs cannot set.
const RESERVED: [&str; 2] = ["grpc-", "trunkline-"];

/// The metadata of a call, which consists of keys and values in addition to the arguments or the result.
///
/// The rules are the same as in gRPC. A key consists of lower-case ASCII letters, digits, `-`, `_` and `.`. Values are
/// printable ASCII, or any bytes if the key ends in `-bin`. A key may have several values, which keep their order. Keys that
/// begin with `grpc-` or `trunkline-` can be read but not set. Text from a gRPC client or server may also contain tabs and
/// the bytes 0x80 to 0xff.
///
/// Like arguments, metadata is encrypted only in encrypted sessions. The `Debug` output contains the keys and the sizes of
/// the values, but never the values.
///
/// ```
/// use trunkline::Metadata;
///
/// let mut metadata = Metadata::new();
/// metadata.insert("authorization", "Bearer 6f1d")?;
/// metadata.insert_bin("checksum-bin", &[0x00, 0xff])?;
/// metadata.append("tag", "blue")?;
/// metadata.append("tag", "round")?;
/// assert_eq!(metadata.get("authorization"), Some("Bearer 6f1d"));
/// assert_eq!(metadata.get_bin("checksum-bin"), Some(&[0x00, 0xff][..]));
/// assert_eq!(metadata.get_all("tag").collect::<Vec<_>>(), ["blue", "round"]);
/// assert!(metadata.insert("Authorization", "6f1d").is_err(), "keys are lower-case");
/// # Ok::<(), trunkline::MetadataError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Metadata {
    /// Entries that conform to the rules for keys and values.
    block: Vec<u8>,
}

impl Metadata {
    /// Creates empty metadata. Does not allocate.
    #[must_use]
    pub const fn new() -> Self {
        Self { block: Vec::new() }
    }

    /// Returns true if there are no entries.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.block.is_empty()
    }

    /// Returns the number of entries. Each value of a key is an entry.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Returns the size on the wire, in bytes. It consists of the keys, the values and 3 bytes per entry. Limits apply to
    /// this size.
    #[must_use]
    pub fn size(&self) -> usize {
        self.block.len()
    }

    /// Sets the value of a key and removes the key's earlier values.
    ///
    /// # Errors
    /// Returns an error if the key or the value breaks a rule, or if the key is reserved. The metadata is then unchanged.
    pub fn insert(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        check_text(key, value)?;
        self.replace(key, value.as_bytes());
        Ok(())
    }

    /// Sets the value of a key that ends in `-bin`, and removes the key's earlier values.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Metadata::insert`].
    pub fn insert_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        check_binary(key, value)?;
        self.replace(key, value);
        Ok(())
    }

    /// Adds a value to a key.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Metadata::insert`].
    pub fn append(&mut self, key: &str, value: &str) -> Result<(), MetadataError> {
        check_text(key, value)?;
        push(&mut self.block, key.as_bytes(), value.as_bytes());
        Ok(())
    }

    /// Adds a value to a key that ends in `-bin`.
    ///
    /// # Errors
    /// Returns an error in the same cases as [`Metadata::insert`].
    pub fn append_bin(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        check_binary(key, value)?;
        push(&mut self.block, key.as_bytes(), value);
        Ok(())
    }

    /// Adds an entry whose key may be reserved, for adapters to other protocols.
    ///
    /// # Errors
    /// Returns an error if the key or the value breaks another rule.
    #[doc(hidden)]
    pub fn append_reserved(&mut self, key: &str, value: &[u8]) -> Result<(), MetadataError> {
        check_key(key)?;
        check_value(key, value)?;
        push(&mut self.block, key.as_bytes(), value);
        Ok(())
    }

    /// Adds all entries of `other`.
    pub fn extend(&mut self, other: &Self) {
        self.block.extend_from_slice(&other.block);
    }

    /// Removes all values of a key. Returns true if there were any.
    pub fn remove(&mut self, key: &str) -> bool {
        let before = self.block.len();
        let mut kept = Vec::with_capacity(before);
        for (other, value) in Entries(&self.block).filter(|(other, _)| *other != key.as_bytes()) {
            push(&mut kept, other, value);
        }
        self.block = kept;
        self.block.len() < before
    }

    /// Returns the first value of a key. Returns `None` if the key has no value or ends in `-bin`, or if the value is not
    /// UTF-8.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&str> {
        // If the first value is not UTF-8, a later one must not replace it, because the path is the first `grpc-path`.
        self.values(key, false).next().and_then(|value| std::str::from_utf8(value).ok())
    }

    /// Returns the first value of a key that ends in `-bin`.
    #[must_use]
    pub fn get_bin(&self, key: &str) -> Option<&[u8]> {
        self.get_all_bin(key).next()
    }

    /// Returns the values of a key that are UTF-8, in order. Empty if the key ends in `-bin`. [`Self::iter`] returns all
    /// values.
    pub fn get_all<'m, 'k>(&'m self, key: &'k str) -> impl Iterator<Item = &'m str> + use<'m, 'k> {
        let values = self.values(key, false);
        values.filter_map(|value| std::str::from_utf8(value).ok())
    }

    /// Returns the values of a key that ends in `-bin`, in order.
    pub fn get_all_bin<'m, 'k>(&'m self, key: &'k str) -> impl Iterator<Item = &'m [u8]> + use<'m, 'k> {
        self.values(key, true)
    }

    /// Returns all entries in order, as pairs of the key and the bytes of the value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        Entries(&self.block).map(|(key, value)| (std::str::from_utf8(key).unwrap_or_default(), value))
    }

    /// Returns the entries in wire format.
    #[inline]
    pub(crate) fn block(&self) -> &[u8] {
        &self.block
    }

    /// Parses and copies entries received from a peer.
    ///
    /// # Errors
    /// Returns an error if a length does not match, or if a key or a value breaks a rule.
    pub(crate) fn parse(block: &[u8]) -> Result<Self, MetadataError> {
        let mut entries = Entries(block);
        while !entries.0.is_empty() {
            let (key, value) = entries.next().ok_or(MetadataError::Malformed)?;
            let key = std::str::from_utf8(key).map_err(|_| MetadataError::Malformed)?;
            check_key(key)?;
            check_value(key, value)?;
        }
        Ok(Self { block: block.to_vec() })
    }

    fn values<'m, 'k>(
        &'m self,
        key: &'k str,
        is_binary: bool,
    ) -> impl Iterator<Item = &'m [u8]> + use<'m, 'k> {
        let entries = Entries(if key.ends_with(BINARY) == is_binary { &self.block } else { &[] });
        entries.filter(move |(other, _)| *other == key.as_bytes()).map(|(_, value)| value)
    }

    fn replace(&mut self, key: &str, value: &[u8]) {
        self.remove(key);
        push(&mut self.block, key.as_bytes(), value);
    }
}

/// Prints the keys and the sizes of the values.
impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes = self.iter().map(|(key, value)| (key, format!("{} bytes", value.len())));
        f.debug_map().entries(sizes).finish()
    }
}

/// An iterator over the entries in a block. It ends at the first entry whose lengths do not match.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[key, low, high], rest) = self.0.split_first_chunk::<PREFIX>()?;
        let (key, rest) = rest.split_at_checked(usize::from(key))?;
        let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
        self.0 = rest;
        Some((key, value))
    }
}

/// Appends an entry with a checked key and value.
fn push(block: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    block.push(u8::try_from(key.len()).unwrap_or_default());
    block.extend(u16::try_from(value.len()).unwrap_or_default().to_le_bytes());
    block.extend_from_slice(key);
    block.extend_from_slice(value);
}

fn check_text(key: &str, value: &str) -> Result<(), MetadataError> {
    check_open(key)?;
    if key.ends_with(BINARY) {
        return Err(MetadataError::BinaryKey { key: key.to_owned() });
    }
    check_value(key, value.as_bytes())?;
    check_bytes(key, value.as_bytes(), |byte| matches!(byte, b' '..=b'~'))
}

fn check_binary(key: &str, value: &[u8]) -> Result<(), MetadataError> {
    check_open(key)?;
    if !key.ends_with(BINARY) {
        return Err(MetadataError::TextKey { key: key.to_owned() });
    }
    check_value(key, value)
}

/// Returns an error for keys that programs cannot set.
fn check_open(key: &str) -> Result<(), MetadataError> {
    check_key(key)?;
    match RESERVED.into_iter().find(|prefix| key.starts_with(prefix)) {
        Some(prefix) => Err(MetadataError::ReservedKey { key: key.to_owned(), prefix }),
        None => Ok(()),
    }
}

fn check_key(key: &str) -> Result<(), MetadataError> {
    if key.is_empty() || key.len() > usize::from(u8::MAX) {
        return Err(MetadataError::KeyLength { bytes: key.len() });
    }
    let is_allowed = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.');
    match key.chars().find(|c| !is_allowed(*c)) {
        Some(found) => Err(MetadataError::KeyCharacter { key: key.to_owned(), found }),
        None => Ok(()),
    }
}

/// Checks a value from another protocol or a peer. Text may contain the bytes that HTTP allows in headers.
fn check_value(key: &str, value: &[u8]) -> Result<(), MetadataError> {
    if value.len() > usize::from(u16::MAX) {
        return Err(MetadataError::ValueLength { key: key.to_owned(), bytes: value.len() });
    }
    if key.ends_with(BINARY) {
        return Ok(());
    }
    check_bytes(key, value, |byte| matches!(byte, b'\t' | b' '..=b'~' | 0x80..))
}

fn check_bytes(key: &str, value: &[u8], is_allowed: impl Fn(u8) -> bool) -> Result<(), MetadataError> {
    match value.iter().position(|byte| !is_allowed(*byte)) {
        Some(at) => Err(MetadataError::ValueCharacter { key: key.to_owned(), at }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_found_by_key_in_order() {
        let mut metadata = Metadata::new();
        metadata.append("tag", "blue").unwrap();
        metadata.append_bin("tag-bin", &[0, 255]).unwrap();
        metadata.append("tag", "").unwrap();
        assert_eq!(metadata.get_all("tag").collect::<Vec<_>>(), ["blue", ""]);
        assert_eq!((metadata.get("tag"), metadata.get_bin("tag-bin")), (Some("blue"), Some(&[0, 255][..])));
        assert_eq!(
            (metadata.get("tag-bin"), metadata.get_bin("tag"), metadata.get("ta")),
            (None, None, None)
        );
        assert_eq!(Metadata::parse(metadata.block()).as_ref(), Ok(&metadata));
        metadata.insert("tag", "red").unwrap();
        assert_eq!((metadata.get_all("tag").collect::<Vec<_>>(), metadata.len()), (vec!["red"], 2));
        assert!(metadata.remove("tag") && !metadata.remove("tag"));
        assert_eq!(metadata.iter().collect::<Vec<_>>(), [("tag-bin", &[0, 255][..])]);
    }

    #[test]
    fn errors_name_key_and_rule() {
        let mut metadata = Metadata::new();
        let long = "k".repeat(256);
        let longest = "v".repeat(65_535);
        let mut texts = Vec::new();
        for (key, value) in [
            ("", "secret"),
            (&*long, "secret"),
            ("Token", "secret"),
            ("a key", "secret"),
            ("grpc-timeout", "secret"),
            ("trunkline-order", "secret"),
            ("token-bin", "secret"),
            ("token", "secret\n"),
            ("token", &format!("{longest}v")),
        ] {
            texts.push(metadata.insert(key, value).unwrap_err().to_string());
        }
        texts.push(metadata.append_bin("token", b"secret").unwrap_err().to_string());
        assert!(!texts.iter().any(|text| text.contains("secret")), "{texts:?}");
        let expected = [
            "a key of 0 bytes: expected 1 to 255",
            "a key of 256 bytes: expected 1 to 255",
            "key \"Token\" contains 'T': expected lower-case ASCII letters, digits, '-', '_' and '.'",
            "key \"a key\" contains ' '",
            "key \"grpc-timeout\" is reserved, as are all that begin with grpc-",
            "key \"trunkline-order\" is reserved",
            "key \"token-bin\" ends in -bin and takes bytes",
            "the value of key \"token\" has a byte at 6 that is not printable ASCII",
            "the value of key \"token\" has 65536 bytes: expected 65535 at most",
            "key \"token\" takes text: expected one that ends in -bin",
        ];
        for (text, expected) in texts.iter().zip(expected) {
            assert!(text.starts_with(expected), "{text}");
        }
        assert!(metadata.is_empty(), "{metadata:?}");
        metadata.insert("token", &longest).unwrap();
    }

    #[test]
    fn reserved_keys_are_accepted_only_from_adapters() {
        let mut metadata = Metadata::new();
        metadata.append_reserved("grpc-message", b"no").unwrap();
        assert!(metadata.append_reserved("Grpc", b"no").is_err());
        assert_eq!(metadata.get("grpc-message"), Some("no"));
        assert_eq!(Metadata::parse(metadata.block()), Ok(metadata));
    }

    #[test]
    fn header_bytes_are_accepted_only_from_adapters() {
        let mut metadata = Metadata::new();
        for value in ["a\tb", "\u{e4}"] {
            assert!(metadata.insert("tag", value).is_err(), "{value:?}");
        }
        metadata.append_reserved("tag", b"\xff").unwrap();
        metadata.append_reserved("tag", b"a\tb \xc3\xa4").unwrap();
        assert_eq!(metadata.get("tag"), None, "the first value is not UTF-8");
        assert_eq!(metadata.get_all("tag").collect::<Vec<_>>(), ["a\tb \u{e4}"]);
        assert_eq!(metadata.iter().next(), Some(("tag", &b"\xff"[..])));
        assert_eq!(Metadata::parse(metadata.block()), Ok(metadata));
    }

    #[test]
    fn malformed_entries_are_refused() {
        let mut metadata = Metadata::new();
        metadata.append("ab", "value").unwrap();
        let block = metadata.block();
        for end in 1..block.len() {
            assert_eq!(Metadata::parse(&block[..end]), Err(MetadataError::Malformed), "cut at {end}");
        }
        for (at, byte) in [
            (0, 0),
            (0, 255),
            (1, 255),
            (2, 1),
            (3, b'A'),
            (3, 0xff),
            (5, 0x7f),
            (5, 0x1f),
            (5, 8),
            (5, b'\n'),
        ] {
            let mut bad = block.to_vec();
            bad[at] = byte;
            assert!(Metadata::parse(&bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn debug_output_has_no_values() {
        let mut metadata = Metadata::new();
        metadata.insert("token", "secret").unwrap();
        metadata.insert_bin("token-bin", b"secret").unwrap();
        assert_eq!(format!("{metadata:?}"), r#"{"token": "6 bytes", "token-bin": "6 bytes"}"#);
    }
}
