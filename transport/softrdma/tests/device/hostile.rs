//! A hostile peer that sends arbitrary packets with correct checksums, to valid QPs, from the right address.
//!
//! It must not be able to stop the device, to access memory without permission, or to disturb other peers.

use crate::common;
use crate::common::node::{BOUND, Node, bring_up_with, connect, post};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_roce::wire::cm::CmMessage;
use trunkline_roce::wire::{
    Aeth, AtomicEth, Attribute, IpUdp, MAD_DATA_BYTES, Mad, MadHeader, Opcode, Packet, ROCE_PORT, Reth, icrc,
    mad_packet,
};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, SendBatch};
use trunkline_testkit::{HandMadeConnection, Random};
use trunkline_verbs::{
    Access, Completion, CompletionStatus, Device, IoAddress, Memory, Psn, QpModify, QpNumber, QpState,
    QpType, QueuePair, Rkey, SendOperation, SrqNumber, Time,
};

const PACKETS: usize = 20_000;
const FIRST_PSN: u32 = HandMadeConnection::FIRST_PSN.get();

/// Returns a number below a bound.
fn number(random: &mut Random, bound: u32) -> u32 {
    u32::try_from(random.next() % u64::from(bound)).unwrap()
}

struct Attacker {
    random: Random,
    link: InProcessLink,
    source: SocketAddr,
    destination: SocketAddr,
    batch: SendBatch,
}

impl Attacker {
    /// Appends the ICRC and sends the packet. Sometimes corrupts or truncates the packet.
    fn send(&mut self, mut bytes: Vec<u8>) {
        icrc::append(&IpUdp::new(self.source, self.destination), &mut bytes);
        if self.random.one_in(50) {
            let at = self.random.below(bytes.len());
            bytes[at] ^= 0x10;
        } else if self.random.one_in(50) {
            let length = self.random.below(bytes.len());
            bytes.truncate(length);
        }
        self.batch.push_with(self.source, self.destination, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut self.batch, Time(0));
    }

    /// Sends a random packet, whose numbers are often valid.
    fn packet(&mut self, qps: &[QpNumber], srqs: &[SrqNumber], keys: &[Rkey], around: IoAddress) {
        let random = &mut self.random;
        let service = *random.pick(&[0xa0_u8, 0xa0, 0xa0, 0x00, 0x60, 0x40]);
        let opcode = Opcode(service | random.byte() & 0x1f);
        let payload = vec![0xee; *random.pick(&[0, 1, 4, 8, 255, 256, 1024, 1024, 1024, 4096])];
        let psn = Psn::new(FIRST_PSN.wrapping_sub(3).wrapping_add(number(random, 12)));
        let mut packet = Packet::new(opcode, *random.pick(qps), psn, &payload);
        let wild = random.one_in(4);
        let address = if wild { IoAddress(random.next()) } else { around.plus(random.below(8192) as u64) };
        let rkey = if wild { Rkey(number(random, u32::MAX)) } else { *random.pick(keys) };
        let length = *random.pick(&[0, 1, 8, 1024, 2048, 4096, u32::MAX]);
        let (one, two) = (random.next(), random.next());
        packet.bth.ack_request = random.one_in(2);
        if let Some((headers, _)) = opcode.layout() {
            use trunkline_roce::wire::Headers as H;
            packet.xrceth = headers.contains(H::XRCETH).then(|| (0, *random.pick(srqs)));
            packet.reth = headers.contains(H::RETH).then_some(Reth { address, rkey, length });
            packet.atomic = headers.contains(H::ATOMIC).then_some(AtomicEth {
                address,
                rkey,
                swap_or_add: one,
                compare: two,
            });
            packet.aeth = headers
                .contains(H::AETH)
                .then(|| Aeth { syndrome: random.byte(), msn: number(random, 1 << 24) });
            packet.atomic_ack = headers.contains(H::ATOMIC_ACK).then_some(one);
            packet.immediate = headers.contains(H::IMMEDIATE).then_some(7);
            packet.invalidate = headers.contains(H::INVALIDATE).then_some(rkey);
        }
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send(bytes);
    }

    /// Sends a random message of the connection manager.
    fn message(&mut self) {
        let attribute = Attribute(0x10 + u16::from(self.random.byte() % 12));
        let mut data = [0; MAD_DATA_BYTES];
        for byte in &mut data {
            *byte = if self.random.one_in(3) { self.random.byte() } else { 0 };
        }
        let mut mad = Mad { header: MadHeader::cm(self.random.next(), attribute), data };
        if let CmMessage::Req(mut req) = CmMessage::parse(&mad) {
            // Set a transport that the listener accepts.
            req.transport = trunkline_roce::wire::cm::TransportType::XRC;
            mad.data = CmMessage::Req(req).data();
        }
        let mut bytes = Vec::new();
        mad_packet(Psn::new(number(&mut self.random, 1 << 24)), &mad.to_bytes()).emit(&mut bytes);
        self.send(bytes);
    }
}

