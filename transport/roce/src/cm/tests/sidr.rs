use super::network::{PORT, address, answer_with, question_to};
use super::*;
use crate::wire::cm::{AddressHeader, CmMessage, ServiceId, SidrRep, SidrReq};
use crate::wire::{Attribute, Mad};
use trunkline_verbs::{PortSpace, QpNumber, SidrStatus};

/// Time, in nanoseconds, after which every request has ended.
const LONG: u64 = milliseconds(100_000);

fn sent(network: &Network, node: usize, attribute: Attribute) -> usize {
    network.nodes[node].sent.iter().filter(|sent| **sent == attribute).count()
}

fn only_question() -> SidrReq {
    let CmMessage::SidrReq(req) = CmMessage::parse(&spoiled(|_| {})) else { panic!("not a SIDR_REQ") };
    req
}

/// Returns a valid SIDR_REQ from A to B, changed by `change`.
fn spoiled(change: impl FnOnce(&mut SidrReq)) -> Mad {
    let mut machine = CmMachine::new(network::config(A));
    machine.ask(0, &question_to(B)).unwrap();
    let mad = machine.poll_transmit().unwrap().mad;
    let CmMessage::SidrReq(mut req) = CmMessage::parse(&mad) else { panic!("not a SIDR_REQ") };
    change(&mut req);
    CmMessage::SidrReq(req).mad(mad.header.transaction)
}

fn listening() -> CmMachine {
    let mut network = Network::new();
    std::mem::replace(&mut network.nodes[B].machine, CmMachine::new(network::config(B)))
}

fn reply_in(machine: &mut CmMachine) -> Option<SidrRep> {
    let transmit = machine.poll_transmit()?;
    assert_eq!((transmit.from, transmit.to), (address(B), address(A)));
    match CmMessage::parse(&transmit.mad) {
        CmMessage::SidrRep(rep) => Some(rep),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sidr_request_is_answered() {
    let mut network = Network::new();
    let id = network.ask();
    network.run(milliseconds(10));
    let [Event::ServiceRequest(asked, request)] = network.nodes[B].events.as_slice() else {
        panic!("unheard")
    };
    assert_eq!(request.local, (address(B), PORT).into());
    assert_eq!(request.remote, (address(A), 999).into());
    assert_eq!((request.private.len(), &request.private[..6]), (180, b"hello\0".as_slice()));
    assert!(network.nodes[B].machine.has_connection(asked.0), "kept, for repetitions");
    let [Event::ServiceReply { id: replied, qpn, qkey, private }] = network.nodes[A].events.as_slice() else {
        panic!("no answer")
    };
    assert_eq!((*replied, qpn.get(), *qkey), (id, 0x101, 0x0bad_cafe));
    assert_eq!((private.len(), &private[..8]), (136, b"welcome\0".as_slice()));
    assert!(!network.nodes[A].machine.has_connection(id.0));
    network.settle();
    assert_eq!((network.nodes[A].machine.connections(), network.nodes[B].machine.connections()), (0, 0));
    assert_eq!((network.nodes[A].events.len(), network.nodes[B].events.len()), (1, 1));
}

#[test]
fn sidr_request_matches_rdma_cm() {
    let req = only_question();
    assert_eq!((req.pkey, req.service_id), (0xffff, ServiceId::new(PortSpace::Udp, PORT)));
    let header = AddressHeader::parse(&req.private);
    assert_eq!(header.addresses(), Some(((address(A), 999).into(), address(B))));
    assert_eq!(&req.private[36..41], b"hello");
}

#[test]
fn lost_sidr_messages_are_repeated() {
    for lost in [Attribute::SIDR_REQ, Attribute::SIDR_REP] {
        let mut network = Network::losing(lost, 3);
        let id = network.ask();
        network.run(milliseconds(2_000));
        assert_eq!(network.nodes[A].names(id), ["ServiceReply"], "{lost:?}");
        // Repetitions reach the machine, not the program.
        assert_eq!(network.nodes[B].events.len(), 1);
        network.settle();
    }
}

#[test]
fn sidr_request_without_answer_times_out() {
    let mut network = Network::losing(Attribute::SIDR_REQ, u32::MAX);
    let id = network.ask();
    network.run(LONG);
    assert_eq!(network.nodes[A].names(id), ["Unreachable"]);
    let repeated = sent(&network, A, Attribute::SIDR_REQ);
    assert!((20..40).contains(&repeated), "{repeated}");
    network.settle();
    assert_eq!(network.nodes[A].machine.connections(), 0);
}

#[test]
fn repeated_sidr_request_is_reported_once() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let id = network.ask();
    network.run(milliseconds(20_000));
    let [request] = network.nodes[B].requests()[..] else { panic!("not one request") };
    let now = network.now;
    network.nodes[B].machine.answer(now, request, &answer_with(0x55)).unwrap();
    network.drain();
    network.run(milliseconds(10));
    assert_eq!(network.nodes[A].names(id), ["ServiceReply"]);
    assert_eq!(network.nodes[B].machine.answer(now, request, &answer_with(1)), Err(CmError::Unknown));
}

#[test]
fn unanswered_service_request_ends_as_unreachable() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    network.ask();
    network.run(LONG);
    let request = network.nodes[B].requests()[0];
    assert_eq!(network.nodes[B].names(request), ["ServiceRequest", "Unreachable"]);
    network.settle();
    assert_eq!(network.nodes[B].machine.connections(), 0);
}

