//! A host on the path between two nodes that modifies packets from one node to the other.
//!
//! Modified packets are well-formed: each keeps the position of the packet that it replaces, and its ICRC is recomputed.
//! The host keeps earlier payloads of each lane as replacements.

use super::forged::packet_of;
use std::collections::BTreeMap;
use std::net::IpAddr;
use trunkline_roce::wire::{Bth, IpUdp, Operation, Packet, icrc, pad_for};
use trunkline_softrdma::link::Datagram;

/// Frame kind of handshakes, whose frames are not sealed.
const HANDSHAKE: u8 = 0x05;
/// Size of the unencrypted header of a frame, in bytes.
const HEADER: usize = 8;

/// Modification of packets, which is applied once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tampering {
    /// Flips a bit of a frame.
    FlipBit,
    /// Truncates a frame.
    Cut,
    /// Swaps two frames of a lane.
    Swap,
    /// Replaces a frame with an earlier frame of the lane.
    Repeat,
    /// Replaces a frame with a frame of another lane.
    OtherLane,
    /// Replaces a frame with a frame of the lane in the other direction.
    Reflect,
    /// Replaces a frame with a frame of a session that has ended.
    OtherSession,
    /// Flips a bit of a large message.
    FlipBitOfLarge,
    /// Swaps two packets of a large message.
    SwapInLarge,
    /// Replaces a packet of a large message with the corresponding packet of an earlier message.
    OtherLarge,
}

impl Tampering {
    pub(crate) const ALL: [Self; 10] = [
        Self::FlipBit,
        Self::Cut,
        Self::Swap,
        Self::Repeat,
        Self::OtherLane,
        Self::Reflect,
        Self::OtherSession,
        Self::FlipBitOfLarge,
        Self::SwapInLarge,
        Self::OtherLarge,
    ];

    /// Returns true if the modification applies to READ responses instead of frames.
    pub(crate) fn is_of_large(self) -> bool {
        matches!(self, Self::FlipBitOfLarge | Self::SwapInLarge | Self::OtherLarge)
    }
}

/// Sender, receiver, destination QP and SRQ of a packet. The SRQ is 0 if the packet has none.
type Flow = (IpAddr, IpAddr, u32, u32);

/// Host on the path from one node to another.
#[derive(Debug)]
pub(crate) struct Tamperer {
    sender: IpAddr,
    receiver: IpAddr,
    random: fastrand::Rng,
    /// Last frame of each lane.
    frames: BTreeMap<Flow, Vec<u8>>,
    /// A frame of a session that has ended.
    of_ended: Option<Vec<u8>>,
    /// First READ response.
    response: Option<Vec<u8>>,
    /// Modification that has not been applied yet.
    next: Option<Tampering>,
    /// First of two packets to swap, as its flow and datagram.
    held: Option<(Flow, Vec<u8>)>,
}

impl Tamperer {
    /// Creates a host that forwards packets unchanged.
    pub(crate) fn new(sender: IpAddr, receiver: IpAddr, seed: u64) -> Self {
        Self {
            sender,
            receiver,
            random: fastrand::Rng::with_seed(seed),
            frames: BTreeMap::new(),
            of_ended: None,
            response: None,
            next: None,
            held: None,
        }
    }

    /// Keeps a frame of the ended session, and drops all others.
    pub(crate) fn session_ended(&mut self) {
        let last = self.frames.iter().find(|(flow, _)| (flow.0, flow.1) == (self.sender, self.receiver));
        self.of_ended = last.map(|(_, frame)| frame.clone());
        self.frames.clear();
    }

    /// Applies this modification to the next suitable packet.
    pub(crate) fn change(&mut self, tampering: Tampering) {
        self.next = Some(tampering);
    }

    /// Returns true if all modifications have been applied.
    pub(crate) fn is_done(&self) -> bool {
        self.next.is_none() && self.held.is_none()
    }

