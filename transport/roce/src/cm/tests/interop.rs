//! Interoperation with the kernel, tested with captured connections between two kernels at 10.77.0.2 (active)
//! and 10.77.0.1. Our messages equal the captured ones, and the captured ones are understood.

use super::*;
use crate::wire::cm::{CmMessage, Rep, Req};
use crate::wire::{MAD_BYTES, Mad};
use std::net::IpAddr;
use trunkline_verbs::{Mtu, PortSpace, Psn, QpNumber};

/// Trailing zeros are left out.
struct Captured {
    transport: Transport,
    port_space: PortSpace,
    active_port: u16,
    initiator_depth: u8,
    responder_resources: u8,
    rnr_retry_of_rep: u8,
    private_of_rep: &'static [u8],
    /// PSN of the first data packet that each side sent in the capture; a TGT sends none.
    first_psn: (u32, Option<u32>),
    req: &'static str,
    rep: &'static str,
    rtu: &'static str,
    dreq_of_active: &'static str,
    drep_of_passive: &'static str,
}

const CASES: &[Captured] = &[
    Captured {
        transport: Transport::Rc,
        port_space: PortSpace::Tcp,
        active_port: 60687,
        initiator_depth: 128,
        responder_resources: 128,
        rnr_retry_of_rep: 7,
        private_of_rep: &[],
        first_psn: (0xe7_40b1, Some(0xf7ef)),
        req: "0107020300000000000000020b7a0ea60010000000000000a60e7a0b000000000000000001061d2f505400ff\
            fe00000200000000000000000000178000000080000000a000f7efa7ffff37f0ffffffff0000000000000000\
            0000ffff0a4d000200000000000000000000ffff0a4d0001cd20000000400098000000000000000000000000\
            00000000000000000000000000000000000000000000000000000000000000000040ed0f0000000000000000\
            000000000a4d00020000000000000000000000000a4d0001",
        rep: "0107020300000000000000020b7a0ea600130000000000002dfaa66ba60e7a0b000000000000170000000000\
            e740b100808078e0505400fffe000001",
        rtu: "0107020300000000000000020b7a0ea60014000000000000a60e7a0b2dfaa66b",
        dreq_of_active: "0107020300000000000000020b7a0ea60015000000000000a60e7a0b2dfaa66b000017",
        drep_of_passive: "0107020300000000000000020b7a0ea600160000000000002dfaa66ba60e7a0b",
    },
    // The capture ends before the passive side's DREP; it is made up here.
    Captured {
        transport: Transport::Xrc,
        port_space: PortSpace::Ib,
        active_port: 34464,
        initiator_depth: 0,
        responder_resources: 0,
        rnr_retry_of_rep: 0,
        private_of_rep: &[0, 2, 0, 4],
        first_psn: (0x01_c6be, None),
        req: "01070203000000000000000291d6d5d90010000000000000d9d5d6910000000000000000013f1d2f505400ff\
            fe00000200000000000000000000170000000080000000a6c0545aa0ffff30f1ffffffff0000000000000000\
            0000ffff0a4d000200000000000000000000ffff0a4d000106a8f00000400098000000000000000000000000\
            0000000000000000000000000000000000000000000000000000000000000000004086a00000000000000000\
            000000000a4d00020000000000000000000000000a4d0001",
        rep: "01070203000000000000000291d6d5d90013000000000000922aaeb0d9d5d691000000000000000000001700\
            01c6be0000007810505400fffe00000100020004",
        rtu: "01070203000000000000000291d6d5d90014000000000000d9d5d691922aaeb0",
        dreq_of_active: "01070203000000000000000291d6d5d90015000000000000d9d5d691922aaeb0000017",
        drep_of_passive: "01070203000000000000000291d6d5d90016000000000000922aaeb0d9d5d691",
    },
];

fn mad(hex: &str) -> Mad {
    let mut bytes = [0; MAD_BYTES];
    for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    Mad::parse(&bytes)
}

fn req(mad: &Mad) -> Req {
    match CmMessage::parse(mad) {
        CmMessage::Req(req) => req,
        other => panic!("{other:?}"),
    }
}

fn rep(mad: &Mad) -> Rep {
    match CmMessage::parse(mad) {
        CmMessage::Rep(rep) => rep,
        other => panic!("{other:?}"),
    }
}

fn active_ip() -> IpAddr {
    "10.77.0.2".parse().unwrap()
}

