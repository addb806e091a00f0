//! Packets that a process puts into its own shared-memory rings in the name of another process.
//!
//! The forger uses the QP numbers and the next PSN of the other process, so only the ring identifies the sender. This
//! module defines the parts of an area's layout that a forger needs. Forged packets are never copied, because they may be
//! derived from packets of the current forger, which the forger may legitimately send.

use std::collections::BTreeSet;
use trunkline_roce::wire::{Operation, Packet};
use trunkline_verbs::Memory;

/// Offset of the word that counts the bytes produced.
const PRODUCED: usize = 0;
const RING: usize = 4096;
/// Size of a record's header, which contains the length of the packet.
const HEADER: usize = 8;
/// Maximum length of a packet to copy. Such a packet uses only one PSN.
const LONGEST: usize = 512;
/// Maximum number of records that are searched.
const LOOKS: usize = 8;
const PSN: usize = 9;

/// Returns the last short SEND among the last records in the ring of an area, except forged packets.
pub(crate) fn last_send(area: &Memory, forged: &BTreeSet<Vec<u8>>) -> Option<Vec<u8>> {
    let mut end = produced(area);
    for _ in 0..LOOKS {
        let (start, packet, operation) = packet_before(area, end)?;
        let is_send = [Operation::SEND_ONLY, Operation::SEND_ONLY_IMM].contains(&operation);
        if is_send && !forged.contains(&packet) {
            return Some(packet);
        }
        end = start;
    }
    None
}

/// Returns the number of bytes put into an area's ring so far.
pub(crate) fn produced(area: &Memory) -> u64 {
    area.load(PRODUCED).unwrap_or(0)
}

/// Returns the start, packet and operation of the record that ends at this position in the ring of an area, if the record
/// is short.
fn packet_before(area: &Memory, end: u64) -> Option<(u64, Vec<u8>, Operation)> {
    (1..=LONGEST / 8).map(|words| words * 8).find_map(|padded| {
        let start = end.checked_sub((HEADER + padded) as u64)?;
        let length = u64::from_le_bytes(read(area, start, HEADER)?.try_into().ok()?);
        let length = usize::try_from(length).ok().filter(|length| length.next_multiple_of(8) == padded)?;
        let packet = read(area, start + HEADER as u64, length)?;
        let operation = Packet::parse_joined(&packet).ok()?.bth.opcode.operation();
        Some((start, packet, operation))
    })
}

pub(crate) fn repeated(mut packet: Vec<u8>) -> Option<Vec<u8>> {
    let psn = Packet::parse_joined(&packet).ok()?.bth.psn;
    packet[PSN..PSN + 3].copy_from_slice(&psn.plus(1).get().to_be_bytes()[1..]);
    Some(packet)
}

/// Appends a packet to an area's ring without checking for room.
pub(crate) fn append(area: &Memory, packet: &[u8]) {
    let start = produced(area);
    let mut bytes = (packet.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(packet);
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    for (at, word) in (start..).step_by(8).zip(bytes.chunks_exact(8)) {
        let _outside = place(area, at).map(|place| area.write(place, word));
    }
    let _aligned = area.write(PRODUCED, &(start + bytes.len() as u64).to_ne_bytes());
}

fn read(area: &Memory, from: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length.next_multiple_of(8)];
    for (at, word) in (from..).step_by(8).zip(bytes.chunks_exact_mut(8)) {
        area.read(place(area, at)?, word).ok()?;
    }
    bytes.truncate(length);
    Some(bytes)
}

/// Returns the offset in an area that corresponds to a position in its ring.
fn place(area: &Memory, position: u64) -> Option<usize> {
    let ring = area.len().checked_sub(RING).filter(|bytes| *bytes > 0)?;
    usize::try_from(position % ring as u64).ok().map(|at| RING + at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_roce::wire::{Opcode, Service};
    use trunkline_verbs::{Psn, QpNumber};

    fn packet(operation: Operation, psn: u32, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        Packet::new(Opcode::new(Service::RC, operation), QpNumber::new(77), Psn::new(psn), payload)
            .emit(&mut bytes);
        bytes
    }

    #[test]
    fn forged_packets_are_skipped() {
        let area = Memory::zeroed(RING + 512).unwrap();
        let sent = packet(Operation::SEND_ONLY, 7, b"12345678");
        append(&area, &sent);
        let other = packet(Operation::SEND_ONLY, 8, b"abcdefgh");
        append(&area, &other);
        let forged = BTreeSet::from([other]);
        assert_eq!(last_send(&area, &forged), Some(sent));
    }
}
