//! Datagrams for QP 1 that do not contain a valid message of the connection manager, and checks of their source
//! addresses. The fields of messages are tested in `transport/roce/src/cm/tests/nonsense.rs`.

use crate::common::address;
use crate::common::by_hand::ByHand;
use crate::common::host::Host;
use crate::common::node::{BOUND, Node, next_event, next_request};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Instant;
use trunkline_roce::cm::{CmConfig, CmMachine, Connect, Transport};
use trunkline_roce::wire::cm::{CmMessage, Ids};
use trunkline_roce::wire::{ICRC_LENGTH, IpUdp, MAD_BYTES, Mad, Opcode, Packet, ROCE_PORT, icrc, mad_packet};
use trunkline_softrdma::link::{Link, ReceiveBatch};
use trunkline_testkit::wait_until;
use trunkline_verbs::{CmEventKind, Completion, Mtu, OneFlow, PortSpace, Psn, QpNumber};

/// Port of the listener.
const PORT: u16 = 7;

/// A change that invalidates a packet, and the counter of the resulting drop.
type Spoiled = (fn(&mut Packet<'_>), &'static str);

const SPOILED: &[Spoiled] = &[
    (|packet| packet.bth.pkey = 0x1234, "drop_wrong_pkey"),
    (|packet| packet.bth.destination = QpNumber::new(0), "drop_unknown_qp"),
    (|packet| packet.bth.version = 1, "drop_malformed"),
    (|packet| packet.bth.opcode = Opcode(0x7f), "drop_malformed"),
    (|packet| packet.bth.opcode = Opcode(0x04), "drop_bad_mad"),
    (
        |packet| {
            packet.deth = packet.deth.map(|mut deth| {
                deth.qkey ^= 1;
                deth
            })
        },
        "drop_bad_mad",
    ),
];

/// Returns a valid message, which is an RTU for a connection that does not exist.
fn rtu() -> Mad {
    CmMessage::Rtu(Ids { local_id: 0x7777_7777, remote_id: 0x7777_7778, private: [0; 224] }).mad(7)
}

fn bytes_of(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    packet.emit(&mut bytes);
    bytes
}

/// Sends a packet. Returns the counters that it incremented, either the cause of a drop or `cm_received`.
fn counted(hands: &mut ByHand, bytes: Vec<u8>) -> Vec<&'static str> {
    counted_with(hands, bytes, |_| {})
}

/// Sends a packet as [`counted`] does; `headers` may change the headers that the ICRC covers.
fn counted_with(hands: &mut ByHand, bytes: Vec<u8>, headers: impl FnOnce(&mut IpUdp)) -> Vec<&'static str> {
    let counts = |node: &Node| {
        let mut counters = node.device_counters();
        counters.retain(|counter| counter.name.starts_with("drop_") || counter.name == "cm_received");
        counters
    };
    let (before, received) = (counts(&hands.node), hands.node.counter("packets_received"));
    hands.send_bytes(bytes, headers);
    let until = Instant::now() + BOUND;
    while hands.node.counter("packets_received") == received {
        assert!(Instant::now() < until, "the device stopped: {:#?}", hands.node.device_counters());
        hands.node.cq.poll(&mut [Completion::default()]);
    }
    let both = counts(&hands.node).into_iter().zip(before);
    both.filter(|(after, before)| after.value > before.value).map(|(after, _)| after.name).collect()
}

#[test]
fn mads_of_wrong_length_or_kind_are_dropped() {
    let mut hands = ByHand::new(ROCE_PORT);
    for length in (0..=MAD_BYTES + 64).chain([512, 1024, 2048, 4096]) {
        let mut payload = rtu().to_bytes().to_vec();
        payload.resize(length, 0);
        let mut packet = Packet { payload: &payload, ..mad_packet(Psn::new(1), &[0; MAD_BYTES]) };
        packet.bth.pad = u8::try_from(length.next_multiple_of(4) - length).unwrap();
        let expected = if length == MAD_BYTES { "cm_received" } else { "drop_bad_mad" };
        assert_eq!(counted(&mut hands, bytes_of(&packet)), [expected], "{length} bytes");
    }
    let mad = rtu().to_bytes();
    let valid = mad_packet(Psn::new(1), &mad);
    for (spoil, cause) in SPOILED {
        let mut packet = mad_packet(Psn::new(1), &mad);
        spoil(&mut packet);
        assert_eq!(counted(&mut hands, bytes_of(&packet)), [*cause]);
    }
    for length in 0..valid.emitted_len() {
        let cut = bytes_of(&valid)[..length].to_vec();
        let causes = counted(&mut hands, cut);
        assert!(matches!(causes[..], ["drop_malformed" | "drop_bad_mad"]), "cut to {length}: {causes:?}");
    }
}

