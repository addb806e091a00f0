//! Connection attempts with nonsense in every field of the connection manager's messages.
//!
//! Each field in turn is set to its boundary values and to random values, with all others valid. Each message
//! must have exactly one effect: it is accepted, refused for a named reason, or dropped for a named cause.
//! The device's counters must show which.

mod asker;
mod fields;

use crate::common::address;
use crate::common::host::Host;
use crate::common::node::{BOUND, Node, next_request};
use asker::{Asker, PORT, Took, cm, request_of};
use fields::{REP, REQ, Verdict, at, values};
use std::net::{SocketAddr, UdpSocket};
use trunkline_roce::wire::cm::{Answered, CmMessage};
use trunkline_roce::wire::{Attribute, IpUdp, MAD_BYTES, ROCE_PORT, icrc, mad_packet};
use trunkline_testkit::wait_until;
use trunkline_verbs::{CmEventKind, Psn, QpNumber, RejectReason};

#[test]
fn nonsense_in_every_field_of_a_request_is_refused_or_dropped() {
    let mut asker = Asker::new(64);
    for field in REQ {
        for value in values(field) {
            let mut mad = cm(CmMessage::Req(asker.request()));
            let right = at(field, &mad.data);
            fields::put(field, &mut mad.data, value);
            let expected = (field.verdict)(value, right);
            let took = asker.send_mad(&mad);
            let what = format!("{} = {value:#x}", field.name);
            match expected {
                Verdict::Taken => assert_eq!(took, Took::Taken, "{what}"),
                Verdict::Refused(counter, reason) => {
                    assert_eq!(took, Took::counted(&["cm_refused", counter]), "{what}");
                    let [CmMessage::Rej(rej)] = asker.answers.as_slice() else {
                        panic!("{what}: {:?}", asker.answers)
                    };
                    assert_eq!((rej.reason, rej.answered), (reason, Answered::REQ), "{what}");
                }
                Verdict::Dropped(counter) => {
                    assert_eq!(took, Took::counted(&[counter]), "{what}");
                    assert_eq!(asker.answers, [], "{what}");
                }
            }
            asker.refuse_requests();
        }
    }
    let all = ["no_qp", "pkey", "service_id", "transport", "gid", "mtu", "consumer", "other_kind"];
    for reason in all.map(|reason| format!("cm_refused_{reason}")) {
        assert!(asker.node.counter(&reason) > 0, "{reason} was never counted");
    }
    asker.still_serves();
}

#[test]
fn nonsense_in_every_field_of_a_reply_is_refused_or_dropped() {
    let mut asker = Asker::new(64);
    for field in REP {
        for value in values(field) {
            let req = asker.asked();
            let mut mad = cm(CmMessage::Rep(asker.reply(&req)));
            let right = at(field, &mad.data);
            fields::put(field, &mut mad.data, value);
            let what = format!("{} = {value:#x}", field.name);
            let took = asker.send_mad(&mad);
            match (field.verdict)(value, right) {
                Verdict::Taken => assert_eq!(took, Took::Established, "{what}"),
                Verdict::Dropped(counter) => {
                    assert_eq!(took, Took::counted(&[counter]), "{what}");
                    // The valid reply is still accepted.
                    let right = cm(CmMessage::Rep(asker.reply(&req)));
                    assert_eq!(asker.send_mad(&right), Took::Established, "{what}");
                }
                Verdict::Refused(..) => panic!("no reply is refused"),
            }
            asker.hang_up();
        }
    }
    asker.still_serves();
}

