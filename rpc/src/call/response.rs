//! The response of a successful call.

use crate::budgets::DECODED_BYTES;
use crate::codec::{Allowance, DecodeError, DecodeValue, Limits};
use crate::reason::Reason;
use crate::status::{Code, Status};
use bytes::Bytes;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use trunkline_transport::Message;

/// The message of a handler's reply; stubs decode the value from it, or the error.
#[derive(Debug)]
pub struct Response {
    message: Message,
    encoded: Range<usize>,
    /// Most bytes that the decoded value may take.
    most_decoded: usize,
    /// It is an error of the handler's, and not a value.
    is_error: bool,
}

impl Response {
    #[inline]
    pub(crate) fn new(message: Message, encoded: Range<usize>, most_decoded: usize) -> Self {
        Self { message, encoded, most_decoded, is_error: false }
    }

    /// A reply that holds an error of the method's own type.
    pub(crate) fn of_error(message: Message, encoded: Range<usize>, most_decoded: usize) -> Self {
        Self { is_error: true, ..Self::new(message, encoded, most_decoded) }
    }

    /// The response of a one-way call.
    pub(crate) fn empty() -> Self {
        Self { message: Bytes::new().into(), encoded: 0..0, most_decoded: 0, is_error: false }
    }

    /// The encoded value, as this decoder makes it.
    ///
    /// # Errors
    /// `Internal` when the server's bytes do not decode, `ResourceExhausted` when the value takes more
    /// memory than a reply may.
    pub fn value<D: DecodeValue>(self, _decoder: D) -> Result<D::Value, Status> {
        self.refuse_error()?;
        self.decode::<D>()
    }

    /// The raw bytes after the encoded part.
    ///
    /// # Errors
    /// `Internal` when the server has sent an error of a type of its own.
    #[inline]
    pub fn bytes(self) -> Result<Bytes, Status> {
        self.refuse_error()?;
        Ok(self.message.bytes_from(self.encoded.end))
    }

    /// The raw bytes after the encoded part, if that says that there are any.
    ///
    /// # Errors
    /// `Internal` when it says neither yes nor no.
    pub fn optional_bytes(self) -> Result<Option<Bytes>, Status> {
        self.refuse_error()?;
        match self.encoded_part() {
            [0] => Ok(None),
            [1] => self.bytes().map(Some),
            _ => Err(bad_reply(&"its flag is neither 0 nor 1")),
        }
    }

    /// The error in it, if it is not a success.
    pub(crate) fn error<D: DecodeValue>(&self) -> Option<Result<D::Value, Status>> {
        self.is_error.then(|| self.decode::<D>())
    }

    fn encoded_part(&self) -> &[u8] {
        &self.message.as_slice()[self.encoded.clone()]
    }

    /// For methods that fail with a status.
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

/// The status of a call whose reply is not what its method returns.
fn bad_reply(why: &dyn fmt::Display) -> Status {
    Status::ran(Code::Internal, format!("the reply cannot be decoded: {why}")).because(Reason::BadReply)
}

/// So much for one reply.
struct Most {
    bytes: usize,
    left: Cell<usize>,
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
