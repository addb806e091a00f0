//! Credits, which limit the number of messages that a peer's poller may send into an SRQ.
//!
//! A pair is an INI of a peer and an SRQ of this node, or the reverse. The owner of the SRQ is the *grantor*, the
//! owner of the INI the *spender*. Both count in cumulative positions that wrap at 2^32, so a repeated position is
//! harmless. Frames carry positions modulo 2^16:
//!
//! ```text
//! grantor: outstanding = granted - released - consumed      (may still arrive)
//! spender: available   = granted - released - sent          (may still be sent)
//! ```
//!
//! Each pair begins with one credit, and keeps one when idle ([`BASE`]). The first message after a pause therefore
//! needs no extra round trip, and a spender without credit receives new credit without a request. More credit is
//! granted as messages arrive and report the backlog at the spender. A spender releases credit that it does not use
//! within 100 ms, down to the base when it is idle.
//!
//! The grantor does not rely on such releases. The base of each pair is granted again as soon as it is used. All
//! pairs of one peer together hold at most half of the credit that is not reserved for new pairs. If a spender holds
//! unused credit for long while others lack credit, its session is closed.
//!
//! Called by the pollers. Performs no I/O, and the time is passed in.
#![forbid(unsafe_code)]

mod grantor;
mod grants;
mod spender;

pub(crate) use grantor::{Grantor, PairId, capacity};
pub(crate) use grants::{GrantId, Grants};
pub(crate) use spender::Spender;

/// Number of credits that a pair begins with and keeps when idle.
pub(crate) const BASE: u32 = 1;

/// Number of credits that an active pair holds beyond the backlog of its sender, so that the next messages
/// need no round trip. It equals the number of messages that a poller takes, and may answer, in one batch.
const AHEAD: u32 = 64;

/// Initial position, shortly before the wrap, so that longer sessions and tests cover the wrap.
const START: u32 = u32::MAX - 999;

/// Converts a position to its form in frames, modulo 2^16. Concurrent positions of a pair differ by less than 2^15,
/// the bound on the depth of an SRQ.
pub(crate) fn on_wire(position: u32) -> u16 {
    let [low, high, ..] = position.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Returns the distance from the stored position to the position in a frame.
fn steps(known: u32, received: u16) -> u32 {
    received.wrapping_sub(on_wire(known)).into()
}

/// A peer sent beyond its credit, or claimed credit that it never had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CreditViolation(pub(crate) &'static str);

#[cfg(test)]
mod tests;
