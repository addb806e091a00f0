//! The response of a successful call.

use crate::budgets::DECODED_BYTES;
use crate::codec::{self, Allowance, DecodeError};
use crate::reason::Reason;
use crate::status::{Code, Status};
use bytes::Bytes;
use serde::de::DeserializeOwned;
use std::cell::Cell;
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

    /// The encoded value, decoded.
    ///
    /// # Errors
    /// `Internal` when the server's bytes do not decode to `T`, `ResourceExhausted` when the value takes more
    /// memory than a reply may.
    pub fn value<T: DeserializeOwned>(self) -> Result<T, Status> {
        self.refuse_error()?;
        self.decode()
    }

    /// The raw bytes after the encoded part.
    ///
    /// # Errors
    /// `Internal` when the server has sent an error of a type of its own.
    pub fn bytes(self) -> Result<Bytes, Status> {
        self.refuse_error()?;
        Ok(self.message.bytes_from(self.encoded.end))
    }

    /// The raw bytes after the encoded part, if the encoded flag is set.
    ///
    /// # Errors
    /// `Internal` when the flag does not decode.
    pub fn optional_bytes(self) -> Result<Option<Bytes>, Status> {
        self.refuse_error()?;
        let some = self.decode::<bool>()?;
        if some { self.bytes().map(Some) } else { Ok(None) }
    }

    /// The error in it, if it is not a success.
    pub(crate) fn error<E: DeserializeOwned>(&self) -> Option<Result<E, Status>> {
        self.is_error.then(|| self.decode())
    }

    /// For methods that fail with a status.
    fn refuse_error(&self) -> Result<(), Status> {
        if !self.is_error {
            return Ok(());
        }
        let text = "the handler failed with an error of the service's own, which this client does not know";
        Err(Status::ran(Code::Internal, text).because(Reason::BadReply))
    }

    fn decode<T: DeserializeOwned>(&self) -> Result<T, Status> {
        let allowance = Most { bytes: self.most_decoded, left: Cell::new(self.most_decoded) };
        codec::decode(&self.message.as_slice()[self.encoded.clone()], &allowance).map_err(|error| {
            let (code, reason) = match error {
                DecodeError::Malformed(_) => (Code::Internal, Reason::BadReply),
                _ => (Code::ResourceExhausted, Reason::TooLarge),
            };
            Status::ran(code, format!("the reply cannot be decoded: {error}")).because(reason)
        })
    }
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
