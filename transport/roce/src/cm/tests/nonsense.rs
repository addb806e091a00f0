//! Invalid values in every field of the connection manager's messages.
//!
//! Each field in turn is set to its boundary values and to random values, while all other fields are valid. Each message
//! must be accepted, refused for a named reason, or dropped for a named cause, and the counters must show this.

use super::fields::{self, REP, REQ, Verdict, at, values};
use super::network::{PORT, accept_with, address, config};
use super::*;
use crate::wire::cm::{Answered, CmMessage, DREQ_PRIVATE_BYTES, Dreq, Ids, Mra, Rep, Req};
use crate::wire::{Attribute, Mad};
use std::net::IpAddr;
use trunkline_verbs::{PortSpace, QpNumber, RejectReason};

/// The effect of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Took {
    /// A request or a reply was reported.
    Reported(ConnectionId),
    Established,
    /// These counters increased, and no others.
    Counted(Vec<&'static str>),
}

fn listening(config: CmConfig, address: IpAddr) -> CmMachine {
    let mut machine = CmMachine::new(config);
    let listen = Listen {
        is_family_only: false,
        address,
        port_space: PortSpace::Ib,
        port: PORT,
        transport: Some(Transport::Xrc),
        backlog: 64,
    };
    machine.listen(&listen).unwrap();
    machine
}

/// A machine with an XRC listener, at the address of B, whose peer is at the address of A.
struct Target {
    machine: CmMachine,
    /// Valid request whose ids are replaced for each use.
    template: Req,
    next: u32,
    /// Messages sent in response to the last message.
    answers: Vec<CmMessage>,
}

impl Target {
    fn new() -> Self {
        let machine = listening(config(B), address(B));
        let mut peer = CmMachine::new(config(A));
        peer.connect(0, &connect_to(B, Transport::Xrc, 2)).unwrap();
        let CmMessage::Req(template) = CmMessage::parse(&peer.poll_transmit().unwrap().mad) else {
            panic!("not a REQ")
        };
        Self { machine, template, next: 0x100, answers: Vec::new() }
    }

    fn request(&mut self) -> Req {
        self.next += 1;
        Req { local_id: 0x5000_0000 | self.next, qpn: QpNumber::new(self.next), ..self.template }
    }

    /// Makes the machine request a connection. Returns the connection's id and a valid REP from the peer.
    fn asked(&mut self) -> (ConnectionId, Rep) {
        self.next += 1;
        let id = self.machine.connect(0, &connect_to(A, Transport::Xrc, self.next)).unwrap();
        let req = self.machine.poll_transmit().unwrap();
        let mut peer = listening(CmConfig::new(0xabc0, self.next.into()), address(A));
        peer.handle_mad(0, req.from, req.to, &req.mad);
        let Some(Event::ConnectRequest(asked, _)) = peer.poll_event() else { panic!("refused") };
        peer.accept(0, asked, &accept_with(self.next)).unwrap();
        match CmMessage::parse(&peer.poll_transmit().unwrap().mad) {
            CmMessage::Rep(rep) => (id, rep),
            other => panic!("{other:?}"),
        }
    }

    /// Creates a connection that the machine has accepted and the peer has not confirmed.
    fn half_made(&mut self) -> (Req, ConnectionId) {
        let req = self.request();
        let Took::Reported(id) = self.send(CmMessage::Req(req)) else { panic!("refused") };
        self.next += 1;
        self.machine.accept(0, id, &accept_with(self.next)).unwrap();
        (req, id)
    }

    fn refuse(&mut self, took: &Took) {
        if let Took::Reported(id) = took {
            self.machine.reject(0, *id, RejectReason::CONSUMER, &[]).unwrap();
            self.machine.poll_transmit().unwrap();
        }
    }

    /// Checks that a valid request is accepted and confirmed.
    fn still_serves(&mut self) {
        let (req, id) = self.half_made();
        assert_eq!(self.send(rtu(req.local_id, id.0)), Took::Established);
    }

    fn counts(&self) -> Vec<(&'static str, u64)> {
        let counters = self.machine.counters();
        let dropped = CmDrop::ALL.map(|(cause, name)| (name, counters.dropped(cause)));
        dropped.into_iter().chain(counters.refused()).collect()
    }

    fn send(&mut self, message: CmMessage) -> Took {
        self.send_mad(&message.mad(7))
    }

    fn send_mad(&mut self, mad: &Mad) -> Took {
        self.send_from(address(A), mad)
    }

