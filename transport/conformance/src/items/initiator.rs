//! Section F: the initiator's data path.

use crate::Lab;
use crate::allowed::{depth_above_the_device, not_executed};
use crate::check::{Verdict, check, equal, post_refused};
use crate::connect::{End, Route, Terms, rts_mask};
use crate::traffic::{poll_one, receive, request, rnr_received};
use std::sync::Arc;
use trunkline_verbs::{
    CompletionFlags, CompletionOpcode as Op, CompletionStatus as Status, CqInit, Notify, QpState, QpType,
    SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
};

/// Returns an SRQ number that is very probably unused, because existing numbers are sparse.
pub(super) fn bogus(taken: SrqNumber) -> SrqNumber {
    SrqNumber::new(taken.get() ^ 0x80_0001)
}

pub(super) fn f1(lab: &Lab) -> Verdict {
    let remote = lab.far.remote(0);
    let operations = [
        SendOperation::RdmaRead(remote),
        SendOperation::RdmaWrite(remote),
        SendOperation::FetchAdd { remote, add: 1 },
        SendOperation::CompareSwap { remote, compare: 0, swap: 1 },
    ];
    let data = [lab.near.piece(0, 8)];
    let good = lab.route(&Terms::default())?;
    for (wr_id, operation) in (0..).zip(operations) {
        good.ini.post_send(&[request(wr_id, operation, &data, good.srq_number)])?;
        let opcode = lab.next("an operation with a valid SRQ number", &lab.near.cq)?;
        check(opcode.status.is_success(), || format!("{operation:?} ended with {:?}", opcode.status))?;
    }
    lab.far.fill(0, 8, 0x55)?;
    for (wr_id, operation) in (10..).zip(operations) {
        // Each operation ends its connection and therefore needs a separate one.
        let route = lab.route(&crate::connect::few_retries())?;
        route.ini.post_send(&[request(wr_id, operation, &data, bogus(route.srq_number))])?;
        let ended = lab.next("an operation with a bogus SRQ number", &lab.near.cq)?;
        check(lab.xrc_violation.contains(&ended.status), || {
            format!("{operation:?} to a nonexistent SRQ ended with {:?}", ended.status)
        })?;
    }
    lab.far.holds("memory that was named together with a nonexistent SRQ", 0, 8, 0x55)
}

pub(super) fn f2(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let remote = lab.far.remote(64);
    let operations = [
        (SendOperation::Send, Op::Send, true),
        (SendOperation::SendWithImmediate(1), Op::Send, true),
        (SendOperation::RdmaWrite(remote), Op::RdmaWrite, false),
        (SendOperation::RdmaWriteWithImmediate(remote, 1), Op::RdmaWrite, true),
        (SendOperation::RdmaRead(remote), Op::RdmaRead, false),
        (SendOperation::CompareSwap { remote, compare: 0, swap: 0 }, Op::CompareSwap, false),
        (SendOperation::FetchAdd { remote, add: 0 }, Op::FetchAdd, false),
    ];
    let data = [lab.near.piece(0, 8)];
    for (wr_id, (operation, opcode, receives)) in (0..).zip(operations) {
        receive(&route.srq, wr_id, &[lab.far.piece(0, 64)])?;
        route.ini.post_send(&[request(wr_id, operation, &data, route.srq_number)])?;
        lab.succeeds(&format!("{operation:?}"), &lab.near.cq, wr_id, opcode)?;
        let taken =
            lab.wait("a receive", || poll_one(&route.cq).map(Some).or((!receives).then_some(None)))?;
        equal(&format!("whether {operation:?} consumed a receive"), taken.is_some(), receives)?;
    }
    Ok(())
}

