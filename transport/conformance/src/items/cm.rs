//! Sections J and K: XRC through the connection manager, and announcement of XRC by devices.

use crate::check::{EINVAL, Verdict, check, equal, post_refused, refused};
use crate::connect::{CmRoute, answer_disconnect, both_sides_end, dial, listen, unexpected};
use crate::traffic::{receive, request};
use crate::{Deviation, Lab};
use std::net::SocketAddr;
use trunkline_verbs::{
    CmEventKind, CompletionOpcode as Op, ConnectParameters, DeviceCapabilities, EndpointRequest,
    EndpointSide, PortSpace, QpModify, QpState, QpType, RejectReason, SendOperation, SrqNumber,
};

pub(super) fn j1(lab: &Lab) -> Verdict {
    let cm = lab.far.device.connection_manager();
    let channel = cm.create_channel()?;
    let local = SocketAddr::new(lab.far.address, 0);
    let request = EndpointRequest {
        side: EndpointSide::Passive { local },
        port_space: PortSpace::Tcp,
        qp_type: QpType::XrcTgt,
    };
    refused("XRC in the TCP port space", cm.create_endpoint(&request, &channel), EINVAL)
}

pub(super) fn j5(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let srq = lab.far.new_srq(&xrcd, &lab.far.cq)?;
    let number = srq.number()?;
    let private_data = number.get().to_be_bytes().to_vec();
    let reply = ConnectParameters { private_data, ..ConnectParameters::default() };
    let route = lab.connect_by_cm(&lab.near, &lab.far, &xrcd, &reply)?;
    let sent = route.answer.first_chunk::<4>().map(|bytes| u32::from_be_bytes(*bytes));
    equal("the number in the reply's private data", sent, Some(number.get()))?;
    receive(&srq, 1, &[lab.far.piece(0, 64)])?;
    let srq = SrqNumber::new(sent.unwrap_or(0));
    route.ini.post_send(&[request(2, SendOperation::Send, &[lab.near.piece(0, 8)], srq)])?;
    lab.succeeds("a receive", &lab.far.cq, 1, Op::Receive)?;
    Ok(())
}

pub(super) fn j6(lab: &Lab) -> Verdict {
    let (near_xrcd, far_xrcd) = (lab.near.new_xrcd()?, lab.far.new_xrcd()?);
    let (near_cq, far_cq) = (lab.near.new_cq()?, lab.far.new_cq()?);
    let near_srq = lab.near.new_srq(&near_xrcd, &near_cq)?;
    let far_srq = lab.far.new_srq(&far_xrcd, &far_cq)?;
    let there = lab.connect_by_cm(&lab.near, &lab.far, &far_xrcd, &ConnectParameters::default())?;
    equal("the QP type at the active side", there.ini.qp_type(), QpType::XrcIni)?;
    equal("the QP type at the passive side", there.tgt.qp_type(), QpType::XrcTgt)?;
    let back_data = [lab.far.piece(0, 8)];
    let back_request = [request(1, SendOperation::Send, &back_data, near_srq.number()?)];
    post_refused("a send on the TGT", there.tgt.post_send(&back_request))?;
    let back = lab.connect_by_cm(&lab.far, &lab.near, &near_xrcd, &ConnectParameters::default())?;
    receive(&far_srq, 2, &[lab.far.piece(64, 64)])?;
    receive(&near_srq, 3, &[lab.near.piece(64, 64)])?;
    let there_data = [lab.near.piece(0, 8)];
    there.ini.post_send(&[request(4, SendOperation::Send, &there_data, far_srq.number()?)])?;
    back.ini.post_send(&back_request)?;
    lab.succeeds("the send there", &lab.near.cq, 4, Op::Send)?;
    lab.succeeds("the receive there", &far_cq, 2, Op::Receive)?;
    lab.succeeds("the send back", &lab.far.cq, 1, Op::Send)?;
    lab.succeeds("the receive back", &near_cq, 3, Op::Receive)?;
    Ok(())
}

pub(super) fn j7(lab: &Lab) -> Verdict {
    let (listener, _channel) = listen(&lab.far, QpType::Rc)?;
    let (id, channel) = dial(&lab.near, listener.local_address(), PortSpace::Ib, QpType::XrcIni)?;
    id.attach(lab.near.new_ini()?)?;
    id.connect(&ConnectParameters::default())?;
    let event = lab.next_cm("the refused request", &channel)?;
    let CmEventKind::Rejected(reason) = event.kind else {
        return Err(unexpected("the active side", &event));
    };
    equal("the reason", reason, RejectReason::CONSUMER)
}

pub(super) fn j8(lab: &Lab) -> Verdict {
    let route =
        lab.connect_by_cm(&lab.near, &lab.far, &lab.far.new_xrcd()?, &ConnectParameters::default())?;
    let (ini, tgt) = (route.ini.query()?, route.tgt.query()?);
    equal("the QP that the INI sends to", ini.destination_qp, route.tgt.number())?;
    equal("the QP that the TGT responds to", tgt.destination_qp, route.ini.number())?;
    equal("the PSN that the TGT expects", tgt.rq_psn, ini.sq_psn)?;
    equal("the INI's state", ini.state, QpState::ReadyToSend)?;
    let receives = [QpState::ReadyToReceive, QpState::ReadyToSend].contains(&tgt.state);
    check(receives, || format!("the TGT is in {:?}", tgt.state))
}

