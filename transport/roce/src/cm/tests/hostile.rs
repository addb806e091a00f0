use super::network::{accept_with, address};
use super::*;
use crate::wire::cm::{
    AddressHeader, Answered, CmMessage, DREQ_PRIVATE_BYTES, Dreq, Req, ServiceId, TransportType,
};
use crate::wire::{Attribute, MAD_BYTES, Mad};
use std::net::IpAddr;
use trunkline_verbs::{AddressOwner, Gid, PortSpace, QpNumber, RejectReason};

/// Returns a good REQ from A to B, changed by `change`.
fn spoiled(change: impl FnOnce(&mut Req)) -> Mad {
    let mut machine = CmMachine::new(network::config(A));
    machine.connect(0, &connect_to(B, Transport::Rc, 0x17)).unwrap();
    let mad = machine.poll_transmit().unwrap().mad;
    let CmMessage::Req(mut req) = CmMessage::parse(&mad) else { panic!("not a REQ") };
    change(&mut req);
    CmMessage::Req(req).mad(mad.header.transaction)
}

/// Returns a good REQ of another peer, with ids of this number.
fn request_of(number: u32, peer: IpAddr, to: IpAddr) -> Mad {
    spoiled(|req| {
        req.local_id = number;
        req.qpn = QpNumber::new(0x100 + number);
        (req.primary.local_gid, req.primary.remote_gid) = (peer.into(), to.into());
        AddressHeader::new((peer, 1).into(), to).emit(&mut req.private);
    })
}

fn listening() -> CmMachine {
    let mut network = Network::new();
    std::mem::replace(&mut network.nodes[B].machine, CmMachine::new(network::config(B)))
}

