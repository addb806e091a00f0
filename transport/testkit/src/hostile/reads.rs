//! READs of memory that was not announced to the peer.
//!
//! The peer's node is honest. Its link replaces the source of its READ requests, so the packets belong to a live session.

use super::change_packet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use trunkline_roce::wire::{ICRC_LENGTH, NakCode, Operation, Packet, Reth, Syndrome};
use trunkline_verbs::{IoAddress, Rkey};

/// Key and address of the memory that a READ request names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadSource {
    /// Key of the memory.
    pub rkey: u32,
    /// Address of the first byte.
    pub address: u64,
}

impl ReadSource {
    /// Returns the source of a READ request, or `None` for any other datagram.
    #[must_use]
    pub fn requested_by(datagram: &[u8]) -> Option<Self> {
        let packet = parse(datagram)?;
        let Reth { address, rkey, .. } = packet.reth?;
        let is_read = packet.bth.opcode.operation() == Operation::READ_REQUEST;
        is_read.then_some(Self { rkey: rkey.0, address: address.0 })
    }
}

fn parse(datagram: &[u8]) -> Option<Packet<'_>> {
    Packet::parse(datagram.get(..datagram.len().checked_sub(ICRC_LENGTH)?)?).ok()
}

/// A guess at a key and an address, relative to those in a READ request and to known memory of another peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Guess {
    /// True if the guess is based on the other peer's key.
    pub other_key: bool,
    /// Difference from the chosen key.
    pub key_step: u32,
    /// True if the guess is based on the other peer's address.
    pub other_address: bool,
    /// Difference from the chosen address.
    pub address_step: u64,
}

impl Guess {
    /// The memory named in the request itself.
    pub const OWN: Self = Self { other_key: false, key_step: 0, other_address: false, address_step: 0 };

    fn source(&self, own: ReadSource, other: ReadSource) -> ReadSource {
        let pick = |is_other| if is_other { other } else { own };
        ReadSource {
            rkey: pick(self.other_key).rkey.wrapping_add(self.key_step),
            address: pick(self.other_address).address.wrapping_add(self.address_step),
        }
    }
}

/// Replaces the READ requests of a node with guesses. All guesses are sent together, because the first refused READ ends
/// the session and the other READs.
#[derive(Debug)]
pub struct GuessedReads {
    other: ReadSource,
    guesses: Vec<Guess>,
    /// Number of READ requests that are still awaited.
    awaited: usize,
    /// Unanswered guesses with their packets, by PSN.
    asked: BTreeMap<u32, (Guess, Vec<u8>)>,
    /// Number of requests that the node refused.
    pub refused: usize,
    /// Number of requests that the node answered with data.
    pub served: usize,
    /// Payloads of all READ responses.
    pub bytes: Vec<u8>,
}

impl GuessedReads {
    /// Creates a peer that waits for `awaited` READ requests.
    #[must_use]
    pub fn new(awaited: usize, guesses: Vec<Guess>, other: ReadSource) -> Self {
        let (asked, bytes) = (BTreeMap::new(), Vec::new());
        Self { other, guesses, awaited, asked, refused: 0, served: 0, bytes }
    }

    /// Returns the packets to send instead of a READ request, or `None` if the datagram is sent unchanged.
    pub fn outgoing(
        &mut self,
        source: SocketAddr,
        destination: SocketAddr,
        datagram: &[u8],
    ) -> Option<Vec<Vec<u8>>> {
        let own = ReadSource::requested_by(datagram)?;
        let psn = parse(datagram)?.bth.psn.get();
        if let Some((_, asked)) = self.asked.get(&psn) {
            return Some(if self.awaited == 0 { vec![asked.clone()] } else { Vec::new() });
        }
        let Some(guess) = self.guesses.pop() else { return Some(Vec::new()) };
        let ReadSource { rkey, address } = guess.source(own, self.other);
        let changed = change_packet(datagram, source, destination, |packet| {
            if let Some(reth) = &mut packet.reth {
                (reth.rkey, reth.address) = (Rkey(rkey), IoAddress(address));
            }
        })?;
        self.asked.insert(psn, (guess, changed));
        self.awaited = self.awaited.saturating_sub(1);
        if self.guesses.is_empty() {
            self.awaited = 0;
        }
        let all = if self.awaited == 0 { self.asked.values() } else { return Some(Vec::new()) };
        Some(all.map(|(_, packet)| packet.clone()).collect())
    }

    /// Records the response in a datagram, if there is one.
    pub fn incoming(&mut self, datagram: &[u8]) {
        let Some(packet) = parse(datagram) else { return };
        let operation = packet.bth.opcode.operation();
        let refuses = packet.aeth.is_some_and(|aeth| aeth.meaning() == Syndrome::Nak(NakCode::REMOTE_ACCESS));
        let begins = [Operation::READ_RESPONSE_FIRST, Operation::READ_RESPONSE_ONLY].contains(&operation);
        let continues = [Operation::READ_RESPONSE_MIDDLE, Operation::READ_RESPONSE_LAST].contains(&operation);
        if begins || continues {
            self.bytes.extend_from_slice(packet.payload);
        }
        if (refuses || begins) && self.asked.remove(&packet.bth.psn.get()).is_some() {
            (self.refused, self.served) =
                (self.refused + usize::from(refuses), self.served + usize::from(begins));
        }
    }

    /// Returns true if the guesses have been sent and all have been answered.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        self.awaited == 0 && self.asked.is_empty()
    }

    /// Takes the unanswered guesses.
    pub fn take_left(&mut self) -> Vec<Guess> {
        let asked = std::mem::take(&mut self.asked).into_values().map(|(guess, _)| guess);
        self.guesses.drain(..).chain(asked).collect()
    }
}