pub(super) fn f5(lab: &Lab) -> Verdict {
    // The INI's depth must not exceed the TGT's depth. Each device announces its own limits.
    let announced = lab.near.device.attributes().max_rd_atomic;
    let most = announced.min(lab.far.device.attributes().max_dest_rd_atomic);
    let remote = lab.far.remote(0);
    let read = SendOperation::RdmaRead(remote);
    let add = SendOperation::FetchAdd { remote, add: 1 };
    for depth in [1, 2, most].into_iter().filter(|depth| *depth <= most) {
        let route = lab.route(&Terms { rd_atomic: (depth, depth), ..Terms::default() })?;
        lab.far.memory.write(0, &0u64.to_ne_bytes())?;
        // Post far more READs than may be outstanding. Every response must be stored at the right address.
        for wr_id in 0..24u64 {
            let word = [lab.near.piece(8 * usize::try_from(wr_id).unwrap_or(0), 8)];
            let operation = if wr_id % 2 == 0 { add } else { read };
            route.ini.post_send(&[request(wr_id, operation, &word, route.srq_number)])?;
        }
        for wr_id in 0..24u64 {
            let opcode = if wr_id % 2 == 0 { Op::FetchAdd } else { Op::RdmaRead };
            lab.succeeds(&format!("one of many with depth {depth}"), &lab.near.cq, wr_id, opcode)?;
            let place = 8 * usize::try_from(wr_id).unwrap_or(0);
            let mut came = [0; 8];
            lab.near.memory.read(place, &mut came)?;
            // A READ observes earlier atomics. Without a fence, it may also observe some later ones.
            let (came, due) = (u64::from_ne_bytes(came), wr_id.div_ceil(2));
            let fits = if opcode == Op::FetchAdd { came == due } else { (due..=12).contains(&came) };
            check(fits, || format!("{opcode:?} number {wr_id} brought {came}, not {due}"))?;
        }
    }
    let data = [lab.near.piece(0, 8)];
    let without = lab.route(&Terms { rd_atomic: (0, most.min(4)), ..Terms::default() })?;
    let posted = lab.what_becomes_of(&without.ini, request(1, read, &data, without.srq_number), &lab.near.cq);
    not_executed("a READ of an INI that may have none outstanding", posted)?;
    without.ini.destroy()?;
    let unserved = lab.route(&Terms { rd_atomic: (most.min(4), 0), ..Terms::default() })?;
    unserved.ini.post_send(&[request(2, read, &data, unserved.srq_number)])?;
    lab.ends("a READ of a TGT that serves none", &lab.near.cq, 2, Status::RemoteInvalidRequest)?;
    let Some(above) = announced.checked_add(1) else { return Ok(()) };
    let (ini, tgt) = (lab.near.new_ini()?, lab.far.new_tgt(&unserved.xrcd)?);
    let terms = Terms { rd_atomic: (above, 1), ..Terms::default() };
    let end = End { side: &lab.near, qp: &ini, other: lab.far.gid(), peer: tgt.number() };
    end.bring_to(QpState::ReadyToReceive, &terms)?;
    let (from, to) = (QpState::ReadyToReceive, QpState::ReadyToSend);
    let answer = end.step(from, to, rts_mask(QpType::XrcIni), &terms);
    depth_above_the_device("more outstanding READs than the device announces", answer)
}

/// Checks that a fenced SEND transmits the bytes that the preceding READ returned.
fn fence(lab: &Lab, route: &Route) -> Verdict {
    for round in 0..8 {
        lab.far.fill(32_768, 20_000, round)?;
        lab.near.fill(0, 20_000, !round)?;
        receive(&route.srq, 71, &[lab.far.piece(0, 20_000)])?;
        let data = [lab.near.piece(0, 20_000)];
        let read = SendOperation::RdmaRead(lab.far.remote(32_768));
        let base = request(73, SendOperation::Send, &data, route.srq_number);
        let fenced = SendRequest { flags: SendFlags::SIGNALED | SendFlags::FENCE, ..base };
        route.ini.post_send(&[request(72, read, &data, route.srq_number), fenced])?;
        lab.succeeds("the READ", &lab.near.cq, 72, Op::RdmaRead)?;
        lab.succeeds("the fenced send", &lab.near.cq, 73, Op::Send)?;
        lab.succeeds("its receive", &route.cq, 71, Op::Receive)?;
        lab.far.holds("a message sent with a fence", 0, 20_000, round)?;
    }
    Ok(())
}

