//! Tests of members at one address: routing of datagrams, hostile members, and the take-over from a dead
//! holder.

use super::super::{Link, SendBatch, UdpLink};
use super::*;
use crate::host::testing::hosts;
use crate::host::{MAX_QUEUED, MemberMessage, PortHolder};
use std::sync::Arc;
use std::time::Duration;
use trunkline_roce::wire::cm::{Answered, Dreq, Ids, Rej, SidrRep, SidrReq};
use trunkline_roce::wire::{Opcode, mad_packet};
use trunkline_testkit::Folder;
use trunkline_testkit::wait_until;
use trunkline_verbs::{Clock, PortSpace, Psn, QpNumber, RejectReason, SidrStatus, Time};

/// Time limit for waits, long enough for a loaded machine.
const BOUND: Duration = Duration::from_secs(60);
/// Origin of a datagram whose sender is unknown.
const ORIGIN: Origin = Origin { is_member: false, verdict: None, is_marked: true };

fn now() -> Time {
    Clock::monotonic().now()
}

/// Source, destination and bytes of a datagram that has arrived.
type Arrival = (SocketAddr, SocketAddr, Vec<u8>);

/// A member with its link.
struct Member {
    host: Arc<Host>,
    link: UdpLink,
    numbers: Vec<u32>,
}

impl Member {
    fn new(folder: &Folder) -> Self {
        let host = Host::join(Some(&folder.join("run"))).unwrap();
        let link = UdpLink::new().of_members(Some(&Members::new(Arc::clone(&host)).unwrap()), None);
        let numbers = host.take_block(0).unwrap().map(|index| host.number_of(index)).collect();
        Self { host, link, numbers }
    }

    fn at(folder: &Folder, address: IpAddr) -> Self {
        let mut member = Self::new(folder);
        member.link.open(address).unwrap();
        member
    }

    fn send(&mut self, from: IpAddr, to: SocketAddr, messages: &[Vec<u8>]) {
        let source = self.link.source(from);
        let mut batch = SendBatch::new();
        for bytes in messages {
            batch.push(Datagram { source, destination: to, bytes });
        }
        while !batch.is_empty() {
            self.link.send(&mut batch, now());
        }
    }

    /// Receives the datagrams that have arrived, and forwards them if necessary. Sent datagrams may arrive
    /// later.
    fn receive(&mut self) -> Vec<Arrival> {
        let mut batch = ReceiveBatch::new(64);
        let mut all = Vec::new();
        // While no messages arrive, other members are polled rarely, unless the link is armed.
        self.link.arm();
        while self.link.receive(&mut batch) > 0 {
            all.extend(batch.iter().map(|got| (got.source, got.destination, got.bytes.to_vec())));
        }
        all
    }

    fn counter(&self, name: &str) -> u64 {
        let mut all = Vec::new();
        self.link.counters(&mut all);
        all.iter().find(|counter| counter.name == name).unwrap().value
    }
}

/// Receives at all members until each has received at least its count.
fn gather<const N: usize>(mut members: [&mut Member; N], counts: [usize; N]) -> [Vec<Arrival>; N] {
    let mut all = [const { Vec::new() }; N];
    wait_until("the datagrams to arrive", BOUND, || {
        for (member, arrived) in members.iter_mut().zip(&mut all) {
            arrived.extend(member.receive());
        }
        all.iter().zip(counts).all(|(arrived, count)| arrived.len() >= count).then_some(())
    });
    all
}

/// Returns an address in 127.0.0.0/8 that no other test uses, in this process or another.
fn own_address() -> IpAddr {
    trunkline_testkit::fresh_ip().into()
}

fn to_port(address: IpAddr) -> SocketAddr {
    SocketAddr::new(address, 4791)
}

/// Returns a packet for a QP without a valid ICRC, which a holder does not check.
fn packet(number: u32, mark: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    Packet::new(Opcode(0x04), QpNumber::new(number), Psn::new(1), &[mark; 20]).emit(&mut bytes);
    bytes.extend([0xee; ICRC_LENGTH]);
    bytes
}

