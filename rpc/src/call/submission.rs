//! A call on its way to a poller.

use crate::name::MethodName;
use crate::status::{Code, Status};
use bytes::Bytes;
use std::net::SocketAddr;
use trunkline_verbs::Time;

/// A call on its way to a poller, from any thread or from a task of the poller itself.
#[derive(Debug)]
pub(crate) struct Submission<A> {
    /// Where the server listens.
    pub(crate) server: SocketAddr,
    pub(crate) method: &'static MethodName,
    /// Whether no reply is wanted.
    pub(crate) one_way: bool,
    /// The arguments that the codec encoded.
    pub(crate) encoded: Vec<u8>,
    /// The raw argument; empty without one.
    pub(crate) body: Bytes,
    /// When the call fails if it has no outcome yet.
    pub(crate) deadline: Time,
    /// Where the outcome goes.
    pub(crate) answer: A,
}

/// The status of a call that a full queue or table refuses.
pub(crate) fn too_many() -> Status {
    Status::not_run(Code::ResourceExhausted, "too many calls are in flight on this poller")
}
