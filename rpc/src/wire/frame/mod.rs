//! Frames of the RPC protocol: headers, extensions, encoded parts, and sending.

mod encoded;
mod extensions;
mod header;
mod outgoing;
pub(crate) mod status_body;
mod streams;

pub(crate) use encoded::Encoded;
pub(crate) use extensions::{Method, Number};
pub(crate) use header::{Asked, By, FrameError, Header, RequestHeader, Unread};
pub(crate) use outgoing::{NOBODY, send, without_call};
pub(crate) use status_body::HANDLER_ERROR;
pub(crate) use streams::{DATA_BYTES, StreamHeader, StreamPart};