/// Returns the reason with which a changed REQ is refused.
fn refusal(change: impl FnOnce(&mut Req)) -> Option<RejectReason> {
    let mut machine = listening();
    machine.handle_mad(0, address(A), address(B), &spoiled(change));
    let transmit = machine.poll_transmit()?;
    assert_eq!((transmit.from, transmit.to), (address(B), address(A)));
    assert_eq!(machine.connections(), 0);
    assert_eq!(machine.counters().dropped(CmDrop::Refused), 1);
    match CmMessage::parse(&transmit.mad) {
        CmMessage::Rej(rej) => {
            assert_eq!((rej.local_id, rej.answered), (0, Answered::REQ));
            Some(rej.reason)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    assert_eq!(refusal(|_| {}), None);
    let elsewhere = Gid::from("10.0.0.9".parse::<IpAddr>().unwrap());
    for qpn in [0, 1] {
        assert_eq!(refusal(|req| req.qpn = QpNumber::new(qpn)), Some(RejectReason::NO_QP));
    }
    for (service, extended) in [(1, 0), (2, 0), (3, 0), (3, 2), (3, 7)] {
        let transport = TransportType { service, extended };
        assert_eq!(refusal(|req| req.transport = transport), Some(RejectReason::INVALID_TRANSPORT_TYPE));
    }
    for mtu in [0, 6, 15] {
        assert_eq!(refusal(|req| req.mtu = mtu), Some(RejectReason::INVALID_PATH_MTU));
    }
    assert_eq!(refusal(|req| req.pkey = 0x8001), Some(RejectReason::UNSUPPORTED));
    assert_eq!(refusal(|req| req.pkey = 0x7fff), None);
    assert_eq!(refusal(|req| req.primary.local_gid = elsewhere), Some(RejectReason::INVALID_PRIMARY_GID));
    assert_eq!(refusal(|req| req.primary.remote_gid = elsewhere), Some(RejectReason::INVALID_PRIMARY_GID));
    assert_eq!(refusal(|req| req.private[0] = 1), Some(RejectReason::CONSUMER));
    assert_eq!(refusal(|req| req.private[1] = 0x50), Some(RejectReason::CONSUMER));
    let header = |source: &str, destination: &str| {
        AddressHeader::new(source.parse().unwrap(), destination.parse().unwrap())
    };
    let (from_elsewhere, to_elsewhere) = (header("10.0.0.9:1", "10.0.0.2"), header("10.0.0.1:1", "10.0.0.9"));
    for wrong in [from_elsewhere, to_elsewhere] {
        assert_eq!(refusal(|req| wrong.emit(&mut req.private)), Some(RejectReason::INVALID_SERVICE_ID));
    }
    for service in [0, 0x0106_0000, u64::MAX] {
        assert_eq!(
            refusal(|req| req.service_id = ServiceId(service)),
            Some(RejectReason::INVALID_SERVICE_ID)
        );
    }
}

#[test]
fn a_request_without_an_id_is_dropped() {
    let mut machine = listening();
    machine.handle_mad(0, address(A), address(B), &spoiled(|req| req.local_id = 0));
    assert_eq!(machine.poll_transmit(), None);
    assert_eq!(machine.counters().dropped(CmDrop::Malformed), 1);
}

#[test]
fn an_endless_timeout_is_cut() {
    for (asked, given) in [(0, 19), (31, 21), (14, 14)] {
        let mut machine = listening();
        machine.handle_mad(0, address(A), address(B), &spoiled(|req| req.primary.ack_timeout = asked));
        let Some(Event::ConnectRequest(_, request)) = machine.poll_event() else { panic!("refused") };
        assert_eq!(request.peer.ack_timeout, given);
    }
}

#[test]
fn other_management_is_not_for_us() {
    let mut machine = listening();
    let mad = Mad::parse(&[0x5a; MAD_BYTES]);
    machine.handle_mad(0, address(A), address(B), &mad);
    assert_eq!(machine.counters().dropped(CmDrop::NotCm), 1);
    for attribute in [Attribute::APR, Attribute::LAP, Attribute::CLASS_PORT_INFO, Attribute(0xffff)] {
        let mut mad = spoiled(|_| {});
        mad.header.attribute = attribute;
        machine.handle_mad(0, address(A), address(B), &mad);
    }
    assert_eq!(machine.counters().dropped(CmDrop::Unserved), 4);
    assert_eq!((machine.poll_transmit(), machine.poll_event()), (None, None));
}

#[test]
fn one_host_can_not_fill_the_table() {
    let config = CmConfig { half_open_per_host: 10, half_open: 15, ..network::config(B) };
    let mut machine = CmMachine::new(config);
    let listen = Listen {
        is_family_only: false,
        address: address(B),
        port_space: PortSpace::Tcp,
        port: network::PORT,
        transport: None,
        backlog: 1_000,
    };
    machine.listen(&listen).unwrap();
    let flood = |peer: &str, now: u64, machine: &mut CmMachine| {
        let peer: IpAddr = peer.parse().unwrap();
        for number in 1..100 {
            machine.handle_mad(now, peer, address(B), &request_of(number, peer, address(B)));
            machine.table.check();
        }
    };
    flood("10.0.0.1", 0, &mut machine);
    assert_eq!(machine.connections(), 10);
    flood("10.0.0.3", 0, &mut machine);
    assert_eq!(machine.connections(), 15);
    // Accepted ones count as long as the peer does not confirm.
    while let Some(event) = machine.poll_event() {
        machine.accept(0, event.connection(), &accept_with(event.connection().0)).unwrap();
    }
    flood("10.0.0.4", 0, &mut machine);
    assert_eq!(machine.connections(), 15);
    // Nobody answers: they expire, and there is room again.
    while let Some(at) = machine.next_timeout() {
        machine.handle_timeout(at);
    }
    assert_eq!(machine.connections(), 0);
    flood("10.0.0.3", config.decision_ns, &mut machine);
    assert_eq!(machine.connections(), 10);
    assert!(machine.counters().dropped(CmDrop::Limit) > 100);
}

/// Sends requests, for connections and for QPs, from different addresses of these owners. Returns how many fit.
fn taken_from(peers: &[(&str, AddressOwner)]) -> usize {
    let to = if peers[0].0.contains(':') { "fd00::ffff".parse().unwrap() } else { address(B) };
    let mut machine = CmMachine::new(CmConfig { half_open_per_host: 10, ..network::config(B) });
    for port_space in [PortSpace::Tcp, PortSpace::Udp] {
        let listen = Listen {
            is_family_only: false,
            address: to,
            port_space,
            port: network::PORT,
            transport: None,
            backlog: 1_000,
        };
        machine.listen(&listen).unwrap();
    }
    let mut asker = CmMachine::new(network::config(A));
    for number in 1..=8 {
        for &(peer, owner) in peers {
            let address = peer.parse().unwrap();
            let source = MadSource { address, owner };
            machine.handle_mad(0, source, to, &request_of(number, address, to));
            let (local, remote) = ((address, 1).into(), (to, network::PORT).into());
            asker.ask(0, &Ask { local, remote, private: &[] }).unwrap();
            machine.handle_mad(0, source, to, &asker.poll_transmit().unwrap().mad);
        }
    }
    machine.table.check();
    machine.questions.check();
    machine.connections()
}

#[test]
fn addresses_of_one_host_have_one_limit_of_half_open_connections() {
    use AddressOwner::{OtherHost, ThisHost, ThisUser};
    let of = |owner, peers: [&'static str; 2]| peers.map(|peer| (peer, owner));
    let (loopback, network) = (["127.0.0.8", "127.0.0.9"], ["fd00::1", "fd00::2"]);
    assert_eq!(taken_from(&of(ThisHost, loopback)), 10, "any user may send from both");
    assert_eq!(taken_from(&of(ThisUser, loopback)), 20, "each is registered");
    assert_eq!(taken_from(&[(loopback[0], ThisHost), (loopback[1], ThisUser)]), 20);
    assert_eq!(taken_from(&of(OtherHost, ["10.0.0.1", "10.0.0.3"])), 20);
    assert_eq!(taken_from(&of(OtherHost, network)), 10, "a host has all of a /64");
    assert_eq!(taken_from(&of(OtherHost, ["fd00::1", "fd00:0:0:1::1"])), 20);
}

#[test]
fn a_full_queue_drops_and_counts() {
    let mut machine = listening();
    let mad = spoiled(|req| req.mtu = 0);
    for _ in 0..10_000 {
        machine.handle_mad(0, address(A), address(B), &mad);
    }
    let queued = std::iter::from_fn(|| machine.poll_transmit()).count();
    assert_eq!(queued, 8_192);
    assert_eq!(machine.counters().dropped(CmDrop::TransmitQueueFull), 10_000 - 8_192);
}

#[test]
fn only_the_peer_ends_a_connection_and_only_with_all_its_names() {
    let mut network = Network::new();
    let active = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    let passive = network.nodes[B].requests()[0];
    let dreq = |local_id, remote_id, qpn| {
        let qpn = QpNumber::new(qpn);
        CmMessage::Dreq(Dreq { local_id, remote_id, qpn, reserved_11: 0, private: [0; DREQ_PRIVATE_BYTES] })
            .mad(1)
    };
    let elsewhere: IpAddr = "10.0.0.9".parse().unwrap();
    let good = dreq(active.0, passive.0, 0x101);
    let machine = &mut network.nodes[B].machine;
    machine.handle_mad(network.now, elsewhere, address(B), &good);
    assert_eq!(machine.counters().dropped(CmDrop::WrongPeer), 1);
    machine.handle_mad(network.now, address(A), address(B), &dreq(active.0, passive.0, 0x102));
    assert_eq!(machine.counters().dropped(CmDrop::WrongQp), 1);
    assert_eq!(machine.poll_transmit(), None);
    machine.handle_mad(network.now, address(A), address(B), &dreq(active.0 ^ 1, passive.0, 0x101));
    assert_eq!(machine.counters().dropped(CmDrop::UnknownConnection), 1);
    assert!(machine.poll_transmit().is_some(), "unknown connections are answered");
    for from in [elsewhere, address(A)] {
        let rej = CmMessage::parse(&good);
        let CmMessage::Dreq(ids) = rej else { panic!("not a DREQ") };
        let ids = if from == elsewhere { (ids.local_id, ids.remote_id) } else { (7, ids.remote_id) };
        let rej = message::rej(ids, Answered::OTHER, RejectReason::TIMEOUT, &[]).mad(1);
        machine.handle_mad(network.now, from, address(B), &rej);
    }
    assert_eq!(machine.poll_event(), None);
    machine.handle_mad(network.now, address(A), address(B), &good);
    assert_eq!(machine.poll_event(), Some(Event::Disconnected { id: passive, is_answered: true }));
}

#[test]
fn a_reply_must_come_from_whom_we_asked() {
    let mut asking = CmMachine::new(network::config(A));
    asking.connect(0, &connect_to(B, Transport::Xrc, 0x17)).unwrap();
    let req = asking.poll_transmit().unwrap();
    let mut asked = listening();
    asked.handle_mad(0, req.from, req.to, &req.mad);
    let Some(Event::ConnectRequest(id, _)) = asked.poll_event() else { panic!("refused") };
    asked.accept(0, id, &accept_with(0x55)).unwrap();
    let rep = asked.poll_transmit().unwrap();
    let elsewhere: IpAddr = "10.0.0.9".parse().unwrap();
    asking.handle_mad(0, elsewhere, address(A), &rep.mad);
    assert_eq!(asking.poll_event(), None);
    let CmMessage::Rep(mut spoiled) = CmMessage::parse(&rep.mad) else { panic!("not a REP") };
    spoiled.eecn = 1;
    asking.handle_mad(0, address(B), address(A), &CmMessage::Rep(spoiled).mad(1));
    assert_eq!(asking.poll_event(), None);
    asking.handle_mad(0, address(B), address(A), &rep.mad);
    assert!(matches!(asking.poll_event(), Some(Event::Reply(..))));
}

#[test]
fn an_acceptor_asks_for_no_more_than_is_served() {
    let mut machine = listening();
    machine.handle_mad(0, address(A), address(B), &spoiled(|req| req.responder_resources = 3));
    let Some(Event::ConnectRequest(id, _)) = machine.poll_event() else { panic!("refused") };
    machine.accept(0, id, &Accept { initiator_depth: 9, ..accept_with(5) }).unwrap();
    let CmMessage::Rep(rep) = CmMessage::parse(&machine.poll_transmit().unwrap().mad) else {
        panic!("no REP")
    };
    assert_eq!(rep.initiator_depth, 3);
}

#[test]
fn any_bytes_at_any_state() {
    // A fixed seed: what is found here is found again.
    let mut random = 0x1234_5678_9abc_def1_u64;
    for round in 0..2_000 {
        let data: Vec<u8> = std::iter::repeat_with(|| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random.to_be_bytes()[0]
        })
        .take(200 + round % 1_800)
        .collect();
        fuzz(&data);
    }
}
