//! Credits: who may send how many messages into whose SRQ.
//!
//! A pair is one INI of a peer and one SRQ of ours (or the other way round). The owner of the
//! SRQ is the *grantor*, the owner of the INI the *spender*. Both count in cumulative
//! positions, wrapping at 2^32, so a position that arrives twice does no harm. Frames carry them modulo 2^16:
//!
//! ```text
//! grantor: outstanding = granted - released - consumed      (may still arrive)
//! spender: available   = granted - released - sent          (may still be sent)
//! ```
//!
//! Each pair begins with, and after idleness keeps, one credit ([`BASE`]): the first message
//! after a pause needs no extra round trip, and a spender that ran dry always learns of new
//! credit without having to ask. More is granted as messages arrive and report what waits after
//! them. A spender releases what it does not use within 100 ms: all but the base when it is idle.
//!
//! No spender is relied upon for that. The base of each pair is granted again as soon as it is used, whatever others
//! hold; all pairs of one peer together hold half of what is granted beyond the room for new pairs; and who holds
//! credit unused for long while others lack it loses its session.
//!
//! The pollers call this; nothing here does I/O or knows the time by itself.
#![forbid(unsafe_code)]

mod grantor;
mod grants;
mod spender;

pub(crate) use grantor::{Grantor, PairId};
pub(crate) use grants::{GrantId, Grants};
pub(crate) use spender::Spender;

/// Credits that a pair has from its beginning and keeps when idle.
pub(crate) const BASE: u32 = 1;

/// Credits that an active pair holds beyond what waits at its sender, so that the next messages
/// need no round trip: as many as a poller takes at once, which is what it may answer at once.
const AHEAD: u32 = 64;

/// Start of positions: shortly before the wrap, so that each session of some length, and each
/// test, goes through it.
const START: u32 = u32::MAX - 999;

/// A position as frames carry it: modulo 2^16. No two that a pair has at one time are 2^15 apart, because no SRQ is so
/// deep.
pub(crate) fn on_wire(position: u32) -> u16 {
    let [low, high, ..] = position.to_le_bytes();
    u16::from_le_bytes([low, high])
}

/// Returns the distance of a position from a frame beyond one that is known.
fn steps(known: u32, heard: u16) -> u32 {
    heard.wrapping_sub(on_wire(known)).into()
}

/// A peer sent beyond its credit, or claims credit that it never had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CreditViolation(pub(crate) &'static str);

#[cfg(test)]
mod tests;