/// On one host, any program can send from any port of a peer's address, but only the peer has port 4791
/// there.
#[test]
fn answers_go_to_port_4791_for_any_source_port() {
    let mut hands = ByHand::new(40_000);
    let mad = rtu().to_bytes();
    assert_eq!(counted(&mut hands, bytes_of(&mad_packet(Psn::new(1), &mad))), ["cm_received"]);
    let mut received = ReceiveBatch::new(64);
    hands.link.receive(&mut received);
    let answers: Vec<_> = received.iter().collect();
    let [answer] = answers.as_slice() else { panic!("{} answers", answers.len()) };
    assert_eq!(answer.destination, SocketAddr::new(hands.source.ip(), ROCE_PORT));
    let packet = Packet::parse(&answer.bytes[..answer.bytes.len() - ICRC_LENGTH]).unwrap();
    assert!(matches!(CmMessage::parse(&Mad::from_packet(&packet).unwrap()), CmMessage::Rej(_)));
}

/// Builds a REQ for the listener, with this QP number.
fn request_of(number: u32, from: IpAddr, to: IpAddr, one_flow: OneFlow) -> Mad {
    let connect = Connect {
        local: SocketAddr::new(from, 0x4321),
        remote: SocketAddr::new(to, PORT),
        port_space: PortSpace::Ib,
        transport: Transport::Xrc,
        qpn: QpNumber::new(number),
        starting_psn: Psn::new(99),
        mtu: Mtu::Mtu1024,
        responder_resources: 0,
        initiator_depth: 4,
        retry_count: 0,
        rnr_retry: 0,
        ack_timeout: 14,
        flow_control: false,
        traffic_class: 0,
        srq: false,
        ports: trunkline_verbs::UdpPorts::new(4791),
        one_flow,
        retry_refused: false,
        private: &[],
    };
    let mut machine = CmMachine::new(CmConfig::new(0x5054_00ff_fe00_0001, number.into()));
    machine.connect(0, &connect).unwrap();
    machine.poll_transmit().unwrap().mad
}

#[test]
fn requests_from_all_unregistered_addresses_of_this_host_have_one_limit() {
    let host = Host::new();
    let [node, member] = [(); 2].map(|()| Node::open(host.options(), 4096));
    let channel = node.cm_channel();
    let at = SocketAddr::new(node.address, PORT);
    let _listener = node.listen(at, &channel).unwrap();
    // Requests stay undecided as long as their endpoints exist.
    let mut undecided = Vec::new();
    let sockets = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(address(), ROCE_PORT)).unwrap());
    for number in 0..300 {
        let socket = &sockets[usize::from(number % 2 == 1)];
        let source = socket.local_addr().unwrap();
        let mad = request_of(0x100 + number, source.ip(), node.address, OneFlow::No).to_bytes();
        let mut bytes = bytes_of(&mad_packet(Psn::new(1), &mad));
        let to = SocketAddr::new(node.address, ROCE_PORT);
        icrc::append(&IpUdp::new(source, to), &mut bytes);
        socket.send_to(&bytes, to).unwrap();
        wait_until("the request is handled", BOUND, || {
            (node.counter("cm_received") > u64::from(number)).then_some(())
        });
        undecided.extend(channel.next_event().map(|event| event.kind));
    }
    assert_eq!((undecided.len(), node.counter("cm_limit")), (256, 300 - 256));
    assert!(undecided.iter().all(|kind| matches!(kind, CmEventKind::ConnectRequest { .. })));
    // Requests from a process of this user have a separate limit.
    let member_channel = member.cm_channel();
    let _asked = member.ask(at, &member_channel);
    next_request(&*channel);
}

/// The addresses named by a peer behind an address translator differ from the addresses of its packets.
#[test]
fn request_for_one_flow_is_answered_at_its_source_despite_named_addresses() {
    let mut hands = ByHand::new(40_000);
    let [named, dialled] = [[192, 168, 0, 5], [192, 0, 2, 7]].map(|ip| SocketAddr::from((ip, ROCE_PORT)));
    hands.link.open(named.ip()).unwrap();
    let mut send = |mad: &Mad, covered: IpUdp| {
        let counted =
            counted_with(&mut hands, bytes_of(&mad_packet(Psn::new(1), &mad.to_bytes())), |headers| {
                *headers = covered
            });
        let mut received = ReceiveBatch::new(64);
        hands.link.receive(&mut received);
        let answers = received.iter().map(|answer| (answer.destination, answer.bytes.to_vec()));
        (counted, answers.collect::<Vec<_>>())
    };
    let view = IpUdp::new(named, dialled);
    let request = |one_flow| request_of(0x100, named.ip(), dialled.ip(), one_flow);
    let (counted, answers) = send(&request(OneFlow::Yes), view);
    assert_eq!(counted, ["cm_received"]);
    let [(destination, answer)] = &answers[..] else { panic!("{} answers", answers.len()) };
    assert_eq!(destination.port(), 40_000, "{destination}");
    assert!(icrc::check(&IpUdp::new(dialled, named), answer), "the answer's ICRC covers what the peer sees");
    let dropped = (vec!["drop_bad_icrc"], Vec::new());
    assert_eq!(send(&request(OneFlow::Yes), IpUdp::new(dialled, named)), dropped);
    assert_eq!(send(&request(OneFlow::No), view), dropped);
    assert_eq!(send(&rtu(), view), dropped, "of a connection that does not exist");
}

