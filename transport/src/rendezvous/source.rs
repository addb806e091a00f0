//! The sender's side of a large message: memory that the peer READs until its FIN.
#![forbid(unsafe_code)]

use crate::Token;
use crate::buffer::Block;
use bytes::Bytes;
use trunkline_verbs::RemoteAddress;

/// What keeps the memory of a source.
#[derive(Debug)]
pub(crate) enum Hold {
    /// The application's registered bytes.
    Lent { at: RemoteAddress, _bytes: Bytes },
    /// A copy.
    Copied(Block),
}

/// A message that the peer has yet to READ.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) token: Token,
    pub(crate) lane: usize,
    /// Keeps the memory until this is dropped.
    pub(crate) _hold: Hold,
}

impl Hold {
    /// Where the peer finds it.
    pub(crate) fn remote_address(&self) -> RemoteAddress {
        match self {
            Self::Lent { at, .. } => *at,
            Self::Copied(block) => block.remote_address(),
        }
    }
}
