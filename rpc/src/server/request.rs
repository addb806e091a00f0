//! What a method is given, and what it answers.

use crate::{Code, Status, codec};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use trunkline_transport::Message;

/// A request on its way into a handler.
#[derive(Debug)]
pub struct Request {
    message: Message,
    encoded: Range<usize>,
}

impl Request {
    pub(crate) fn new(message: Message, encoded: Range<usize>) -> Self {
        Self { message, encoded }
    }

    /// The encoded arguments.
    ///
    /// # Errors
    /// `InvalidArgument` when the caller's bytes are none.
    pub fn arguments<T: DeserializeOwned>(&self) -> Result<T, Status> {
        codec::decode(&self.message.as_slice()[self.encoded.clone()]).map_err(|error| {
            Status::not_run(Code::InvalidArgument, format!("the arguments cannot be decoded: {error}"))
        })
    }

    /// The argument that travelled as it is.
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.message.into_bytes().slice(self.encoded.end..)
    }
}

/// A successful answer on its way out.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Bytes,
}

impl Reply {
    /// A value, by the codec.
    ///
    /// # Errors
    /// `Internal` when it cannot be encoded.
    pub fn value<T: Serialize>(value: &T) -> Result<Self, Status> {
        let mut encoded = Vec::new();
        codec::encode(value, &mut encoded)?;
        Ok(Self { encoded, body: Bytes::new() })
    }

    /// Bytes as they are.
    #[must_use]
    pub fn bytes(body: Bytes) -> Self {
        Self { encoded: Vec::new(), body }
    }

    /// Bytes as they are, or none.
    #[must_use]
    pub fn optional_bytes(body: Option<Bytes>) -> Self {
        // The codec's form of a bool.
        Self { encoded: vec![u8::from(body.is_some())], body: body.unwrap_or_default() }
    }
}
