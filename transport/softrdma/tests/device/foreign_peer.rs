//! A sender that is not a software device. The IPv4 identifications of its packets must be derived from the
//! ICRC.

use crate::common;
use crate::common::by_hand::{ByHand, FIRST_PSN};
use crate::common::host::Host;
use crate::common::node::{BOUND, Node, bring_up_with, exchange, join, post};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;
use trunkline_roce::wire::{
    Aeth, Bth, CreditCode, IpUdp, NakCode, Opcode, Operation, Packet, ROCE_PORT, Service, Syndrome, icrc,
};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::wait_until;
use trunkline_verbs::{Completion, CompletionStatus, Psn, QpNumber, QpType, QueuePair, SendOperation};

/// A sender without a device, and a device that is connected to the sender.
struct Setup {
    hands: ByHand,
    psn: Psn,
}

impl Setup {
    fn new() -> Self {
        Self { hands: ByHand::new(0xd000), psn: Psn::new(FIRST_PSN) }
    }

    fn node(&self) -> &Node {
        &self.hands.node
    }

    /// Sends a packet with the current PSN, and waits until the device has received it. Returns true if a
    /// receive completed; the PSN then advances.
    fn send(&mut self, identification: u16) -> bool {
        let psn = self.psn;
        self.received(|hands| hands.send(psn, false, |headers| headers.v4_identification = identification));
        let mut one = [Completion::default()];
        let taken = self.node().cq.poll(&mut one) == 1;
        if taken {
            self.psn = self.psn.plus(1);
        }
        taken
    }

    /// Sends a packet and waits until the device has received it.
    fn received(&mut self, send: impl FnOnce(&mut ByHand)) {
        let before = self.node().counter("packets_received");
        send(&mut self.hands);
        wait_until("the packet is received", BOUND, || {
            (self.node().counter("packets_received") > before).then_some(())
        });
    }
}

#[test]
fn foreign_peer_is_accepted_from_its_second_packet_on() {
    let mut setup = Setup::new();
    assert!(!setup.send(500));
    assert!(setup.send(501), "{:#?}", setup.node().device_counters());
    assert!(setup.send(503));
    assert_eq!(setup.node().counter("drop_unproven_identification"), 1);
    assert!(!setup.send(40_000), "far from its last packet");
    assert!(setup.send(504));
    assert!(!setup.send(50_000));
    assert!(setup.send(50_001), "it has left its window");
}

#[test]
fn fatal_nak_is_accepted_as_first_packet_of_foreign_peer() {
    for (distance, ends) in [(1, false), (0, true)] {
        let mut setup = Setup::new();
        let ini = setup.node().qp(QpType::XrcIni);
        bring_up_with(&*ini, setup.hands.source.ip(), QpNumber::new(0x4711));
        let (remote, sge) = (setup.node().remote(0), setup.node().sge(0, 16));
        post(&*ini, SendOperation::RdmaWrite(remote), &[sge], &*setup.node().srq);
        let acknowledge = Opcode::new(Service::XRC, Operation::ACKNOWLEDGE);
        let psn = Psn::new(FIRST_PSN).plus(distance);
        let mut nak = Packet::new(acknowledge, ini.number(), psn, &[]);
        nak.aeth = Some(Aeth::new(Syndrome::Nak(NakCode::REMOTE_ACCESS), 0));
        setup.hands.send_packet(&nak, |headers| headers.v4_identification = 30_000);
        if ends {
            assert_eq!(setup.node().completion().status, CompletionStatus::RemoteAccessError);
            continue;
        }
        let until = Instant::now() + BOUND;
        while setup.node().counter("drop_unproven_identification") == 0 {
            assert!(Instant::now() < until, "nothing was sent with that PSN: it proves nothing");
            assert_eq!(setup.node().cq.poll(&mut [Completion::default()]), 0);
        }
    }
}