#[test]
fn nonsense_in_every_attribute_and_header_field_is_dropped() {
    let mut asker = Asker::new(64);
    for attribute in 0..=u16::MAX {
        let mut mad = cm(CmMessage::Req(asker.request()));
        mad.header.attribute = Attribute(attribute);
        if mad.header.attribute != Attribute::REQ {
            mad.data[..8].copy_from_slice(&[0xff; 8]);
        }
        let expected = match mad.header.attribute {
            Attribute::REQ => Took::Taken,
            Attribute::MRA
            | Attribute::REJ
            | Attribute::REP
            | Attribute::RTU
            | Attribute::DREQ
            | Attribute::DREP
            | Attribute::SIDR_REP => Took::counted(&["cm_unknown_connection"]),
            // A REQ has its GUID at the offset of the SIDR_REQ's address header.
            Attribute::SIDR_REQ => Took::counted(&["cm_refused", "cm_refused_consumer"]),
            _ => Took::counted(&["cm_unserved_attribute"]),
        };
        assert_eq!(asker.send_mad(&mad), expected, "attribute {attribute:#x}");
        asker.refuse_requests();
    }
    for byte in 0..24 {
        for value in [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff] {
            let mut bytes = cm(CmMessage::Req(asker.request())).to_bytes();
            let right = bytes[byte];
            bytes[byte] = value;
            let expected = match byte {
                0..=3 if value != right => Took::counted(&["cm_not_cm"]),
                16 | 17 if value != right => continue, // attributes are covered above
                _ => Took::Taken,
            };
            assert_eq!(asker.send_payload(&bytes), expected, "byte {byte} = {value:#x}");
            asker.refuse_requests();
        }
    }
    asker.still_serves();
}

#[test]
fn wrong_lengths_and_wrong_packets_are_dropped() {
    let mut asker = Asker::new(64);
    for length in (0..=MAD_BYTES + 64).chain([512, 1024, 2048, 4096]) {
        let mut bytes = cm(CmMessage::Req(asker.request())).to_bytes().to_vec();
        bytes.resize(length, 0);
        let expected = if length == MAD_BYTES { Took::Taken } else { Took::counted(&["drop_bad_mad"]) };
        assert_eq!(asker.send_payload(&bytes), expected, "{length} bytes");
        asker.refuse_requests();
    }
    // Packets that are not datagrams for QP 1.
    for (spoil, cause) in asker::SPOILED {
        let bytes = cm(CmMessage::Req(asker.request())).to_bytes();
        assert_eq!(asker.send_spoiled(&bytes, *spoil), Took::counted(&[cause]), "{cause}");
    }
    for length in 0..asker.packet_length() {
        let bytes = cm(CmMessage::Req(asker.request())).to_bytes();
        let took = asker.send_cut(&bytes, length);
        let causes = ["drop_malformed", "drop_bad_mad"].map(|cause| Took::counted(&[cause]));
        assert!(causes.contains(&took), "cut to {length}: {took:?}");
    }
    asker.still_serves();
}

/// On one host, any program can send from any port of a peer's address, but only the peer has port 4791
/// there.
#[test]
fn every_answer_goes_to_port_4791_wherever_the_message_came_from() {
    let mut asker = Asker::new(64);
    asker.port = 40_000;
    let answered = |asker: &mut Asker, message: CmMessage| {
        asker.send(message);
        // The destination is checked when it is taken.
        assert_eq!(asker.answers.len(), 1, "{:?}", asker.answers);
    };
    let mut refused = asker.request();
    refused.mtu = 0;
    answered(&mut asker, CmMessage::Req(refused));
    let unknown = asker::ids(0x7777_7777, 0x7777_7778);
    answered(&mut asker, CmMessage::Rtu(unknown));
    answered(&mut asker, asker::dreq(0x7777_7777, 0x7777_7778, 0x55));
    let req = asker.request();
    assert_eq!(asker.send(CmMessage::Req(req)), Took::Taken);
    answered(&mut asker, CmMessage::Req(req));
    asker.refuse_requests();
    asker.still_serves();
}

