//! Extensions, which are optional fields between the header of a frame and its encoded part.
//!
//! ```text
//! 0 type (1)  1 flags (1): 1 if it is critical  2 length of the value (2)  4 value
//! ```
//!
//! The bytes come from a peer, so every length is checked, and parsing never panics.

use super::{FrameError, array};
use crate::wire::metadata::MetadataBytes;
use crate::wire::method_shapes::{MethodShapes, Traced};
use crate::wire::name::Schema;
use crate::wire::name::Streams;

/// Maximum size of all extensions of a frame, in bytes. Header and extensions are sent before the rest of a large message.
pub(super) const MOST_BYTES: usize = 960;
/// Maximum number of extensions in a frame.
const MOST: usize = 16;
/// Number of bytes before the value.
const PREFIX: usize = 4;
/// Flag of an extension that a receiver must not ignore.
const CRITICAL: u8 = 1;

/// Types of extensions. Unused types are reserved.
mod types {
    /// The method, identified by its hash.
    pub(super) const METHOD: u8 = 1;
    /// The number that the server assigned to the method.
    pub(super) const NUMBER: u8 = 2;
    /// The sizes of the metadata, which precedes the encoded part.
    pub(super) const METADATA: u8 = 3;
    // Types 4 (TRACE), 5 (ORDER), 6 (RESEND) and 7 (COMPRESSION) are reserved.
    /// Fingerprints of the types that the method sends.
    pub(super) const SHAPES: u8 = 8;
}

/// A method identified by its hash, for a server that has not assigned a number to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method {
    /// Hash of the names of service and method.
    pub(crate) method: u64,
    /// Hash of the service's name.
    pub(crate) service: u64,
    /// Schema from which the stubs were generated.
    pub(crate) schema: Schema,
    /// Directions in which the call streams items.
    pub(crate) streams: Streams,
    /// Shapes of the method's types, in an outgoing request. [`Header::shapes`](super::Header::shapes) returns the
    /// fingerprints in a received request.
    pub(crate) shapes: Option<&'static MethodShapes>,
}

/// 8 method, 8 service, 4 version, 1 kind (0 unary, 1 one-way, 2 to 4 streams), 1 codec, 1 older versions, 1 zero.
const METHOD_BYTES: usize = 24;

/// Returns the number of a method kind.
fn kind_of(one_way: bool, streams: Streams) -> u8 {
    match streams {
        Streams::Neither => u8::from(one_way),
        Streams::FromServer => 2,
        Streams::FromClient => 3,
        Streams::Both => 4,
    }
}

impl Method {
    pub(super) fn emit(self, one_way: bool, into: &mut Vec<u8>) {
        begin(types::METHOD, CRITICAL, METHOD_BYTES, into);
        into.extend(self.method.to_le_bytes());
        into.extend(self.service.to_le_bytes());
        into.extend(self.schema.version.to_le_bytes());
        into.extend([kind_of(one_way, self.streams), self.schema.codec, self.schema.older, 0]);
        let shapes = self.shapes.and_then(MethodShapes::traced);
        if let Some(fingerprints) = shapes.map(Traced::fingerprints) {
            begin(types::SHAPES, 0, fingerprints.len() * FINGERPRINT, into);
            into.extend(fingerprints.iter().flat_map(|fingerprint| fingerprint.to_le_bytes()));
        }
    }

    /// Returns the number of the method's kind.
    pub(super) fn kind(self, one_way: bool) -> u8 {
        kind_of(one_way, self.streams)
    }

    fn parse(value: &[u8], one_way: bool) -> Result<Self, FrameError> {
        let (&value, _) = value.split_first_chunk::<METHOD_BYTES>().ok_or(FrameError::Extensions)?;
        let [.., kind, codec, older, _] = value;
        let streams = match kind {
            2 => Streams::FromServer,
            3 => Streams::FromClient,
            4 => Streams::Both,
            _ => Streams::Neither,
        };
        // The parser of the header also compares the kind with the kind of the frame.
        if kind != kind_of(one_way, streams) {
            return Err(FrameError::MethodKind(kind));
        }
        let [method, service] = [0, 8].map(|at| u64::from_le_bytes(array(&value, at)));
        let version = u32::from_le_bytes(array(&value, 16));
        Ok(Self { method, service, schema: Schema { version, older, codec }, streams, shapes: None })
    }
}

