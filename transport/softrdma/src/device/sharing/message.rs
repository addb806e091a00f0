//! Messages between the members that share a TGT.
//!
//! Owns the encoding of the messages. Integers are little-endian and of fixed width. A message is read as a whole.
//! Reading a message checks its format, but not its values.
//!
//! | kind | from, to | body |
//! |---|---|---|
//! | 16 place | executor, owner of the SRQ | TGT, serial, PSN, SRQ, flags, work, payload |
//! | 17 placed | owner, executor | TGT, serial, outcome |
//! | 18 read | executor, owner | TGT, PSN, SRQ, range, offset, length |
//! | 19 read bytes | owner, executor | TGT, PSN, offset, outcome, bytes |
//! | 20 flush | executor, owner | TGT, 1 if the TGT is in error |
//! | 21 modify | holder of a handle, executor | TGT, ticket, local address, change |
//! | 22 modified | executor, holder | ticket, errno |
//! | 23 closed | holder, executor | TGT |
//! | 24 event | executor, holder | TGT, event |
#![forbid(unsafe_code)]

use crate::device::shard::{MemberOutbox, Reader, RemoteOutcome};
use crate::host::MemberId;
use std::net::IpAddr;
use trunkline_roce::engine::{NakCode, Placement, PlacementRequest, ReadPiece, RemoteRange, Work};
use trunkline_verbs::{
    Access, AddressVector, AsyncEventKind, Gid, IoAddress, Mtu, Psn, QpModify, QpNumber, QpState,
    RemoteAddress, Rkey, SrqNumber,
};