/// Checks that a CQ armed for solicited completions signals only these.
fn solicited(lab: &Lab) -> Verdict {
    const CONTEXT: u64 = 0x736f;
    let channel = lab.far.device.create_completion_channel()?;
    let init = CqInit {
        capacity_cqe: 16,
        channel: Some(Arc::clone(&channel)),
        context: CONTEXT,
        ..CqInit::default()
    };
    let cq = lab.far.device.create_cq(init)?;
    let route = lab.route(&Terms::default())?;
    let srq = lab.far.new_srq(&route.xrcd, &cq)?;
    let number = srq.number()?;
    let data = [lab.near.piece(0, 8)];
    let send = |wr_id, flags| {
        receive(&srq, wr_id, &[lab.far.piece(0, 64)])?;
        let base = request(wr_id, SendOperation::SendWithImmediate(3), &data, number);
        route.ini.post_send(&[SendRequest { flags: SendFlags::SIGNALED | flags, ..base }])?;
        lab.succeeds("a send", &lab.near.cq, wr_id, Op::Send)
    };
    cq.request_notify(Notify::Solicited)?;
    send(1, SendFlags::empty())?;
    check(channel.next_event().is_none(), || {
        "an unsolicited message fired a CQ armed for solicited ones".to_owned()
    })?;
    send(2, SendFlags::SOLICITED)?;
    equal("the CQ that fired", lab.wait("a solicited event", || channel.next_event())?, CONTEXT)?;
    send(3, SendFlags::SOLICITED)?;
    check(channel.next_event().is_none(), || "a CQ fired twice after one arming".to_owned())?;
    for wr_id in 1..=3 {
        let got = lab.succeeds("a receive", &cq, wr_id, Op::Receive)?;
        let shown = got.flags.contains(CompletionFlags::SOLICITED);
        equal("whether it is marked as solicited", shown, wr_id > 1 && lab.shows_solicited)?;
    }
    cq.request_notify(Notify::Any)?;
    send(4, SendFlags::empty())?;
    equal("the CQ that fired", lab.wait("an event for any completion", || channel.next_event())?, CONTEXT)
}

pub(super) fn f3(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    messages(lab, &route)?;
    one_sided(lab, &route)?;
    fence(lab, &route)?;
    solicited(lab)?;
    signalling(lab, &route)?;
    inline(lab, &route)?;
    let all = lab.route(&Terms { signal_all: true, ..Terms::default() })?;
    receive(&all.srq, 1, &[lab.far.piece(0, 64)])?;
    let data = [lab.near.piece(0, 8)];
    let quiet =
        SendRequest { flags: SendFlags::empty(), ..request(60, SendOperation::Send, &data, all.srq_number) };
    all.ini.post_send(&[quiet])?;
    let done = lab.succeeds("an unsignalled send where all are reported", &lab.near.cq, 60, Op::Send)?;
    equal("its QP", done.qp_number, all.ini.number())
}

/// Sends messages of several lengths. Each is gathered from two SGEs and scattered to two SGEs.
fn messages(lab: &Lab, route: &Route) -> Verdict {
    // For any MTU, the lengths cover an empty message, a single packet, slightly more than one packet, and many packets.
    for (wr_id, length) in (1..).zip([0u32, 1, 1023, 1024, 1025, 4097, 40_001]) {
        let (first, bytes) = (length / 3, length as usize);
        let seed = u8::try_from(wr_id).unwrap_or(0);
        lab.near.fill(0, bytes, seed)?;
        let gather = [lab.near.piece(0, first), lab.near.piece(first as usize, length - first)];
        let scatter = [lab.far.piece(4096, 700), lab.far.piece(4796, 65_000)];
        receive(&route.srq, wr_id, &scatter)?;
        route.ini.post_send(&[request(wr_id, SendOperation::Send, &gather, route.srq_number)])?;
        let what = format!("a message of {length} bytes");
        let done = lab.succeeds(&what, &lab.near.cq, wr_id, Op::Send)?;
        equal("the QP of a send", done.qp_number, route.ini.number())?;
        let got = lab.succeeds(&what, &route.cq, wr_id, Op::Receive)?;
        equal("the length of a receive", got.byte_length, length)?;
        lab.far.holds(&what, 4096, bytes, seed)?;
    }
    Ok(())
}

