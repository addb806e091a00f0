//! Large messages: the receiver READs them out of the sender's memory.
//!
//! ```text
//! sender                               receiver
//! request (head, address, rkey) -----> waits for memory, within the request's patience
//!        <----- READ in pieces --------
//!        <----- FIN -------------------  message handed on
//! source freed, Delivered
//! ```
//!
//! This module keeps the records of both sides of one trunk; the trunk moves bytes and frames.
#![forbid(unsafe_code)]

mod sink;
mod source;

pub(crate) use sink::{Piece, Sink, Sinks};
pub(crate) use source::{Hold, Source, Sources};

/// Maximum size of one READ, in bytes.
pub(crate) const PIECE: usize = 256 << 10;
/// Number of READs of a trunk that the device has at a time. Later work requests, including small messages,
/// wait until the last of them was sent, so together they must be few bytes. With a single one, the network
/// would be idle while its completion is handled.
pub(crate) const READS_OUT: u32 = 2;
const _: () =
    assert!(PIECE * READS_OUT as usize <= 512 << 10, "a small message waits for at most 512 KiB of READs");
/// Maximum number of requests without a FIN per lane. Further ones wait in its queue. A receiver refuses
/// more.
pub(crate) const REQUESTS_PER_LANE: u32 = 64;
/// Time for which a receiver may wait for memory when the message has no deadline.
pub(crate) const PATIENCE_MS: u32 = 30_000;
