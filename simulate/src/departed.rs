//! Rules for requests as they leave their node.
//!
//! A request carries the time left to its call, rounded up, as of the moment when the frame is handed to the
//! device. It is 0 only if the deadline had passed by then. The network passes in each datagram before
//! anything happens to it. Retransmissions repeat the first transmission's bytes.

use crate::forged::packet_of;
use trunkline_roce::wire::{Operation, Packet};
use trunkline_softrdma::link::Datagram;

/// Kinds of requests: with a reply, and one-way.
const REQUESTS: [u8; 2] = [0x40, 0x41];
/// Header flag for a time left, and the offset of that field.
const HAS_TIME_LEFT: u8 = 0x04;
const TIME_LEFT: usize = 16;

/// The rule, and its first violation.
#[derive(Debug, Default)]
pub(crate) struct Departed(Option<String>);

impl Departed {
    /// Checks a datagram that a node sends.
    pub(crate) fn see(&mut self, datagram: &Datagram<'_>) {
        let Some(packet) = packet_of(datagram.bytes).and_then(|body| Packet::parse(body).ok()) else {
            return;
        };
        let operation = packet.bth.opcode.operation();
        let begins = [Operation::SEND_FIRST, Operation::SEND_ONLY].contains(&operation);
        if begins && packet.deth.is_none() && time_left_us(packet.payload) == Some(0) {
            let Datagram { source, destination, .. } = datagram;
            let broken = || format!("{source} sends {destination} a request after its call's deadline");
            self.0.get_or_insert_with(broken);
        }
    }

    /// Returns the violation, if there is one.
    pub(crate) fn broken(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

/// Returns the time left in a frame that is a request with a deadline.
fn time_left_us(frame: &[u8]) -> Option<u32> {
    let (kind, flags) = frame.first().zip(frame.get(1))?;
    let has_one = REQUESTS.contains(kind) && flags & HAS_TIME_LEFT != 0;
    has_one.then(|| frame.get(TIME_LEFT..)?.first_chunk().copied().map(u32::from_le_bytes)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use trunkline_roce::wire::{IpUdp, Opcode, Service, icrc};
    use trunkline_verbs::{Psn, QpNumber};

    /// Returns true if a packet with this frame, whose header has this time left, breaks the rule.
    fn breaks(operation: Operation, header: [u8; 2], time_left_us: u32) -> bool {
        let mut frame = header.to_vec();
        frame.resize(TIME_LEFT, 0);
        frame.extend(time_left_us.to_le_bytes());
        // The longest first packet of a message.
        frame.resize(256, 0);
        let (source, destination): (SocketAddr, SocketAddr) =
            ("127.0.0.9:4791".parse().unwrap(), "127.0.0.1:4791".parse().unwrap());
        let opcode = Opcode::new(Service::RC, operation);
        let mut bytes = Vec::new();
        Packet::new(opcode, QpNumber::new(9), Psn::new(1), &frame).emit(&mut bytes);
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        let mut departed = Departed::default();
        departed.see(&Datagram { source, destination, bytes: &bytes });
        departed.broken().is_some()
    }

    #[test]
    fn a_request_without_time_left_breaks_the_rule() {
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