#[test]
fn congestion_notification_applies_only_to_connected_qp_of_foreign_peer() {
    for is_foreign in [true, false] {
        let mut setup = Setup::new();
        // An identification of 0 belongs to a software device, which does not send notifications.
        let identification = |of_foreign| if is_foreign { of_foreign } else { 0 };
        setup.send(identification(500));
        assert!(setup.send(identification(501)));
        for (number, of_foreign, taken) in
            [(0x00ab_cdef, 502, 0), (setup.hands.tgt.number().get(), 503, u64::from(is_foreign))]
        {
            let mut cnp = Packet::new(Opcode::CNP, QpNumber::new(number), Psn::new(0), &[0; 16]);
            cnp.bth.congestion = Bth::BECN;
            let identification = identification(of_foreign);
            setup.received(|hands| {
                hands.send_packet(&cnp, |headers| headers.v4_identification = identification);
            });
            assert_eq!(setup.node().counter("ecn_echoes_received"), taken);
        }
    }
}

#[test]
fn echo_of_mark_counts_only_in_answer_to_outstanding_packet() {
    let mut setup = Setup::new();
    setup.send(0);
    let ini = setup.node().qp(QpType::XrcIni);
    bring_up_with(&*ini, setup.hands.source.ip(), QpNumber::new(0x4711));
    let (remote, sge) = (setup.node().remote(0), setup.node().sge(0, 16));
    post(&*ini, SendOperation::RdmaWrite(remote), &[sge], &*setup.node().srq);
    // The number before the first one belongs to an acknowledged packet.
    for (distance, taken) in [(0x00ff_ffff, 0), (0, 1)] {
        let acknowledge = Opcode::new(Service::XRC, Operation::ACKNOWLEDGE);
        let mut ack = Packet::new(acknowledge, ini.number(), Psn::new(FIRST_PSN).plus(distance), &[]);
        ack.aeth = Some(Aeth::new(Syndrome::Ack { credits: CreditCode(31) }, 0));
        ack.bth.congestion = Bth::BECN;
        setup.received(|hands| hands.send_packet(&ack, |_| {}));
        assert_eq!(setup.node().counter("ecn_echoes_received"), taken);
    }
}

/// Sends a congestion notification for a QP from an address, with a chosen identification.
fn forge(from: IpAddr, to: &Node, qp: &dyn QueuePair, identification: u16) {
    let socket = UdpSocket::bind(SocketAddr::new(from, 0)).unwrap();
    let to = SocketAddr::new(to.address, ROCE_PORT);
    let mut cnp = Packet::new(Opcode::CNP, qp.number(), Psn::new(0), &[0; 16]);
    cnp.bth.congestion = Bth::BECN;
    let mut bytes = Vec::new();
    cnp.emit(&mut bytes);
    let headers = IpUdp::new(socket.local_addr().unwrap(), to);
    icrc::append(&IpUdp { v4_identification: identification, ..headers }, &mut bytes);
    socket.send_to(&bytes, to).unwrap();
}