/// The number that a server has assigned to a method in this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number {
    /// The number.
    pub(crate) number: u16,
    /// Schema that the request for the method contained.
    pub(crate) schema: Schema,
    /// Hash of the names of service and method.
    pub(crate) method: u64,
}

/// 8 method, 4 version, 2 number, 1 codec, 1 older versions.
const NUMBER_BYTES: usize = 16;

impl Number {
    pub(super) fn emit(self, into: &mut Vec<u8>) {
        begin(types::NUMBER, 0, NUMBER_BYTES, into);
        into.extend(self.method.to_le_bytes());
        into.extend(self.schema.version.to_le_bytes());
        into.extend(self.number.to_le_bytes());
        into.extend([self.schema.codec, self.schema.older]);
    }

    fn parse(value: &[u8]) -> Result<Self, FrameError> {
        let (value, _) = value.split_first_chunk::<NUMBER_BYTES>().ok_or(FrameError::Extensions)?;
        let (method, version) = (u64::from_le_bytes(array(value, 0)), u32::from_le_bytes(array(value, 8)));
        let [.., codec, older] = *value;
        let schema = Schema { version, older, codec };
        Ok(Self { number: u16::from_le_bytes(array(value, 12)), schema, method })
    }
}

/// Size of one fingerprint, in bytes.
const FINGERPRINT: usize = 4;

/// Returns the fingerprints in extensions that were already parsed without an error. Empty if there are none.
pub(super) fn shapes(mut extensions: &[u8]) -> Vec<u32> {
    while let Some((&[kind, _, low, high], rest)) = extensions.split_first_chunk::<PREFIX>() {
        let Some((value, rest)) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high]))) else {
            break;
        };
        if kind == types::SHAPES {
            let (fingerprints, _) = value.as_chunks::<FINGERPRINT>();
            return fingerprints.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        }
        extensions = rest;
    }
    Vec::new()
}

/// 4 initial, 4 trailing.
const METADATA_BYTES: usize = 8;

/// Appends the sizes of the metadata, unless there is no metadata. A receiver that ignored this extension would read the
/// metadata as the encoded part.
pub(super) fn emit_metadata(bytes: MetadataBytes, into: &mut Vec<u8>) {
    if !bytes.is_empty() {
        begin(types::METADATA, CRITICAL, METADATA_BYTES, into);
        into.extend(bytes.initial.to_le_bytes());
        into.extend(bytes.trailing.to_le_bytes());
    }
}

fn parse_metadata(value: &[u8]) -> Result<MetadataBytes, FrameError> {
    let value = <&[u8; METADATA_BYTES]>::try_from(value).map_err(|_| FrameError::Extensions)?;
    let [initial, trailing] = [0, 4].map(|at| u32::from_le_bytes(array(value, at)));
    let bytes = MetadataBytes { initial, trailing };
    if bytes.is_empty() { Err(FrameError::Extensions) } else { Ok(bytes) }
}

/// Appends the prefix of an extension: type, flags and length.
fn begin(kind: u8, flags: u8, bytes: usize, into: &mut Vec<u8>) {
    into.extend([kind, flags]);
    into.extend(u16::try_from(bytes).unwrap_or_default().to_le_bytes());
}

/// The known extensions of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Extensions {
    pub(super) method: Option<Method>,
    pub(super) number: Option<Number>,
    pub(super) metadata: MetadataBytes,
}

