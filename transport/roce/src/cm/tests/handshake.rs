use super::network::{PORT, accept_with, address};
use super::*;
use crate::wire::Attribute;
use crate::wire::cm::{
    Answered, CmMessage, DREQ_PRIVATE_BYTES, Dreq, Ids, REJ_INFO_BYTES, REJ_PRIVATE_BYTES, RTU_PRIVATE_BYTES,
    Rej,
};
use trunkline_verbs::{Mtu, OneFlow, PeerView, Psn, QpNumber, RejectReason, UdpPorts};

/// Ports of messages between devices on the usual port.
const PORTS: UdpPorts = UdpPorts::new(4791);

fn request(network: &Network) -> ConnectRequest {
    let found = network.nodes[B].events.iter().find_map(|event| match event {
        Event::ConnectRequest(_, request) => Some((**request).clone()),
        _ => None,
    });
    found.unwrap()
}

fn reply(network: &Network) -> Peer {
    let found = network.nodes[A].events.iter().find_map(|event| match event {
        Event::Reply(_, peer) => Some(*peer),
        _ => None,
    });
    found.unwrap()
}

#[test]
fn rc_connects_with_attributes_of_each_side_mirrored() {
    let mut network = Network::new();
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    let request = request(&network);
    assert_eq!((request.local, request.remote), ((address(B), PORT).into(), (address(A), 999).into()));
    assert_eq!((request.private.len(), &request.private[..6]), (56, &b"hello\0"[..]));
    assert_eq!(
        request.peer,
        Peer {
            transport: Transport::Rc,
            qpn: QpNumber::new(0x17),
            send_psn: Psn::new(0x11),
            mtu: Mtu::Mtu2048,
            responder_resources: 5,
            initiator_depth: 3,
            retry_count: 6,
            rnr_retry: 4,
            ack_timeout: 14,
            flow_control: true,
            traffic_class: 0x68,
            ca_guid: 0xabc0,
            local_port: None,
            ports: PORTS,
        }
    );
    assert_eq!(
        reply(&network),
        Peer {
            transport: Transport::Rc,
            qpn: QpNumber::new(0x101),
            send_psn: Psn::new(0x22),
            mtu: Mtu::Mtu2048,
            // The acceptor requested 9, but only 3 are served.
            responder_resources: 3,
            initiator_depth: 5,
            retry_count: 6,
            rnr_retry: 2,
            ack_timeout: 14,
            flow_control: false,
            traffic_class: 0x68,
            ca_guid: 0xabc1,
            local_port: None,
            ports: PORTS,
        }
    );
    let passive = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[A].names(id), ["Reply", "Established"]);
    assert_eq!(network.nodes[B].names(passive), ["ConnectRequest", "Established"]);
    assert_eq!(network.nodes[A].sent, [Attribute::REQ, Attribute::RTU]);
    assert_eq!(network.nodes[B].sent, [Attribute::REP]);
    let Some(Event::Established(_, private)) = network.nodes[A].events.last() else {
        panic!("not connected")
    };
    assert_eq!((private.len(), &private[..8]), (196, &b"welcome\0"[..]));
    network.settle();
    assert_eq!(network.nodes[A].sent.len(), 2, "an established connection is silent");
}

#[test]
fn xrc_connects_one_direction() {
    let mut network = Network::new();
    let id = network.connect(Transport::Xrc, 0x17);
    network.run(milliseconds(10));
    let asked = request(&network).peer;
    assert_eq!((asked.transport, asked.qpn), (Transport::Xrc, QpNumber::new(0x17)));
    // Only the INI reads, only the TGT serves (contract rocev2 10.2, 10.3).
    assert_eq!((asked.responder_resources, asked.initiator_depth), (5, 0));
    assert_eq!((asked.retry_count, asked.rnr_retry), (0, 0));
    let answered = reply(&network);
    assert_eq!((answered.qpn, answered.send_psn), (QpNumber::new(0x101), Psn::new(0x22)));
    assert_eq!((answered.responder_resources, answered.initiator_depth), (0, 5));
    assert_eq!((answered.retry_count, answered.rnr_retry), (6, 2));
    assert!(network.nodes[A].is_established(id));
}

