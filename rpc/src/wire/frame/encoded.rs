//! The encoded part of an outgoing frame, with space for the header in front. Metadata, if any, precedes the encoded part in
//! the same buffer, and the header contains the size of the metadata.

use super::header::{FIXED, Short};
use bytes::Bytes;
use std::fmt;
use trunkline_transport::MessageHeader;

/// An encoded part in a buffer that begins with space for the header, so that both are sent in one piece.
#[derive(Default)]
pub(crate) struct Encoded(Vec<u8>);

/// Prints only the length, because metadata may be secret.
impl fmt::Debug for Encoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoded({} bytes)", self.len())
    }
}

impl Encoded {
    /// Returns the size of the encoded part and of the metadata before it, in bytes.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len().saturating_sub(FIXED)
    }

    /// Returns the encoded part, with the metadata before it.
    pub(crate) fn part(&self) -> &[u8] {
        self.0.get(FIXED..).unwrap_or_default()
    }

    /// Returns the buffer, to which a codec appends the encoded part.
    #[inline]
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        if self.0.is_empty() {
            self.0.resize(FIXED, 0);
        }
        &mut self.0
    }

    /// Inserts bytes before the encoded part.
    pub(crate) fn prepend(&mut self, bytes: &[u8]) {
        self.replace_metadata(0, bytes);
    }

    /// Replaces the metadata, which has `size` bytes.
    pub(crate) fn replace_metadata(&mut self, size: usize, metadata: &[u8]) {
        self.buffer().splice(FIXED..FIXED + size, metadata.iter().copied());
    }

    /// Returns the capacity of the buffer, in bytes.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Removes the encoded part and keeps the buffer.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.0.truncate(FIXED);
    }

    /// Returns the header of a message without extensions, and the contents up to the body.
    #[inline]
    pub(super) fn with_header(&mut self, header: Short) -> (MessageHeader, &[u8]) {
        let buffer = self.buffer();
        let encoded = u32::try_from(buffer.len() - FIXED).unwrap_or(u32::MAX);
        if let Some(room) = buffer.first_chunk_mut() {
            *room = header.fixed(encoded);
        }
        (header.header, buffer)
    }

    /// Returns the whole buffer as shared bytes, and the encoded part inside it.
    pub(super) fn into_bytes(self) -> (Bytes, Bytes) {
        let buffer = Bytes::from(self.0);
        let part = buffer.slice(FIXED.min(buffer.len())..);
        (buffer, part)
    }

    /// Returns the buffer for reuse. Does not copy it if its bytes are no longer shared.
    pub(super) fn from_bytes(buffer: Bytes) -> Self {
        Self(buffer.into())
    }
}
