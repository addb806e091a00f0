//! Items about TGTs, SRQs, events and process deaths that involve several processes.

use super::client::Puppet;
use super::{SEND, Stage};
use crate::check::{EINVAL, Verdict, check, equal};
use crate::connect::{End, Terms, few_retries};
use crate::lab::MEMORY_BYTES;
use crate::traffic::request;
use std::sync::Arc;
use trunkline_testkit::Folder;
use trunkline_verbs::{
    CompletionOpcode as Op, CompletionStatus as Status, IoAddress, QpNumber, QpState, QueuePair,
    RemoteAddress, Rkey, SendOperation, SrqNumber,
};

/// Two processes in one domain. The first created a TGT, and the second opened it. Each process has an SRQ, and an INI
/// sends to the TGT.
struct SharedTgtPair {
    first: Puppet,
    second: Puppet,
    tgt: u32,
    srqs: [u32; 2],
    ini: Arc<dyn QueuePair>,
    _folder: Folder,
}

impl SharedTgtPair {
    fn new(stage: &Stage<'_>, terms: &Terms) -> Verdict<Self> {
        let folder = Folder::new()?;
        folder.create("domain")?;
        let path = folder.join("domain").display().to_string();
        let (mut first, mut second) = stage.two()?;
        first.does(&format!("domain d {path} c"))?;
        second.does(&format!("domain d {path} -"))?;
        let tgt = first.number("tgt t d")?;
        equal("the number of the opened TGT", second.number(&format!("open t d {tgt}"))?, tgt)?;
        let srqs = [first.number("srq s d")?, second.number("srq s d")?];
        check(srqs[0] != srqs[1], || "two processes have one SRQ number".to_owned())?;
        let ini = stage.join(&mut first, "t", tgt, terms)?;
        Ok(Self { first, second, tgt, srqs, ini, _folder: folder })
    }
}

/// Sends a message to the SRQ of a process, and checks that it arrives. Returns the TGT's number.
fn reaches(
    stage: &Stage<'_>,
    ini: &Arc<dyn QueuePair>,
    srq: u32,
    process: &mut Puppet,
    wr_id: u64,
) -> Verdict<u32> {
    process.does(&format!("receive s {wr_id} 0 64"))?;
    stage.send(ini, srq)?;
    process.receives("s", wr_id)
}

pub(super) fn b10(stage: &Stage<'_>) -> Verdict {
    let folder = Folder::new()?;
    folder.create("domain")?;
    let path = folder.join("domain").display().to_string();
    let (mut first, mut second) = stage.two()?;
    first.does(&format!("domain d {path} c"))?;
    second.does(&format!("domain d {path} -"))?;
    for round in 0..8 {
        let tgt = first.number(&format!("tgt t{round} d"))?;
        second.does(&format!("open t{round} d {tgt}"))?;
        first.does(&format!("init t{round}"))?;
        let command = format!("rtr t{round} {} 77", stage.lab.near.address);
        first.tell(&command)?;
        second.tell(&command)?;
        let outcomes = [first.answer()?, second.answer()?];
        let won = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        equal("number of processes that moved the TGT", won, 1)?;
        for errno in outcomes.into_iter().filter_map(Result::err) {
            equal("the errno of the other", errno, EINVAL)?;
        }
        for process in [&mut first, &mut second] {
            equal("the state", process.does(&format!("state t{round}"))?, "ReadyToReceive".to_owned())?;
        }
    }
    Ok(())
}

pub(super) fn c4(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    let second = &mut pair.second;
    second.does("domain e - c")?;
    second.is_refused(&format!("open u e {}", pair.tgt), EINVAL)?;
    second.is_refused(&format!("open u d {}", pair.tgt ^ 0x80_0000), EINVAL)?;
    second.is_refused("open u d 0", EINVAL)?;
    // A process may open the TGT several times, and each handle counts.
    for name in ["u", "v"] {
        equal("the number", second.number(&format!("open {name} d {}", pair.tgt))?, pair.tgt)?;
    }
    second.does("destroy t")?;
    second.does("destroy u")?;
    equal("the state for the last handle", second.does("state v")?, "ReadyToSend".to_owned())
}