#[test]
fn node_connects_to_itself() {
    let mut machine = CmMachine::new(network::config(A));
    let here = address(A);
    let listen = Listen {
        is_family_only: false,
        address: here,
        port_space: trunkline_verbs::PortSpace::Ib,
        port: PORT,
        transport: None,
        backlog: 1,
    };
    machine.listen(&listen).unwrap();
    let connect =
        Connect { local: (here, 1).into(), remote: (here, PORT).into(), ..connect_to(B, Transport::Xrc, 5) };
    let active = machine.connect(0, &connect).unwrap();
    let (mut passive, mut established) = (None, Vec::new());
    for _ in 0..10 {
        while let Some(transmit) = machine.poll_transmit() {
            machine.handle_mad(1, transmit.from, transmit.to, &transmit.mad);
        }
        while let Some(event) = machine.poll_event() {
            match event {
                Event::ConnectRequest(id, _) => {
                    passive = Some(id);
                    machine.accept(1, id, &accept_with(6)).unwrap();
                }
                Event::Reply(id, _) => machine.confirm(id).unwrap(),
                Event::Established(id, _) => established.push(id),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(established, [active, passive.unwrap()]);
    machine.table.check();
}

#[test]
fn refusal_of_program_reaches_peer() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    network.run(milliseconds(10));
    let request = network.nodes[B].requests()[0];
    let now = network.now;
    let machine = &mut network.nodes[B].machine;
    assert_eq!(
        machine.reject(now, request, RejectReason::CONSUMER, &[0; 149]),
        Err(CmError::PrivateDataTooLong { got: 149, max: 148 })
    );
    machine.reject(now, request, RejectReason::CONSUMER, b"no").unwrap();
    assert_eq!(machine.accept(now, request, &accept_with(5)), Err(CmError::Unknown));
    network.settle();
    let Some(Event::Rejected(of, reason, private)) = network.nodes[A].events.last() else {
        panic!("connected")
    };
    assert_eq!((*of, *reason, private.len()), (id, RejectReason::CONSUMER, 148));
    assert_eq!(private[..3], *b"no\0");
}

#[test]
fn backlog_drops_requests_until_earlier_ones_are_delivered() {
    let mut network = Network::new();
    network.restart(B, 5);
    network.nodes[B].machine = CmMachine::new(network::config(B));
    network.nodes[B].listen(Transport::Rc, 2);
    network.nodes[B].accepts = false;
    let ids: Vec<_> = (0..3).map(|n| network.connect(Transport::Rc, 0x20 + n)).collect();
    network.run(milliseconds(70));
    let first = network.nodes[B].requests();
    assert_eq!(first.len(), 2);
    assert!(network.nodes[B].machine.counters().dropped(CmDrop::Backlog) > 0);
    for id in &first {
        network.nodes[B].machine.request_delivered(*id);
        // A second report has no effect.
        network.nodes[B].machine.request_delivered(*id);
    }
    network.run(milliseconds(500));
    // The program may answer when all requests have arrived.
    let all = network.nodes[B].requests();
    assert_eq!(all.len(), 3);
    for id in all {
        network.nodes[B].machine.accept(network.now, id, &accept_with(0x300 + id.0 % 64)).unwrap();
    }
    network.run(milliseconds(500));
    assert!(ids.iter().all(|id| network.nodes[A].is_established(*id)));
}

#[test]
fn ports_belong_to_one_listener() {
    let mut machine = CmMachine::new(CmConfig::new(1, 1));
    let at = |address: &str, port| Listen {
        is_family_only: false,
        address: address.parse().unwrap(),
        port_space: trunkline_verbs::PortSpace::Ib,
        port,
        transport: None,
        backlog: 0,
    };
    let (first, _) = machine.listen(&at("10.0.0.1", 5)).unwrap();
    machine.listen(&at("10.0.0.2", 5)).unwrap();
    for taken in ["10.0.0.1", "0.0.0.0", "::"] {
        assert_eq!(machine.listen(&at(taken, 5)), Err(CmError::AddressInUse));
    }
    machine.unlisten(first).unwrap();
    assert_eq!(machine.unlisten(first), Err(CmError::Unknown));
    machine.listen(&at("10.0.0.1", 5)).unwrap();
    // A listener of all IPv6 addresses only and a listener of all IPv4 addresses do not conflict.
    machine.listen(&at("0.0.0.0", 6)).unwrap();
    machine.listen(&Listen { is_family_only: true, ..at("::", 6) }).unwrap();
    assert_eq!(machine.listen(&at("::1", 6)), Err(CmError::AddressInUse));
    let (_, free) = machine.listen(&at("::", 0)).unwrap();
    assert!(free >= 32_768);
}

#[test]
fn calls_in_wrong_state_have_no_effect() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let id = network.connect(Transport::Rc, 0x17);
    let machine = &mut network.nodes[A].machine;
    assert_eq!(machine.confirm(id), Err(CmError::WrongState));
    assert_eq!(machine.disconnect(0, id, &[]), Err(CmError::WrongState));
    assert_eq!(machine.accept(0, id, &accept_with(5)), Err(CmError::WrongState));
    let long = Connect { private: &[0; 57], ..connect_to(B, Transport::Rc, 1) };
    assert_eq!(machine.connect(0, &long), Err(CmError::PrivateDataTooLong { got: 57, max: 56 }));
    let mixed = Connect { local: "[::1]:0".parse().unwrap(), ..connect_to(B, Transport::Rc, 1) };
    assert_eq!(machine.connect(0, &mixed), Err(CmError::AddressFamily));
    network.run(milliseconds(10));
    let request = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].machine.confirm(request), Err(CmError::WrongState));
}

