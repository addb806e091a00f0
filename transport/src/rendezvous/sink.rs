//! The receiver's side of a large message: where it goes and how much of it has come.
#![forbid(unsafe_code)]

use super::PIECE;
use crate::Message;
use crate::buffer::Block;
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey, Sge, Time};

/// A message that is being READ.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) lane: usize,
    /// The sender's number for it.
    pub(crate) id: u64,
    /// Its head as received, until there is memory for the whole.
    pub(crate) head: Option<Message>,
    pub(crate) head_bytes: usize,
    pub(crate) body_bytes: usize,
    pub(crate) from: RemoteAddress,
    /// When waiting for memory is given up.
    pub(crate) deadline: Time,
    pub(crate) block: Option<Block>,
    pub(crate) asked: usize,
    pub(crate) read: usize,
}

impl Sink {
    /// Takes memory for the whole message and puts the head there.
    pub(crate) fn feed(&mut self, block: Block) {
        if let Some(head) = self.head.take() {
            block.write(0, head.as_slice());
        }
        self.block = Some(block);
    }

    /// The next piece to READ: where to and where from.
    pub(crate) fn next_piece(&mut self) -> Option<(Sge, RemoteAddress)> {
        let length = u32::try_from((self.body_bytes - self.asked).min(PIECE)).ok().filter(|&n| n > 0)?;
        let sge = self.block.as_mut()?.writable(self.head_bytes + self.asked, length)?;
        let address = IoAddress(self.from.address.0.wrapping_add(self.asked as u64));
        self.asked += length as usize;
        Some((sge, RemoteAddress { address, rkey: Rkey(self.from.rkey.0) }))
    }

    /// Whether all pieces were asked for.
    pub(crate) fn is_asked(&self) -> bool {
        self.asked == self.body_bytes
    }

    /// A READ of `bytes` completed; returns whether it was the last.
    pub(crate) fn piece_read(&mut self, bytes: u32) -> bool {
        if let Some(block) = &mut self.block {
            block.written();
        }
        self.read += bytes as usize;
        self.read == self.body_bytes
    }
}