fn cm_packet(message: &CmMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    mad_packet(Psn::new(1), &message.mad(7).to_bytes()).emit(&mut bytes);
    bytes.extend([0xee; ICRC_LENGTH]);
    bytes
}

#[test]
fn packet_to_port_4791_reaches_owner_of_qp_number() {
    let folder = Folder::new().unwrap();
    let (address, sender_address) = (own_address(), own_address());
    let mut holder = Member::at(&folder, address);
    let mut others = [Member::at(&folder, address), Member::at(&folder, address)];
    let mut peer = UdpLink::new();
    peer.open(sender_address).unwrap();
    assert_eq!(holder.link.source(address), to_port(address));
    let ports = [0, 1].map(|index: usize| others[index].link.source(address).port());
    assert!(ports[0] != ports[1] && !ports.contains(&4791), "{ports:?}");

    let mut batch = SendBatch::new();
    let nobody = 0x00ab_cdef;
    let numbers = [holder.numbers[0], others[0].numbers[0], others[1].numbers[63], nobody];
    for round in 0..40 {
        for number in numbers {
            let bytes = packet(number, round);
            batch.push(Datagram {
                source: to_port(sender_address),
                destination: to_port(address),
                bytes: &bytes,
            });
        }
    }
    while !batch.is_empty() {
        peer.send(&mut batch, now());
    }
    let of =
        |number| (0..40).map(move |round| (to_port(sender_address), to_port(address), packet(number, round)));
    let [first, second] = &mut others;
    let [kept, of_first, of_second] = gather([&mut holder, first, second], [80, 40, 40]);
    assert_eq!(kept.len(), 80, "its own packets, and those that no member owns");
    assert!(of(numbers[0]).chain(of(nobody)).all(|expected| kept.contains(&expected)));
    for (arrived, number) in [of_first, of_second].iter().zip(&numbers[1..]) {
        assert_eq!(*arrived, of(*number).collect::<Vec<_>>());
    }
    assert_eq!((holder.counter("relayed_to_members"), holder.counter("drop_not_relayed")), (80, 0));
    assert_eq!(others[0].counter("relayed_from_members"), 40);

    // Members also exchange datagrams directly, from the sender's own port to the receiver's own port instead of
    // port 4791.
    let to = others[0].link.source(address);
    others[1].send(address, to, &[packet(1, 1)]);
    let [arrived] = gather([&mut others[0]], [1]);
    assert_eq!(arrived, [(others[1].link.source(address), to, packet(1, 1))]);
}

/// Offset of the comm id, after BTH, DETH and the header of the MAD.
const FIRST_BYTE_OF_COMM_ID: usize = 12 + 8 + 24;

