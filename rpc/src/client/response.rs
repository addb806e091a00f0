//! A successful answer.

use crate::{Code, Status, codec};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::ops::Range;
use trunkline_transport::Message;

/// A message that holds a reply; stubs take the value out.
#[derive(Debug)]
pub struct Response {
    message: Message,
    encoded: Range<usize>,
}

impl Response {
    pub(crate) fn new(message: Message, encoded: Range<usize>) -> Self {
        Self { message, encoded }
    }

    /// That of a one-way call.
    pub(crate) fn empty() -> Self {
        Self { message: Bytes::new().into(), encoded: 0..0 }
    }

    /// The encoded value.
    ///
    /// # Errors
    /// `Internal` when the server's bytes are none.
    pub fn value<T: DeserializeOwned>(self) -> Result<T, Status> {
        decode(&self.message.as_slice()[self.encoded])
    }

    /// The body.
    ///
    /// # Errors
    /// None today.
    pub fn bytes(self) -> Result<Bytes, Status> {
        Ok(self.message.into_bytes().slice(self.encoded.end..))
    }

    /// The body, if the encoded flag says that there is one.
    ///
    /// # Errors
    /// `Internal` when there is no flag.
    pub fn optional_bytes(self) -> Result<Option<Bytes>, Status> {
        let some = decode::<bool>(&self.message.as_slice()[self.encoded.clone()])?;
        if some { self.bytes().map(Some) } else { Ok(None) }
    }
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Status> {
    codec::decode(bytes)
        .map_err(|error| Status::new(Code::Internal, format!("the answer cannot be decoded: {error}")))
}
