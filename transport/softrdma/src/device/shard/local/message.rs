//! Messages between two members about their shared memory.
//!
//! Owns the format of the messages. Each message goes from one shard to another, and begins with the numbers
//! of the two shards, a byte each. Integers are little-endian. Reading a message checks only its format.
//!
//! | kind | meaning | body, after the two shards |
//! |---|---|---|
//! | 32 offer, with an area | the sender's area; the receiver should offer its own | version, the area's number |
//! | 33 accept, with an area | the sender's area, in answer to the receiver's | version, numbers of both areas, the sender's first |
//! | 34 refuse | the sender does not share memory | version, reason |
//! | 35 wake | there is a packet in a ring that the receiver parked | |
//! | 36 end | the sender no longer reads the ring | number of the sender's area |
//! | 37 bell, with an eventfd | writing to it wakes the sender, in place of a wake message | |

use crate::device::shard::Reader;
use std::ops::RangeInclusive;

/// Kinds of the messages in this module.
pub(in crate::device::shard) const KINDS: RangeInclusive<u8> = 32..=37;

/// Version of the area's layout and of the packets in its ring. Areas of another version are refused.
pub(super) const VERSION: u32 = 3;

/// The shards between which a message is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device::shard) struct Ends {
    pub(in crate::device::shard) from: u8,
    pub(in crate::device::shard) to: u8,
}

impl Ends {
    /// Reads the shards at the beginning of a message.
    pub(in crate::device::shard) fn read(bytes: &[u8]) -> Option<Self> {
        let [from, to, ..] = *bytes else { return None };
        Some(Self { from, to })
    }
}

/// Reason why a member does not share memory, as reported to its peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) enum Refusal {
    /// `TRUNKLINE_LINK=udp`.
    AsksForUdp,
    /// The member captures its packets.
    Captures,
    /// The member injects faults into its packets.
    Faults,
    /// The program observes the device's link.
    Observed,
    /// The member uses another format of areas.
    OtherVersion,
    /// The member lacks memory, descriptors or table space for more areas.
    NoRoom,
    /// The member is the child of a fork.
    Forked,
    /// The member's device was removed.
    Removed,
}

impl Refusal {
    const ALL: [Self; 8] = [
        Self::AsksForUdp,
        Self::Captures,
        Self::Faults,
        Self::Observed,
        Self::OtherVersion,
        Self::NoRoom,
        Self::Forked,
        Self::Removed,
    ];

    fn code(self) -> u8 {
        let code = Self::ALL.iter().position(|reason| *reason == self);
        code.and_then(|code| u8::try_from(code).ok()).unwrap_or(u8::MAX)
    }

    /// Describes the reason if this process refuses.
    pub(in crate::device) fn ours(self) -> &'static str {
        match self {
            Self::AsksForUdp => "TRUNKLINE_LINK=udp (or setting link)",
            Self::Captures => "packets are captured",
            Self::Faults => "packets have faults (setting faults, or TRUNKLINE_FAULTS)",
            Self::Observed => "the program observes the device's link",
            Self::OtherVersion => "the peer's format of shared memory is another one",
            Self::NoRoom => "this process has no room to share memory with more peers",
            Self::Forked => "this process is the child of a fork",
            Self::Removed => "the device was removed",
        }
    }

    /// Describes the reason if the peer refuses.
    pub(super) fn theirs(self) -> &'static str {
        match self {
            Self::AsksForUdp => "the peer has TRUNKLINE_LINK=udp (or setting link)",
            Self::Captures => "the peer captures packets",
            Self::Faults => "the peer's packets have faults (setting faults, or TRUNKLINE_FAULTS)",
            Self::Observed => "the peer's program observes its device's link",
            Self::OtherVersion => "the peer's format of shared memory is another one",
            Self::NoRoom => {
                "the peer has no room to share memory with this process; its own report names the limit"
            }
            Self::Forked => "the peer is the child of a fork",
            Self::Removed => "the peer's device was removed",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message {
    Offer { version: u32, area: u64 },
    Accept { version: u32, area: u64, offered: u64 },
    Refuse { reason: Refusal },
    Wake,
    End { area: u64 },
    Bell,
}

impl Message {
    /// Appends the body and returns the kind.
    pub(super) fn write(self, ends: Ends, out: &mut Vec<u8>) -> u8 {
        out.extend_from_slice(&[ends.from, ends.to]);
        match self {
            Self::Offer { version, area } => {
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&area.to_le_bytes());
                32
            }
            Self::Accept { version, area, offered } => {
                out.extend_from_slice(&version.to_le_bytes());
                out.extend_from_slice(&area.to_le_bytes());
                out.extend_from_slice(&offered.to_le_bytes());
                33
            }
            Self::Refuse { reason } => {
                out.extend_from_slice(&VERSION.to_le_bytes());
                out.push(reason.code());
                34
            }
            Self::Wake => 35,
            Self::End { area } => {
                out.extend_from_slice(&area.to_le_bytes());
                36
            }
            Self::Bell => 37,
        }
    }

    /// Reads a message; `None` if it is malformed.
    pub(super) fn read(kind: u8, bytes: &[u8]) -> Option<(Ends, Self)> {
        let (ends, mut from) = (Ends::read(bytes)?, Reader::new(bytes.get(2..)?));
        let message = match kind {
            32 => Self::Offer { version: from.u32()?, area: from.u64()? },
            33 => Self::Accept { version: from.u32()?, area: from.u64()?, offered: from.u64()? },
            34 => {
                let _version = from.u32()?;
                // A later version may define further reasons.
                let reason = Refusal::ALL.get(usize::from(from.u8()?));
                Self::Refuse { reason: reason.copied().unwrap_or(Refusal::OtherVersion) }
            }
            35 => Self::Wake,
            36 => Self::End { area: from.u64()? },
            37 => Self::Bell,
            _ => return None,
        };
        from.is_empty().then_some((ends, message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_round_trip_and_truncated_messages_are_refused() {
        let mut messages = vec![
            Message::Offer { version: VERSION, area: u64::MAX },
            Message::Accept { version: 7, area: 1, offered: 2 },
            Message::Wake,
            Message::End { area: 9 },
            Message::Bell,
        ];
        messages.extend(Refusal::ALL.map(|reason| Message::Refuse { reason }));
        let ends = Ends { from: 7, to: 31 };
        for message in messages {
            let mut bytes = Vec::new();
            let kind = message.write(ends, &mut bytes);
            assert!(KINDS.contains(&kind));
            assert_eq!(Message::read(kind, &bytes), Some((ends, message)));
            for end in 0..bytes.len() {
                assert_eq!(Message::read(kind, &bytes[..end]), None, "{message:?} cut");
            }
            bytes.push(0);
            assert_eq!(Message::read(kind, &bytes), None, "{message:?} and more");
        }
        let unknown = Message::read(34, &[7, 31, 9, 0, 0, 0, 200]);
        assert_eq!(unknown, Some((ends, Message::Refuse { reason: Refusal::OtherVersion })));
        assert_eq!(Message::read(31, &[]), None);
    }
}