#[test]
fn cm_messages_are_routed_by_service_or_by_slot_in_comm_id() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let mut holder = Member::at(&folder, address);
    let mut other = Member::at(&folder, address);
    let service = ServiceId::new(PortSpace::Ib, 7471);
    let claim = other.host.claim_service(service.0, address, false).unwrap();
    let slots = [holder.host.me().slot, other.host.me().slot, 1000];
    let ids = slots.map(|slot| holder.host.comm_ids().of_slot(slot).number_of(5));
    let req = |service| {
        let data = [0; trunkline_roce::wire::MAD_DATA_BYTES];
        let mad = Mad {
            header: trunkline_roce::wire::MadHeader::cm(1, trunkline_roce::wire::Attribute::REQ),
            data,
        };
        let CmMessage::Req(req) = CmMessage::parse(&mad) else { panic!() };
        cm_packet(&CmMessage::Req(trunkline_roce::wire::cm::Req { service_id: service, ..req }))
    };
    let sidr_req = |service_id| {
        let (pkey, private) = (0xffff, [0; trunkline_roce::wire::cm::SIDR_REQ_PRIVATE_BYTES]);
        cm_packet(&CmMessage::SidrReq(SidrReq { request_id: 1, pkey, reserved_6: 0, service_id, private }))
    };
    let mut messages = vec![req(service), req(ServiceId::new(PortSpace::Ib, 7472))];
    for remote_id in ids {
        messages.push(cm_packet(&CmMessage::Rtu(Ids { local_id: 1, remote_id, private: [0; 224] })));
        let dreq = Dreq { local_id: 1, remote_id, qpn: QpNumber::new(9), reserved_11: 0, private: [0; 220] };
        messages.push(cm_packet(&CmMessage::Dreq(dreq)));
    }
    // A truncated message, and a packet without a MAD, are not for any member.
    messages.push(messages[0][..60].to_vec());
    messages.push(packet(1, 3));
    // SIDR requests are routed by service, and SIDR replies by the requester's id.
    messages.push(sidr_req(service));
    messages.push(sidr_req(ServiceId::new(PortSpace::Udp, 7472)));
    for request_id in ids {
        messages.push(cm_packet(&CmMessage::SidrRep(SidrRep {
            request_id,
            status: SidrStatus::SUCCESS,
            info_length: 0,
            vendor_6: 0,
            qpn: QpNumber::new(9),
            vendor_11: 0,
            service_id: service,
            qkey: 1,
            info: [0; 72],
            private: [0; 136],
        })));
    }
    other.send(address, to_port(address), &messages);
    let payloads = |holder: &mut Member, other: &mut Member, counts: [usize; 2]| {
        let arrived = gather([holder, other], counts);
        arrived.map(|arrived| arrived.into_iter().map(|(_, _, bytes)| bytes).collect::<Vec<_>>())
    };
    let pick = |places: &[usize]| places.iter().map(|place| messages[*place].clone()).collect::<Vec<_>>();
    let expected = [pick(&[1, 2, 3, 6, 7, 8, 9, 11, 12, 14]), pick(&[0, 4, 5, 10, 13])];
    assert_eq!(payloads(&mut holder, &mut other, [10, 5]), expected);
    // A withdrawal from a peer that has not received a comm id yet goes to the member that got the request.
    let withdrawal = |local_id| {
        let (reason, answered) = (RejectReason::TIMEOUT, Answered::OTHER);
        cm_packet(&CmMessage::Rej(Rej {
            local_id,
            remote_id: 0,
            answered,
            reserved_8: 0,
            info_length: 8,
            reserved_9: false,
            reason,
            info: [0; 72],
            private: [0; 148],
        }))
    };
    // The request above has the id 0.
    let rejs = [withdrawal(0), withdrawal(1234)];
    other.send(address, to_port(address), &rejs);
    let expected = [rejs[1..].to_vec(), rejs[..1].to_vec()];
    assert_eq!(payloads(&mut holder, &mut other, [1, 1]), expected);
    drop(claim);
    // A repeated request still goes to the same member. A new request stays with the holder.
    other.send(address, to_port(address), &messages[..1]);
    assert_eq!(payloads(&mut holder, &mut other, [0, 1]), [vec![], pick(&[0])]);
    let mut new = messages[0].clone();
    new[FIRST_BYTE_OF_COMM_ID] ^= 1;
    other.send(address, to_port(address), &[new.clone()]);
    assert_eq!(payloads(&mut holder, &mut other, [1, 0]), [vec![new], vec![]]);
    // Forged requests do not grow the table of requests beyond its limit.
    let _claim = other.host.claim_service(service.0, address, false).unwrap();
    for number in 0..3 * u32::try_from(MAX_REQUESTS).unwrap() {
        let mut forged = messages[0].clone();
        forged[FIRST_BYTE_OF_COMM_ID..][..4].copy_from_slice(&number.to_be_bytes());
        other.send(address, to_port(address), &[forged]);
        gather([&mut holder, &mut other], [0, 1]);
    }
    let remembered = holder.link.relay_for_tests().requests.len();
    assert!(remembered > 0 && remembered <= MAX_REQUESTS, "{remembered}");
}

/// Time after a take-over within which the other members become idle.
const SETTLED: Duration = Duration::from_secs(2);