fn one_sided(lab: &Lab, route: &Route) -> Verdict {
    let length = 10_007u32;
    let bytes = length as usize;
    let data = [lab.near.piece(0, length)];
    let send =
        |wr_id, operation, data| route.ini.post_send(&[request(wr_id, operation, data, route.srq_number)]);
    lab.near.fill(0, bytes, 0x11)?;
    send(20, SendOperation::RdmaWrite(lab.far.remote(100)), &data)?;
    lab.succeeds("a WRITE", &lab.near.cq, 20, Op::RdmaWrite)?;
    lab.far.holds("what was written", 100, bytes, 0x11)?;
    lab.far.fill(100, bytes, 0x22)?;
    send(21, SendOperation::RdmaRead(lab.far.remote(100)), &data)?;
    let read = lab.succeeds("a READ", &lab.near.cq, 21, Op::RdmaRead)?;
    equal("the length of a READ", read.byte_length, length)?;
    lab.near.holds("what was read", 0, bytes, 0x22)?;
    let word = [lab.near.piece(0, 8)];
    lab.far.memory.write(64, &40u64.to_ne_bytes())?;
    send(22, SendOperation::FetchAdd { remote: lab.far.remote(64), add: 2 }, &word)?;
    lab.succeeds("FETCH_ADD", &lab.near.cq, 22, Op::FetchAdd)?;
    lab.near.contains("the value before FETCH_ADD", 0, &40u64.to_ne_bytes())?;
    for (wr_id, compare, after) in [(23, 41, 42u64), (24, 42, 7)] {
        let swap = SendOperation::CompareSwap { remote: lab.far.remote(64), compare, swap: 7 };
        send(wr_id, swap, &word)?;
        lab.succeeds("CMP_AND_SWP", &lab.near.cq, wr_id, Op::CompareSwap)?;
        lab.near.contains("the value before CMP_AND_SWP", 0, &42u64.to_ne_bytes())?;
        lab.far.contains("the value after CMP_AND_SWP", 64, &after.to_ne_bytes())?;
    }
    Ok(())
}

/// Checks that successful unsignalled requests produce no completions, and that their send-queue entries are freed.
fn signalling(lab: &Lab, route: &Route) -> Verdict {
    let rounds = u64::from(route.ini.capacities().max_send_wr) * 2;
    let data = [lab.near.piece(0, 8)];
    for round in 0..rounds {
        let flags = if round % 8 == 7 { SendFlags::SIGNALED } else { SendFlags::empty() };
        let write = SendOperation::RdmaWrite(lab.far.remote(0));
        route.ini.post_send(&[SendRequest { flags, ..request(round, write, &data, route.srq_number) }])?;
        if round % 8 == 7 {
            lab.succeeds("the signalled one of eight", &lab.near.cq, round, Op::RdmaWrite)?;
        }
    }
    check(poll_one(&lab.near.cq).is_none(), || "an unsignalled send completed".to_owned())
}

fn inline(lab: &Lab, route: &Route) -> Verdict {
    let most = route.ini.capacities().max_inline_data as usize;
    let mut bytes = vec![0xa5; most];
    receive(&route.srq, 50, &[lab.far.piece(0, 4096)])?;
    let base = request(51, SendOperation::Send, &[], route.srq_number);
    route.ini.post_send(&[SendRequest { data: SendData::Inline(&bytes), ..base }])?;
    bytes.fill(0);
    lab.succeeds("an inline send", &lab.near.cq, 51, Op::Send)?;
    let got = lab.succeeds("its receive", &route.cq, 50, Op::Receive)?;
    equal("its length", got.byte_length as usize, most)?;
    lab.far.contains("an inline message", 0, &vec![0xa5; most])?;
    let long = vec![0; most + 1];
    let refused = route.ini.post_send(&[SendRequest { data: SendData::Inline(&long), ..base }]);
    post_refused("an inline send above max_inline_data", refused)
}

pub(super) fn f4(lab: &Lab) -> Verdict {
    let route = lab.route(&Terms::default())?;
    let filled_cq = lab.far.new_cq()?;
    let filled = lab.far.new_srq(&route.xrcd, &filled_cq)?;
    receive(&filled, 1, &[lab.far.piece(0, 64)])?;
    let before = rnr_received(&lab.near);
    let data = [lab.near.piece(0, 8)];
    route.ini.post_send(&[
        request(2, SendOperation::Send, &data, route.srq_number),
        request(3, SendOperation::Send, &data, filled.number()?),
    ])?;
    lab.wait_for_rnr(&lab.near, before)?;
    lab.stays_quiet("the filled SRQ after the empty one", &filled_cq)?;
    receive(&route.srq, 4, &[lab.far.piece(64, 64)])?;
    lab.succeeds("the first message", &route.cq, 4, Op::Receive)?;
    lab.succeeds("the second message", &filled_cq, 1, Op::Receive)?;
    lab.succeeds("the first send", &lab.near.cq, 2, Op::Send)?;
    lab.succeeds("the second send", &lab.near.cq, 3, Op::Send)?;
    Ok(())
}
