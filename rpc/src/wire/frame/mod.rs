//! Parsing, emitting and sending the frames of the RPC protocol.

mod encoded;
mod extensions;
mod header;
mod outgoing;
pub(crate) mod status_body;
mod streams;

pub(crate) use encoded::Encoded;
pub(crate) use extensions::{Method, Number};
pub(crate) use header::{Header, MethodRef, REPLY, REQUEST, RepliedBy, RequestHeader, Short, Unparsed};
pub(crate) use outgoing::{Joined, NOBODY, UNSET, join, send, without_call};
pub(crate) use status_body::HANDLER_ERROR;
pub(crate) use streams::{DATA, DATA_BYTES, StreamHeader, StreamPart};

/// The error of parsing a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum FrameError {
    /// The frame has fewer bytes than its header requires.
    #[error("a frame of {0} bytes is too short")]
    Short(usize),
    /// The kind is not assigned.
    #[error("frame kind {0} is unknown")]
    Kind(u8),
    /// Flags are set that the frame's kind does not define.
    #[error("the flags {0:#04x} are unknown")]
    Flags(u8),
    /// The extensions or the encoded part extend beyond the end of the message.
    #[error("the extensions or the encoded part do not fit the message")]
    Length,
    /// There are too many extensions, they are too long, their lengths do not match the message, or two have the same type.
    #[error("the extensions are malformed")]
    Extensions,
    /// A critical extension is unknown.
    #[error("extension {0} is unknown and critical")]
    UnknownExtension(u8),
    /// The request identifies no method, or identifies it twice.
    #[error("the request names no method, or two")]
    Method,
    /// The method's kind is unknown, or does not match the frame.
    #[error("kind {0} of a method does not fit the frame, or is unknown")]
    MethodKind(u8),
}

/// Returns the bytes at offset `at` of a header whose length has been checked.
#[inline]
fn array<const N: usize>(header: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&header[at..at + N]);
    bytes
}