/// A thread that polls shared memory rarely receives from the link.
#[test]
fn other_members_are_polled_in_time_despite_rare_receives() {
    let (_folder, [host, other]) = hosts();
    let [members, others] = [&host, &other].map(|host| Members::new(Arc::clone(host)).unwrap());
    let mut relay = Relay::new(members, None);
    let mut batch = ReceiveBatch::new(8);
    let mut take = |relay: &mut Relay, ns| {
        let mut place = RelayPlace {
            batch: &mut batch,
            sent: &mut SendBatch::new(),
            is_open: &|_| true,
            is_main: &|_| false,
        };
        relay.take(&mut place, Some(Time(ns)));
        relay.counts.nonsense
    };
    take(&mut relay, 0);
    others.send(host.me(), DATAGRAMS, &[b"no datagram"]).unwrap();
    wait_until("the message", BOUND, || relay.has_arrivals().then_some(()));
    assert_eq!(take(&mut relay, LOOK_AFTER_NS - 1), 0);
    wait_until("the message to be read", BOUND, || (take(&mut relay, LOOK_AFTER_NS) == 1).then_some(()));
}

#[test]
fn member_takes_over_port_of_leaving_holder_and_keeps_its_own_port() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let mut peer = Member::at(&folder, own_address());
    let holder = Member::at(&folder, address);
    let mut others = [Member::at(&folder, address), Member::at(&folder, address)];
    let ports = [0, 1].map(|index: usize| others[index].link.source(address));
    assert_eq!(holder.host.port_holder(address), PortHolder::Alive(holder.host.me()));
    drop(holder);
    let start = now();
    let mut taken = Duration::MAX;
    let mut batch = ReceiveBatch::new(8);
    while now() - start < BOUND {
        for member in &mut others {
            member.link.arm();
            member.link.receive(&mut batch);
            if member.link.next_timeout().is_some_and(|when| when <= now()) {
                member.link.poll(now());
            }
        }
        if others.iter().any(|member| member.link.changes() > 0) {
            taken = taken.min(now() - start);
            if now() - start > taken + SETTLED
                || others.iter().all(|member| member.link.next_timeout().is_none())
            {
                break;
            }
        }
    }
    assert!(taken < BOUND, "{taken:?}");
    let new = others.iter().position(|member| member.link.changes() > 0).unwrap();
    assert_eq!(others[new].host.port_holder(address), PortHolder::Alive(others[new].host.me()));
    assert_eq!(others[1 - new].link.changes(), 0);
    assert_eq!(others[new].link.fds().len(), 3);
    let number = others[1 - new].numbers[0];
    peer.link.open(address).unwrap();
    for (index, member) in others.iter().enumerate() {
        assert_eq!(member.link.source(address), ports[index], "peers use that port");
    }
    let sender_address = peer.link.source(address);
    peer.send(address, ports[new], &[packet(3, 3)]);
    let [arrived] = gather([&mut others[new]], [1]);
    assert_eq!(arrived, [(sender_address, ports[new], packet(3, 3))]);
    peer.send(address, to_port(address), &[packet(number, 4)]);
    let arrived = gather(others.each_mut(), [0, 1].map(|index: usize| usize::from(index != new)));
    assert_eq!(arrived[new], []);
    assert_eq!(arrived[1 - new], [(sender_address, to_port(address), packet(number, 4))]);

    // Repeat with the remaining members, which watch the new holder.
    let [a, b] = others;
    let (gone, mut left) = if new == 0 { (a, b) } else { (b, a) };
    drop(gone);
    let start = now();
    while left.link.changes() == 0 && now() - start < BOUND {
        left.receive();
        peer.receive();
        let at = now();
        left.link.poll(at);
        peer.link.poll(at);
        if peer.link.changes() > 0 {
            break;
        }
    }
    assert!(now() - start < BOUND, "{:?}", now() - start);
}

#[test]
fn port_bound_by_foreign_program_is_in_use() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let _foreign = std::net::UdpSocket::bind((address, 4791)).unwrap();
    let error = Member::new(&folder).link.open(address).unwrap_err();
    assert!(matches!(error, super::super::LinkError::AddressInUse { .. }), "{error}");
}