/// Kinds of the messages in this module.
pub(super) const KINDS: std::ops::RangeInclusive<u8> = 16..=24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Message<'a> {
    /// Requests the placement of a packet.
    Place { tgt: u32, serial: u64, place: PlacementRequest<'a> },
    /// Outcome of a placement.
    Placed { tgt: u32, serial: u64, outcome: RemoteOutcome },
    /// Requests the bytes for a READ response.
    Read { tgt: u32, piece: ReadPiece },
    /// The requested bytes, or the refusal of the READ.
    ReadBytes { tgt: u32, psn: Psn, offset: u32, bytes: Result<&'a [u8], RemoteOutcome> },
    /// Drops the message in progress. Its receive completes with an error if `is_error` is true.
    Flush { tgt: u32, is_error: bool },
    /// Requests a change to the TGT. The address itself is sent, since the GID index of the address vector is valid
    /// only in this process.
    Modify { tgt: u32, ticket: u64, source: Option<IpAddr>, change: QpModify },
    /// Outcome of a change: 0, or the errno of the refusal.
    Modified { ticket: u64, errno: i32 },
    /// The sender has closed its last handle.
    Closed { tgt: u32 },
    /// An event of the TGT.
    Event { tgt: u32, kind: AsyncEventKind },
}

const PLACED: u8 = 0;
const ATOMIC: u8 = 1;
const RNR: u8 = 2;
const NAK: u8 = 3;
const UNKNOWN: u8 = 4;

const SEND: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const COMPARE_SWAP: u8 = 3;
const FETCH_ADD: u8 = 4;

const SOLICITED: u8 = 1;
const FIRST: u8 = 2;
const LAST: u8 = 4;
const IMMEDIATE: u8 = 8;

/// Events that a TGT can raise, indexed by their code.
const EVENTS: [AsyncEventKind; 7] = [
    AsyncEventKind::QpFatal,
    AsyncEventKind::QpRequestError,
    AsyncEventKind::QpAccessError,
    AsyncEventKind::CommunicationEstablished,
    AsyncEventKind::SqDrained,
    AsyncEventKind::QpLastWqeReached,
    AsyncEventKind::DeviceFatal,
];

impl<'a> Message<'a> {
    /// Queues the message. Returns false if it does not fit in the outbox.
    pub(super) fn send(&self, outbox: &mut MemberOutbox, to: MemberId) -> bool {
        outbox.push(to, |out| self.write(out))
    }

    /// Appends the body. Returns the kind.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> u8 {
        match *self {
            Self::Place { tgt, serial, place } => {
                put32(out, tgt);
                put64(out, serial);
                put_place(out, &place);
                16
            }
            Self::Placed { tgt, serial, outcome } => {
                put32(out, tgt);
                put64(out, serial);
                put_outcome(out, outcome);
                17
            }
            Self::Read { tgt, piece } => {
                for value in [tgt, piece.psn.get(), piece.srq.map_or(0, SrqNumber::get)] {
                    put32(out, value);
                }
                put_range(out, &piece.range);
                put32(out, piece.offset);
                put32(out, piece.length);
                18
            }
            Self::ReadBytes { tgt, psn, offset, bytes } => {
                for value in [tgt, psn.get(), offset] {
                    put32(out, value);
                }
                match bytes {
                    Ok(bytes) => {
                        put_outcome(out, RemoteOutcome::Done(Placement::Placed));
                        out.extend_from_slice(bytes);
                    }
                    Err(outcome) => put_outcome(out, outcome),
                }
                19
            }
            Self::Flush { tgt, is_error } => {
                put32(out, tgt);
                out.push(u8::from(is_error));
                20
            }
            Self::Modify { tgt, ticket, source, change } => {
                put32(out, tgt);
                put64(out, ticket);
                out.push(u8::from(source.is_some()));
                out.extend_from_slice(&source.map_or([0; 16], |source| Gid::from(source).0));
                put_change(out, &change);
                21
            }
            Self::Modified { ticket, errno } => {
                put64(out, ticket);
                out.extend_from_slice(&errno.to_le_bytes());
                22
            }
            Self::Closed { tgt } => {
                put32(out, tgt);
                23
            }
            Self::Event { tgt, kind } => {
                put32(out, tgt);
                let code = EVENTS.iter().position(|event| *event == kind).unwrap_or(EVENTS.len());
                out.push(u8::try_from(code).unwrap_or(u8::MAX));
                24
            }
        }
    }

    /// Reads a message; `None` if it is malformed.
    pub(super) fn read(kind: u8, bytes: &'a [u8]) -> Option<Self> {
        let mut from = Reader::new(bytes);
        let message = match kind {
            16 => Self::Place { tgt: from.u32()?, serial: from.u64()?, place: take_place(&mut from)? },
            17 => Self::Placed { tgt: from.u32()?, serial: from.u64()?, outcome: take_outcome(&mut from)? },
            18 => {
                let tgt = from.u32()?;
                let piece = ReadPiece {
                    psn: Psn::new(from.u32()?),
                    psns: 1,
                    srq: Some(SrqNumber::new(from.u32()?)),
                    range: take_range(&mut from)?,
                    offset: from.u32()?,
                    length: from.u32()?,
                };
                Self::Read { tgt, piece }
            }
            19 => {
                let (tgt, psn, offset) = (from.u32()?, Psn::new(from.u32()?), from.u32()?);
                let bytes = match take_outcome(&mut from)? {
                    RemoteOutcome::Done(Placement::Placed) => Ok(from.rest()),
                    outcome => Err(outcome),
                };
                Self::ReadBytes { tgt, psn, offset, bytes }
            }
            20 => Self::Flush { tgt: from.u32()?, is_error: from.u8()? != 0 },
            21 => {
                let (tgt, ticket, has_source) = (from.u32()?, from.u64()?, from.u8()? != 0);
                let source = Gid(from.array()?).ip();
                let change = take_change(&mut from)?;
                Self::Modify { tgt, ticket, source: has_source.then_some(source), change }
            }
            22 => Self::Modified { ticket: from.u64()?, errno: i32::from_le_bytes(from.array()?) },
            23 => Self::Closed { tgt: from.u32()? },
            24 => Self::Event { tgt: from.u32()?, kind: *EVENTS.get(usize::from(from.u8()?))? },
            _ => return None,
        };
        from.is_empty().then_some(message)
    }
}