    fn send_from(&mut self, from: IpAddr, mad: &Mad) -> Took {
        while self.machine.poll_transmit().is_some() {}
        let before = self.counts();
        self.machine.handle_mad(0, from, address(B), mad);
        self.answers.clear();
        while let Some(transmit) = self.machine.poll_transmit() {
            assert_eq!((transmit.from, transmit.to), (address(B), from));
            self.answers.push(CmMessage::parse(&transmit.mad));
        }
        let mut reported = Vec::new();
        while let Some(event) = self.machine.poll_event() {
            match event {
                Event::ConnectRequest(id, _) | Event::Reply(id, _) => reported.push(Took::Reported(id)),
                Event::Established(..) => reported.push(Took::Established),
                Event::Disconnected { .. } | Event::TimewaitExit(..) => {}
                other => panic!("{other:?}"),
            }
        }
        let after = self.counts().into_iter();
        let counted: Vec<_> = after
            .zip(before)
            .flat_map(|((name, after), (_, before))| (before..after).map(move |_| name))
            .collect();
        match (reported.as_slice(), counted.is_empty()) {
            ([one], true) => one.clone(),
            ([], false) => Took::Counted(counted),
            other => panic!("not exactly one effect: {other:?}, {counted:?}"),
        }
    }
}

fn counted(names: &[&'static str]) -> Took {
    Took::Counted(names.to_vec())
}

fn ids(local_id: u32, remote_id: u32) -> Ids {
    Ids { local_id, remote_id, private: [0; 224] }
}

fn rtu(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Rtu(ids(local_id, remote_id))
}

fn dreq(local_id: u32, remote_id: u32, qpn: QpNumber) -> CmMessage {
    CmMessage::Dreq(Dreq { local_id, remote_id, qpn, reserved_11: 0, private: [0; DREQ_PRIVATE_BYTES] })
}

fn mra(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id,
        remote_id,
        answered: Answered::REP,
        reserved_8: 0,
        service_timeout: 31,
        reserved_9: 0,
        private: [0; 222],
    })
}

fn elsewhere() -> IpAddr {
    "10.0.0.9".parse().unwrap()
}

#[test]
fn invalid_values_in_every_field_of_request_are_refused_or_dropped() {
    let mut target = Target::new();
    for field in REQ {
        for value in values(field) {
            let mut mad = CmMessage::Req(target.request()).mad(7);
            let right = at(field, &mad.data);
            fields::put(field, &mut mad.data, value);
            let expected = (field.verdict)(value, right);
            let took = target.send_mad(&mad);
            let what = format!("{} = {value:#x}", field.name);
            match expected {
                Verdict::Taken => assert!(matches!(took, Took::Reported(_)), "{what}: {took:?}"),
                Verdict::Refused(counter, reason) => {
                    assert_eq!(took, counted(&["cm_refused", counter]), "{what}");
                    let [CmMessage::Rej(rej)] = target.answers.as_slice() else {
                        panic!("{what}: {:?}", target.answers)
                    };
                    assert_eq!(
                        (rej.local_id, rej.reason, rej.answered),
                        (0, reason, Answered::REQ),
                        "{what}"
                    );
                }
                Verdict::Dropped(counter) => {
                    assert_eq!(took, counted(&[counter]), "{what}");
                    assert_eq!(target.answers, [], "{what}");
                }
            }
            target.refuse(&took);
        }
    }
    let stale = "cm_refused_stale";
    for (reason, count) in target.machine.counters().refused() {
        assert!(count > 0 || reason == stale, "{reason} was never counted");
    }
    target.still_serves();
}

#[test]
fn invalid_values_in_every_field_of_reply_are_dropped() {
    let mut target = Target::new();
    for field in REP {
        for value in values(field) {
            let (id, rep) = target.asked();
            let right = CmMessage::Rep(rep).mad(7);
            let mut mad = right;
            fields::put(field, &mut mad.data, value);
            let what = format!("{} = {value:#x}", field.name);
            assert_eq!(target.send_from(elsewhere(), &right), counted(&["cm_wrong_peer"]));
            let mut took = target.send_mad(&mad);
            match (field.verdict)(value, at(field, &right.data)) {
                Verdict::Taken => {}
                Verdict::Dropped(counter) => {
                    assert_eq!(took, counted(&[counter]), "{what}");
                    // The valid reply is still accepted.
                    took = target.send_mad(&right);
                }
                Verdict::Refused(..) => panic!("no reply is refused"),
            }
            assert_eq!(took, Took::Reported(id), "{what}");
            target.refuse(&took);
        }
    }
    target.still_serves();
}

