//! What a method is given, and what it answers.

use crate::client::LocalQueue;
use crate::{Code, Status, codec};
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

    /// Makes answers in buffers that the poller uses again.
    #[must_use]
    pub fn replier(&self) -> Replier {
        Replier { poller: Rc::clone(&self.poller) }
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

/// Makes successful answers in buffers of the poller.
#[derive(Debug)]
pub struct Replier {
    poller: Rc<LocalQueue>,
}

impl Replier {
    /// A value, by the codec.
    ///
    /// # Errors
    /// `Internal` when it cannot be encoded.
    pub fn value<T: Serialize>(&self, value: &T) -> Result<Reply, Status> {
        let mut encoded = self.poller.spare().take();
        codec::encode(value, &mut encoded)?;
        Ok(Reply { encoded, body: Bytes::new() })
    }

    /// Bytes as they are.
    ///
    /// # Errors
    /// None: as `value`, so that stubs need not tell them apart.
    pub fn bytes(&self, body: Bytes) -> Result<Reply, Status> {
        Ok(Reply { encoded: Vec::new(), body })
    }

    /// Bytes as they are, or none.
    ///
    /// # Errors
    /// None: as `value`, so that stubs need not tell them apart.
    pub fn optional_bytes(&self, body: Option<Bytes>) -> Result<Reply, Status> {
        let reply = self.value(&body.is_some())?;
        Ok(Reply { body: body.unwrap_or_default(), ..reply })
    }
}

/// A successful answer on its way out.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Vec<u8>,
    pub(crate) body: Bytes,
}