impl Extensions {
    /// Parses the bytes between the header and the encoded part of a frame. Skips unknown extensions.
    ///
    /// # Errors
    /// Returns an error if there are too many extensions, or if an extension has a wrong length, appears twice, or is
    /// critical but unknown.
    pub(super) fn parse(mut bytes: &[u8], one_way: bool) -> Result<Self, FrameError> {
        if bytes.len() > MOST_BYTES {
            return Err(FrameError::Extensions);
        }
        let (mut known, mut seen) = (Self::default(), [0; MOST]);
        let mut count = 0;
        while let Some((&[kind, flags, low, high], rest)) = bytes.split_first_chunk::<PREFIX>() {
            let length = usize::from(u16::from_le_bytes([low, high]));
            let (value, rest) = rest.split_at_checked(length).ok_or(FrameError::Extensions)?;
            bytes = rest;
            let place = seen.get_mut(count).ok_or(FrameError::Extensions)?;
            *place = kind;
            if seen[..count].contains(&kind) {
                return Err(FrameError::Extensions);
            }
            count += 1;
            match kind {
                types::METHOD => known.method = Some(Method::parse(value, one_way)?),
                types::NUMBER => known.number = Some(Number::parse(value)?),
                types::METADATA => known.metadata = parse_metadata(value)?,
                types::SHAPES if value.len() % FINGERPRINT != 0 => return Err(FrameError::Extensions),
                _ if flags & CRITICAL != 0 => return Err(FrameError::UnknownExtension(kind)),
                _ => {}
            }
        }
        if bytes.is_empty() { Ok(known) } else { Err(FrameError::Extensions) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const METHOD: Method = Method {
        method: 1,
        service: 2,
        schema: Schema { version: 3, older: 1, codec: 200 },
        streams: Streams::Neither,
        shapes: None,
    };

    fn with(more: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        METHOD.emit(false, &mut bytes);
        bytes.extend(more);
        bytes
    }

    #[test]
    fn unknown_extensions_are_skipped_unless_critical() {
        let known = Ok(Extensions { method: Some(METHOD), ..Extensions::default() });
        assert_eq!(Extensions::parse(&with(&[]), false), known);
        assert_eq!(Extensions::parse(&with(&[200, 0, 2, 0, 7, 7, 201, 0, 0, 0]), false), known);
        assert_eq!(Extensions::parse(&with(&[200, 1, 0, 0]), false), Err(FrameError::UnknownExtension(200)));
        assert_eq!(Extensions::parse(&[], false), Ok(Extensions::default()));
    }

    #[test]
    fn malformed_extensions_are_refused() {
        let many = (100..).take(MOST).flat_map(|kind| [kind, 0, 0, 0]).collect::<Vec<_>>();
        let long = [&[200, 0, 0xc0, 3][..], &[0; MOST_BYTES]].concat();
        for bad in
            [with(&[200]), with(&[200, 0, 1, 0]), with(&with(&[])), with(&many), long, vec![1, 1, 2, 0, 7, 7]]
        {
            assert_eq!(Extensions::parse(&bad, false), Err(FrameError::Extensions), "{bad:?}");
        }
    }

    #[test]
    fn sizes_of_metadata_have_one_form() {
        let mut bytes = Vec::new();
        emit_metadata(MetadataBytes::default(), &mut bytes);
        assert!(bytes.is_empty(), "nothing travels for no metadata");
        let metadata = MetadataBytes { initial: 1, trailing: 2 };
        emit_metadata(metadata, &mut bytes);
        let known = Extensions { metadata, ..Extensions::default() };
        assert_eq!(Extensions::parse(&bytes, false), Ok(known));
        for bad in [vec![3, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0], vec![3, 1, 4, 0, 1, 0, 0, 0], bytes.repeat(2)] {
            assert_eq!(Extensions::parse(&bad, false), Err(FrameError::Extensions), "{bad:?}");
        }
    }

    #[test]
    fn shapes_are_whole_fingerprints_and_bounded() {
        let sent = with(&[200, 0, 1, 0, 7, 8, 0, 8, 0, 1, 0, 0, 0, 2, 0, 0, 1]);
        assert_eq!(Extensions::parse(&sent, false).map(|known| known.method), Ok(Some(METHOD)));
        assert_eq!(shapes(&sent), [1, 0x0100_0002]);
        assert_eq!((shapes(&with(&[])), shapes(&with(&[8, 0, 0, 0]))), (vec![], vec![]));
        let most = with(&[&[8, 0, 0xa0, 3][..], &[7; 928]].concat());
        assert_eq!(Extensions::parse(&most, false).map(|_| shapes(&most).len()), Ok(232));
        let more = with(&[&[8, 0, 0xa4, 3][..], &[7; 932]].concat());
        for bad in [more, with(&[8, 0, 3, 0, 1, 2, 3]), with(&[8, 0, 0, 0, 8, 0, 0, 0])] {
            assert_eq!(Extensions::parse(&bad, false), Err(FrameError::Extensions), "{bad:?}");
        }
    }

    #[test]
    fn methods_of_another_kind_are_refused() {
        let mut bytes = with(&[]);
        assert_eq!(Extensions::parse(&bytes, true), Err(FrameError::MethodKind(0)));
        bytes[PREFIX + 20] = 5;
        assert_eq!(Extensions::parse(&bytes, false), Err(FrameError::MethodKind(5)));
    }
}