pub(super) fn c6(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    reaches(stage, &pair.ini, pair.srqs[1], &mut pair.second, 1)?;
    pair.first.does("destroy t")?;
    for wr_id in 2..6 {
        let through = reaches(stage, &pair.ini, pair.srqs[1], &mut pair.second, wr_id)?;
        equal("the QP of a receive", through, pair.tgt)?;
        reaches(stage, &pair.ini, pair.srqs[0], &mut pair.first, wr_id)?;
    }
    pair.second.does("destroy t")?;
    pair.first.is_refused(&format!("open t d {}", pair.tgt), EINVAL)
}

pub(super) fn c7(stage: &Stage<'_>) -> Verdict {
    let SharedTgtPair { first, mut second, tgt, srqs, ini, _folder } =
        SharedTgtPair::new(stage, &Terms::default())?;
    // Some sends are outstanding when the creator dies. All of them must arrive exactly once.
    const SENDS: u64 = 48;
    for wr_id in 0..SENDS {
        second.does(&format!("receive s {wr_id} 0 64"))?;
    }
    let mut creator = Some(first);
    for sent in 0..SENDS {
        if sent == SENDS / 2
            && let Some(first) = creator.take()
        {
            first.kill()?;
        }
        stage.post(&ini, srqs[1])?;
    }
    for _ in 0..SENDS {
        stage.lab.succeeds("a send", &stage.lab.near.cq, SEND, Op::Send)?;
    }
    for wr_id in 0..SENDS {
        equal("the QP of a receive around the creator's death", second.receives("s", wr_id)?, tgt)?;
    }
    second.does("quiet s")?;
    equal("its state", second.does("state t")?, "ReadyToSend".to_owned())?;
    second.does("destroy t")?;
    second.is_refused(&format!("open t d {tgt}"), EINVAL)
}

pub(super) fn c8(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    equal("the state for the opener", pair.second.does("state t")?, "ReadyToSend".to_owned())?;
    for (state, name) in [("error", "Error"), ("reset", "Reset")] {
        pair.second.does(&format!("set t {state}"))?;
        equal("the state for the creator", pair.first.does("state t")?, name.to_owned())?;
    }
    // The process that opened the TGT can connect it again.
    let ini = stage.join(&mut pair.second, "t", pair.tgt, &Terms::default())?;
    equal("the state for the creator", pair.first.does("state t")?, "ReadyToSend".to_owned())?;
    reaches(stage, &ini, pair.srqs[0], &mut pair.first, 1)?;
    reaches(stage, &ini, pair.srqs[1], &mut pair.second, 1)?;
    Ok(())
}

pub(super) fn c9(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    reaches(stage, &pair.ini, pair.srqs[1], &mut pair.second, 1)?;
    pair.second.does("receive s 2 0 64")?;
    pair.second.does("destroy s")?;
    reaches(stage, &pair.ini, pair.srqs[0], &mut pair.first, 3)?;
    let again = pair.second.number("srq s d")?;
    check(again != pair.srqs[1], || "the number of a destroyed SRQ was reused at once".to_owned())?;
    reaches(stage, &pair.ini, again, &mut pair.second, 4)?;
    Ok(())
}

pub(super) fn f4(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    let before = crate::traffic::rnr_received(&stage.lab.near);
    pair.second.does("receive s 1 0 64")?;
    stage.post(&pair.ini, pair.srqs[0])?;
    stage.post(&pair.ini, pair.srqs[1])?;
    stage.lab.wait_for_rnr(&stage.lab.near, before)?;
    pair.second.does("quiet s")?;
    pair.first.does("receive s 2 0 64")?;
    pair.first.receives("s", 2)?;
    pair.second.receives("s", 1)?;
    for _ in 0..2 {
        stage.lab.succeeds("a send that waited", &stage.lab.near.cq, SEND, Op::Send)?;
    }
    Ok(())
}