pub(super) fn j9(lab: &Lab) -> Verdict {
    let route =
        lab.connect_by_cm(&lab.near, &lab.far, &lab.far.new_xrcd()?, &ConnectParameters::default())?;
    route.ini_id.disconnect()?;
    both_sides_end(
        || lab.next_cm("the passive side", &route.passive),
        || answer_disconnect(&route.tgt_id),
        || lab.next_cm("the active side", &route.active),
    )?;
    equal("the INI's state", route.ini.query()?.state, QpState::Error)?;

    // Dropping the target's endpoint does not end the connection, because other processes may use its QP.
    let xrcd = lab.far.new_xrcd()?;
    let srq = lab.far.new_srq(&xrcd, &lab.far.cq)?;
    let route = lab.connect_by_cm(&lab.near, &lab.far, &xrcd, &ConnectParameters::default())?;
    let CmRoute { ini, ini_id: _kept, tgt, tgt_id, active, .. } = route;
    let detached = tgt_id.detach().ok_or_else(|| Deviation::Failed("the endpoint lost its QP".to_owned()))?;
    equal("the QP taken back", detached.number(), tgt.number())?;
    drop(tgt_id);
    receive(&srq, 1, &[lab.far.piece(0, 64)])?;
    ini.post_send(&[request(2, SendOperation::Send, &[lab.near.piece(0, 8)], srq.number()?)])?;
    lab.succeeds("a receive after the target's endpoint was dropped", &lab.far.cq, 1, Op::Receive)?;
    lab.succeeds("its send", &lab.near.cq, 2, Op::Send)?;
    let event = active.next_event();
    check(event.is_none(), || format!("the active side got {event:?}"))
}

pub(super) fn j11(lab: &Lab) -> Verdict {
    let xrcd = lab.far.new_xrcd()?;
    let route = lab.connect_by_cm(&lab.near, &lab.far, &xrcd, &ConnectParameters::default())?;
    let (listener, _passive) = listen(&lab.far, QpType::XrcTgt)?;
    let (second, active) = dial(&lab.near, listener.local_address(), PortSpace::Ib, QpType::XrcIni)?;
    second.attach(std::sync::Arc::clone(&route.ini))?;
    second.connect(&ConnectParameters::default())?;
    let event = lab.next_cm("the second request of one INI", &active)?;
    let CmEventKind::Rejected(reason) = event.kind else {
        return Err(unexpected("the active side", &event));
    };
    equal("the reason", reason, RejectReason::STALE_CONNECTION)?;
    both_sides_end(
        || lab.next_cm("the active side of the connection before", &route.active),
        || answer_disconnect(&route.ini_id),
        || lab.next_cm("the passive side of the connection before", &route.passive),
    )
}

pub(super) fn m9(lab: &Lab) -> Verdict {
    // The counts have three bits on the wire. libfabric requests 15.
    let many = ConnectParameters { retry_count: 15, rnr_retry_count: 15, ..ConnectParameters::default() };
    let route = lab.connect_by_cm(&lab.near, &lab.far, &lab.far.new_xrcd()?, &many)?;
    let ini = route.ini.query()?;
    equal("the INI's RNR retries", ini.rnr_retry, 7)?;
    check(ini.retry_count <= 7, || format!("the INI retries {} times", ini.retry_count))
}

pub(super) fn j10(lab: &Lab) -> Verdict {
    let reply =
        ConnectParameters { rnr_retry_count: 3, responder_resources: 2, ..ConnectParameters::default() };
    let route = lab.connect_by_cm(&lab.near, &lab.far, &lab.far.new_xrcd()?, &reply)?;
    let (ini, tgt) = (route.ini.query()?, route.tgt.query()?);
    equal("the INI's RNR retries", ini.rnr_retry, 3)?;
    equal("READs that the INI has outstanding", ini.max_rd_atomic, 2)?;
    equal("READs that the TGT serves", tgt.max_dest_rd_atomic, 2)
}

pub(super) fn j12(lab: &Lab) -> Verdict {
    let reply = ConnectParameters::default();
    let route = lab.connect_by_cm(&lab.near, &lab.far, &lab.far.new_xrcd()?, &reply)?;
    equal("the RNR timer that the CM sets", route.tgt.query()?.min_rnr_timer, 0)?;
    let change =
        QpModify { state: Some(QpState::ReadyToSend), min_rnr_timer: Some(12), ..QpModify::default() };
    route.tgt.modify(&change)?;
    equal("the RNR timer after a change", route.tgt.query()?.min_rnr_timer, 12)
}

pub(super) fn k1(lab: &Lab) -> Verdict {
    for side in lab.sides() {
        let capabilities = side.device.attributes().capabilities;
        check(capabilities.contains(DeviceCapabilities::XRC), || {
            "the device does not announce XRC".to_owned()
        })?;
    }
    Ok(())
}
