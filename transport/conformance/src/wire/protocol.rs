//! What the two ends say to each other: a hello in the private data of connecting and accepting, then
//! letters of 64 bytes, each sent as a message of its own.

use super::pattern::pattern;
use crate::check::{Deviation, Verdict, check};
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// Private data of a request, an answer and a refusal: the most there can be (contract rocev2 11.3).
pub(super) const REQUEST_BYTES: usize = 56;
pub(super) const ANSWER_BYTES: usize = 196;
pub(super) const REFUSAL_BYTES: usize = 148;
/// Size of a letter.
pub(super) const LETTER: usize = 64;

const MAGIC: [u8; 4] = *b"TLw1";
const HELLO: usize = 24;

/// What a connection is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Traffic, into receive queues of the QPs.
    Queue,
    /// Traffic, into an SRQ at each end.
    Srq,
    /// To be refused.
    Refuse,
}

/// Who is there, and where its memory can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    /// The start of its arena.
    pub(super) arena: RemoteAddress,
}

impl Hello {
    /// Fills private data to its full size; what follows the hello is a pattern.
    pub(super) fn private_data(self, size: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([self.purpose as u8, 0, 0, 0]);
        bytes.extend(self.arena.address.0.to_be_bytes());
        bytes.extend(self.arena.rkey.0.to_be_bytes());
        bytes.resize(HELLO, 0);
        bytes.extend(pattern(size as u64, size - HELLO));
        bytes
    }

    /// Reads what the other end filled in; every byte of it has to be right.
    pub(super) fn from_private_data(bytes: &[u8], size: usize) -> Verdict<Self> {
        let failed =
            || Deviation::Failed(format!("private data of another kind: {} bytes {bytes:02x?}", bytes.len()));
        let bytes = bytes.get(..size).ok_or_else(failed)?;
        let purpose = [Purpose::Queue, Purpose::Srq, Purpose::Refuse]
            .into_iter()
            .find(|purpose| *purpose as u8 == bytes[4])
            .filter(|_| bytes.starts_with(&MAGIC))
            .ok_or_else(failed)?;
        let arena = RemoteAddress {
            address: IoAddress(u64::from_be_bytes(array(&bytes[8..16]))),
            rkey: Rkey(u32::from_be_bytes(array(&bytes[16..20]))),
        };
        let hello = Self { purpose, arena };
        check(hello.private_data(size) == bytes, || {
            format!("bytes of the private data changed: {bytes:02x?}")
        })?;
        Ok(hello)
    }
}

/// What the server is told to do, with the size, seed and number of the messages that follow or are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Check the messages that follow.
    Listen,
    /// The same, giving no buffer back before all are used up.
    Starve,
    /// Send messages.
    Send,
    /// Check what was written into the sink.
    CheckSink,
    /// A WRITE with immediate comes next: check it and the sink.
    AwaitWrite,
    /// Fill the offer.
    Offer,
    /// Write into my sink.
    Write,
    /// READ my offer and check it.
    Read,
    /// Change my word by atomics.
    Atomics,
    /// Set your own word to the seed, and tell what it was.
    Word,
    /// This connection is about to fail.
    Break,
    /// Disconnect without an answer.
    Disconnect,
    /// End when this connection has.
    Stop,
}

const VERBS: [Verb; 13] = [
    Verb::Listen,
    Verb::Starve,
    Verb::Send,
    Verb::CheckSink,
    Verb::AwaitWrite,
    Verb::Offer,
    Verb::Write,
    Verb::Read,
    Verb::Atomics,
    Verb::Word,
    Verb::Break,
    Verb::Disconnect,
    Verb::Stop,
];

/// An order, or the answer to one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Letter {
    pub(super) verb: Verb,
    /// How the bytes travel.
    pub(super) manner: Manner,
    pub(super) count: u16,
    pub(super) size: u32,
    pub(super) seed: u64,
    /// In an answer: bytes that were wrong.
    pub(super) wrong: u64,
    /// In an answer: the value of a word.
    pub(super) value: u64,
}

/// How the bytes of messages travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Manner {
    /// From registered memory.
    #[default]
    Plain,
    /// With 4 bytes of immediate data: the low half of the seed.
    Immediate,
    /// Out of the work request.
    Inline,
}

const MANNERS: [Manner; 3] = [Manner::Plain, Manner::Immediate, Manner::Inline];

impl Letter {
    pub(super) fn new(verb: Verb, size: usize, seed: u64) -> Self {
        let size = u32::try_from(size).expect("sizes are at most the largest message");
        Self { verb, manner: Manner::Plain, count: 1, size, seed, wrong: 0, value: 0 }
    }

    pub(super) fn bytes(&self) -> [u8; LETTER] {
        let mut bytes = [0; LETTER];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4] = self.verb as u8;
        bytes[5] = self.manner as u8;
        bytes[6..8].copy_from_slice(&self.count.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.size.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.seed.to_be_bytes());
        bytes[24..32].copy_from_slice(&self.wrong.to_be_bytes());
        bytes[32..40].copy_from_slice(&self.value.to_be_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; LETTER]) -> Verdict<Self> {
        let failed = || Deviation::Failed(format!("a letter of another kind: {bytes:02x?}"));
        let verb = VERBS.into_iter().find(|verb| *verb as u8 == bytes[4]).ok_or_else(failed)?;
        let manner = MANNERS.into_iter().find(|manner| *manner as u8 == bytes[5]).ok_or_else(failed)?;
        let letter = Self {
            verb,
            manner,
            count: u16::from_be_bytes(array(&bytes[6..8])),
            size: u32::from_be_bytes(array(&bytes[8..12])),
            seed: u64::from_be_bytes(array(&bytes[16..24])),
            wrong: u64::from_be_bytes(array(&bytes[24..32])),
            value: u64::from_be_bytes(array(&bytes[32..40])),
        };
        let fits = letter.bytes() == *bytes && letter.size() <= super::link::LARGEST;
        if fits { Ok(letter) } else { Err(failed()) }
    }

    /// Size of each message.
    pub(super) fn size(&self) -> usize {
        self.size as usize
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut array = [0; N];
    array.copy_from_slice(bytes);
    array
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_and_nothing_else() {
        let arena = RemoteAddress { address: IoAddress(0x7f00_1234_5678_9abc), rkey: Rkey(77) };
        let hello = Hello { purpose: Purpose::Srq, arena };
        let mut data = hello.private_data(ANSWER_BYTES);
        assert_eq!(Hello::from_private_data(&data, ANSWER_BYTES), Ok(hello));
        assert!(Hello::from_private_data(&data, REQUEST_BYTES).is_err());
        assert!(Hello::from_private_data(&data[..20], REQUEST_BYTES).is_err());
        data[ANSWER_BYTES - 1] ^= 1;
        assert!(Hello::from_private_data(&data, ANSWER_BYTES).is_err());
        for verb in VERBS {
            for manner in MANNERS {
                let letter =
                    Letter { manner, count: 3, wrong: 1, value: u64::MAX, ..Letter::new(verb, 1025, 9) };
                assert_eq!(Letter::parse(&letter.bytes()), Ok(letter));
            }
        }
        let mut bytes = Letter::new(Verb::Stop, 0, 0).bytes();
        bytes[4] = 13;
        assert!(Letter::parse(&bytes).is_err());
        let mut bytes = Letter::new(Verb::Write, 1, 0).bytes();
        bytes[8] = 1;
        assert!(Letter::parse(&bytes).is_err(), "larger than any buffer");
    }
}