pub(super) fn d6(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    for wr_id in 0..8 {
        pair.second.does(&format!("receive s {wr_id} 0 64"))?;
    }
    pair.second.does("limit s 4")?;
    for wr_id in 0..4 {
        stage.send(&pair.ini, pair.srqs[1])?;
        pair.second.receives("s", wr_id)?;
    }
    pair.second.does("no-event SrqLimitReached")?;
    stage.send(&pair.ini, pair.srqs[1])?;
    pair.second.does("event SrqLimitReached")?;
    pair.first.does("no-event SrqLimitReached")?;
    Ok(())
}

pub(super) fn g1(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    for round in 0..16u64 {
        stage.lab.near.fill(0, 8, u8::try_from(round).unwrap_or(0))?;
        pair.first.does(&format!("receive s {round} 0 64"))?;
        pair.second.does(&format!("receive s {} 64 64", 100 + round))?;
        stage.send(&pair.ini, pair.srqs[1])?;
        stage.send(&pair.ini, pair.srqs[0])?;
        equal("the QP of the first", pair.first.receives("s", round)?, pair.tgt)?;
        equal("the QP of the second", pair.second.receives("s", 100 + round)?, pair.tgt)?;
        pair.first.does(&format!("holds 0 8 {round}"))?;
        pair.second.does(&format!("holds 64 8 {round}"))?;
    }
    pair.first.does("quiet s")?;
    pair.second.does("quiet s")?;
    Ok(())
}

/// Returns the remote address of the memory of a process.
fn memory(process: &mut Puppet) -> Verdict<RemoteAddress> {
    let answer = process.does("memory")?;
    let mut numbers = answer.split(' ').filter_map(|word| word.parse::<u64>().ok());
    let (address, rkey) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(RemoteAddress { address: IoAddress(address), rkey: Rkey(u32::try_from(rkey).unwrap_or(0)) })
}

pub(super) fn g4(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    let near = &stage.lab.near;
    let places = [memory(&mut pair.first)?, memory(&mut pair.second)?];
    // Use the second half of the memory, which the other checks do not write.
    let counters =
        places.map(|place| RemoteAddress { address: place.address.plus(MEMORY_BYTES as u64 / 2), ..place });
    for (which, seed) in [(1usize, 5u8), (0, 6)] {
        let length = 20_000;
        let (data, srq) = ([near.piece(0, length)], SrqNumber::new(pair.srqs[which]));
        let post = |operation| pair.ini.post_send(&[request(SEND, operation, &data, srq)]);
        near.fill(0, length as usize, seed)?;
        post(SendOperation::RdmaWrite(places[which]))?;
        stage.lab.succeeds("a WRITE", &near.cq, SEND, Op::RdmaWrite)?;
        let process = if which == 0 { &mut pair.first } else { &mut pair.second };
        process.does(&format!("holds 0 {length} {seed}"))?;
        process.does(&format!("fill 0 {length} {}", seed + 64))?;
        let post = |operation| pair.ini.post_send(&[request(SEND, operation, &data, srq)]);
        post(SendOperation::RdmaRead(places[which]))?;
        stage.lab.succeeds("a READ", &near.cq, SEND, Op::RdmaRead)?;
        near.holds("what was read", 0, length as usize, seed + 64)?;
        let word = [near.piece(0, 8)];
        for (add, old) in [(1, 0), (5, 1)] {
            near.memory.write(0, &[0; 8])?;
            let operation = SendOperation::FetchAdd { remote: counters[which], add };
            pair.ini.post_send(&[request(SEND, operation, &word, srq)])?;
            stage.lab.succeeds("FETCH_ADD", &near.cq, SEND, Op::FetchAdd)?;
            near.contains("the value before", 0, &u64::to_le_bytes(old))?;
        }
        let swap = SendOperation::CompareSwap { remote: counters[which], compare: 6, swap: 0 };
        pair.ini.post_send(&[request(SEND, swap, &word, srq)])?;
        stage.lab.succeeds("CMP_SWAP", &near.cq, SEND, Op::CompareSwap)?;
        near.contains("the value before", 0, &u64::to_le_bytes(6))?;
        process.does("receive s 1 0 64")?;
        post(SendOperation::RdmaWriteWithImmediate(places[which], 7))?;
        stage.lab.succeeds("a WRITE with immediate", &near.cq, SEND, Op::RdmaWrite)?;
        process.receives("s", 1)?;
    }
    // Use the rkey of one process and the SRQ number of the other process.
    pair.second.does("fill 0 64 9")?;
    let data = [near.piece(0, 8)];
    let write = SendOperation::RdmaWrite(places[1]);
    pair.ini.post_send(&[request(SEND, write, &data, SrqNumber::new(pair.srqs[0]))])?;
    stage.ends("a WRITE that names another process's SRQ", Status::RemoteAccessError)?;
    pair.second.does("holds 0 64 9")?;
    Ok(())
}