#[test]
fn sidr_refusals_report_status() {
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    let (id, second) = (network.ask(), network.ask());
    network.run(milliseconds(10));
    let now = network.now;
    let requests = network.nodes[B].requests();
    network.nodes[B].machine.decline(now, requests[0], b"no").unwrap();
    // Releasing a request refuses it.
    network.nodes[B].machine.release(now, requests[1]);
    network.drain();
    network.run(milliseconds(10));
    let refused = |id| {
        network.nodes[A].events.iter().find_map(|event| match event {
            Event::ServiceRefused(of, status, private) if *of == id => Some((*status, private[..3].to_vec())),
            _ => None,
        })
    };
    assert_eq!(refused(id), Some((SidrStatus::REJECT, b"no\0".to_vec())));
    assert_eq!(refused(second), Some((SidrStatus::REJECT, vec![0; 3])));
}

#[test]
fn released_sidr_request_reports_no_events() {
    let mut network = Network::new();
    let id = network.ask();
    let now = network.now;
    network.nodes[A].machine.release(now, id);
    assert!(!network.nodes[A].machine.has_connection(id.0));
    network.settle();
    assert_eq!(network.nodes[A].events, []);
    assert_eq!(network.nodes[A].machine.counters().dropped(CmDrop::UnknownConnection), 1);
}

#[test]
fn malformed_sidr_requests_are_refused_or_dropped() {
    let refusal = |change: &dyn Fn(&mut SidrReq)| {
        let mut machine = listening();
        machine.handle_mad(0, address(A), address(B), &spoiled(change));
        let rep = reply_in(&mut machine)?;
        assert_eq!((machine.connections(), machine.counters().dropped(CmDrop::Refused)), (0, 1));
        assert_eq!(rep.request_id, only_question().request_id);
        Some(rep.status)
    };
    let header = |source: &str, destination: &str| {
        AddressHeader::new(source.parse().unwrap(), destination.parse().unwrap())
    };
    assert_eq!(refusal(&|_| {}), None);
    assert_eq!(refusal(&|req| req.pkey = 0x7fff), None);
    let unsupported = Some(SidrStatus::UNSUPPORTED);
    assert_eq!(refusal(&|req| req.pkey = 0x8001), unsupported);
    assert_eq!(refusal(&|req| req.private[0] = 1), unsupported);
    assert_eq!(refusal(&|req| req.private[1] = 0x50), unsupported);
    assert_eq!(refusal(&|req| header("10.0.0.9:1", "10.0.0.2").emit(&mut req.private)), unsupported);
    assert_eq!(refusal(&|req| header("10.0.0.1:1", "10.0.0.9").emit(&mut req.private)), unsupported);
    // Service ids outside the port space, and the id of a service for connections.
    for service in [0, u64::MAX, 0x0111_0001, ServiceId::new(PortSpace::Tcp, PORT).0] {
        assert_eq!(refusal(&|req| req.service_id = ServiceId(service)), unsupported);
    }
    let mut machine = listening();
    machine.handle_mad(0, address(A), address(B), &spoiled(|req| req.request_id = 0));
    assert_eq!((machine.poll_transmit(), machine.poll_event()), (None, None));
    assert_eq!(machine.counters().dropped(CmDrop::Malformed), 1);
}

#[test]
fn sidr_service_does_not_accept_connections() {
    let mut machine = listening();
    let connect = Connect { port_space: PortSpace::Udp, ..connect_to(B, Transport::Rc, 0x17) };
    let mut asker = CmMachine::new(network::config(A));
    asker.connect(0, &connect).unwrap();
    machine.handle_mad(0, address(A), address(B), &asker.poll_transmit().unwrap().mad);
    assert_eq!((machine.connections(), machine.poll_event()), (0, None));
    assert_eq!(machine.counters().dropped(CmDrop::Refused), 1);
}

