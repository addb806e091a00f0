//! Fuzz targets: functions that take arbitrary bytes and panic when an invariant is broken.

mod poller;

pub use poller::poller;

use crate::codec;
use crate::frame::Header;
use serde::Deserialize;

/// Parses a frame; a frame that parses must be emitted unchanged.
pub fn call_frame(data: &[u8]) {
    let Ok((header, encoded)) = Header::parse(data) else { return };
    assert!(encoded.end <= data.len(), "the encoded part is within the message");
    let mut bytes = Vec::new();
    header.emit(u32::try_from(encoded.len()).unwrap_or(u32::MAX), &mut bytes);
    assert_eq!(bytes.len(), encoded.start);
    bytes.extend_from_slice(&data[encoded.start..]);
    assert_eq!(Header::parse(&bytes), Ok((header, encoded)), "a frame survives a round trip");
}

/// Decodes values of several shapes.
pub fn values(data: &[u8]) {
    #[derive(Deserialize)]
    #[allow(dead_code, reason = "it is only decoded")]
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