fn put_place(out: &mut Vec<u8>, place: &PlacementRequest<'_>) {
    put32(out, place.psn.get());
    put32(out, place.srq.map_or(0, SrqNumber::get));
    let solicited = if place.solicited { SOLICITED } else { 0 };
    let flags = |first: bool, last: bool, immediate: Option<u32>| {
        let mut flags = solicited;
        for (set, flag) in [(first, FIRST), (last, LAST), (immediate.is_some(), IMMEDIATE)] {
            flags |= if set { flag } else { 0 };
        }
        flags
    };
    match place.work {
        Work::Send { offset, payload, first, last, immediate } => {
            out.extend_from_slice(&[SEND, flags(first, last, immediate)]);
            put32(out, immediate.unwrap_or(0));
            put32(out, offset);
            out.extend_from_slice(payload);
        }
        Work::Write { range, offset, payload, first, last, immediate } => {
            out.extend_from_slice(&[WRITE, flags(first, last, immediate)]);
            put32(out, immediate.unwrap_or(0));
            put32(out, offset);
            put_range(out, &range);
            out.extend_from_slice(payload);
        }
        Work::Read { range } => {
            out.extend_from_slice(&[READ, solicited]);
            put_range(out, &range);
        }
        Work::CompareSwap { remote, compare, swap } => {
            out.extend_from_slice(&[COMPARE_SWAP, solicited]);
            put_remote(out, remote);
            put64(out, compare);
            put64(out, swap);
        }
        Work::FetchAdd { remote, add } => {
            out.extend_from_slice(&[FETCH_ADD, solicited]);
            put_remote(out, remote);
            put64(out, add);
        }
    }
}

fn take_place<'a>(from: &mut Reader<'a>) -> Option<PlacementRequest<'a>> {
    let psn = Psn::new(from.u32()?);
    let srq = SrqNumber::new(from.u32()?);
    let (tag, flags) = (from.u8()?, from.u8()?);
    let (first, last) = (flags & FIRST != 0, flags & LAST != 0);
    let work = match tag {
        SEND | WRITE => {
            let value = from.u32()?;
            let immediate = (flags & IMMEDIATE != 0).then_some(value);
            let offset = from.u32()?;
            if tag == SEND {
                Work::Send { offset, payload: from.rest(), first, last, immediate }
            } else {
                let range = take_range(from)?;
                Work::Write { range, offset, payload: from.rest(), first, last, immediate }
            }
        }
        READ => Work::Read { range: take_range(from)? },
        COMPARE_SWAP => {
            Work::CompareSwap { remote: take_remote(from)?, compare: from.u64()?, swap: from.u64()? }
        }
        FETCH_ADD => Work::FetchAdd { remote: take_remote(from)?, add: from.u64()? },
        _ => return None,
    };
    Some(PlacementRequest { psn, srq: Some(srq), solicited: flags & SOLICITED != 0, work })
}

fn put_outcome(out: &mut Vec<u8>, outcome: RemoteOutcome) {
    match outcome {
        RemoteOutcome::Done(Placement::Placed) => out.push(PLACED),
        RemoteOutcome::Done(Placement::Atomic(old)) => {
            out.push(ATOMIC);
            put64(out, old);
        }
        RemoteOutcome::Done(Placement::Rnr) => out.push(RNR),
        RemoteOutcome::Done(Placement::Nak(code)) => out.extend_from_slice(&[NAK, code.0]),
        RemoteOutcome::UnknownSrq | RemoteOutcome::Done(Placement::Drop | Placement::Later) => {
            out.push(UNKNOWN)
        }
    }
}

fn take_outcome(from: &mut Reader<'_>) -> Option<RemoteOutcome> {
    Some(match from.u8()? {
        PLACED => RemoteOutcome::Done(Placement::Placed),
        ATOMIC => RemoteOutcome::Done(Placement::Atomic(from.u64()?)),
        RNR => RemoteOutcome::Done(Placement::Rnr),
        NAK => RemoteOutcome::Done(Placement::Nak(match NakCode(from.u8()?) {
            code @ (NakCode::INVALID_REQUEST | NakCode::REMOTE_ACCESS) => code,
            _ => NakCode::REMOTE_OPERATIONAL,
        })),
        UNKNOWN => RemoteOutcome::UnknownSrq,
        _ => return None,
    })
}

