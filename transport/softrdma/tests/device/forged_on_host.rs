//! Packets from another user's program on the host, which has all data of a connection. It sends from the peer's
//! address, with correct checksums and the expected PSN, but cannot bind the port of a member.

use crate::common;
use crate::common::by_hand::FIRST_PSN;
use crate::common::host::Host;
use crate::common::node::{BOUND, Node, bring_up_with, connect, post};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;
use trunkline_roce::wire::{
    Aeth, IpUdp, Opcode, Operation, Packet, ROCE_PORT, Reth, Service, Syndrome, icrc,
};
use trunkline_testkit::wait_until;
use trunkline_verbs::{Completion, CompletionStatus, Psn, QpNumber, QpType, QueuePair, SendOperation};

/// A program with a separate socket at the address of another program.
struct Forger(UdpSocket);

impl Forger {
    fn at(address: IpAddr) -> Self {
        let socket = UdpSocket::bind(SocketAddr::new(address, 0)).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self(socket)
    }

    fn send(&self, to: SocketAddr, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&IpUdp::new(self.0.local_addr().unwrap(), to), &mut bytes);
        self.0.send_to(&bytes, to).unwrap();
    }

    fn has_heard(&self) -> bool {
        self.0.recv_from(&mut [0; 4096]).is_ok()
    }
}

/// Builds packets of all kinds that could do harm, with PSN `psn`.
fn packets(node: &Node, tgt: QpNumber, ini: QpNumber, psn: Psn) -> Vec<Packet<'static>> {
    let packet = |operation, to| {
        let mut packet = Packet::new(Opcode::new(Service::XRC, operation), to, psn, b"forged!!");
        packet.xrceth = (to == tgt).then(|| (0, node.srq.number().unwrap()));
        packet.bth.ack_request = true;
        packet
    };
    let reth = Reth { address: node.memory.address(0), rkey: node.region.rkey(), length: 8 };
    let send = packet(Operation::SEND_ONLY, tgt);
    let write = Packet { reth: Some(reth), ..packet(Operation::WRITE_ONLY, tgt) };
    let read = Packet { reth: Some(reth), payload: &[], ..packet(Operation::READ_REQUEST, tgt) };
    let aeth = Some(Aeth::new(Syndrome::ACK, 1));
    let ack = Packet { aeth, payload: &[], ..packet(Operation::ACKNOWLEDGE, ini) };
    vec![send, write, read, ack]
}

/// Waits until a counter has reached a value.
fn wait_for(node: &Node, name: &str, value: u64) {
    let until = Instant::now() + BOUND;
    while node.counter(name) < value {
        assert!(Instant::now() < until, "{name} is below {value}: {:#?}", node.device_counters());
        node.cq.poll(&mut [Completion::default(); 8]);
    }
}

/// Sends one message, which proves the sources of both sides.
fn exchange(from: &Node, to: &Node, ini: &dyn QueuePair) {
    post(ini, SendOperation::RdmaWrite(to.remote(2048)), &[from.sge(0, 64)], &*to.srq);
    assert_eq!(from.completion().status, CompletionStatus::Success);
}

#[test]
fn packets_of_other_programs_from_address_of_members_are_dropped() {
    let host = Host::new();
    let (near, far) = (Node::open(host.options(), 4096), Node::open(host.options(), 4096));
    // At each address, a second member holds a port chosen by the system.
    let options = |node: &Node| trunkline_softrdma::device::SoftOptions {
        addresses: vec![node.address],
        ..host.options()
    };
    let neighbours = [&near, &far].map(|node| Node::open(options(node), 4096));
    for (from, to) in [(&near, &far), (&neighbours[0], &neighbours[1])] {
        let (ini, tgt) = connect(from, to);
        let (back, _tgt) = connect(to, from);
        exchange(from, to, &*ini);
        exchange(to, from, &*back);
        to.receive(1, 0, 64);

        let before = (far.counter("requests_received"), to.counter("requests_received"));
        let forger = Forger::at(from.address);
        let mut sent = 0;
        for distance in [1, 0, 2, 1 << 23, 3] {
            for packet in packets(to, tgt.number(), back.number(), Psn::new(FIRST_PSN).plus(distance)) {
                forger.send(SocketAddr::new(to.address, ROCE_PORT), &packet);
                sent += 1;
            }
        }
        // The first member at the address holds port 4791.
        wait_for(&far, "drop_forged_source", sent);
        assert!(!forger.has_heard(), "the forger got an answer");
        assert_eq!((far.counter("requests_received"), to.counter("requests_received")), before);
        let mut bytes = [1; 8];
        to.memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 8]);
        exchange(from, to, &*ini);
        exchange(to, from, &*back);
    }
}

#[test]
fn packets_from_address_without_members_are_accepted() {
    let host = Host::new();
    let node = Node::open(host.options(), 4096);
    let (address, tgt) = (common::address(), node.qp(QpType::XrcTgt));
    bring_up_with(&*tgt, address, QpNumber::new(0x4711));
    let forger = Forger::at(address);
    let write = packets(&node, tgt.number(), tgt.number(), Psn::new(FIRST_PSN)).remove(1);
    forger.send(SocketAddr::new(node.address, ROCE_PORT), &write);
    wait_for(&node, "requests_received", 1);
    assert_eq!(node.counter("drop_forged_source"), 0);
}

#[test]
fn forged_packets_from_freed_member_address_are_dropped() {
    let host = Host::new();
    let (near, far) = (Node::open(host.options(), 4096), Node::open(host.options(), 4096));
    let address = near.address;
    let (ini, tgt) = connect(&near, &far);
    exchange(&near, &far, &*ini);
    let before = far.counter("requests_received");
    drop((ini, near));
    // The other program holds the port that the peer held.
    let socket = wait_until("the port is free", BOUND, || {
        // A process that another test starts keeps a copy of the socket until it executes its program.
        UdpSocket::bind(SocketAddr::new(address, ROCE_PORT)).ok()
    });
    let forger = Forger(socket);
    forger.0.set_nonblocking(true).unwrap();
    // The end of the peer is detected when the sockets are next checked.
    for _ in 0..8 {
        far.cq.poll(&mut [Completion::default()]);
    }
    let requests = packets(&far, tgt.number(), tgt.number(), Psn::new(FIRST_PSN).plus(1));
    for packet in &requests[..3] {
        forger.send(SocketAddr::new(far.address, ROCE_PORT), packet);
    }
    wait_for(&far, "drop_wrong_address", 3);
    assert_eq!(far.counter("requests_received"), before);
    assert!(!forger.has_heard());
}
