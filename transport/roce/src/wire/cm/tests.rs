//! Checks the decoded fields of kernels' CM messages. `crate::vectors` checks that the messages are emitted unchanged.

use super::*;
use crate::vectors::mads;
use trunkline_verbs::{Gid, PortSpace, Psn, QpNumber, RejectReason, SidrStatus};

/// Captures of connections between two kernels, over RC and over XRC.
const RC: &str = "rc/rdma_cm";
const XRC: &str = "xrc/xrdma_cm";

fn message(file: &str, index: usize) -> CmMessage {
    CmMessage::parse(&mads(file)[index])
}

#[test]
fn rc_request_has_decoded_fields() {
    let CmMessage::Req(req) = message(RC, 0) else { panic!("not a REQ") };
    assert_eq!(req.local_id, 0xa60e_7a0b);
    assert_eq!(req.service_id.space_and_port(), Some((PortSpace::Tcp, 7471)));
    assert_eq!(req.ca_guid, 0x5054_00ff_fe00_0002);
    assert_eq!(req.qpn, QpNumber::new(0x17));
    assert_eq!((req.responder_resources, req.initiator_depth), (0x80, 0x80));
    assert_eq!((req.remote_timeout, req.local_timeout), (20, 20));
    assert_eq!(req.transport, TransportType::RC);
    assert!(!req.flow_control && !req.srq && !req.rdc_exists);
    assert_eq!(req.starting_psn, Psn::new(0xf7ef));
    assert_eq!((req.retry_count, req.rnr_retry, req.max_cm_retries), (7, 7, 15));
    assert_eq!((req.pkey, req.mtu), (0xffff, 3));
    let path = req.primary;
    assert_eq!((path.local_lid, path.remote_lid), (0xffff, 0xffff));
    assert_eq!(path.local_gid, Gid::from("10.77.0.2".parse::<std::net::IpAddr>().unwrap()));
    assert_eq!(path.remote_gid, Gid::from("10.77.0.1".parse::<std::net::IpAddr>().unwrap()));
    assert_eq!((path.flow_label, path.hop_limit, path.ack_timeout), (0xcd200, 0x40, 19));
    assert_eq!(req.alternate, Path::default());
    let header = AddressHeader::parse(&req.private);
    assert_eq!(header.addresses(), Some(("10.77.0.2:60687".parse().unwrap(), "10.77.0.1".parse().unwrap())));
    assert_eq!(req.private[ADDRESS_HEADER_BYTES..], [0; REQ_USER_BYTES]);
    // contract rocev2 11.5
    assert_eq!(path.flow_label, (60687 * 31 + 7471) & 0xf_ffff);
}

#[test]
fn rc_reply_has_decoded_fields() {
    let CmMessage::Rep(rep) = message(RC, 1) else { panic!("not a REP") };
    assert_eq!((rep.local_id, rep.remote_id), (0x2dfa_a66b, 0xa60e_7a0b));
    assert_eq!((rep.qpn, rep.eecn), (QpNumber::new(0x17), 0));
    assert_eq!(rep.starting_psn, Psn::new(0xe7_40b1));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (0x80, 0x80));
    assert_eq!((rep.ack_delay, rep.failover, rep.flow_control), (15, 0, false));
    assert_eq!((rep.rnr_retry, rep.srq), (7, false));
    assert_eq!(rep.ca_guid, 0x5054_00ff_fe00_0001);
}

#[test]
fn rc_small_messages_have_decoded_fields() {
    let CmMessage::Rtu(rtu) = message(RC, 2) else { panic!("not an RTU") };
    assert_eq!((rtu.local_id, rtu.remote_id), (0xa60e_7a0b, 0x2dfa_a66b));
    let CmMessage::Dreq(dreq) = message(RC, 3) else { panic!("not a DREQ") };
    assert_eq!((dreq.local_id, dreq.remote_id), (0x2dfa_a66b, 0xa60e_7a0b));
    assert_eq!(dreq.qpn, QpNumber::new(0x17));
    let CmMessage::Drep(drep) = message(RC, 5) else { panic!("not a DREP") };
    assert_eq!((drep.local_id, drep.remote_id), (0x2dfa_a66b, 0xa60e_7a0b));
}

