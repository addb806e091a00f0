use super::network::{accept_with, address};
use super::*;
use crate::wire::Mad;
use crate::wire::cm::{AddressHeader, CmMessage, Req};
use std::net::IpAddr;
use trunkline_verbs::{AddressOwner, PortSpace, QpNumber};

/// Returns a valid REQ from A to B, changed by `change`.
fn spoiled(change: impl FnOnce(&mut Req)) -> Mad {
    let mut machine = CmMachine::new(network::config(A));
    machine.connect(0, &connect_to(B, Transport::Rc, 0x17)).unwrap();
    let mad = machine.poll_transmit().unwrap().mad;
    let CmMessage::Req(mut req) = CmMessage::parse(&mad) else { panic!("not a REQ") };
    change(&mut req);
    CmMessage::Req(req).mad(mad.header.transaction)
}

/// Returns a valid REQ of another peer, whose ids are derived from `number`.
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

#[test]
fn peer_ack_timeout_is_limited() {
    for (asked, given) in [(0, 19), (31, 21), (14, 14)] {
        let mut machine = listening();
        machine.handle_mad(0, address(A), address(B), &spoiled(|req| req.primary.ack_timeout = asked));
        let Some(Event::ConnectRequest(_, request)) = machine.poll_event() else { panic!("refused") };
        assert_eq!(request.peer.ack_timeout, given);
    }
}

#[test]
fn single_host_cannot_fill_table() {
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
    // Accepted requests count until the peer confirms.
    while let Some(event) = machine.poll_event() {
        machine.accept(0, event.connection(), &accept_with(event.connection().0)).unwrap();
    }
    flood("10.0.0.4", 0, &mut machine);
    assert_eq!(machine.connections(), 15);
    // Unanswered requests expire and no longer count.
    while let Some(at) = machine.next_timeout() {
        machine.handle_timeout(at);
    }
    assert_eq!(machine.connections(), 0);
    flood("10.0.0.3", config.decision_ns, &mut machine);
    assert_eq!(machine.connections(), 10);
    assert!(machine.counters().dropped(CmDrop::Limit) > 100);
}

/// Sends requests for connections and for QPs from addresses with these owners. Returns the number of accepted requests.
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
            let source = MadSource { owner, ..MadSource::from(address) };
            machine.handle_mad(0, source, to, &request_of(number, address, to));
            let (local, remote) = ((address, 1).into(), (to, network::PORT).into());
            asker.ask(0, &Ask { local, remote, retry_refused: false, private: &[] }).unwrap();
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
fn full_queue_drops_and_counts() {
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
fn random_bytes_in_any_state_do_not_panic() {
    // A fixed seed, so that a failure is reproducible.
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
