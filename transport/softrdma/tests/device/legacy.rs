//! The XRC calls of OFED 1.x on a device without XRC (contract B3). Section B of the conformance suite tests
//! their behaviour with XRC.

use crate::common;
use crate::common::node::Node;
use std::fmt::Debug;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_verbs::legacy::{LegacyError, LegacySrqInit, LegacyXrc};
use trunkline_verbs::{QpModify, QpNumber, XrcdFlags};

#[track_caller]
fn refused<T: Debug>(result: Result<T, LegacyError>) {
    assert_eq!(result.expect_err("it is refused").errno(), 38);
}

#[test]
fn b3_device_without_xrc_returns_enosys() {
    let [options, other] = common::in_process();
    let without_xrc = SoftDevice::open(SoftOptions { without_xrc: true, ..other }).unwrap();
    // Use the objects of a device with XRC, so that only support for XRC is missing.
    let node = Node::open(options, 4096);
    let domain = &node.xrcd;
    let (none, number) = (LegacyXrc::new(without_xrc), QpNumber::new(5));
    let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
    refused(none.open_xrc_domain(None, XrcdFlags::CREATE));
    refused(none.create_xrc_srq(&node.pd, domain, &node.cq, init));
    refused(none.create_xrc_rcv_qp(domain));
    refused(none.modify_xrc_rcv_qp(domain, number, &QpModify::default()));
    refused(none.query_xrc_rcv_qp(domain, number));
    refused(none.reg_xrc_rcv_qp(domain, number));
    refused(none.unreg_xrc_rcv_qp(domain, number));
    refused(none.close_xrc_domain(domain));
}