pub(super) fn g8(stage: &Stage<'_>) -> Verdict {
    let SharedTgtPair { mut first, second, srqs, ini, _folder, .. } =
        SharedTgtPair::new(stage, &Terms::default())?;
    second.kill()?;
    stage.post(&ini, srqs[1])?;
    stage.is_a_violation("a send to a killed process")?;
    equal("the INI's state", ini.query()?.state, QpState::Error)?;
    // The remaining process can still receive through its own TGT.
    let number = first.number("tgt u d")?;
    let ini = stage.join(&mut first, "u", number, &Terms::default())?;
    equal("the QP of a receive", reaches(stage, &ini, srqs[0], &mut first, 1)?, number)
}

pub(super) fn g9(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    let before = crate::traffic::rnr_received(&stage.lab.near);
    stage.post(&pair.ini, pair.srqs[1])?;
    stage.lab.wait_for_rnr(&stage.lab.near, before.map(|count| count + 2))?;
    pair.second.does("receive s 1 0 64")?;
    stage.lab.succeeds("a send that waited", &stage.lab.near.cq, SEND, Op::Send)?;
    pair.second.receives("s", 1)?;
    equal("the TGT's state", pair.first.does("state t")?, "ReadyToSend".to_owned())
}

pub(super) fn g10(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    pair.second.does("receive s 1 0 1024")?;
    pair.second.does("fill 1024 1024 7")?;
    let data = [stage.lab.near.piece(0, 2048)];
    let send = request(SEND, SendOperation::Send, &data, SrqNumber::new(pair.srqs[1]));
    pair.ini.post_send(&[send])?;
    stage.ends("a message too long for its receive", Status::RemoteInvalidRequest)?;
    let got = pair.second.does("poll s")?;
    check(got.starts_with("1 ") && !got.contains("Success"), || format!("the receive ended as {got}"))?;
    pair.second.does("holds 1024 1024 7")?;
    equal("the TGT's state", pair.first.does("state t")?, "Error".to_owned())
}

/// Sends a WRITE that the TGT refuses.
fn offend(stage: &Stage<'_>, ini: &Arc<dyn QueuePair>, srq: u32) -> Verdict {
    let data = [stage.lab.near.piece(0, 8)];
    let nowhere = RemoteAddress { address: IoAddress(8), rkey: Rkey(0x0bad_0bad) };
    ini.post_send(&[request(SEND, SendOperation::RdmaWrite(nowhere), &data, SrqNumber::new(srq))])?;
    stage.ends("a WRITE without a right", Status::RemoteAccessError)
}