#[test]
fn forged_identifications_do_not_affect_connection_of_software_devices() {
    let hosts = [Host::new(), Host::new()];
    let [near, far] = hosts.each_ref().map(|host| Node::open(host.options(), 4096));
    let unused = [&near, &far].map(|node| {
        let tgt = node.qp(QpType::XrcTgt);
        // The device now receives at its address.
        bring_up_with(&*tgt, common::address(), QpNumber::new(0x4711));
        tgt
    });
    let forge = |from: IpAddr, to: &Node, qp: &dyn QueuePair, identification| {
        let before = to.counter("packets_received");
        forge(from, to, qp, identification);
        wait_until("the packet is received", BOUND, || {
            to.cq.poll(&mut [Completion::default()]);
            (to.counter("packets_received") > before).then_some(())
        });
    };
    // Each device takes an unknown sender for a foreign one after these packets.
    let mislead = || {
        for identification in 1000..1003 {
            forge(near.address, &far, &*unused[1], identification);
            forge(far.address, &near, &*unused[0], identification);
        }
    };
    let exchange_all = |ini: &dyn QueuePair| {
        let before = far.counter("drop_unproven_identification");
        exchange(ini, &near, &far, 64);
        assert_eq!(far.counter("drop_unproven_identification"), before);
    };
    mislead();
    assert!(far.counter("drop_unproven_identification") > 0);
    let joined = join(&near, &far);
    exchange_all(&*joined.ini);
    // Senders that fill the table of senders.
    for sender in 0..4200_u32 {
        forge(IpAddr::from((0x7f4d_0000 + sender).to_be_bytes()), &far, &*unused[1], 0);
    }
    mislead();
    exchange_all(&*joined.ini);
    for identification in [0, 2000, 2001, 2002] {
        forge(near.address, &far, &*joined.tgt, identification);
    }
    assert_eq!(far.counter("ecn_echoes_received"), 0, "software devices do not send notifications");
}

/// A foreign sender over real sockets, to processes that share an address.
struct Kernel {
    socket: UdpSocket,
    /// Identification of the next packet. It counts all packets to the address.
    identification: u16,
}

impl Kernel {
    fn send(&mut self, node: &Node, tgt: &dyn QueuePair, psn: Psn) {
        let mut packet =
            Packet::new(Opcode::new(Service::XRC, Operation::SEND_ONLY), tgt.number(), psn, b"from afar");
        packet.xrceth = Some((0, node.srq.number().unwrap()));
        let to = SocketAddr::new(node.address, ROCE_PORT);
        let mut headers = IpUdp::new(self.socket.local_addr().unwrap(), to);
        headers.v4_identification = self.identification;
        self.identification = self.identification.wrapping_add(1);
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        icrc::append(&headers, &mut bytes);
        self.socket.send_to(&bytes, to).unwrap();
    }
}

#[test]
fn processes_at_one_address_recognize_foreign_peer_by_packets_to_all() {
    let host = Host::new();
    let busy = Node::open(host.options(), 4096);
    let options = SoftOptions { addresses: vec![busy.address], ..host.options() };
    let quiet = Node::open(options, 4096);
    let address = common::address();
    let socket = UdpSocket::bind(SocketAddr::new(address, ROCE_PORT)).unwrap();
    let mut kernel = Kernel { socket, identification: 65_000 };
    // Test both cases, in which port 4791 belongs to the busy process or to the quiet one.
    for [often, seldom] in [[&busy, &quiet], [&quiet, &busy]] {
        let tgts = [often, seldom].map(|node| node.qp(QpType::XrcTgt));
        for (node, tgt) in [often, seldom].iter().zip(&tgts) {
            bring_up_with(&**tgt, address, QpNumber::new(0x4711));
            (0..500).for_each(|wr_id| node.receive(wr_id, 0, 64));
        }
        let mut psns = [Psn::new(FIRST_PSN); 2];
        let mut exchange = |node: &Node, index: usize, is_first: bool| {
            kernel.send(node, &*tgts[index], psns[index]);
            if is_first {
                kernel.send(node, &*tgts[index], psns[index]);
            }
            let received = node.completion();
            assert_eq!(received.status, CompletionStatus::Success);
            psns[index] = psns[index].plus(1);
        };
        exchange(often, 0, true);
        for _ in 0..3 {
            exchange(seldom, 1, false);
            (0..150).for_each(|_| exchange(often, 0, false));
        }
        tgts.iter().for_each(|tgt| tgt.destroy().unwrap());
    }
}

#[test]
fn identification_is_not_derived_for_software_peer() {
    let mut setup = Setup::new();
    assert!(setup.send(0));
    for identification in 700..710 {
        assert!(!setup.send(identification));
    }
    assert!(setup.node().counter("drop_bad_icrc") >= 10);
    assert!(setup.send(0));
}
