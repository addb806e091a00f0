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
//! These are the records of both sides of one trunk; the trunk moves bytes and frames.
#![forbid(unsafe_code)]

mod sink;
mod source;

pub(crate) use sink::{Piece, Sink, Sinks};
pub(crate) use source::{Hold, Source, Sources};

/// Bytes of one READ.
pub(crate) const PIECE: usize = 256 << 10;
/// READs of a trunk that the device has at a time. Later work requests, small messages too, wait until the
/// last of them was asked for, so together they are few bytes. With one, nothing would be on the way while its completion is handled.
pub(crate) const READS_OUT: u32 = 2;
const _: () =
    assert!(PIECE * READS_OUT as usize <= 512 << 10, "a small message waits for at most 512 KiB of READs");
/// Requests without a FIN per lane; further ones wait in its queue. A receiver refuses more.
pub(crate) const REQUESTS_PER_LANE: u32 = 64;
/// Time for which a receiver may wait for memory when the message has no deadline.
pub(crate) const PATIENCE_MS: u32 = 30_000;