pub(super) fn h1(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    offend(stage, &pair.ini, pair.srqs[1])?;
    for process in [&mut pair.first, &mut pair.second] {
        process.does("event QpAccessError")?;
        equal("the state", process.does("state t")?, "Error".to_owned())?;
    }
    Ok(())
}

pub(super) fn h2(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    pair.first.does("destroy t")?;
    offend(stage, &pair.ini, pair.srqs[1])?;
    pair.second.does("event QpAccessError")?;
    pair.first.does("no-event QpAccessError")?;
    Ok(())
}

pub(super) fn h3(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &Terms::default())?;
    let (near, number) = (&stage.lab.near, pair.first.number("tgt u d")?);
    pair.second.does(&format!("open u d {number}"))?;
    let ini = near.new_ini()?;
    pair.first.does("init u")?;
    pair.first.does(&format!("rtr u {} {}", near.address, ini.number().get()))?;
    let end = End { side: near, qp: &ini, other: stage.far.into(), peer: QpNumber::new(number) };
    end.bring_to(QpState::ReadyToSend, &Terms::default())?;
    reaches(stage, &ini, pair.srqs[1], &mut pair.second, 1)?;
    for process in [&mut pair.first, &mut pair.second] {
        process.does("event CommunicationEstablished")?;
    }
    reaches(stage, &ini, pair.srqs[0], &mut pair.first, 2)?;
    for process in [&mut pair.first, &mut pair.second] {
        process.does("no-event CommunicationEstablished")?;
    }
    Ok(())
}

pub(super) fn i2(stage: &Stage<'_>) -> Verdict {
    let mut pair = SharedTgtPair::new(stage, &few_retries())?;
    for wr_id in 0..2 {
        pair.first.does(&format!("receive s {wr_id} 0 64"))?;
        pair.second.does(&format!("receive s {wr_id} 0 64"))?;
    }
    pair.first.does("set t error")?;
    stage.post(&pair.ini, pair.srqs[1])?;
    stage.ends("a send to a TGT in ERR", Status::RetryExceeded)?;
    for process in [&mut pair.first, &mut pair.second] {
        process.does("quiet s")?;
    }
    let number = pair.second.number("tgt u d")?;
    let ini = stage.join(&mut pair.second, "u", number, &Terms::default())?;
    for wr_id in 0..2 {
        stage.send(&ini, pair.srqs[1])?;
        pair.second.receives("s", wr_id)?;
        stage.send(&ini, pair.srqs[0])?;
        pair.first.receives("s", wr_id)?;
    }
    Ok(())
}

pub(super) fn i4(stage: &Stage<'_>) -> Verdict {
    let SharedTgtPair { mut first, mut second, tgt, srqs, ini, _folder } =
        SharedTgtPair::new(stage, &Terms::default())?;
    // The first process dies with posted receives, an outstanding message to it, and a TGT of which it holds the only
    // handle.
    let alone = first.number("tgt u d")?;
    let lonely = stage.join(&mut first, "u", alone, &few_retries())?;
    first.does("receive s 1 0 64")?;
    stage.send(&lonely, srqs[0])?;
    first.kill()?;
    second.is_refused(&format!("open u d {alone}"), EINVAL)?;
    stage.post(&lonely, srqs[1])?;
    stage.ends("a send to a TGT whose last process died", Status::RetryExceeded)?;
    equal("the state of the shared TGT", second.does("state t")?, "ReadyToSend".to_owned())?;
    for wr_id in 1..5 {
        equal("the QP of a receive", reaches(stage, &ini, srqs[1], &mut second, wr_id)?, tgt)?;
    }
    // A new process can join the domain.
    let path = _folder.join("domain").display().to_string();
    let mut third = stage.puppet("the third process")?;
    third.does(&format!("domain d {path} -"))?;
    third.does(&format!("open t d {tgt}"))?;
    let srq = third.number("srq s d")?;
    equal("the QP of its receive", reaches(stage, &ini, srq, &mut third, 1)?, tgt)
}