/// Appends a change. The message carries the source of the address vector separately.
fn put_change(out: &mut Vec<u8>, change: &QpModify) {
    let fields = [
        change.state.map(|state| u32::from(state.code())),
        change.current_state.map(|state| u32::from(state.code())),
        change.pkey_index.map(u32::from),
        change.port.map(u32::from),
        change.access.map(|access| access.bits()),
        change.path_mtu.map(|mtu| u32::from(mtu.code())),
        change.destination_qp.map(QpNumber::get),
        change.rq_psn.map(Psn::get),
        change.sq_psn.map(Psn::get),
        change.max_dest_rd_atomic.map(u32::from),
        change.max_rd_atomic.map(u32::from),
        change.min_rnr_timer.map(u32::from),
        change.timeout.map(u32::from),
        change.retry_count.map(u32::from),
        change.rnr_retry.map(u32::from),
    ];
    for field in fields {
        out.push(u8::from(field.is_some()));
        put32(out, field.unwrap_or(0));
    }
    out.push(u8::from(change.address_vector.is_some()));
    if let Some(vector) = change.address_vector {
        out.extend_from_slice(&vector.destination.0);
        out.extend_from_slice(&[vector.port, vector.hop_limit, vector.traffic_class]);
        put64(out, u64::from(vector.flow_label));
    }
}

/// Reads a change. The executor checks later whether it is valid.
fn take_change(from: &mut Reader<'_>) -> Option<QpModify> {
    fn byte(value: u32) -> Option<u8> {
        u8::try_from(value).ok()
    }
    /// Reads an optional field. Returns `None` if its value is invalid.
    fn field<T>(from: &mut Reader<'_>, read: impl FnOnce(u32) -> Option<T>) -> Option<Option<T>> {
        let (is_some, value) = (from.u8()?, from.u32()?);
        if is_some == 0 { Some(None) } else { read(value).map(Some) }
    }
    let mut change = QpModify {
        state: field(from, QpState::from_code)?,
        current_state: field(from, QpState::from_code)?,
        pkey_index: field(from, |value| u16::try_from(value).ok())?,
        port: field(from, byte)?,
        access: field(from, Access::from_bits)?,
        path_mtu: field(from, |value| byte(value).and_then(Mtu::from_code))?,
        destination_qp: field(from, |value| Some(QpNumber::new(value)))?,
        rq_psn: field(from, |value| Some(Psn::new(value)))?,
        sq_psn: field(from, |value| Some(Psn::new(value)))?,
        max_dest_rd_atomic: field(from, byte)?,
        max_rd_atomic: field(from, byte)?,
        min_rnr_timer: field(from, byte)?,
        timeout: field(from, byte)?,
        retry_count: field(from, byte)?,
        rnr_retry: field(from, byte)?,
        address_vector: None,
    };
    if from.u8()? != 0 {
        change.address_vector = Some(AddressVector {
            source_gid_index: 0,
            destination: Gid(from.array()?),
            port: from.u8()?,
            hop_limit: from.u8()?,
            traffic_class: from.u8()?,
            flow_label: u32::try_from(from.u64()?).ok()?,
        });
    }
    Some(change)
}

fn put_remote(out: &mut Vec<u8>, remote: RemoteAddress) {
    put64(out, remote.address.0);
    put32(out, remote.rkey.0);
}

fn take_remote(from: &mut Reader<'_>) -> Option<RemoteAddress> {
    Some(RemoteAddress { address: IoAddress(from.u64()?), rkey: Rkey(from.u32()?) })
}

fn put_range(out: &mut Vec<u8>, range: &RemoteRange) {
    put_remote(out, range.start);
    put32(out, range.length);
}

fn take_range(from: &mut Reader<'_>) -> Option<RemoteRange> {
    Some(RemoteRange { start: take_remote(from)?, length: from.u32()? })
}

