//! The frames of the RPC protocol: their header, and how one is sent.

mod header;
mod outgoing;

pub(crate) use header::{Header, Reason, RequestHeader};
pub(crate) use outgoing::{Frame, NOBODY};