#[test]
fn comm_ids_contain_their_slot() {
    let of_host = CommIds::new([5, 6]);
    let mut machine = CmMachine::new(CmConfig { comm_ids: of_host.of_slot(1023), ..CmConfig::new(1, 1) });
    let mut tops = std::collections::BTreeSet::new();
    for _ in 0..10 {
        let id = machine.connect(0, &connect_to(B, Transport::Rc, 1)).unwrap();
        assert_eq!(of_host.slot_of(id.0), 1023);
        assert!(machine.has_connection(id.0));
        tops.insert(id.0 >> 22);
    }
    assert!(tops.len() > 5, "others cannot tell the slot");
}

/// A listener whose interface has a smaller MTU than the peer's proposes its own MTU, even if messages are lost or
/// duplicated.
#[test]
fn path_mtu_is_smaller_of_both_ends() {
    let (usual, doubled) = (vec![milliseconds(1)], vec![milliseconds(1), milliseconds(90)]);
    for (fate, own) in [(&usual, Mtu::Mtu1024), (&doubled, Mtu::Mtu256), (&usual, Mtu::Mtu4096)] {
        for transport in [Transport::Rc, Transport::Xrc] {
            let delays = fate.clone();
            let mut network = Network::with_fate(Box::new(move |_, _, _| delays.clone()));
            network.nodes[B].mtu = own;
            let id = network.connect(transport, 0x17);
            network.run(milliseconds(500));
            let expected = own.min(Mtu::Mtu2048);
            assert_eq!(reply(&network).mtu, expected, "the active side");
            let accepted = network.nodes[B].events.iter().rev().find_map(|event| match event {
                Event::ConnectRequest(_, request) => Some(request.peer.mtu),
                _ => None,
            });
            assert_eq!(accepted, Some(expected), "the passive side");
            assert!(network.nodes[A].is_established(id), "{own:?}: {:?}", network.nodes[A].names(id));
            assert_eq!(network.nodes[A].rejection(id), None);
        }
    }
}

#[test]
fn lost_mtu_proposal_is_repeated() {
    let mut network = Network::losing(Attribute::REJ, 2);
    network.nodes[B].mtu = Mtu::Mtu512;
    let id = network.connect(Transport::Xrc, 0x17);
    network.run(milliseconds(2_000));
    assert_eq!(reply(&network).mtu, Mtu::Mtu512);
    assert!(network.nodes[A].is_established(id));
}

/// A peer that refuses the MTU without naming another, or names a larger one, has refused the connection.
#[test]
fn mtu_refusal_without_smaller_mtu_is_final() {
    for info in [None, Some(Mtu::Mtu4096.code()), Some(0), Some(77)] {
        let mut network = Network::new();
        network.nodes[B].accepts = false;
        let id = network.connect(Transport::Rc, 0x17);
        network.run(milliseconds(10));
        let rej = Rej {
            local_id: 0,
            remote_id: id.0,
            answered: Answered::REQ,
            reserved_8: 0,
            info_length: u8::from(info.is_some()),
            reserved_9: false,
            reason: RejectReason::INVALID_PATH_MTU,
            info: [info.unwrap_or(Mtu::Mtu256.code()); REJ_INFO_BYTES],
            private: [0; REJ_PRIVATE_BYTES],
        };
        let mad = CmMessage::Rej(rej).mad(1);
        network.nodes[A].machine.handle_mad(network.now, address(B), address(A), &mad);
        network.drain();
        assert_eq!(network.nodes[A].rejection(id), Some(RejectReason::INVALID_PATH_MTU), "{info:?}");
    }
}

