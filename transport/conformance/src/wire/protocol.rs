//! The protocol between the two ends. It begins with a hello in the private data of the request and the reply. Control
//! messages of 64 bytes follow.

use super::pattern::pattern;
use crate::check::{Deviation, Verdict, check};
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// Maximum sizes of the private data in a request (contract rocev2 11.3), a reply and a rejection, in bytes.
pub(super) const REQUEST_BYTES: usize = 56;
pub(super) const ANSWER_BYTES: usize = 196;
pub(super) const REFUSAL_BYTES: usize = 148;
/// Size of a control message, in bytes.
pub(super) const CONTROL_BYTES: usize = 64;

const MAGIC: [u8; 4] = *b"TLw1";
const HELLO: usize = 24;

/// The purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Transfers to the receive queues of the QPs.
    Queue,
    /// Transfers to an SRQ at each end.
    Srq,
    /// A connection that the server must refuse.
    Refuse,
}

/// The contents of private data: the connection's purpose and the address of the sender's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) purpose: Purpose,
    /// Start and rkey of the sender's arena.
    pub(super) arena: RemoteAddress,
}

impl Hello {
    /// Returns the hello, followed by a pattern up to `size` bytes.
    pub(super) fn private_data(self, size: usize) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([self.purpose as u8, 0, 0, 0]);
        bytes.extend(self.arena.address.0.to_be_bytes());
        bytes.extend(self.arena.rkey.0.to_be_bytes());
        bytes.resize(HELLO, 0);
        bytes.extend(pattern(size as u64, size - HELLO));
        bytes
    }

    /// Parses the peer's private data and checks every byte.
    pub(super) fn from_private_data(bytes: &[u8], size: usize) -> Verdict<Self> {
        let failed = || {
            Deviation::Failed(format!(
                "not the private data of this program: {} bytes {bytes:02x?}",
                bytes.len()
            ))
        };
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

/// An order to the server. The control message contains the size, the seed and the number of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    /// Check the messages that follow.
    Listen,
    /// Check the messages that follow. Repost receives only after all receives have been used.
    Starve,
    /// Send messages.
    Send,
    /// Check the bytes in the sink.
    CheckSink,
    /// Check the next message, which is a WRITE with immediate, and the sink.
    AwaitWrite,
    /// Fill the memory that the client READs.
    Offer,
    /// WRITE to the client's sink.
    Write,
    /// READ the client's offered memory and check it.
    Read,
    /// Change the client's word with atomics.
    Atomics,
    /// Set the server's word to the seed. The answer contains the previous value.
    Word,
    /// Expect this connection to fail.
    Break,
    /// Disconnect without an answer.
    Disconnect,
    /// Stop the server after this connection has ended.
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

/// An order, or the server's answer to an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ControlMessage {
    pub(super) verb: Verb,
    /// Send mode of the messages.
    pub(super) manner: Manner,
    pub(super) count: u16,
    pub(super) size: u32,
    pub(super) seed: u64,
    /// In an answer, the number of wrong bytes.
    pub(super) wrong: u64,
    /// In an answer, the previous value of the word.
    pub(super) value: u64,
}

/// Send mode of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Manner {
    /// Sent from registered memory.
    #[default]
    Plain,
    /// Sent with immediate data, which is the low half of the seed.
    Immediate,
    /// Sent inline in the work request.
    Inline,
}

const MANNERS: [Manner; 3] = [Manner::Plain, Manner::Immediate, Manner::Inline];

impl ControlMessage {
    pub(super) fn new(verb: Verb, size: usize, seed: u64) -> Self {
        let size = u32::try_from(size).expect("sizes are at most the largest message");
        Self { verb, manner: Manner::Plain, count: 1, size, seed, wrong: 0, value: 0 }
    }

    pub(super) fn bytes(&self) -> [u8; CONTROL_BYTES] {
        let mut bytes = [0; CONTROL_BYTES];
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

    pub(super) fn parse(bytes: &[u8; CONTROL_BYTES]) -> Verdict<Self> {
        let failed = || Deviation::Failed(format!("not a valid control message: {bytes:02x?}"));
        let verb = VERBS.into_iter().find(|verb| *verb as u8 == bytes[4]).ok_or_else(failed)?;
        let manner = MANNERS.into_iter().find(|manner| *manner as u8 == bytes[5]).ok_or_else(failed)?;
        let control = Self {
            verb,
            manner,
            count: u16::from_be_bytes(array(&bytes[6..8])),
            size: u32::from_be_bytes(array(&bytes[8..12])),
            seed: u64::from_be_bytes(array(&bytes[16..24])),
            wrong: u64::from_be_bytes(array(&bytes[24..32])),
            value: u64::from_be_bytes(array(&bytes[32..40])),
        };
        let fits = control.bytes() == *bytes && control.size() <= super::link::LARGEST;
        if fits { Ok(control) } else { Err(failed()) }
    }

    /// Returns the size of each message.
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
    fn emitted_messages_parse_and_invalid_ones_are_refused() {
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
                let control = ControlMessage {
                    manner,
                    count: 3,
                    wrong: 1,
                    value: u64::MAX,
                    ..ControlMessage::new(verb, 1025, 9)
                };
                assert_eq!(ControlMessage::parse(&control.bytes()), Ok(control));
            }
        }
        let mut bytes = ControlMessage::new(Verb::Stop, 0, 0).bytes();
        bytes[4] = 13;
        assert!(ControlMessage::parse(&bytes).is_err());
        let mut bytes = ControlMessage::new(Verb::Write, 1, 0).bytes();
        bytes[8] = 1;
        assert!(ControlMessage::parse(&bytes).is_err(), "larger than any buffer");
    }
}
