//! Fuzz targets, which take arbitrary bytes and panic if an invariant is violated.

use crate::codec::{self, Allowance, Bincode, CodecFor, DecodeError, FREE};
use crate::wire::frame::Header;
use serde::Deserialize;
use serde::Serialize;
use std::cell::Cell;
use trunkline_transport::MessageHeader;

/// Parses a message, which consists of kind (1), flags (1), word (2, little-endian) and contents. If the message is valid,
/// its header is emitted and parsed again, and must be the same.
pub fn call_frame(data: &[u8]) {
    let Some((&[kind, flags, low, high], data)) = data.split_first_chunk() else { return };
    let received = MessageHeader { kind, flags, word: u16::from_le_bytes([low, high]) };
    let Ok((header, encoded)) = Header::parse(received, data) else { return };
    assert!(encoded.end <= data.len(), "the encoded part is within the message");
    let mut bytes = Vec::new();
    let emitted = header.emit(u32::try_from(encoded.len()).unwrap_or(u32::MAX), &mut bytes);
    let start = bytes.len() + header.metadata_bytes();
    bytes.extend_from_slice(&data[encoded.start - header.metadata_bytes()..]);
    assert_eq!(
        Header::parse(emitted, &bytes),
        Ok((header, start..start + encoded.len())),
        "a frame survives a round trip"
    );
}

/// Maximum heap size of a value of the target `values`, in bytes.
const MOST: usize = 1 << 20;

/// Allowance for one value, in bytes.
struct Within {
    limit: usize,
    granted: Cell<usize>,
}

impl Allowance for Within {
    fn more(&self, bytes: usize) -> Result<(), DecodeError> {
        let sum = self.granted.get().saturating_add(bytes);
        if sum > self.limit {
            return Err(DecodeError::TooLarge(format!("it takes more than {} bytes", self.limit)));
        }
        self.granted.set(sum);
        Ok(())
    }

    fn less(&self, bytes: usize) {
        self.granted.set(self.granted.get() - bytes);
    }
}

/// Decodes a value with at most `limit` bytes of heap memory. Returns the value and its counted bytes.
///
/// # Errors
/// Returns a human-readable reason.
pub fn decode_within<C: CodecFor<T>, T>(data: &[u8], limit: usize) -> Result<(T, usize), String> {
    let within = Within { limit, granted: Cell::new(0) };
    let value = codec::decode::<C, T>(data, &within).map_err(|error| error.to_string())?;
    Ok((value, within.granted.get() + FREE))
}

/// Encodes a value with the default codec.
///
/// # Errors
/// Returns a human-readable reason.
pub fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    Bincode::encode_value(value, &mut bytes)?;
    Ok(bytes)
}

/// Decodes values of several shapes.
pub fn values(data: &[u8]) {
    #[derive(Serialize, Deserialize)]
    enum Shape {
        Unit,
        Pair(u8, String),
        Tree { left: Box<Option<Self>>, bytes: bytes::Bytes },
        Empty(Vec<()>),
        Chain(Box<Self>),
    }
    type Map<V> = std::collections::BTreeMap<String, V>;
    let _ = decode_within::<Bincode, (u64, String, Vec<Option<u32>>)>(data, MOST);
    let _ = decode_within::<Bincode, Vec<Shape>>(data, MOST);
    let _ = decode_within::<Bincode, Map<Vec<u8>>>(data, MOST);
    let _ = decode_within::<Bincode, std::collections::HashMap<u64, Map<Box<Shape>>>>(data, MOST);
}
