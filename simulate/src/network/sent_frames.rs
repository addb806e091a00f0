//! Rules for frames sent by nodes.
//!
//! A misbehaving peer may READ only bytes that were announced to it. The rule applies to the bytes that a node sends,
//! even if the node's keys cover more.
//!
//! A request contains the remaining time of its call, rounded up, as of the moment when the frame is passed to the
//! device. This time is 0 only if the deadline has already passed. Retransmissions repeat the bytes of the first
//! transmission.
//!
//! The network passes each datagram to this module before any fault is applied. Datagrams of hostile peers are passed
//! again in the form that nodes receive.

use super::forged::packet_of;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use trunkline_roce::wire::{Operation, Packet, Reth};
use trunkline_softrdma::link::Datagram;
use trunkline_testkit::Announcement;

/// Frame kinds of requests: with a reply, and one-way.
const REQUESTS: [u8; 2] = [0x40, 0x41];
/// Header flag that indicates the field for the remaining time.
const HAS_TIME_LEFT: u8 = 0x04;
/// Offset of this field.
const TIME_LEFT: usize = 8;

/// State of both rules, and their first violation.
#[derive(Debug, Default)]
pub(crate) struct SentFrames {
    /// Large messages announced to and by hostile peers, by sender and receiver.
    announced: BTreeMap<(IpAddr, IpAddr), BTreeSet<Announcement>>,
    /// READ requests for memory that was not announced, by responder, requester and PSN.
    beside: BTreeMap<(IpAddr, IpAddr, u32), Reth>,
    broken: Option<String>,
}

impl SentFrames {
    /// Checks the remaining time in a datagram sent by a node.
    pub(crate) fn departs(&mut self, datagram: &Datagram<'_>) {
        let Some(packet) = packet_of(datagram.bytes).and_then(|body| Packet::parse(body).ok()) else {
            return;
        };
        let operation = packet.bth.opcode.operation();
        let begins = [Operation::SEND_FIRST, Operation::SEND_ONLY].contains(&operation);
        if begins && packet.deth.is_none() && time_left_us(packet.payload) == Some(0) {
            let Datagram { source, destination, .. } = datagram;
            let broken = || format!("{source} sends {destination} a request after its call's deadline");
            self.broken.get_or_insert_with(broken);
        }
    }

    /// Records a datagram to or from a misbehaving peer.
    pub(crate) fn trades(&mut self, datagram: &Datagram<'_>) {
        let Some(packet) = packet_of(datagram.bytes).and_then(|body| Packet::parse(body).ok()) else {
            return;
        };
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        if let Some(announcement) = Announcement::of(&packet) {
            self.announced.entry((from, to)).or_default().insert(announcement);
        }
        match (packet.bth.opcode.operation(), packet.reth) {
            (Operation::READ_REQUEST, Some(reth)) => {
                let key = (to, from, packet.bth.psn.get());
                // A retransmission may request only the announced part of a lost request.
                if self.covers((to, from), &reth) {
                    self.beside.remove(&key);
                } else {
                    self.beside.insert(key, reth);
                }
            }
            (Operation::READ_RESPONSE_FIRST | Operation::READ_RESPONSE_ONLY, _) => {
                if let Some(reth) = self.beside.get(&(from, to, packet.bth.psn.get())) {
                    let broken = || format!("{from} lets {to} READ what was not announced to it: {reth:?}");
                    self.broken.get_or_insert_with(broken);
                }
            }
            _ => {}
        }
    }