    /// Returns the datagrams that replace this datagram, or `None` if it is unchanged.
    pub(crate) fn pass(&mut self, datagram: &Datagram<'_>) -> Option<Vec<Vec<u8>>> {
        let packet = Packet::parse(packet_of(datagram.bytes)?).ok()?;
        let ends = (datagram.source.ip(), datagram.destination.ip());
        let is_forth = ends == (self.sender, self.receiver);
        if !is_forth && ends != (self.receiver, self.sender) || packet.deth.is_some() {
            return None;
        }
        let srq = packet.xrceth.map_or(0, |(_, srq)| srq.get());
        let flow = (ends.0, ends.1, packet.bth.destination.get(), srq);
        let operation = packet.bth.opcode.operation();
        let is_frame = operation == Operation::SEND_ONLY
            && packet.payload.len() > HEADER
            && packet.payload[0] != HANDSHAKE;
        let is_response = [
            Operation::READ_RESPONSE_FIRST,
            Operation::READ_RESPONSE_MIDDLE,
            Operation::READ_RESPONSE_LAST,
            Operation::READ_RESPONSE_ONLY,
        ]
        .contains(&operation)
            && packet.payload.len() > HEADER;
        let changed =
            self.next.filter(|next| is_forth && if next.is_of_large() { is_response } else { is_frame });
        let changed = changed.and_then(|tampering| self.changed(tampering, flow, &packet, datagram));
        if is_frame {
            self.frames.insert(flow, packet.payload.to_vec());
        }
        if is_response && is_forth && self.response.is_none() {
            self.response = Some(packet.payload.to_vec());
        }
        changed
    }

    fn changed(
        &mut self,
        tampering: Tampering,
        flow: Flow,
        packet: &Packet<'_>,
        datagram: &Datagram<'_>,
    ) -> Option<Vec<Vec<u8>>> {
        let same_size = |payload: &Vec<u8>| payload.len() == packet.payload.len();
        let payload = match tampering {
            Tampering::FlipBit | Tampering::FlipBitOfLarge => {
                let mut payload = packet.payload.to_vec();
                // With another kind in its header, the frame could become one that is never sealed.
                let from = if tampering == Tampering::FlipBit { HEADER } else { 0 };
                payload[self.random.usize(from..packet.payload.len())] ^= 1 << self.random.u8(..8);
                Some(payload)
            }
            Tampering::Cut => {
                let length = self.random.usize(HEADER..packet.payload.len());
                Some(packet.payload[..length].to_vec())
            }
            Tampering::Repeat => self.frames.get(&flow).cloned(),
            Tampering::OtherLane => {
                let mut others = self.frames.iter().filter(|(other, _)| **other != flow);
                let other = others.find(|(other, _)| (other.0, other.1) == (flow.0, flow.1));
                other.map(|(_, frame)| frame.clone())
            }
            Tampering::Reflect => {
                let mut others = self.frames.iter();
                others.find(|(other, _)| other.0 == flow.1).map(|(_, frame)| frame.clone())
            }
            Tampering::OtherSession => self.of_ended.take(),
            Tampering::OtherLarge => self.response.clone().filter(same_size),
            Tampering::Swap | Tampering::SwapInLarge => return self.swapped(flow, packet, datagram),
        };
        let payload = payload.filter(|payload| payload != packet.payload)?;
        self.next = None;
        Some(vec![with_payload(packet, &payload, datagram)])
    }

    /// Holds back the first of two packets in a flow, and swaps their payloads when the second packet arrives.
    fn swapped(&mut self, flow: Flow, packet: &Packet<'_>, datagram: &Datagram<'_>) -> Option<Vec<Vec<u8>>> {
        let Some((held_flow, held)) = self.held.take() else {
            self.held = Some((flow, datagram.bytes.to_vec()));
            return Some(Vec::new());
        };
        if held_flow != flow {
            self.held = Some((held_flow, held));
            return None;
        }
        let first = packet_of(&held).and_then(|body| Packet::parse(body).ok())?;
        let is_next = |first: &Bth, second: &Bth| {
            first.opcode == second.opcode && second.psn.get() == (first.psn.get() + 1) & 0xff_ffff
        };
        if !is_next(&first.bth, &packet.bth) {
            // The packet is a retransmission, or a packet of another kind follows the held one.
            return Some(vec![held, datagram.bytes.to_vec()]);
        }
        self.next = None;
        Some(vec![
            with_payload(&first, packet.payload, datagram),
            with_payload(packet, first.payload, datagram),
        ])
    }
}

/// Returns a datagram with a different payload and a correct ICRC.
fn with_payload(packet: &Packet<'_>, payload: &[u8], datagram: &Datagram<'_>) -> Vec<u8> {
    let mut changed = Packet { payload, ..*packet };
    changed.bth.pad = pad_for(payload.len());
    let mut out = Vec::new();
    changed.emit(&mut out);
    icrc::append(&IpUdp::new(datagram.source, datagram.destination), &mut out);
    out
}
