//! Interoperation with the kernel, tested with captured connections between two kernels at 10.77.0.2 (active) and 10.77.0.1.
//! The machine's messages equal the captured ones, and the machine accepts the captured ones.

use super::*;
use crate::vectors::mads;
use crate::wire::Mad;
use crate::wire::cm::{CmMessage, Ids, Rep, Req};
use std::net::IpAddr;
use trunkline_verbs::{Mtu, PortSpace, Psn, QpNumber};

struct Captured {
    file: &'static str,
    transport: Transport,
    port_space: PortSpace,
    active_port: u16,
    initiator_depth: u8,
    responder_resources: u8,
    rnr_retry_of_rep: u8,
    private_of_rep: &'static [u8],
    /// PSN of the first data packet that each side sent in the capture; a TGT sends none.
    first_psn: (u32, Option<u32>),
    /// Positions in the file of the active side's DREQ, and of the passive side's DREP if the capture contains it. The file
    /// begins with REQ, REP and RTU.
    dreq_of_active: usize,
    drep_of_passive: Option<usize>,
}

impl Captured {
    /// Returns the REQ, the REP, and the RTU and the DREQ that the active side sends afterwards.
    fn messages(&self) -> (Mad, Mad, [Mad; 2]) {
        let mads = mads(self.file);
        (mads[0], mads[1], [mads[2], mads[self.dreq_of_active]])
    }

    fn drep(&self) -> Mad {
        let (req, rep, [_, dreq]) = self.messages();
        let (local_id, remote_id) = (self::rep(&rep).local_id, self::req(&req).local_id);
        let made_up = CmMessage::Drep(Ids { local_id, remote_id, private: [0; 224] });
        let captured = self.drep_of_passive.map(|at| mads(self.file)[at]);
        captured.unwrap_or_else(|| made_up.mad(dreq.header.transaction))
    }
}

const CASES: &[Captured] = &[
    Captured {
        file: "rc/rdma_cm",
        transport: Transport::Rc,
        port_space: PortSpace::Tcp,
        active_port: 60687,
        initiator_depth: 128,
        responder_resources: 128,
        rnr_retry_of_rep: 7,
        private_of_rep: &[],
        first_psn: (0xe7_40b1, Some(0xf7ef)),
        dreq_of_active: 4,
        drep_of_passive: Some(5),
    },
    // The capture ends before the passive side's DREP.
    Captured {
        file: "xrc/xrdma_cm",
        transport: Transport::Xrc,
        port_space: PortSpace::Ib,
        active_port: 34464,
        initiator_depth: 0,
        responder_resources: 0,
        rnr_retry_of_rep: 0,
        private_of_rep: &[0, 2, 0, 4],
        first_psn: (0x01_c6be, None),
        dreq_of_active: 3,
        drep_of_passive: None,
    },
];

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
fn active_side_speaks_like_kernel() {
    for case in CASES {
        let (kernels_req, kernels_rep, kernels) = case.messages();
        let captured = req(&kernels_req);
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
            ports: trunkline_verbs::UdpPorts::new(4791),
            one_flow: trunkline_verbs::OneFlow::No,
            retry_refused: false,
            private: &[],
        };
        let id = machine.connect(0, &connect).unwrap();
        let ours = req(&next(&mut machine));
        assert_eq!(ours, Req { local_id: id.0, ..captured });

        let mut answer = rep(&kernels_rep);
        answer.remote_id = id.0;
        machine.handle_mad(1, passive_ip(), active_ip(), &CmMessage::Rep(answer).mad(1));
        let Some(Event::Reply(_, peer)) = machine.poll_event() else { panic!("the REP was refused") };
        assert_eq!((peer.qpn, peer.send_psn), (QpNumber::new(0x17), Psn::new(case.first_psn.0)));
        machine.confirm(id).unwrap();
        machine.poll_event();
        machine.disconnect(2, id, &[]).unwrap();
        for kernel in kernels {
            let mut ours = next(&mut machine);
            // Only the machine's own comm id differs.
            assert_eq!(ours.data[..4], id.0.to_be_bytes());
            ours.data[..4].copy_from_slice(&captured.local_id.to_be_bytes());
            assert_eq!(ours.data, kernel.data);
            assert_eq!(ours.header.attribute, kernel.header.attribute);
        }
    }
}

#[test]
fn passive_side_speaks_like_kernel() {
    for case in CASES {
        let (kernels_req, kernels_rep, kernels) = case.messages();
        let captured = rep(&kernels_rep);
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
        machine.handle_mad(0, active_ip(), passive_ip(), &kernels_req);
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
        assert_eq!(ours.header, kernels_rep.header, "the REQ's transaction goes on");

        for mut kernel in kernels {
            kernel.data[4..8].copy_from_slice(&id.0.to_be_bytes());
            machine.handle_mad(1, active_ip(), passive_ip(), &kernel);
        }
        assert_eq!(machine.poll_event(), Some(Event::Established(id, vec![0; 224])));
        let disconnected = Event::Disconnected { id, is_answered: true, private: vec![0; 220] };
        assert_eq!(machine.poll_event(), Some(disconnected));
        let mut ours = next(&mut machine);
        ours.data[..4].copy_from_slice(&captured.local_id.to_be_bytes());
        assert_eq!(ours, case.drep());
    }
}