#[test]
fn sidr_replies_from_other_hosts_are_ignored() {
    let mut machine = CmMachine::new(network::config(A));
    let id = machine.ask(0, &question_to(B)).unwrap();
    let asked = machine.poll_transmit().unwrap().mad;
    let mut answering = listening();
    answering.handle_mad(0, address(A), address(B), &asked);
    let Some(Event::ServiceRequest(request, _)) = answering.poll_event() else { panic!("unheard") };
    answering.answer(0, request, &answer_with(9)).unwrap();
    let answer = answering.poll_transmit().unwrap().mad;
    let elsewhere = "10.0.0.9".parse().unwrap();
    machine.handle_mad(0, elsewhere, address(A), &answer);
    machine.handle_mad(0, address(B), elsewhere, &answer);
    assert_eq!(machine.counters().dropped(CmDrop::WrongPeer), 2);
    let CmMessage::SidrRep(rep) = CmMessage::parse(&answer) else { panic!("not a SIDR_REP") };
    let other = CmMessage::SidrRep(SidrRep { request_id: rep.request_id ^ 1, ..rep }).mad(1);
    machine.handle_mad(0, address(B), address(A), &other);
    // A REP is not accepted as a SIDR_REP either.
    let mut rep = answer;
    rep.header.attribute = Attribute::REP;
    machine.handle_mad(0, address(B), address(A), &rep);
    assert_eq!(machine.counters().dropped(CmDrop::UnknownConnection), 2);
    assert_eq!(machine.poll_event(), None);
    machine.handle_mad(0, address(B), address(A), &answer);
    let Some(Event::ServiceReply { id: replied, qpn, .. }) = machine.poll_event() else {
        panic!("unanswered")
    };
    assert_eq!((replied, qpn), (id, QpNumber::new(9)));
    machine.handle_mad(0, address(B), address(A), &answer);
    assert_eq!((machine.poll_event(), machine.counters().dropped(CmDrop::UnknownConnection)), (None, 3));
}

#[test]
fn sidr_requests_are_bounded() {
    const ANSWERS: usize = 10;
    let config = CmConfig { half_open_per_host: 8, answers: ANSWERS, ..network::config(B) };
    let mut machine = CmMachine::new(config);
    let listen = |port, backlog| Listen {
        is_family_only: false,
        address: address(B),
        port_space: PortSpace::Udp,
        port,
        transport: None,
        backlog,
    };
    machine.listen(&listen(PORT, 3)).unwrap();
    machine.listen(&listen(PORT + 1, 1_000)).unwrap();
    let ask = |machine: &mut CmMachine, number, port| {
        let mad = spoiled(|req| {
            req.request_id = number;
            req.service_id = ServiceId::new(PortSpace::Udp, port);
        });
        machine.handle_mad(0, address(A), address(B), &mad);
    };
    for number in 1..=5 {
        ask(&mut machine, number, PORT);
    }
    assert_eq!((machine.connections(), machine.counters().dropped(CmDrop::Backlog)), (3, 2));
    for number in 11..=30 {
        ask(&mut machine, number, PORT + 1);
    }
    assert_eq!((machine.connections(), machine.counters().dropped(CmDrop::Limit)), (8, 15));
    // Reported requests no longer fill the backlog.
    let heard: Vec<_> = std::iter::from_fn(|| machine.poll_event()).map(|event| event.connection()).collect();
    machine.request_delivered(heard[0]);
    machine.request_delivered(heard[0]);
    machine.answer(0, heard[7], &answer_with(7)).unwrap();
    ask(&mut machine, 31, PORT);
    ask(&mut machine, 32, PORT);
    assert_eq!((machine.connections(), machine.counters().dropped(CmDrop::Backlog)), (9, 3));
    for id in &heard[..7] {
        machine.answer(0, *id, &answer_with(7)).unwrap();
    }
    let mut answered = 8;
    for number in 100..200 {
        while let Some(event) = machine.poll_event() {
            machine.request_delivered(event.connection());
            machine.answer(0, event.connection(), &answer_with(7)).unwrap();
            answered += 1;
        }
        ask(&mut machine, number, PORT);
        machine.questions.check();
        assert!(machine.connections() <= ANSWERS + 8);
    }
    assert_eq!(answered, 9 + 99, "whoever is answered makes room");
    machine.handle_timeout(LONG);
    machine.handle_timeout(2 * LONG);
    machine.questions.check();
    assert_eq!(machine.connections(), 0);
}

#[test]
fn too_much_private_data_is_refused() {
    let mut machine = CmMachine::new(network::config(A));
    let long = |private| Ask { private, ..question_to(B) };
    assert!(machine.ask(0, &long(&[0; 180])).is_ok());
    let too_long = Err(CmError::PrivateDataTooLong { got: 181, max: 180 });
    assert_eq!(machine.ask(0, &long(&[0; 181])), too_long);
    let mut network = Network::new();
    network.nodes[B].accepts = false;
    network.ask();
    network.run(milliseconds(10));
    let request = network.nodes[B].requests()[0];
    let answer = Answer { private: &[0; 137], ..answer_with(7) };
    let too_long = Err(CmError::PrivateDataTooLong { got: 137, max: 136 });
    let machine = &mut network.nodes[B].machine;
    assert_eq!(machine.answer(0, request, &answer), too_long);
    assert_eq!(machine.decline(0, request, &[0; 137]), too_long);
    assert_eq!(machine.answer(0, request, &Answer { private: &[0; 136], ..answer }), Ok(()));
}