#[test]
fn answers_to_request_for_one_flow_use_its_pair_of_ports() {
    let asked = |one_flow, udp_port| {
        let ports = UdpPorts::new(5001);
        let mut asking = CmMachine::new(CmConfig { udp_port, ..CmConfig::new(7, 7) });
        let connect = Connect { one_flow, ports, ..connect_to(B, Transport::Xrc, 0x17) };
        asking.connect(0, &connect).unwrap();
        let mut sent = vec![asking.poll_transmit().unwrap()];
        while sent.len() < 4 {
            asking.handle_timeout(asking.next_timeout().unwrap());
            sent.push(asking.poll_transmit().unwrap());
        }
        assert!(sent.iter().all(|transmit| transmit.ports == ports));
        sent.iter().map(|transmit| transmit.mad).collect::<Vec<_>>()
    };
    let answer_to = |mad: &crate::wire::Mad| {
        let mut asked = CmMachine::new(CmConfig { udp_port: 5001, ..CmConfig::new(8, 8) });
        let from = MadSource { ports: (5001, 40_000), ..address(A).into() };
        asked.handle_mad(0, from, address(B), mad);
        // There is no listener.
        asked.poll_transmit().unwrap().ports
    };
    let one_flow = UdpPorts { own: Some(5001), ..UdpPorts::new(40_000) };
    let forms = |one_flow, udp_port| asked(one_flow, udp_port).iter().map(answer_to).collect::<Vec<_>>();
    assert_eq!(forms(OneFlow::No, 4791), [PORTS; 4]);
    assert_eq!(forms(OneFlow::No, 5000), [UdpPorts::new(5000); 4]);
    assert_eq!(forms(OneFlow::Yes, 4791), [one_flow; 4]);
    // The refusal of the plain form must not look like an answer to a firewall.
    let elsewhere = UdpPorts { own: Some(UdpPorts::OTHER), ..PORTS };
    assert_eq!(forms(OneFlow::Try, 4791), [elsewhere, one_flow, elsewhere, one_flow]);
}

/// The view of a peer behind an address translator, whose outside address is the address of A.
fn view() -> PeerView {
    PeerView { own: ([192, 0, 2, 7], 5001).into(), peer: ([192, 168, 0, 5], 4791).into() }
}

/// Returns the REQ of a peer with this view, in one flow or not.
fn translated(one_flow: OneFlow) -> crate::wire::Mad {
    let mut asking = CmMachine::new(CmConfig::new(7, 7));
    let (local, remote) = ((view().peer.ip(), 999).into(), (view().own.ip(), PORT).into());
    let ports = UdpPorts::new(view().own.port());
    let connect = Connect { one_flow, ports, local, remote, ..connect_to(B, Transport::Xrc, 0x17) };
    asking.connect(0, &connect).unwrap();
    asking.poll_transmit().unwrap().mad
}