#[test]
fn datagrams_for_non_reading_member_are_dropped_and_not_queued() {
    let folder = Folder::new().unwrap();
    let (address, sender_address) = (own_address(), own_address());
    let mut holder = Member::at(&folder, address);
    let mut silent = Member::at(&folder, address);
    let mut peer = Member::at(&folder, sender_address);
    let mut one = packet(silent.numbers[0], 9);
    one.resize(4000, 0xee);
    let flood = vec![one; 50];
    let (mut all, mut rounds) = (0, 0);
    wait_until("datagrams to be dropped", BOUND, || {
        peer.send(sender_address, to_port(address), &flood);
        assert_eq!(holder.receive(), []);
        all += flood.len() as u64;
        rounds += 1;
        let relay = holder.link.relay_for_tests();
        assert!(relay.bundles.is_empty() && relay.spare.len() <= MAX_BUNDLES);
        (rounds >= 200 && holder.counter("drop_not_relayed") > 0).then_some(())
    });
    let (left, dropped) = (holder.counter("relayed_to_members"), holder.counter("drop_not_relayed"));
    assert!(left > 0 && dropped > 0 && left + dropped <= all, "{left} and {dropped} of {all}");
    let [arrived] = gather([&mut silent], [usize::try_from(left).unwrap()]);
    assert_eq!(arrived.len() as u64, left);
}

#[test]
fn malformed_bundles_of_member_do_not_reach_batch() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let mut victim = Member::at(&folder, address);
    let host = Host::join(Some(&folder.join("run"))).unwrap();
    let hostile = Members::new(host).unwrap();
    let to = victim.host.me();
    let good = |destination: SocketAddr, length: usize| {
        let mut bundle = Vec::new();
        let source = "127.0.0.1:4792".parse().unwrap();
        write(Datagram { source, destination, bytes: &vec![1; length] }, ORIGIN, &mut bundle);
        bundle
    };
    let fine = good(to_port(address), 64);
    let with = |at: usize, byte: u8| {
        let mut bytes = fine.clone();
        bytes[at] = byte;
        bytes
    };
    let nonsense = [
        vec![0],
        vec![0xff; MAX_MESSAGE_BYTES],
        fine[..HEADER_BYTES - 1].to_vec(),
        fine[..fine.len() - 1].to_vec(),
        with(2, 5),
        with(25, 1),
        with(5, 1),
        good(to_port(own_address()), 64),
        good(SocketAddr::new("fd00::1".parse().unwrap(), 4791), 64),
        good(to_port(address), MAX_DATAGRAM_BYTES + 1),
    ];
    for (index, bytes) in nonsense.iter().enumerate() {
        hostile.send(to, DATAGRAMS, &[bytes]).unwrap();
        wait_until("it to be counted", BOUND, || {
            assert_eq!(victim.receive(), [], "{index}");
            (victim.counter("drop_relayed_nonsense") == index as u64 + 1).then_some(())
        });
    }
    // Datagrams before the malformed part are received, and later ones are not.
    hostile.send(to, DATAGRAMS, &[&fine, &fine, b"x", &fine]).unwrap();
    let [arrived] = gather([&mut victim], [2]);
    assert_eq!(arrived.len(), 2);
    hostile.send(to, 77, &[b"for the device"]).unwrap();
    let from = hostile.host().me();
    let message = MemberMessage::Message { from, kind: 77, bytes: b"for the device".to_vec() };
    let arrived = wait_until("the message for the device", BOUND, || {
        assert_eq!(victim.receive(), []);
        victim.link.relay_for_tests().members().next_message()
    });
    assert_eq!(arrived, message);
    // While the device does not take the queued messages, further ones stay in their socket.
    for _ in 0..3 * MAX_QUEUED {
        let _full = hostile.send(to, 77, &[b"more"]);
        victim.receive();
    }
    assert!(victim.link.relay_for_tests().members().queued_for_tests() <= MAX_QUEUED);
    let full = (0..100_000).any(|_| {
        victim.receive();
        hostile.send(to, 77, &[&[0; 4096]]).is_err()
    });
    assert!(full && victim.link.relay_for_tests().members().queued_for_tests() <= MAX_QUEUED);
    drop(hostile);
    while victim.link.relay_for_tests().members().next_message().is_some() {
        victim.receive();
    }
}

