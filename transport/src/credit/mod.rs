//! Credits: who may send how many messages into whose SRQ.
//!
//! A pair is one INI of a peer and one SRQ of ours (or the other way round). The owner of the
//! SRQ is the *grantor*, the owner of the INI the *spender*. Both count in cumulative
//! positions, wrapping at 2^32, so a position that arrives twice or late does no harm:
//!
//! ```text
//! grantor: outstanding = granted - released - consumed      (may still arrive)
//! spender: available   = granted - released - sent          (may still be sent)
//! ```
//!
//! Each pair begins with, and after idleness keeps, one credit ([`BASE`]): the first message
//! after a pause needs no extra round trip, and a spender that ran dry always learns of new
//! credit without having to ask. More is granted as messages arrive and report what waits after
//! them. A spender that is idle releases all but the base within 100 ms.
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

/// Where positions begin: shortly before the wrap, so that each session of some length, and each
/// test, goes through it.
const START: u32 = u32::MAX - 999;

/// A peer sent beyond its credit, or claims credit that it never had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct CreditViolation(pub(crate) &'static str);

#[cfg(test)]
mod tests;
