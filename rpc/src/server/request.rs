//! What a method receives, and what it returns.

use super::ArgumentMemory;
use crate::call::LocalQueue;
use crate::codec::{DecodeArguments, EncodeValue};
use crate::context::Context;
use crate::frame::Encoded;
use crate::reason::Reason;
use crate::status::{Code, Status};
use bytes::Bytes;
use std::ops::Range;
use std::rc::Rc;
use trunkline_transport::{Body, Message};

/// A request on its way into a handler.
#[derive(Debug)]
pub struct Request {
    message: Message,
    encoded: Range<usize>,
    poller: Rc<LocalQueue>,
    memory: Rc<ArgumentMemory>,
}

impl Request {
    #[inline]
    pub(crate) fn new(
        message: Message,
        encoded: Range<usize>,
        poller: Rc<LocalQueue>,
        memory: Rc<ArgumentMemory>,
    ) -> Self {
        Self { message, encoded, poller, memory }
    }

    /// The context of the call, while its handler is being polled.
    #[must_use]
    pub fn context(&self) -> Context {
        self.memory.context()
    }

    /// Makes replies in buffers that the poller reuses.
    #[inline]
    #[must_use]
    pub fn replier(&self) -> Replier {
        Replier { poller: Rc::clone(&self.poller) }
    }

    /// The encoded arguments, as these decoders make them; `names` are those of the method's parameters. Their memory is
    /// charged to the caller until the handler ends.
    ///
    /// Arguments at the end that the caller does not send are `None` if they are optional; those that it sends in
    /// excess are skipped.
    ///
    /// # Errors
    /// `InvalidArgument` when the caller's bytes do not decode or an argument is missing, `ResourceExhausted`
    /// when the arguments take more memory than the caller may use.
    pub fn arguments<D: DecodeArguments>(
        &self,
        names: &[&'static str],
        _decoders: D,
    ) -> Result<D::Values, Failure> {
        self.memory.decode::<D>(&self.message.as_slice()[self.encoded.clone()], names).map_err(Failure::Node)
    }

    /// The raw argument: the bytes after the encoded ones.
    #[inline]
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.message.bytes_from(self.encoded.end)
    }
}

/// Makes successful replies in buffers that the poller reuses.
#[derive(Debug)]
pub struct Replier {
    poller: Rc<LocalQueue>,
}

impl Replier {
    /// A reply that holds a value, as its codec encodes it.
    ///
    /// # Errors
    /// `Internal` when it cannot be encoded.
    pub fn value<V: EncodeValue>(&self, value: &V) -> Result<Reply, Failure> {
        let mut encoded = self.poller.spare().take();
        value.encode(encoded.buffer()).map_err(|error| {
            let text = format!("the reply cannot be encoded: {error}");
            Failure::Node(Status::ran(Code::Internal, text).because(Reason::BadReply))
        })?;
        Ok(Reply { encoded, body: Body::new() })
    }

    /// The failure of a handler that has returned an error of its method's own type.
    pub fn error<V: EncodeValue>(&self, error: &V) -> Failure {
        let mut encoded = self.poller.spare().take();
        match error.encode(encoded.buffer()) {
            Ok(()) => Failure::Error(EncodedError(encoded)),
            Err(text) => {
                let text = format!("the handler's error cannot be encoded: {text}");
                Failure::Node(Status::ran(Code::Internal, text).because(Reason::BadReply))
            }
        }
    }

    /// A reply that holds raw bytes.
    ///
    /// # Errors
    /// None. The signature is that of `value`, so that stubs need not distinguish the two.
    #[inline]
    pub fn bytes(&self, body: Bytes) -> Result<Reply, Failure> {
        Ok(Reply { encoded: self.poller.spare().take(), body: body.into() })
    }

    /// A reply that holds raw bytes or nothing, after a byte that is 1 if there are any.
    ///
    /// # Errors
    /// None, as for `bytes`.
    pub fn optional_bytes(&self, body: Option<Bytes>) -> Result<Reply, Failure> {
        let mut encoded = self.poller.spare().take();
        encoded.buffer().push(u8::from(body.is_some()));
        Ok(Reply { encoded, body: body.unwrap_or_default().into() })
    }
}

/// Why a method made no reply.
#[derive(Debug)]
pub enum Failure {
    /// The handler returned this. It has run, whatever the status says of a call that the handler made.
    Handler(Status),
    /// The handler returned an error of its method's own type.
    Error(EncodedError),
    /// The node ended the call in the handler's place, and knows whether the handler ran.
    Node(Status),
}

/// A status that a method without a generated stub returns.
impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Handler(status)
    }
}

/// An error of a method's own type, as the codec encodes it.
#[derive(Debug)]
pub struct EncodedError(pub(crate) Encoded);

/// A successful reply, not sent yet.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Encoded,
    pub(crate) body: Body,
}
