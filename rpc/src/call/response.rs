//! The response of a successful call.

use crate::codec::{Allowance, DecodeError, DecodeValue, Limits};
use crate::node::budgets::DECODED_BYTES;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::stream::Item;
use crate::wire::frame::UNSET;
use crate::wire::metadata::{MetadataBytes, ReplyMetadata};
use bytes::Bytes;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use trunkline_transport::{EAGER_BYTES, Message};

/// The message of a handler's reply. Stubs decode the value or the error.
pub struct Response {
    message: Message,
    encoded: Range<usize>,
    /// Sizes of the checked metadata before the encoded part.
    metadata: MetadataBytes,
    /// Maximum size of the decoded value, in bytes.
    most_decoded: usize,
    /// True if the response is an error of the handler.
    is_error: bool,
}

impl Response {
    #[inline]
    pub(crate) fn new(message: Message, encoded: Range<usize>, most_decoded: usize) -> Self {
        let metadata = MetadataBytes::default();
        Self { message, encoded, metadata, most_decoded, is_error: false }
    }

    /// Creates a response with an error of the method's own type.
    pub(crate) fn of_error(message: Message, encoded: Range<usize>, most_decoded: usize) -> Self {
        Self { is_error: true, ..Self::new(message, encoded, most_decoded) }
    }

    /// Creates the response of a one-way call.
    pub(crate) fn empty() -> Self {
        Self::new(Message::new(UNSET, 0, Bytes::new()), 0..0, 0)
    }

    /// Adds metadata that precedes the encoded part.
    pub(crate) fn with_metadata(self, metadata: MetadataBytes) -> Self {
        Self { metadata, ..self }
    }

    pub(crate) fn metadata(&self) -> ReplyMetadata {
        let parsed = ReplyMetadata::parse(self.metadata, self.message.as_slice(), self.encoded.start);
        parsed.unwrap_or_default()
    }

    /// Decodes the value.
    ///
    /// # Errors
    /// Returns `Internal` if the reply cannot be decoded, and `ResourceExhausted` if the value exceeds the memory limit for
    /// a reply.
    pub fn value<D: DecodeValue>(self, _decoder: D) -> Result<D::Value, Status> {
        self.refuse_error()?;
        self.decode::<D>()
    }

    /// Returns the raw bytes after the encoded part.
    ///
    /// # Errors
    /// Returns `Internal` if the handler failed with an error of the method's own type.
    #[inline(always)]
    pub fn bytes(self) -> Result<Bytes, Status> {
        self.refuse_error()?;
        Ok(self.message.bytes_from(self.encoded.end))
    }

    /// Returns the raw bytes after the encoded part, or `None` if the encoded part marks them as absent.
    ///
    /// # Errors
    /// Returns `Internal` if the encoded part is invalid, or if the handler failed with an error of the method's own type.
    pub fn optional_bytes(self) -> Result<Option<Bytes>, Status> {
        self.refuse_error()?;
        match self.encoded_part() {
            [0] => Ok(None),
            [1] => self.bytes().map(Some),
            _ => Err(bad_reply(&"its flag is neither 0 nor 1")),
        }
    }

    /// Passes the encoded part and the body to `with`, as one item of a stream. A large item keeps the message in memory.
    pub(crate) fn with_item<T>(self, with: impl FnOnce(Item<'_>) -> T) -> T {
        let item = self.message.as_slice().get(self.encoded.start..).unwrap_or_default();
        if item.len() > EAGER_BYTES {
            return with(Item::Own(self.message.bytes_from(self.encoded.start)));
        }
        with(Item::Borrowed(item))
    }

    /// Returns true if the response has an encoded part or a body.
    pub(crate) fn has_value(&self) -> bool {
        self.value_bytes() > 0
    }

    /// Returns the size of the encoded part and the body.
    pub(crate) fn value_bytes(&self) -> usize {
        self.message.as_slice().len().saturating_sub(self.encoded.start)
    }

    /// Returns true if the response is an error of the handler.
    pub(crate) fn is_error(&self) -> bool {
        self.is_error
    }

    /// Decodes the error, if the response is an error of the handler.
    pub(crate) fn error<D: DecodeValue>(&self) -> Option<Result<D::Value, Status>> {
        self.is_error.then(|| self.decode::<D>())
    }

    fn encoded_part(&self) -> &[u8] {
        &self.message.as_slice()[self.encoded.clone()]
    }

    /// Fails if the response is an error of the handler, for methods that fail with a status.
    #[inline]
    fn refuse_error(&self) -> Result<(), Status> {
        if !self.is_error {
            return Ok(());
        }
        let text = "the handler failed with an error of the service's own, which this client does not know";
        Err(Status::ran(Code::Internal, text).because(Reason::BadReply))
    }

    fn decode<D: DecodeValue>(&self) -> Result<D::Value, Status> {
        let allowance = Most { bytes: self.most_decoded, left: Cell::new(self.most_decoded) };
        let bytes = self.encoded_part();
        let limits = Limits::of_message(bytes.len(), &allowance);
        D::decode(bytes, &limits).map_err(|error| match error {
            DecodeError::Malformed(_) => bad_reply(&error),
            _ => {
                let text = format!("the reply cannot be decoded: {error}");
                Status::ran(Code::ResourceExhausted, text).because(Reason::TooLarge)
            }
        })
    }
}

/// The output omits the bytes of the message, because metadata may be secret.
impl fmt::Debug for Response {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("encoded", &self.encoded)
            .field("metadata", &self.metadata)
            .field("is_error", &self.is_error)
            .finish_non_exhaustive()
    }
}

/// Returns the status of a call whose reply is malformed.
fn bad_reply(why: &dyn fmt::Display) -> Status {
    Status::ran(Code::Internal, format!("the reply cannot be decoded: {why}")).because(Reason::BadReply)
}

/// Memory limit for one decoded reply or item, in bytes.
pub(crate) struct Most {
    pub(crate) bytes: usize,
    pub(crate) left: Cell<usize>,
}

impl Allowance for Most {
    fn more(&self, bytes: usize) -> Result<(), DecodeError> {
        let left = self.left.get().checked_sub(bytes);
        self.left.set(left.ok_or_else(|| {
            let bytes = self.bytes;
            DecodeError::TooLarge(format!(
                "it takes more than {bytes} bytes of memory (setting {DECODED_BYTES})"
            ))
        })?);
        Ok(())
    }

    fn less(&self, _: usize) {}
}
