//! The response of a successful call.

use crate::codec;
use crate::status::{Code, Status};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::ops::Range;
use trunkline_transport::Message;

/// The message of a successful reply; stubs decode the value from it.
#[derive(Debug)]
pub struct Response {
    message: Message,
    encoded: Range<usize>,
}

impl Response {
    pub(crate) fn new(message: Message, encoded: Range<usize>) -> Self {
        Self { message, encoded }
    }

    /// The response of a one-way call.
    pub(crate) fn empty() -> Self {
        Self { message: Bytes::new().into(), encoded: 0..0 }
    }

    /// The encoded value, decoded.
    ///
    /// # Errors
    /// `Internal` when the server's bytes do not decode to `T`.
    pub fn value<T: DeserializeOwned>(self) -> Result<T, Status> {
        decode(&self.message.as_slice()[self.encoded])
    }

    /// The raw bytes after the encoded part.
    ///
    /// # Errors
    /// None. The signature is that of `value`, so that stubs need not distinguish the two.
    pub fn bytes(self) -> Result<Bytes, Status> {
        Ok(self.message.into_bytes().slice(self.encoded.end..))
    }

    /// The raw bytes after the encoded part, if the encoded flag is set.
    ///
    /// # Errors
    /// `Internal` when the flag does not decode.
    pub fn optional_bytes(self) -> Result<Option<Bytes>, Status> {
        let some = decode::<bool>(&self.message.as_slice()[self.encoded.clone()])?;
        if some { self.bytes().map(Some) } else { Ok(None) }
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Status> {
    codec::decode(bytes)
        .map_err(|error| Status::new(Code::Internal, format!("the reply cannot be decoded: {error}")))
}