/// Waits until the device has received all packets sent so far.
fn drain(node: &Node, sent: u64) {
    let until = Instant::now() + BOUND;
    while node.counter("packets_received") + node.counter("drop_receive_queue_full") < sent {
        assert!(Instant::now() < until, "the device stopped: {:#?}", node.device_counters());
        std::thread::yield_now();
    }
}

fn reconnect(qp: &dyn QueuePair, peer: IpAddr) {
    qp.modify(&QpModify { state: Some(QpState::Reset), ..QpModify::default() }).unwrap();
    bring_up_with(qp, peer, QpNumber::new(0x4711));
}

#[test]
fn hostile_peer_does_not_harm_other_connections() {
    let hub = Hub::new();
    let options = || SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..common::udp() };
    let node = Node::open(options(), 16_384);
    let friend = Node::open(options(), 4096);
    let (ini, _tgt) = connect(&friend, &node);

    // Inaccessible memory, with one region in another PD and one without remote rights.
    let other_pd = node.device.alloc_pd().unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let (foreign, private) = (Memory::zeroed(16_384).unwrap(), Memory::zeroed(16_384).unwrap());
    let foreign_region = other_pd.register(Arc::clone(&foreign), rights).unwrap();
    let private_region = node.pd.register(Arc::clone(&private), Access::LOCAL_WRITE).unwrap();

    let channel = node.cm_channel();
    let _listener = node.listen(SocketAddr::new(node.address, 7), &channel).unwrap();

    let source = common::address();
    let mut link = hub.link().unwrap();
    link.open(source).unwrap();
    let mut attacker = Attacker {
        random: Random(0x5eed),
        link,
        source: SocketAddr::new(source, ROCE_PORT),
        destination: SocketAddr::new(node.address, ROCE_PORT),
        batch: SendBatch::new(),
    };
    let victims = [node.qp(QpType::XrcTgt), node.qp(QpType::XrcIni)];
    let mut numbers: Vec<QpNumber> = victims.iter().map(|qp| qp.number()).collect();
    numbers.push(ini.number());
    numbers.push(QpNumber::new(0x123));
    let srq = node.srq.number().unwrap();
    let srqs = [srq, srq, srq, SrqNumber::new(5)];
    let keys = [node.region.rkey(), foreign_region.rkey(), private_region.rkey()];

    let before = node.counter("packets_received");
    for sent in 0..PACKETS {
        if sent % 50 == 0 {
            drain(&node, before + sent as u64);
            for victim in &victims {
                if victim.query().unwrap().state != QpState::ReadyToSend {
                    reconnect(&**victim, source);
                }
            }
            while node.cq.poll(&mut [Completion::default(); 16]) > 0 {}
            if sent % 400 == 0 {
                node.receive(1, 4096, 1024);
            }
            post(&*victims[1], SendOperation::RdmaRead(node.remote(0)), &[node.sge(8192, 64)], &*node.srq);
            while channel.next_event().is_some() {}
            while node.device.next_async_event().is_some() {}
        }
        let around = *attacker.random.pick(&[node.memory.address(0), foreign.address(0), private.address(0)]);
        if attacker.random.one_in(20) {
            attacker.message();
        } else {
            attacker.packet(&numbers, &srqs, &keys, around);
        }
    }
    drain(&node, before + PACKETS as u64);

    for (memory, whose) in [(&foreign, "another PD's"), (&private, "private")] {
        let mut bytes = vec![0; memory.len()];
        memory.read(0, &mut bytes).unwrap();
        assert!(bytes.iter().all(|byte| *byte == 0), "{whose} memory was written");
    }
    for cause in ["drop_bad_icrc", "drop_malformed", "drop_unknown_qp", "fatal_nak_sent", "requests_received"]
    {
        assert!(node.counter(cause) > 0, "the attack never led to {cause}: {:#?}", node.device_counters());
    }
    // The connection of the other peer is not affected.
    for victim in &victims {
        victim.destroy().unwrap();
    }
    while node.cq.poll(&mut [Completion::default(); 16]) > 0 {}
    post(&*ini, SendOperation::RdmaWrite(node.remote(12_000)), &[friend.sge(0, 64)], &*node.srq);
    assert_eq!(friend.completion().status, CompletionStatus::Success);
}