#[test]
fn request_for_one_flow_may_name_other_addresses_than_its_packet() {
    let mad = translated(OneFlow::Yes);
    let mut network = Network::new();
    let machine = &mut network.nodes[B].machine;
    assert_eq!(machine.view_of(address(A), address(B), &mad), Some(view()));
    let from = MadSource { ports: (4791, 40_000), view: Some(view()), ..address(A).into() };
    machine.handle_mad(0, from, address(B), &mad);
    network.drain();
    let request = request(&network);
    // The program sees the source and destination addresses of the packet, never the addresses in the request.
    assert_eq!((request.local, request.remote), ((address(B), PORT).into(), (address(A), 999).into()));
    let ports = UdpPorts { own: Some(4791), peer: 40_000, view: Some(view()) };
    assert_eq!(request.peer.ports, ports);
    let machine = &mut network.nodes[B].machine;
    let id = machine.table.ids()[0];
    // Messages of the connection carry its view. Messages from other sources do not carry a view.
    let rtu = CmMessage::Rtu(Ids { local_id: 7, remote_id: id.0, private: [0; RTU_PRIVATE_BYTES] }).mad(1);
    assert_eq!(machine.view_of(address(A), address(B), &rtu), Some(view()));
    assert_eq!(machine.view_of(view().peer.ip(), address(B), &rtu), None);
    // A dial-back contains the addresses that the peer sees.
    let connect = Connect { ports, one_flow: OneFlow::Yes, ..connect_to(A, Transport::Xrc, 0x18) };
    machine.connect(0, &connect).unwrap();
    let back = machine.poll_transmit().unwrap();
    assert_eq!((back.from, back.to, back.ports), (address(B), address(A), ports));
    let mut peer = CmMachine::new(CmConfig::new(9, 9));
    peer.handle_mad(
        0,
        MadSource { ports: (4791, 5001), ..view().own.ip().into() },
        view().peer.ip(),
        &back.mad,
    );
    let CmMessage::Rej(rej) = CmMessage::parse(&peer.poll_transmit().unwrap().mad) else { panic!() };
    assert_eq!(rej.reason, RejectReason::INVALID_SERVICE_ID, "only a listener is missing");
}

#[test]
fn stranger_naming_peer_addresses_reaches_only_its_own_connection() {
    let mad = translated(OneFlow::Yes);
    let mut network = Network::new();
    let machine = &mut network.nodes[B].machine;
    let stranger = std::net::IpAddr::from([10, 0, 0, 3]);
    let source = |ip| MadSource { ports: (4791, 40_000), view: Some(view()), ..MadSource::from(ip) };
    let handle = |machine: &mut CmMachine, from, mad: &crate::wire::Mad| {
        machine.handle_mad(0, source(from), address(B), mad);
        let event = machine.poll_event()?;
        if let Event::ConnectRequest(id, _) = &event {
            machine.accept(0, *id, &accept_with(0x100)).unwrap();
        }
        let mut sent = std::iter::from_fn(|| machine.poll_transmit());
        assert!(sent.all(|sent| sent.to == from), "an answer to another address");
        Some(event)
    };
    let Some(Event::ConnectRequest(of_peer, request)) = handle(machine, address(A), &mad) else { panic!() };
    let ids = Ids { local_id: 0, remote_id: of_peer.0, private: [0; RTU_PRIVATE_BYTES] };
    let CmMessage::Req(crate::wire::cm::Req { local_id, .. }) = CmMessage::parse(&mad) else { panic!() };
    let rtu = CmMessage::Rtu(Ids { local_id, ..ids }).mad(1);
    assert!(matches!(handle(machine, address(A), &rtu), Some(Event::Established(..))));
    // The same request again, and a DREQ of the peer's connection.
    let Some(Event::ConnectRequest(other, again)) = handle(machine, stranger, &mad) else { panic!() };
    assert_ne!(other, of_peer);
    assert_eq!((request.remote.ip(), again.remote.ip()), (address(A), stranger));
    let (qpn, private) = (QpNumber::new(0x100), [0; DREQ_PRIVATE_BYTES]);
    let ends = Dreq { local_id, remote_id: of_peer.0, qpn, reserved_11: 0, private };
    assert!(handle(machine, stranger, &CmMessage::Dreq(ends).mad(2)).is_none());
    assert_eq!(machine.counters().dropped(CmDrop::WrongPeer), 1);
    assert_eq!(machine.table.get(of_peer).unwrap().state, connection::ConnectionState::Established);
    assert!(matches!(
        handle(machine, address(A), &CmMessage::Dreq(ends).mad(3)),
        Some(Event::Disconnected { .. })
    ));
}

#[test]
fn request_without_one_flow_names_addresses_of_its_packet() {
    let mad = translated(OneFlow::No);
    let mut machine = CmMachine::new(CmConfig::new(8, 8));
    assert_eq!(machine.view_of(address(A), address(B), &mad), None);
    machine.handle_mad(0, address(A), address(B), &mad);
    let rej = machine.poll_transmit().unwrap();
    assert_eq!(rej.to, address(A));
    let CmMessage::Rej(rej) = CmMessage::parse(&rej.mad) else { panic!() };
    assert_eq!(rej.reason, RejectReason::INVALID_PRIMARY_GID);
}
