//! Fuzz targets: plain functions that take any bytes and panic when something is broken.

mod poller;

pub use poller::poller;

use crate::codec;
use crate::frame::Header;
use serde::Deserialize;

/// Parses a frame; what parses must come back the same.
pub fn call_frame(data: &[u8]) {
    let Ok((header, encoded)) = Header::parse(data) else { return };
    assert!(encoded.end <= data.len(), "the encoded part lies in the message");
    let mut bytes = Vec::new();
    header.emit(u32::try_from(encoded.len()).unwrap_or(u32::MAX), &mut bytes);
    assert_eq!(bytes.len(), encoded.start);
    bytes.extend_from_slice(&data[encoded.start..]);
    assert_eq!(Header::parse(&bytes), Ok((header, encoded)), "a frame comes back");
}

/// Decodes values of several shapes.
pub fn values(data: &[u8]) {
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "only decoded")]
    enum Shape {
        Unit,
        Pair(u8, String),
        Tree { left: Box<Option<Self>>, bytes: bytes::Bytes },
        Empty(Vec<()>),
    }
    let _ = codec::decode::<(u64, String, Vec<Option<u32>>)>(data);
    let _ = codec::decode::<Vec<Shape>>(data);
    let _ = codec::decode::<std::collections::BTreeMap<String, Vec<u8>>>(data);
}
