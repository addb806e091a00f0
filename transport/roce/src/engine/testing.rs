//! Common parts of the unit tests of both halves, such as attributes, packets, memory, and targets with scripted outcomes.

use super::{
    LocalFault, LocalMemory, NakCode, Placement, PlacementRequest, ReadOutcome, ReadPiece, Target, Work,
};
use crate::wire::{Aeth, AtomicEth, Opcode, Operation, Packet, Reth, Service, Syndrome};
use std::collections::VecDeque;
use trunkline_verbs::{
    Access, IoAddress, Lkey, Mtu, Psn, QpAttributes, QpNumber, QpState, QpType, RemoteAddress, Rkey, Sge,
    SrqNumber,
};

pub(super) const PEER: QpNumber = QpNumber::new(0x22);
pub(super) const SRQ: SrqNumber = SrqNumber::new(0x5a);
pub(super) const MTU: u32 = 256;
pub(super) const BAD_LKEY: Lkey = Lkey(0xbad);

/// Returns the attributes of a QP in RTS, with first PSN 100 in both directions and a timeout of 4.096 us * 2^10.
pub(super) fn attributes(qp_type: QpType) -> QpAttributes {
    QpAttributes {
        state: QpState::ReadyToSend,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        path_mtu: Mtu::Mtu256,
        destination_qp: PEER,
        sq_psn: Psn::new(100),
        rq_psn: Psn::new(100),
        max_rd_atomic: 2,
        max_dest_rd_atomic: 2,
        min_rnr_timer: 12,
        timeout: 10,
        retry_count: 3,
        rnr_retry: 2,
        ..QpAttributes::new(qp_type)
    }
}

pub(super) fn in_state(qp_type: QpType, state: QpState) -> QpAttributes {
    QpAttributes { state, ..attributes(qp_type) }
}

/// Returns a request as an XRC peer sends it.
pub(super) fn request(operation: Operation, psn: u32, payload: &[u8]) -> Packet<'_> {
    let mut packet =
        Packet::new(Opcode::new(Service::XRC, operation), QpNumber::new(0x11), Psn::new(psn), payload);
    packet.xrceth = Some((0, SRQ));
    packet.bth.ack_request = true;
    packet
}

pub(super) fn reth(address: u64, length: u32) -> Option<Reth> {
    Some(Reth { address: IoAddress(address), rkey: Rkey(9), length })
}

pub(super) fn fetch_add(psn: u32, address: u64) -> Packet<'static> {
    let mut packet = request(Operation::FETCH_ADD, psn, &[]);
    let (address, rkey) = (IoAddress(address), Rkey(9));
    packet.atomic = Some(AtomicEth { address, rkey, swap_or_add: 5, compare: 0 });
    packet
}

pub(super) fn read_request(psn: u32, address: u64, length: u32) -> Packet<'static> {
    let mut packet = request(Operation::READ_REQUEST, psn, &[]);
    packet.reth = reth(address, length);
    packet
}

/// Returns a response as an XRC peer sends it.
pub(super) fn answer(operation: Operation, psn: u32, syndrome: Syndrome, payload: &[u8]) -> Packet<'_> {
    let mut packet =
        Packet::new(Opcode::new(Service::XRC, operation), QpNumber::new(0x11), Psn::new(psn), payload);
    packet.aeth = (operation != Operation::READ_RESPONSE_MIDDLE).then(|| Aeth::new(syndrome, 0));
    packet
}

pub(super) fn ack(psn: u32) -> Packet<'static> {
    answer(Operation::ACKNOWLEDGE, psn, Syndrome::ACK, &[])
}

pub(super) fn nak(psn: u32, code: NakCode) -> Packet<'static> {
    answer(Operation::ACKNOWLEDGE, psn, Syndrome::Nak(code), &[])
}

pub(super) fn sge(address: u64, length: u32) -> Sge {
    Sge { address: IoAddress(address), length, lkey: Lkey(7) }
}

pub(super) fn remote(address: u64) -> RemoteAddress {
    RemoteAddress { address: IoAddress(address), rkey: Rkey(9) }
}

/// Local memory of 64 KiB from address 0. Accesses with [`BAD_LKEY`] fail.
pub(super) struct Ram(pub(super) Vec<u8>);

impl Ram {
    pub(super) fn new() -> Self {
        Self((0_u32..65_536).map(|at| at.to_le_bytes()[0] ^ at.to_le_bytes()[1]).collect())
    }

    fn range(piece: Sge) -> Result<std::ops::Range<usize>, LocalFault> {
        let start = usize::try_from(piece.address.0).map_err(|_| LocalFault)?;
        let length = usize::try_from(piece.length).map_err(|_| LocalFault)?;
        if piece.lkey == BAD_LKEY { Err(LocalFault) } else { Ok(start..start + length) }
    }
}

impl LocalMemory for Ram {
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault> {
        out.extend_from_slice(self.0.get(Self::range(piece)?).ok_or(LocalFault)?);
        Ok(())
    }

    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault> {
        self.0.get_mut(Self::range(piece)?).ok_or(LocalFault)?.copy_from_slice(bytes);
        Ok(())
    }
}

/// A target with scripted outcomes, which succeeds once all of them are used. Records the requests.
#[derive(Default)]
pub(super) struct Script {
    pub(super) answers: VecDeque<Placement>,
    pub(super) reads: VecDeque<ReadOutcome>,
    /// Debug form of each placement requested.
    pub(super) asked: Vec<String>,
    /// The word that atomics work on.
    pub(super) word: u64,
}

impl Target for Script {
    fn place(&mut self, request: &PlacementRequest<'_>) -> Placement {
        self.asked.push(format!("{request:?}"));
        if let Some(answer) = self.answers.pop_front() {
            return answer;
        }
        match request.work {
            Work::FetchAdd { add, .. } => {
                self.word += add;
                Placement::Atomic(self.word - add)
            }
            Work::CompareSwap { .. } => Placement::Atomic(self.word),
            _ => Placement::Placed,
        }
    }

    fn read(&mut self, piece: &ReadPiece, out: &mut Vec<u8>) -> ReadOutcome {
        let outcome = self.reads.pop_front().unwrap_or(ReadOutcome::Read);
        if outcome == ReadOutcome::Read {
            let low = piece.range.at(piece.offset).0.to_le_bytes()[0];
            out.extend((0..piece.length).map(|at| low.wrapping_add(at.to_le_bytes()[0])));
        }
        outcome
    }
}
