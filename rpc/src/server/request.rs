//! Requests to methods, and their replies.

use super::ArgumentMemory;
use crate::call::LocalQueue;
use crate::call::context::Context;
use crate::codec::{DecodeArguments, DecodeValue, EncodeValue};
use crate::node::budgets::check_metadata;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::{CallStream, ItemBuffer, SendItemsError, Streaming, send_from_handler};
use crate::wire::frame::Encoded;
use crate::wire::metadata::{MOST_TRACE_BYTES, Metadata};
use bytes::Bytes;
use futures_core::Stream as Source;
use std::fmt;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_transport::{Body, Message};

/// Parses the metadata of a request. A trace that exceeds the limit is dropped, because a remote caller may have chosen it
/// and it must not make this call fail.
pub(super) fn parse_metadata(block: &[u8], most: usize) -> Result<Metadata, Status> {
    if block.len().saturating_sub(MOST_TRACE_BYTES) > most {
        check_metadata(block.len(), most)?;
    }
    let mut metadata = Metadata::parse(block).map_err(|error| {
        let text = format!("the request's metadata is refused: {error}");
        Status::not_run(Code::InvalidArgument, text).because(Reason::BadArguments)
    })?;
    metadata.drop_trace_beyond(most);
    check_metadata(metadata.size(), most)?;
    Ok(metadata)
}

/// A request whose handler has not started.
pub struct Request {
    message: Message,
    encoded: Range<usize>,
    poller: Rc<LocalQueue>,
    memory: Rc<ArgumentMemory>,
    stream: Option<Arc<CallStream>>,
    /// Maximum size of the response metadata, in bytes.
    most_metadata: usize,
}

impl Request {
    #[inline]
    pub(crate) fn new(
        message: Message,
        encoded: Range<usize>,
        poller: Rc<LocalQueue>,
        memory: Rc<ArgumentMemory>,
        stream: Option<Arc<CallStream>>,
        most_metadata: usize,
    ) -> Self {
        Self { message, encoded, poller, memory, stream, most_metadata }
    }

    /// Returns the context of the call. Must be called while the handler is being polled.
    #[must_use]
    pub fn context(&self) -> Context {
        self.memory.context()
    }

    /// Records that an interceptor has changed the context.
    pub(super) fn context_changed(&self, context: &Context) {
        self.memory.context_changed(context);
    }

    /// Returns a builder for replies to this call.
    #[inline]
    #[must_use]
    pub fn replier(&self) -> Replier {
        Replier { poller: Rc::clone(&self.poller) }
    }

    /// Returns the decoded items of the caller's stream.
    ///
    /// # Errors
    /// Returns an error if the caller of the method sends no stream.
    pub fn items<D: DecodeValue>(&self, _decoder: D) -> Result<Streaming<D::Value>, Failure> {
        self.incoming().map(Streaming::coded::<D>)
    }

    /// Returns the items of the caller's stream, which are raw bytes.
    ///
    /// # Errors
    /// Returns an error if the caller of the method sends no stream.
    pub fn raw_items<T>(&self, value: fn(Bytes) -> T) -> Result<Streaming<T>, Failure> {
        self.incoming().map(|stream| Streaming::raw(stream, value))
    }

    fn incoming(&self) -> Result<Arc<CallStream>, Failure> {
        let misuse =
            || Status::ran(Code::Internal, "the call has no stream of the caller").because(Reason::Misuse);
        self.stream.clone().filter(|stream| stream.reads()).ok_or_else(|| Failure::Node(misuse()))
    }

    /// Returns the writer of the handler's stream.
    #[must_use]
    pub fn writer(&self) -> Writer {
        Writer { stream: self.stream.clone(), most_metadata: self.most_metadata }
    }

    /// Decodes the arguments. `names` contains the names of the method's parameters. The memory for the arguments is charged
    /// to the caller until the handler ends.
    ///
    /// Optional trailing arguments that the caller does not send are `None`. Surplus arguments are skipped.
    ///
    /// # Errors
    /// Returns `InvalidArgument` if the caller's bytes cannot be decoded or an argument is missing, and `ResourceExhausted`
    /// if the arguments take more memory than the caller may use.
    pub fn arguments<D: DecodeArguments>(
        &self,
        names: &[&'static str],
        _decoders: D,
    ) -> Result<D::Values, Failure> {
        self.memory.decode::<D>(&self.message.as_slice()[self.encoded.clone()], names).map_err(Failure::Node)
    }

    /// Returns the raw argument, which consists of the bytes after the encoded arguments.
    #[inline]
    #[must_use]
    pub fn into_body(self) -> Bytes {
        self.message.bytes_from(self.encoded.end)
    }
}

/// The output omits the bytes of the message, because metadata may be secret.
impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request").field("encoded", &self.encoded).finish_non_exhaustive()
    }
}

