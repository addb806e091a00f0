//! The request and the reply of a method.

use super::ArgumentMemory;
use crate::call::LocalQueue;
use crate::codec::{DecodeArguments, EncodeValue};
use crate::context::Context;
use crate::frame::Encoded;
use crate::reason::Reason;
use crate::status::{Code, Status};
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use trunkline_transport::{Body, Message};

/// A request, before its handler takes it.
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

    /// Returns the context of the call. Its handler must be polled meanwhile.
    #[must_use]
    pub fn context(&self) -> Context {
        self.memory.context()
    }

    /// Records that an interceptor has changed the context.
    pub(super) fn context_changed(&self, context: &Context) {
        self.memory.context_changed(context);
    }

    /// Returns a builder of replies to this call.
    #[inline]
    #[must_use]
    pub fn replier(&self) -> Replier {
        Replier { poller: Rc::clone(&self.poller) }
    }

    /// Decodes the arguments. `names` are the names of the method's parameters. Their memory is charged to the caller
    /// until the handler ends.
    ///
    /// Trailing arguments that the caller does not send are `None` if they are optional. Surplus arguments are
    /// skipped.
    ///
    /// # Errors
    /// `InvalidArgument` when the caller's bytes do not decode or an argument is missing, `ResourceExhausted` when
    /// the arguments take more memory than the caller may use.
    pub fn arguments<D: DecodeArguments>(
        &self,
        names: &[&'static str],
        _decoders: D,
    ) -> Result<D::Values, Failure> {
        self.memory.decode::<D>(&self.message.as_slice()[self.encoded.clone()], names).map_err(Failure::Node)
    }

    /// Returns the raw argument: the bytes after the encoded arguments.
    #[inline]
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.message.bytes_from(self.encoded.end)
    }
}

/// Writes no bytes of the message: metadata may be secret.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("encoded", &self.encoded).finish_non_exhaustive()
    }
}

/// A builder of replies, in buffers that the poller reuses.
#[derive(Debug)]
pub struct Replier {
    poller: Rc<LocalQueue>,
}

impl Replier {
    /// Creates a reply with a value, which its codec encodes.
    ///
    /// # Errors
    /// `Internal` when the value cannot be encoded.
    pub fn value<V: EncodeValue>(&self, value: &V) -> Result<Reply, Failure> {
        let mut encoded = self.poller.buffers().take();
        value.encode(encoded.buffer()).map_err(|error| {
            let text = format!("the reply cannot be encoded: {error}");
            Failure::Node(Status::ran(Code::Internal, text).because(Reason::BadReply))
        })?;
        Ok(Reply { encoded, body: Body::new() })
    }

    /// Creates the failure of a handler that has returned an error of its method's own type.
    pub fn error<V: EncodeValue>(&self, error: &V) -> Failure {
        let mut encoded = self.poller.buffers().take();
        match error.encode(encoded.buffer()) {
            Ok(()) => Failure::Error(EncodedError(encoded)),
            Err(text) => {
                let text = format!("the handler's error cannot be encoded: {text}");
                Failure::Node(Status::ran(Code::Internal, text).because(Reason::BadReply))
            }
        }
    }

    /// Creates a reply with raw bytes.
    ///
    /// # Errors
    /// Never fails. It has the signature of `value`, so that stubs need not distinguish the two.
    #[inline]
    pub fn bytes(&self, body: Bytes) -> Result<Reply, Failure> {
        Ok(Reply { encoded: self.poller.buffers().take(), body: body.into() })
    }

    /// Creates a reply with optional raw bytes, after a byte that is 1 if there are any.
    ///
    /// # Errors
    /// Never fails, as for `bytes`.
    pub fn optional_bytes(&self, body: Option<Bytes>) -> Result<Reply, Failure> {
        let mut encoded = self.poller.buffers().take();
        encoded.buffer().push(u8::from(body.is_some()));
        Ok(Reply { encoded, body: body.unwrap_or_default().into() })
    }
}

/// The reason why a method made no reply.
#[derive(Debug)]
pub enum Failure {
    /// The handler returned this status. It has run, whatever the status says of a nested call.
    Handler(Status),
    /// The handler returned an error of its method's own type.
    Error(EncodedError),
    /// The node ended the call in the handler's place, and knows whether the handler ran.
    Node(Status),
}

/// Converts a status that a method without a generated stub returns.
impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Handler(status)
    }
}

/// An error of a method's own type, encoded by the codec.
#[derive(Debug)]
pub struct EncodedError(pub(crate) Encoded);

/// A successful reply, not sent yet.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Encoded,
    pub(crate) body: Body,
}