#[test]
fn xrc_request_and_reply_have_decoded_fields() {
    let CmMessage::Req(req) = message(XRC, 0) else { panic!("not a REQ") };
    assert_eq!(req.transport, TransportType::XRC);
    assert_eq!(req.service_id.space_and_port(), Some((PortSpace::Ib, 7471)));
    assert_eq!(req.qpn, QpNumber::new(0x17));
    // contract rocev2 10.2
    assert_eq!((req.initiator_depth, req.responder_resources), (0x80, 0));
    assert_eq!((req.retry_count, req.rnr_retry, req.srq), (0, 0, false));
    let CmMessage::Rep(rep) = message(XRC, 1) else { panic!("not a REP") };
    // contract rocev2 10.3
    assert_eq!((rep.qpn, rep.eecn), (QpNumber::new(0), 0x17));
    assert!(rep.srq && !rep.flow_control);
    assert_eq!((rep.initiator_depth, rep.starting_psn), (0, Psn::new(0x01_c6be)));
    assert_eq!(rep.private[..4], [0, 2, 0, 4]);
    let CmMessage::Dreq(dreq) = message(XRC, 3) else { panic!("not a DREQ") };
    assert_eq!(dreq.qpn, QpNumber::new(0x17));
}

#[test]
fn fields_of_reject_and_mra_do_not_overlap() {
    let rej = Rej {
        local_id: 1,
        remote_id: 2,
        answered: Answered::REP,
        reserved_8: 0,
        info_length: 72,
        reserved_9: false,
        reason: RejectReason::CONSUMER,
        info: [3; REJ_INFO_BYTES],
        private: [4; REJ_PRIVATE_BYTES],
    };
    let data = CmMessage::Rej(rej).data();
    assert_eq!(data[..12], [0, 0, 0, 1, 0, 0, 0, 2, 0x40, 0x90, 0, 28]);
    assert_eq!((data[12], data[83], data[84], data[231]), (3, 3, 4, 4));
    let mra = Mra {
        local_id: 1,
        remote_id: 2,
        answered: Answered::OTHER,
        reserved_8: 0,
        service_timeout: 24,
        reserved_9: 0,
        private: [5; MRA_PRIVATE_BYTES],
    };
    let data = CmMessage::Mra(mra).data();
    assert_eq!(data[..11], [0, 0, 0, 1, 0, 0, 0, 2, 0x80, 0xc0, 5]);
}

#[test]
fn fields_of_sidr_messages_do_not_overlap() {
    let req = SidrReq {
        request_id: 0x0102_0304,
        pkey: 0xffff,
        reserved_6: 0x0506,
        service_id: ServiceId::new(PortSpace::Udp, 7471),
        private: [7; SIDR_REQ_PRIVATE_BYTES],
    };
    let mad = CmMessage::SidrReq(req).mad(9);
    assert_eq!(mad.header.attribute.0, 0x17);
    assert_eq!(mad.data[..16], *b"\x01\x02\x03\x04\xff\xff\x05\x06\0\0\0\0\x01\x11\x1d\x2f");
    assert_eq!(mad.data[16..], [7; 216]);
    let rep = SidrRep {
        request_id: 0x0102_0304,
        status: SidrStatus::REJECT,
        info_length: 3,
        vendor_6: 0x0405,
        qpn: QpNumber::new(0x0a_0b0c),
        vendor_11: 6,
        service_id: ServiceId(0x1112_1314_1516_1718),
        qkey: 0x2122_2324,
        info: [8; SIDR_REP_INFO_BYTES],
        private: [9; SIDR_REP_PRIVATE_BYTES],
    };
    let mad = CmMessage::SidrRep(rep).mad(9);
    assert_eq!(mad.header.attribute.0, 0x18);
    assert_eq!(mad.data[..12], [1, 2, 3, 4, 2, 3, 4, 5, 0x0a, 0x0b, 0x0c, 6]);
    assert_eq!(mad.data[12..24], *b"\x11\x12\x13\x14\x15\x16\x17\x18\x21\x22\x23\x24");
    assert_eq!((&mad.data[24..96], &mad.data[96..]), (&[8; 72][..], &[9; 136][..]));
}