#[test]
fn messages_in_the_wrong_state_are_dropped() {
    let mut asker = Asker::new(64);
    let unknown_id = 0x7777_7777;
    let (req, id) = asker.half_made();
    // Messages to a connection whose reply has not been confirmed yet.
    let rtu = |local_id, remote_id| CmMessage::Rtu(asker::ids(local_id, remote_id));
    for (message, cause) in [
        (rtu(req.local_id, unknown_id), "cm_unknown_connection"),
        (rtu(unknown_id, id), "cm_wrong_peer"),
        (CmMessage::Drep(asker::ids(req.local_id, id)), "cm_duplicate"),
        (CmMessage::Drep(asker::ids(unknown_id, id)), "cm_wrong_peer"),
        (CmMessage::Drep(asker::ids(req.local_id, unknown_id)), "cm_unknown_connection"),
        (asker::dreq(req.local_id, id, 0x0055_5555), "cm_wrong_qp"),
        (asker::dreq(unknown_id, id, 0x0055_5555), "cm_unknown_connection"),
        (asker::rej(unknown_id, id), "cm_wrong_peer"),
        (asker::rej(req.local_id, unknown_id), "cm_unknown_connection"),
        (asker::mra(req.local_id, unknown_id), "cm_unknown_connection"),
        (asker::mra(unknown_id, id), "cm_wrong_peer"),
    ] {
        assert_eq!(asker.send(message), Took::counted(&[cause]), "{message:?}");
    }
    assert_eq!(asker.send(rtu(req.local_id, id)), Took::Established, "it was not disturbed");
    assert_eq!(asker.send(rtu(req.local_id, id)), Took::counted(&["cm_duplicate"]));
    // Another request from its QP ends the old connection.
    let mut again = asker.request();
    again.qpn = req.qpn;
    assert_eq!(asker.send(CmMessage::Req(again)), Took::counted(&["cm_refused", "cm_refused_stale"]));
    // Messages before the program has accepted or refused.
    let req = asker.request();
    assert_eq!(asker.send(CmMessage::Req(req)), Took::Taken);
    let id = asker.newest_connection(&req);
    assert_eq!(asker.send(rtu(req.local_id, id)), Took::counted(&["cm_wrong_state"]));
    asker.refuse_requests();
    asker.still_serves();
}

#[test]
fn requests_from_all_unregistered_addresses_of_this_host_have_one_limit() {
    let host = Host::new();
    let [node, member] = [(); 2].map(|()| Node::open(host.options(), 4096));
    let channel = node.cm_channel();
    let at = SocketAddr::new(node.address, PORT);
    let _listener = node.listen(at, &channel).unwrap();
    // Requests stay undecided while their endpoints exist.
    let mut undecided = Vec::new();
    let sockets = [(); 2].map(|()| UdpSocket::bind(SocketAddr::new(address(), ROCE_PORT)).unwrap());
    for number in 0..300 {
        let socket = &sockets[usize::from(number % 2 == 1)];
        let source = socket.local_addr().unwrap();
        let mad = cm(CmMessage::Req(request_of(0x100 + number, source.ip(), node.address)));
        let mut bytes = Vec::new();
        mad_packet(Psn::new(1), &mad.to_bytes()).emit(&mut bytes);
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
    // A process of this user has its own limit.
    let member_channel = member.cm_channel();
    let _asked = member.ask(at, &member_channel);
    next_request(&*channel);
}

#[test]
fn requests_beyond_the_limits_of_a_listener_and_a_peer_are_refused() {
    let mut asker = Asker::new(300);
    let mut counted = Vec::new();
    for _ in 0..400 {
        let req = asker.request();
        counted.push(asker.send(CmMessage::Req(req)));
    }
    let limit = counted.iter().position(|took| *took == Took::counted(&["cm_limit"]));
    assert_eq!(limit, Some(256), "half-open connections of one peer");
    assert!(counted[256..].iter().all(|took| *took == Took::counted(&["cm_limit"])));
    asker.refuse_requests();
    asker.still_serves();

    let mut asker = Asker::new(4);
    asker.leave();
    let counted: Vec<Took> = (0..6)
        .map(|_| {
            let req = asker.request();
            asker.send(CmMessage::Req(req))
        })
        .collect();
    assert_eq!(counted[3], Took::Unseen);
    assert_eq!(counted[4..], [(); 2].map(|()| Took::counted(&["cm_backlog_full"])));
    // A program that has received requests may take its time. Further requests are reported meanwhile.
    assert_eq!(asker.come_back(), 4);
    let req = asker.request();
    assert_eq!(asker.send(CmMessage::Req(req)), Took::Taken);
    let strange = CmMessage::Req({
        let mut req = asker.request();
        req.qpn = QpNumber::new(1);
        req
    });
    assert_eq!(asker.send(strange), Took::counted(&["cm_refused", "cm_refused_no_qp"]));
    let [CmMessage::Rej(rej)] = asker.answers.as_slice() else { panic!("{:?}", asker.answers) };
    assert_eq!(rej.reason, RejectReason::NO_QP);
    asker.refuse_requests();
    asker.still_serves();
}