fn passive_ip() -> IpAddr {
    "10.77.0.1".parse().unwrap()
}

fn next(machine: &mut CmMachine) -> Mad {
    machine.poll_transmit().unwrap().mad
}

#[test]
fn the_active_side_speaks_like_a_kernel() {
    for case in CASES {
        let captured = req(&mad(case.req));
        let mut machine = CmMachine::new(CmConfig::new(captured.ca_guid, 1));
        let connect = Connect {
            local: (active_ip(), case.active_port).into(),
            remote: (passive_ip(), 7471).into(),
            port_space: case.port_space,
            transport: case.transport,
            qpn: captured.qpn,
            starting_psn: captured.starting_psn,
            mtu: Mtu::from_code(captured.mtu).unwrap(),
            responder_resources: 128,
            initiator_depth: 128,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 19,
            flow_control: false,
            traffic_class: 0,
            srq: false,
            private: &[],
        };
        let id = machine.connect(0, &connect).unwrap();
        let ours = req(&next(&mut machine));
        assert_eq!(ours, Req { local_id: id.0, ..captured });

        let mut answer = rep(&mad(case.rep));
        answer.remote_id = id.0;
        machine.handle_mad(1, passive_ip(), active_ip(), &CmMessage::Rep(answer).mad(1));
        let Some(Event::Reply(_, peer)) = machine.poll_event() else { panic!("the REP was refused") };
        assert_eq!((peer.qpn, peer.send_psn), (QpNumber::new(0x17), Psn::new(case.first_psn.0)));
        machine.confirm(id).unwrap();
        machine.poll_event();
        let kernels = [case.rtu, case.dreq_of_active];
        machine.disconnect(2, id).unwrap();
        for kernel in kernels {
            let (mut ours, kernel) = (next(&mut machine), mad(kernel));
            // Only the own comm id differs.
            assert_eq!(ours.data[..4], id.0.to_be_bytes());
            ours.data[..4].copy_from_slice(&captured.local_id.to_be_bytes());
            assert_eq!(ours.data, kernel.data);
            assert_eq!(ours.header.attribute, kernel.header.attribute);
        }
    }
}

#[test]
fn the_passive_side_speaks_like_a_kernel() {
    for case in CASES {
        let captured = rep(&mad(case.rep));
        let config = CmConfig { ack_delay: 15, ..CmConfig::new(captured.ca_guid, 1) };
        let mut machine = CmMachine::new(config);
        let listen = Listen {
            is_family_only: false,
            address: "0.0.0.0".parse().unwrap(),
            port_space: case.port_space,
            port: 7471,
            transport: Some(case.transport),
            backlog: 1,
        };
        machine.listen(&listen).unwrap();
        let kernel = mad(case.req);
        machine.handle_mad(0, active_ip(), passive_ip(), &kernel);
        let Some(Event::ConnectRequest(id, request)) = machine.poll_event() else { panic!("refused") };
        assert_eq!(request.remote, (active_ip(), case.active_port).into());
        assert_eq!((request.peer.qpn, request.peer.responder_resources), (QpNumber::new(0x17), 128));
        if let Some(psn) = case.first_psn.1 {
            assert_eq!(request.peer.send_psn, Psn::new(psn));
        }
        let accept = Accept {
            qpn: QpNumber::new(0x17),
            starting_psn: captured.starting_psn,
            responder_resources: case.responder_resources,
            initiator_depth: case.initiator_depth,
            rnr_retry: case.rnr_retry_of_rep,
            flow_control: false,
            srq: false,
            private: case.private_of_rep,
        };
        machine.accept(0, id, &accept).unwrap();
        let ours = next(&mut machine);
        assert_eq!(rep(&ours), Rep { local_id: id.0, ..captured });
        assert_eq!(ours.header, mad(case.rep).header, "the REQ's transaction goes on");

        for kernel in [case.rtu, case.dreq_of_active] {
            let mut kernel = mad(kernel);
            kernel.data[4..8].copy_from_slice(&id.0.to_be_bytes());
            machine.handle_mad(1, active_ip(), passive_ip(), &kernel);
        }
        assert_eq!(machine.poll_event(), Some(Event::Established(id, vec![0; 224])));
        assert_eq!(machine.poll_event(), Some(Event::Disconnected { id, is_answered: true }));
        let mut ours = next(&mut machine);
        ours.data[..4].copy_from_slice(&captured.local_id.to_be_bytes());
        assert_eq!(ours, mad(case.drep_of_passive));
    }
}