/// The TGT of a peer behind an address translator accepts packets only from the peer's translated address.
#[test]
fn target_accepts_only_translated_address_of_peer() {
    let mut hands = ByHand::new(40_000);
    let (peer, stranger) = (hands.source, SocketAddr::new(address(), 40_000));
    let [named, dialled] = [[192, 168, 0, 5], [192, 0, 2, 7]].map(|ip| SocketAddr::from((ip, ROCE_PORT)));
    for address in [stranger, named] {
        hands.link.open(address.ip()).unwrap();
    }
    let channel = hands.node.cm_channel();
    let _listener = hands.node.listen(SocketAddr::new(hands.node.address, PORT), &channel).unwrap();
    let view = IpUdp::new(named, dialled);
    // Returns the destinations of the answers, whose ICRCs must match the view, and the first PSN of a REP
    // among them.
    let answers = |hands: &mut ByHand| {
        let (mut received, mut to, mut starting_psn) = (ReceiveBatch::new(64), Vec::new(), None);
        hands.link.receive(&mut received);
        for answer in received.iter() {
            assert!(icrc::check(&IpUdp::new(dialled, named), answer.bytes), "{}", answer.destination);
            let packet = Packet::parse(&answer.bytes[..answer.bytes.len() - ICRC_LENGTH]).unwrap();
            match Mad::from_packet(&packet).map(|mad| CmMessage::parse(&mad)) {
                None => to.push(answer.destination),
                Some(CmMessage::Rep(rep)) => starting_psn = Some(rep.starting_psn),
                Some(message) => panic!("{message:?}"),
            }
        }
        (to, starting_psn)
    };
    let send = |hands: &mut ByHand, from, covered: IpUdp, packet: &Packet<'_>| {
        hands.source = from;
        let counted = counted_with(hands, bytes_of(packet), |headers| *headers = covered);
        (counted, answers(hands).0)
    };
    let request = request_of(0x100, named.ip(), dialled.ip(), OneFlow::Yes).to_bytes();
    let connect = |hands: &mut ByHand, from| {
        assert_eq!(send(hands, from, view, &mad_packet(Psn::new(1), &request)).0, ["cm_received"]);
        let id = next_request(&*channel);
        let tgt = hands.node.accept(&*id);
        let starting_psn = wait_until("a REP is sent", BOUND, || {
            hands.node.cq.poll(&mut [Completion::default()]);
            answers(hands).1
        });
        (id, tgt, starting_psn)
    };
    let (_peer_id, tgt, psn) = connect(&mut hands, peer);
    let [first, second] = [psn, psn.plus(1)].map(|psn| {
        let mut packet = hands.message(psn, true);
        packet.bth.destination = tgt.number();
        packet
    });
    let acknowledged = (vec![], vec![peer]);
    assert_eq!(send(&mut hands, peer, view, &first), acknowledged);
    assert!(matches!(next_event(&*channel).kind, CmEventKind::Established));
    // A stranger makes the same request, which names the addresses of the peer.
    let (_stranger_id, other, _) = connect(&mut hands, stranger);
    assert_ne!(other.number(), tgt.number());
    let dropped = (vec!["drop_wrong_address"], vec![]);
    assert_eq!(send(&mut hands, stranger, view, &second), dropped);
    let plain = IpUdp::new(named, SocketAddr::new(hands.node.address, ROCE_PORT));
    assert_eq!(send(&mut hands, named, plain, &second), dropped, "the address that the peer names");
    // Another program at the peer's address does not receive the PSN, since the answer goes to the peer.
    let elsewhere = SocketAddr::new(peer.ip(), 50_000);
    assert_eq!(send(&mut hands, elsewhere, view, &first), acknowledged);
    assert_eq!(send(&mut hands, peer, view, &second), acknowledged);
}