    /// Returns true if a range was announced as a whole or as several parts of one message.
    fn covers(&self, pair: (IpAddr, IpAddr), reth: &Reth) -> bool {
        let (start, end) = (reth.address.0, reth.address.0.saturating_add(u64::from(reth.length)));
        self.announced.get(&pair).into_iter().flatten().any(|known| {
            known.rkey == reth.rkey.0
                && known.address <= start
                && end <= known.address.saturating_add(known.length)
        })
    }

    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

/// Returns the remaining time in a frame, if the frame is a request with a deadline.
fn time_left_us(frame: &[u8]) -> Option<u32> {
    let (kind, flags) = frame.first().zip(frame.get(1))?;
    let has_one = REQUESTS.contains(kind) && flags & HAS_TIME_LEFT != 0;
    has_one.then(|| frame.get(TIME_LEFT..)?.first_chunk().copied().map(u32::from_le_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use trunkline_roce::wire::{Aeth, IpUdp, Opcode, Service, Syndrome, icrc};
    use trunkline_verbs::{IoAddress, Psn, QpNumber, Rkey};

    /// Records a packet to or from a hostile peer.
    fn see(
        frames: &mut SentFrames,
        is_to_peer: bool,
        operation: Operation,
        psn: u32,
        content: Result<&[u8], Reth>,
    ) {
        let (peer, node): (SocketAddr, SocketAddr) =
            ("127.0.0.9:4791".parse().unwrap(), "127.0.0.1:4791".parse().unwrap());
        let (source, destination) = if is_to_peer { (node, peer) } else { (peer, node) };
        let opcode = Opcode::new(Service::RC, operation);
        let mut packet = Packet::new(opcode, QpNumber::new(9), Psn::new(psn), content.unwrap_or_default());
        packet.reth = content.err();
        packet.aeth = (operation == Operation::READ_RESPONSE_ONLY).then(|| Aeth::new(Syndrome::ACK, 1));
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        let datagram = Datagram { source, destination, bytes: &bytes };
        frames.departs(&datagram);
        frames.trades(&datagram);
    }

    fn announcement(rkey: u32, address: u64, length: u64) -> Vec<u8> {
        let mut frame = vec![0; 36];
        // A header with the flag and a message number.
        frame[..2].copy_from_slice(&[0x40, 2]);
        frame[16..24].copy_from_slice(&length.to_le_bytes());
        frame[24..32].copy_from_slice(&address.to_le_bytes());
        frame[32..36].copy_from_slice(&rkey.to_le_bytes());
        frame
    }

    /// Returns true if an answer to a READ of this range violates the rule, after 1,000 bytes at address 5,000 were
    /// announced.
    fn is_broken_by(rkey: u32, address: u64, length: u32, is_answered: bool) -> bool {
        let mut frames = SentFrames::default();
        see(&mut frames, true, Operation::SEND_ONLY, 1, Ok(&announcement(7, 5000, 1000)));
        // A peer may not READ memory that it has announced itself.
        see(&mut frames, false, Operation::SEND_ONLY, 1, Ok(&announcement(8, 5000, 1000)));
        let reth = Reth { address: IoAddress(address), rkey: Rkey(rkey), length };
        see(&mut frames, false, Operation::READ_REQUEST, 77, Err(reth));
        if is_answered {
            see(&mut frames, true, Operation::READ_RESPONSE_ONLY, 77, Ok(&[1; 4]));
        }
        frames.broken().is_some()
    }

    #[test]
    fn only_announced_bytes_may_be_read() {
        for (address, length) in [(5000, 1000), (5000, 1), (5999, 1), (5500, 500)] {
            assert!(!is_broken_by(7, address, length, true), "{address}, {length} bytes");
        }
        for (rkey, address, length) in
            [(7, 4999, 1), (7, 6000, 1), (7, 5000, 1001), (8, 5000, 4), (9, 5000, 4)]
        {
            assert!(is_broken_by(rkey, address, length, true), "{rkey}, {address}, {length} bytes");
            assert!(!is_broken_by(rkey, address, length, false), "a READ that is refused breaks nothing");
        }
    }

    #[test]
    fn retransmitted_request_for_announced_part_may_be_answered() {
        let mut frames = SentFrames::default();
        see(&mut frames, true, Operation::SEND_ONLY, 1, Ok(&announcement(7, 5000, 1000)));
        for length in [1001, 1000] {
            let reth = Reth { address: IoAddress(5000), rkey: Rkey(7), length };
            see(&mut frames, false, Operation::READ_REQUEST, 77, Err(reth));
        }
        see(&mut frames, true, Operation::READ_RESPONSE_ONLY, 77, Ok(&[1; 4]));
        assert!(frames.broken().is_none());
    }

    /// Returns true if a packet with this frame header and remaining time violates the rule.
    fn breaks(operation: Operation, header: [u8; 2], time_left_us: u32) -> bool {
        let mut frame = header.to_vec();
        frame.resize(TIME_LEFT, 0);
        frame.extend(time_left_us.to_le_bytes());
        // The payload of a first packet fills the path MTU, here 256 bytes.
        frame.resize(256, 0);
        let mut frames = SentFrames::default();
        see(&mut frames, false, operation, 1, Ok(&frame));
        frames.broken().is_some()
    }

    #[test]
    fn request_without_time_left_breaks_rule() {
        let (only, first) = (Operation::SEND_ONLY, Operation::SEND_FIRST);
        for (operation, header) in
            [(only, [0x40, 0x04]), (only, [0x41, 0x04]), (first, [0x40, 0x04]), (only, [0x40, 0x06])]
        {
            assert!(breaks(operation, header, 0), "{operation:?} {header:?}");
            assert!(!breaks(operation, header, 1), "{operation:?} {header:?}");
        }
        for (operation, header) in
            [(only, [0x40, 0]), (only, [0x30, 0x04]), (Operation::SEND_LAST, [0x40, 0x04])]
        {
            assert!(!breaks(operation, header, 0), "{operation:?} {header:?}");
        }
    }
}
