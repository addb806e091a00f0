//! RDMA READs by a peer that breaks the rules: it may read only the bytes that were announced to it.
//!
//! The network passes in the datagrams from and to such peers before it changes them. The rule is about bytes
//! that leave a node, whatever the node's keys would open.

use crate::forged::packet_of;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use trunkline_roce::wire::{Operation, Packet, Reth};
use trunkline_softrdma::link::Datagram;
use trunkline_testkit::Announcement;

/// Announcements of nodes to peers, and READs of other bytes.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// Announcements by sender and receiver.
    all: BTreeMap<(IpAddr, IpAddr), BTreeSet<Announcement>>,
    /// READ requests for anything else, by responder, requester and PSN.
    beside: BTreeMap<(IpAddr, IpAddr, u32), Reth>,
    broken: Option<String>,
}

impl Announced {
    /// Records a datagram from or to a peer that breaks the rules.
    pub(crate) fn see(&mut self, datagram: &Datagram<'_>) {
        let Some(packet) = packet_of(datagram.bytes).and_then(|body| Packet::parse(body).ok()) else {
            return;
        };
        let (from, to) = (datagram.source.ip(), datagram.destination.ip());
        if let Some(announcement) = Announcement::of(&packet) {
            self.all.entry((from, to)).or_default().insert(announcement);
        }
        match (packet.bth.opcode.operation(), packet.reth) {
            (Operation::READ_REQUEST, Some(reth)) if !self.covers((to, from), &reth) => {
                self.beside.insert((to, from, packet.bth.psn.get()), reth);
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

    /// Returns true if a range was announced, as a whole or in parts of one message.
    fn covers(&self, pair: (IpAddr, IpAddr), reth: &Reth) -> bool {
        let (start, end) = (reth.address.0, reth.address.0.saturating_add(u64::from(reth.length)));
        self.all.get(&pair).into_iter().flatten().any(|known| {
            known.rkey == reth.rkey.0
                && known.address <= start
                && end <= known.address.saturating_add(known.length)
        })
    }

    /// Returns the violation, if there is one.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.broken.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use trunkline_roce::wire::{Aeth, IpUdp, Opcode, Service, Syndrome, icrc};
    use trunkline_verbs::{IoAddress, Psn, QpNumber, Rkey};

    fn see(
        announced: &mut Announced,
        is_to_reader: bool,
        operation: Operation,
        psn: u32,
        content: Result<&[u8], Reth>,
    ) {
        let (reader, node): (SocketAddr, SocketAddr) =
            ("127.0.0.9:4791".parse().unwrap(), "127.0.0.1:4791".parse().unwrap());
        let (source, destination) = if is_to_reader { (node, reader) } else { (reader, node) };
        let opcode = Opcode::new(Service::RC, operation);
        let mut packet = Packet::new(opcode, QpNumber::new(9), Psn::new(psn), content.unwrap_or_default());
        packet.reth = content.err();
        packet.aeth = (operation == Operation::READ_RESPONSE_ONLY).then(|| Aeth::new(Syndrome::ACK, 1));
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        announced.see(&Datagram { source, destination, bytes: &bytes });
    }

    fn announcement(rkey: u32, address: u64, length: u64) -> Vec<u8> {
        let mut frame = vec![0; 60];
        // A 32-byte header with the flag, and the message's number.
        frame[..2].copy_from_slice(&[0x40, 2]);
        frame[40..48].copy_from_slice(&length.to_le_bytes());
        frame[48..56].copy_from_slice(&address.to_le_bytes());
        frame[56..60].copy_from_slice(&rkey.to_le_bytes());
        frame
    }

    /// Returns true if the rule is broken when a READ of this range is answered, after 1,000 bytes at 5,000 were announced.
    fn is_broken_by(rkey: u32, address: u64, length: u32, is_answered: bool) -> bool {
        let mut announced = Announced::default();
        see(&mut announced, true, Operation::SEND_ONLY, 1, Ok(&announcement(7, 5000, 1000)));
        // A peer may not READ its own announcements.
        see(&mut announced, false, Operation::SEND_ONLY, 1, Ok(&announcement(8, 5000, 1000)));
        let reth = Reth { address: IoAddress(address), rkey: Rkey(rkey), length };
        see(&mut announced, false, Operation::READ_REQUEST, 77, Err(reth));
        if is_answered {
            see(&mut announced, true, Operation::READ_RESPONSE_ONLY, 77, Ok(&[1; 4]));
        }
        announced.broken().is_some()
    }

    #[test]
    fn only_bytes_that_were_announced_may_be_read() {
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
}
