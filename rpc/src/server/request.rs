//! What a method receives, and what it returns.

use crate::call::LocalQueue;
use crate::codec;
use crate::status::{Code, Status};
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ops::Range;
use std::rc::Rc;
use trunkline_transport::Message;

/// A request on its way into a handler.
#[derive(Debug)]
pub struct Request {
    message: Message,
    encoded: Range<usize>,
    poller: Rc<LocalQueue>,
}

impl Request {
    pub(crate) fn new(message: Message, encoded: Range<usize>, poller: Rc<LocalQueue>) -> Self {
        Self { message, encoded, poller }
    }

    /// Makes replies in buffers that the poller reuses.
    #[must_use]
    pub fn replier(&self) -> Replier {
        Replier { poller: Rc::clone(&self.poller) }
    }

    /// The encoded arguments, decoded.
    ///
    /// # Errors
    /// `InvalidArgument` when the caller's bytes do not decode to `T`.
    pub fn arguments<T: DeserializeOwned>(&self) -> Result<T, Status> {
        codec::decode(&self.message.as_slice()[self.encoded.clone()]).map_err(|error| {
            Status::not_run(Code::InvalidArgument, format!("the arguments cannot be decoded: {error}"))
        })
    }

    /// The raw argument: the bytes after the encoded ones.
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.message.into_bytes().slice(self.encoded.end..)
    }
}

/// Makes successful replies in buffers that the poller reuses.
#[derive(Debug)]
pub struct Replier {
    poller: Rc<LocalQueue>,
}

impl Replier {
    /// A reply that holds a value, encoded by the codec.
    ///
    /// # Errors
    /// `Internal` when it cannot be encoded.
    pub fn value<T: Serialize>(&self, value: &T) -> Result<Reply, Status> {
        let mut encoded = self.poller.spare().take();
        codec::encode(value, &mut encoded)?;
        Ok(Reply { encoded, body: Bytes::new() })
    }

    /// A reply that holds raw bytes.
    ///
    /// # Errors
    /// None. The signature is that of `value`, so that stubs need not distinguish the two.
    pub fn bytes(&self, body: Bytes) -> Result<Reply, Status> {
        Ok(Reply { encoded: Vec::new(), body })
    }

    /// A reply that holds raw bytes or nothing, after an encoded flag.
    ///
    /// # Errors
    /// `Internal` when the flag cannot be encoded.
    pub fn optional_bytes(&self, body: Option<Bytes>) -> Result<Reply, Status> {
        let reply = self.value(&body.is_some())?;
        Ok(Reply { body: body.unwrap_or_default(), ..reply })
    }
}

/// A successful reply, not sent yet.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Bytes,
}