#[test]
fn invalid_values_in_every_attribute_and_header_field_are_dropped() {
    let mut target = Target::new();
    for attribute in (0..=u16::MAX).filter(|attribute| Attribute(*attribute) != Attribute::REQ) {
        let mut mad = CmMessage::Req(target.request()).mad(7);
        mad.header.attribute = Attribute(attribute);
        mad.data[..8].copy_from_slice(&[0xff; 8]);
        let expected: &[_] = match mad.header.attribute {
            Attribute::MRA
            | Attribute::REJ
            | Attribute::REP
            | Attribute::RTU
            | Attribute::DREQ
            | Attribute::DREP
            | Attribute::SIDR_REP => &["cm_unknown_connection"],
            // In a REQ, the GUID is at the offset of the SIDR_REQ's address header.
            Attribute::SIDR_REQ => &["cm_refused", "cm_refused_consumer"],
            _ => &["cm_unserved_attribute"],
        };
        assert_eq!(target.send_mad(&mad), counted(expected), "attribute {attribute:#x}");
    }
    // The attribute is covered above.
    for byte in (0..24).filter(|byte| ![16, 17].contains(byte)) {
        for value in [0, 1, 2, 0x7f, 0x80, 0xfe, 0xff] {
            let mut bytes = CmMessage::Req(target.request()).mad(7).to_bytes();
            let right = bytes[byte];
            bytes[byte] = value;
            let took = target.send_mad(&Mad::parse(&bytes));
            if byte < 4 && value != right {
                assert_eq!(took, counted(&["cm_not_cm"]), "byte {byte} = {value:#x}");
            } else {
                assert!(matches!(took, Took::Reported(_)), "byte {byte} = {value:#x}: {took:?}");
            }
            target.refuse(&took);
        }
    }
    target.still_serves();
}

#[test]
fn messages_from_unknown_peers_and_in_wrong_state_are_dropped() {
    let mut target = Target::new();
    let unknown = 0x7777_7777;
    let (req, id) = target.half_made();
    let (peer, own, qpn) = (req.local_id, id.0, QpNumber::new(target.next));
    let rej = |ids| message::rej(ids, Answered::OTHER, RejectReason::TIMEOUT, &[]);
    // Messages to a connection whose reply has not been confirmed yet.
    for (from, message, cause) in [
        (address(A), rtu(peer, unknown), "cm_unknown_connection"),
        (address(A), rtu(unknown, own), "cm_wrong_peer"),
        (elsewhere(), rtu(peer, own), "cm_wrong_peer"),
        (address(A), CmMessage::Drep(ids(peer, own)), "cm_duplicate"),
        (address(A), CmMessage::Drep(ids(unknown, own)), "cm_wrong_peer"),
        (address(A), CmMessage::Drep(ids(peer, unknown)), "cm_unknown_connection"),
        (address(A), dreq(peer, own, QpNumber::new(0x0055_5555)), "cm_wrong_qp"),
        (address(A), dreq(unknown, own, qpn), "cm_unknown_connection"),
        (elsewhere(), dreq(peer, own, qpn), "cm_wrong_peer"),
        (address(A), rej((unknown, own)), "cm_wrong_peer"),
        (elsewhere(), rej((peer, own)), "cm_wrong_peer"),
        (address(A), rej((peer, unknown)), "cm_unknown_connection"),
        (address(A), mra(peer, unknown), "cm_unknown_connection"),
        (address(A), mra(unknown, own), "cm_wrong_peer"),
    ] {
        assert_eq!(target.send_from(from, &message.mad(7)), counted(&[cause]), "{message:?}");
    }
    assert_eq!(target.send(rtu(peer, own)), Took::Established, "it was not disturbed");
    assert_eq!(target.send(rtu(peer, own)), counted(&["cm_duplicate"]));
    // Another request from the same QP ends the old connection.
    let again = Req { qpn: req.qpn, ..target.request() };
    assert_eq!(target.send(CmMessage::Req(again)), counted(&["cm_refused", "cm_refused_stale"]));
    // Messages before the program has accepted or refused.
    let req = target.request();
    let Took::Reported(id) = target.send(CmMessage::Req(req)) else { panic!("refused") };
    assert_eq!(target.send(CmMessage::Req(req)), counted(&["cm_duplicate"]));
    assert!(matches!(target.answers[..], [CmMessage::Mra(_)]), "{:?}", target.answers);
    assert_eq!(target.send(rtu(req.local_id, id.0)), counted(&["cm_wrong_state"]));
    target.still_serves();
}