#[test]
fn datagram_origin_round_trips_through_byte() {
    for verdict in VERDICTS {
        for (is_member, is_marked) in [(false, false), (false, true), (true, false), (true, true)] {
            let origin = Origin { is_member, verdict, is_marked };
            assert_eq!(origin_of(byte_of(origin)), origin);
        }
    }
}

#[test]
fn floods_by_udp_and_by_members_leave_room_for_each_other() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let mut victim = Member::at(&folder, address);
    let mut other = Member::at(&folder, address);
    let (own, to) = (victim.numbers[0], victim.host.me());
    let mut bundle = Vec::new();
    for _ in 0..96 {
        let bytes = packet(own, 2);
        write(
            Datagram { source: to_port(address), destination: to_port(address), bytes: &bytes },
            ORIGIN,
            &mut bundle,
        );
    }
    // In a round in which datagrams arrive late, fewer come from UDP.
    wait_until("a batch with both", BOUND, || {
        victim.receive();
        for _ in 0..3 {
            other.send(address, to_port(address), &vec![packet(own, 1); 32]);
        }
        other.link.relay_for_tests().members().send(to, DATAGRAMS, &[&bundle]).unwrap();
        let mut batch = ReceiveBatch::new(64);
        victim.link.arm();
        let taken = victim.link.receive(&mut batch);
        let by_udp = batch.iter().filter(|got| got.bytes == packet(own, 1)).count();
        // Joined datagrams, which take more room, may come from UDP.
        (taken >= 64 && (by_udp, batch.len()) == (28, 60)).then_some(())
    });
}

#[test]
fn bundles_of_any_bytes_are_parsed_without_panic() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap()
    };
    for _ in 0..20_000 {
        let mut bundle = Vec::new();
        let address =
            to_port(if random() % 2 == 0 { [10, 0, 0, 1].into() } else { "fd00::1".parse().unwrap() });
        for _ in 0..random() % 4 {
            let bytes = vec![7; random() % 90];
            write(Datagram { source: address, destination: address, bytes: &bytes }, ORIGIN, &mut bundle);
        }
        let whole = Pieces { bytes: &bundle }.flatten().count();
        assert_eq!(whole, Pieces { bytes: &bundle }.count());
        for _ in 0..random() % 4 {
            if !bundle.is_empty() {
                let at = random() % bundle.len();
                bundle[at] = random().to_le_bytes()[0];
            }
        }
        bundle.truncate(random() % (bundle.len() + 1));
        for piece in (Pieces { bytes: &bundle }).flatten() {
            assert!(piece.0.bytes.len() <= MAX_DATAGRAM_BYTES);
        }
    }
}

#[test]
fn holder_sends_datagrams_of_other_members_from_port_4791() {
    let folder = Folder::new().unwrap();
    let address = own_address();
    let mut holder = Member::at(&folder, address);
    let mut other = Member::at(&folder, address);
    let socket = std::net::UdpSocket::bind((own_address(), 0)).unwrap();
    socket.set_nonblocking(true).unwrap();
    let to = socket.local_addr().unwrap();
    let mut batch = SendBatch::new();
    for source in [to_port(address), SocketAddr::new(address, 4792)] {
        batch.push(Datagram { source, destination: to, bytes: b"sealed" });
    }
    other.link.send(&mut batch, now());
    assert!(batch.is_empty());
    assert_eq!(other.counter("drop_send_address_not_open"), 1, "a port that nobody has");
    let mut bytes = [0; 64];
    let (length, from) = wait_until("the datagram", BOUND, || {
        assert_eq!(holder.receive(), []);
        socket.recv_from(&mut bytes).ok()
    });
    assert_eq!((from, &bytes[..length]), (to_port(address), &b"sealed"[..]));
    assert_eq!(holder.counter("sent_for_members"), 1);
}