/// Writes a handler's stream.
#[derive(Debug)]
pub struct Writer {
    stream: Option<Arc<CallStream>>,
    /// Maximum size of the response metadata, in bytes.
    most_metadata: usize,
}

impl Writer {
    /// Sends the start of the response and the items, encoded with `put`. Completes when all items have been sent.
    ///
    /// # Errors
    /// Returns the first error of the stream, or an error if an item cannot be encoded or sent.
    pub async fn send<S, T, P>(self, source: S, put: P) -> Result<(), Failure>
    where
        S: Source<Item = Result<T, Status>>,
        P: Fn(T, &mut ItemBuffer) -> Result<(), Status>,
    {
        let Some(stream) = self.stream else {
            let status = Status::ran(Code::Internal, "the call has no stream").because(Reason::Misuse);
            return Err(Failure::Node(status));
        };
        let context = Context::current();
        let initial = context.as_ref().map(Context::take_initial_metadata).unwrap_or_default();
        check_metadata(initial.size(), self.most_metadata)
            .map_err(|status| Failure::Node(status.after_run()))?;
        send_from_handler(stream, context, initial, source, put).await.map_err(|error| match error {
            SendItemsError::Source(status) => Failure::Handler(status),
            SendItemsError::Item(status) => Failure::Node(status),
        })
    }
}

/// Builds replies with buffers that the poller reuses.
#[derive(Debug)]
pub struct Replier {
    poller: Rc<LocalQueue>,
}

impl Replier {
    /// Creates a reply with an encoded value.
    ///
    /// # Errors
    /// Returns `Internal` if the value cannot be encoded.
    pub fn value<V: EncodeValue>(&self, value: &V) -> Result<Reply, Failure> {
        let mut encoded = self.poller.buffers().take();
        value.encode(encoded.buffer()).map_err(|error| {
            let text = format!("the reply cannot be encoded: {error}");
            Failure::Node(Status::ran(Code::Internal, text).because(Reason::BadReply))
        })?;
        Ok(Reply { encoded, body: Body::new() })
    }

    /// Creates the failure for a handler that returned an error of the method's own type.
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
    /// Never fails. The signature is the same as for `value`, so that stubs can call either function.
    #[inline]
    pub fn bytes(&self, body: Bytes) -> Result<Reply, Failure> {
        Ok(Reply { encoded: self.poller.buffers().take(), body: body.into() })
    }

    /// Creates the reply that ends a stream.
    ///
    /// # Errors
    /// Never fails, like `bytes`.
    pub fn end(&self) -> Result<Reply, Failure> {
        self.bytes(Bytes::new())
    }

    /// Creates a reply with optional raw bytes, after a byte that is 1 if they are present and 0 otherwise.
    ///
    /// # Errors
    /// Never fails, like `bytes`.
    pub fn optional_bytes(&self, body: Option<Bytes>) -> Result<Reply, Failure> {
        let mut encoded = self.poller.buffers().take();
        encoded.buffer().push(u8::from(body.is_some()));
        Ok(Reply { encoded, body: body.unwrap_or_default().into() })
    }
}

/// Cause of a method's failure.
#[derive(Debug)]
pub enum Failure {
    /// The handler returned this status. The handler has run, even if the status comes from a nested call that has not.
    Handler(Status),
    /// The handler returned an error of the method's own type.
    Error(EncodedError),
    /// The node ended the call in place of the handler. The status states whether the handler may have run.
    Node(Status),
}

impl Failure {
    /// Returns true if the node was draining and the handler has not run.
    pub(crate) fn is_of_drain(&self) -> bool {
        matches!(self, Self::Node(status) if status.reason() == Some(Reason::Draining) && !status.may_have_run())
    }
}

/// Converts a status returned by a method without a generated stub.
impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Handler(status)
    }
}

/// An error of a method's own type, encoded with the codec.
#[derive(Debug)]
pub struct EncodedError(pub(crate) Encoded);

/// A successful reply that has not been sent.
#[derive(Debug)]
pub struct Reply {
    pub(crate) encoded: Encoded,
    pub(crate) body: Body,
}