fn put32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tables::random::Random;

    fn samples() -> Vec<Message<'static>> {
        let start = RemoteAddress { address: IoAddress(0x1122_3344_5566_7788), rkey: Rkey(0x99) };
        let range = RemoteRange { start, length: 70_000 };
        let works = [
            Work::Send { offset: 0, payload: b"hello", first: true, last: true, immediate: Some(0) },
            Work::Send { offset: 5, payload: b"", first: false, last: true, immediate: None },
            Work::Write { range, offset: 9, payload: b"world", first: false, last: false, immediate: None },
            Work::Write { range, offset: 9, payload: b"!", first: false, last: true, immediate: Some(7) },
            Work::Read { range },
            Work::CompareSwap { remote: start, compare: 1, swap: u64::MAX },
            Work::FetchAdd { remote: start, add: 3 },
        ];
        let srq = Some(SrqNumber::new(0xabcdef));
        let psn = Psn::new(0xff_ffff);
        let mut all: Vec<_> = works
            .into_iter()
            .zip([true, false].into_iter().cycle())
            .map(|(work, solicited)| PlacementRequest { psn, srq, solicited, work })
            .map(|place| Message::Place { tgt: 77, serial: u64::MAX - 1, place })
            .collect();
        let outcomes = [
            RemoteOutcome::Done(Placement::Placed),
            RemoteOutcome::Done(Placement::Atomic(9)),
            RemoteOutcome::Done(Placement::Rnr),
            RemoteOutcome::Done(Placement::Nak(NakCode::REMOTE_ACCESS)),
            RemoteOutcome::UnknownSrq,
        ];
        all.extend(outcomes.map(|outcome| Message::Placed { tgt: 1, serial: 2, outcome }));
        let vector = AddressVector {
            source_gid_index: 0,
            destination: Gid::from(IpAddr::from([127, 0, 0, 9])),
            port: 1,
            flow_label: 0xfffff,
            hop_limit: 64,
            traffic_class: 3,
        };
        let change = QpModify {
            state: Some(QpState::ReadyToReceive),
            current_state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_READ),
            address_vector: Some(vector),
            path_mtu: Some(Mtu::Mtu2048),
            destination_qp: Some(QpNumber::new(5)),
            rq_psn: Some(psn),
            sq_psn: Some(Psn::new(1)),
            max_dest_rd_atomic: Some(16),
            max_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            timeout: Some(14),
            retry_count: Some(7),
            rnr_retry: Some(6),
        };
        let piece = ReadPiece { psn, psns: 1, srq, range, offset: 4096, length: 4096 };
        all.extend([
            Message::Read { tgt: 3, piece },
            Message::ReadBytes { tgt: 3, psn, offset: 8, bytes: Ok(b"bytes") },
            Message::ReadBytes { tgt: 3, psn, offset: 8, bytes: Err(RemoteOutcome::UnknownSrq) },
            Message::Flush { tgt: 4, is_error: true },
            Message::Modify { tgt: 5, ticket: 6, source: Some(IpAddr::from([127, 1, 2, 3])), change },
            Message::Modify { tgt: 5, ticket: 6, source: None, change: QpModify::default() },
            Message::Modified { ticket: 6, errno: 22 },
            Message::Closed { tgt: 9 },
            Message::Event { tgt: 9, kind: AsyncEventKind::QpLastWqeReached },
        ]);
        all
    }

    #[test]
    fn messages_round_trip() {
        for message in samples() {
            let mut bytes = Vec::new();
            let kind = message.write(&mut bytes);
            assert!(KINDS.contains(&kind));
            assert_eq!(Message::read(kind, &bytes), Some(message));
        }
    }

    #[test]
    fn truncated_messages_are_refused() {
        for message in samples() {
            let mut bytes = Vec::new();
            let kind = message.write(&mut bytes);
            for length in 0..bytes.len() {
                // Payloads do not have a length field, and the fields before them have fixed lengths.
                assert_ne!(Message::read(kind, &bytes[..length]), Some(message));
            }
        }
    }

    #[test]
    fn random_bytes_do_not_panic() {
        let mut random = Random::new(11);
        let samples = samples();
        for round in 0..20_000 {
            let mut bytes = Vec::new();
            let mut kind = samples[round % samples.len()].write(&mut bytes);
            for _ in 0..random.next_u32() % 4 {
                let at = random.next_u32() as usize % bytes.len();
                bytes[at] = random.next_u32().to_le_bytes()[0];
            }
            if random.next_u32().is_multiple_of(8) {
                kind = random.next_u32().to_le_bytes()[0];
            }
            bytes.truncate(random.next_u32() as usize % (bytes.len() + 1));
            if let Some(message) = Message::read(kind, &bytes) {
                let mut again = Vec::new();
                assert_eq!(message.write(&mut again), kind);
            }
        }
    }
}
