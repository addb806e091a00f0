//! A device, and a sender on the device's network. The test builds the sender's packets.

use super::node::{Node, bring_up_with};
use std::net::SocketAddr;
use std::sync::Arc;
use trunkline_roce::wire::{IpUdp, Opcode, Operation, Packet, ROCE_PORT, Service, icrc};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, SendBatch};
use trunkline_testkit::HandMadeConnection;
use trunkline_verbs::{Psn, QpNumber, QpType, QueuePair, Time};

/// PSN at which every QP of these tests starts.
pub(crate) const FIRST_PSN: u32 = HandMadeConnection::FIRST_PSN.get();

/// A TGT with an SRQ that has 64 receives of 64 bytes, and the sender of its packets.
pub(crate) struct ByHand {
    pub(crate) node: Node,
    pub(crate) tgt: Arc<dyn QueuePair>,
    pub(crate) link: InProcessLink,
    /// Source of the next packets.
    pub(crate) source: SocketAddr,
}

impl ByHand {
    /// Creates a sender with this UDP port.
    pub(crate) fn new(port: u16) -> Self {
        let hub = Hub::new();
        let options = SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..super::udp() };
        let node = Node::open(options, 4096);
        let tgt = node.qp(QpType::XrcTgt);
        let source = SocketAddr::new(super::address(), port);
        bring_up_with(&*tgt, source.ip(), QpNumber::new(0x4711));
        let mut link = hub.link().unwrap();
        link.open(source.ip()).unwrap();
        for wr_id in 0..64 {
            node.receive(wr_id, 0, 64);
        }
        Self { node, tgt, link, source }
    }

    /// Sends a message of one packet. `headers` may change the packet's IP and UDP headers.
    pub(crate) fn send(&mut self, psn: Psn, ack_request: bool, headers: impl FnOnce(&mut IpUdp)) {
        let packet = self.message(psn, ack_request);
        self.send_packet(&packet, headers);
    }

    /// Builds a message of one packet.
    pub(crate) fn message(&self, psn: Psn, ack_request: bool) -> Packet<'static> {
        let opcode = Opcode::new(Service::XRC, Operation::SEND_ONLY);
        let mut packet = Packet::new(opcode, self.tgt.number(), psn, b"sent by test");
        packet.xrceth = Some((0, self.node.srq.number().unwrap()));
        packet.bth.ack_request = ack_request;
        packet
    }

    /// Sends a packet. `headers` may change the packet's IP and UDP headers.
    pub(crate) fn send_packet(&mut self, packet: &Packet<'_>, headers: impl FnOnce(&mut IpUdp)) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send_bytes(bytes, headers);
    }

    /// Sends the bytes of a packet, which may be invalid, with a correct ICRC.
    pub(crate) fn send_bytes(&mut self, mut bytes: Vec<u8>, headers: impl FnOnce(&mut IpUdp)) {
        let destination = SocketAddr::new(self.node.address, ROCE_PORT);
        let mut before = IpUdp::new(self.source, destination);
        headers(&mut before);
        icrc::append(&before, &mut bytes);
        let mut batch = SendBatch::new();
        batch.push_with(self.source, destination, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut batch, Time(0));
    }
}
