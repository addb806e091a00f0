//! The scenarios: which process is killed, and what must hold for the others.

use crate::Outcome;
use crate::testbed::{RETRY_EXCEEDED, Testbed, UNKNOWN_SRQ};
use std::time::{Duration, Instant};
use trunkline_testkit::Process;

/// Duration of the load before the kill, and after it.
const LOAD: Duration = Duration::from_secs(1);

/// Runs the scenario of this name.
pub(super) fn run(scenario: &str) -> Outcome<()> {
    let act: fn(&mut Testbed) -> Outcome<()> = match scenario {
        "receiver" => receiver,
        "sender" => sender,
        "creator" => creator,
        "owner" => owner,
        "holder" => holder,
        other => return Err(format!("there is no scenario {other}").into()),
    };
    let mut bed = Testbed::new(scenario)?;
    act(&mut bed)?;
    Ok(bed.claims.end()?)
}

/// Runs the load, sets a mark, and kills the process.
fn kill_under_load(sender: &mut Process, victim: &mut Process) -> Outcome<()> {
    std::thread::sleep(LOAD);
    sender.ask("mark")?;
    Ok(victim.kill()?)
}

fn receiver(bed: &mut Testbed) -> Outcome<()> {
    let mut sender = bed.sender(bed.peer)?;
    let mut member = bed.member("the receiver", false)?;
    let stream = bed.stream(&mut sender, bed.peer, &mut member)?;
    kill_under_load(&mut sender, &mut member.process)?;
    let ended = stream.failure(&mut sender)?;
    bed.has_failed_with(&ended, RETRY_EXCEEDED);
    let start = Instant::now();
    let mut successor = bed.member("the successor", false)?;
    let stream = bed.stream(&mut sender, bed.peer, &mut successor)?;
    stream.beyond(&mut sender, 0)?;
    let took = start.elapsed().as_millis();
    std::thread::sleep(LOAD);
    bed.goes_on("successor", &mut sender, &mut successor, stream, 0)?;
    println!("     the successor's first message came {took} ms after its start");
    Ok(())
}

fn sender(bed: &mut Testbed) -> Outcome<()> {
    let mut member = bed.member("the receiver", false)?;
    let mut victim = bed.sender(bed.other_peer)?;
    let mut sender = bed.sender(bed.peer)?;
    let torn = bed.stream(&mut victim, bed.other_peer, &mut member)?;
    let stream = bed.stream(&mut sender, bed.peer, &mut member)?;
    kill_under_load(&mut sender, &mut victim)?;
    let before = stream.completed(&mut sender)?;
    std::thread::sleep(LOAD);
    bed.goes_on("other", &mut sender, &mut member, stream, before)?;
    let torn = torn.at(&mut member.process)?;
    let measured = format!("{} messages of the killed one, {} wrong", torn["received"], torn["wrong"]);
    bed.claims.claim(torn["received"] > 0 && torn["wrong"] == 0, "torn", &measured);
    let mut again = bed.sender(bed.other_peer)?;
    let stream = bed.stream(&mut again, bed.other_peer, &mut member)?;
    let first = stream.beyond(&mut again, 0)?;
    bed.claims.claim(first["completed"] > 0, "successor", &format!("status {}", first["failed"]));
    Ok(())
}

/// Streams to two members through TGTs that a third member has created and both have opened.
fn creator(bed: &mut Testbed) -> Outcome<()> {
    let mut sender = bed.sender(bed.peer)?;
    let mut creator = bed.member("the creator", true)?;
    let mut members = [bed.member("the second member", true)?, bed.member("the third member", true)?];
    let mut streams = Vec::new();
    for at in [0, 1] {
        let (stream, tgt) = bed.pair(&mut sender, bed.peer, &mut creator)?;
        for member in &mut members {
            member.process.ask(&format!("open {tgt}"))?;
        }
        bed.start(&mut sender, stream, tgt, members[at].srq)?;
        streams.push(stream);
    }
    kill_under_load(&mut sender, &mut creator.process)?;
    let before = [streams[0].completed(&mut sender)?, streams[1].completed(&mut sender)?];
    std::thread::sleep(2 * LOAD);
    for (at, member) in members.iter_mut().enumerate() {
        let name = ["first", "second"][at];
        let sent = streams[at].at(&mut sender)?;
        if sent["failed"] == 0 {
            bed.goes_on(name, &mut sender, member, streams[at], before[at])?;
            continue;
        }
        // The death may have interrupted a message, which ends its QP: no byte is wrong, and a new QP works.
        let received = streams[at].at(&mut member.process)?;
        let whole = received["wrong"] == 0 && received["received"] >= sent["completed"];
        let measured = format!("status {} after {} ms", sent["failed"], sent["failed_ms"]);
        bed.claims.claim(whole, &format!("{name}-torn"), &measured);
        let again = bed.stream(&mut sender, bed.peer, member)?;
        again.beyond(&mut sender, 0)?;
        bed.goes_on(&format!("{name}-anew"), &mut sender, member, again, 0)?;
    }
    Ok(())
}

/// Loads the victim's SRQ through one TGT, and a living member's through another TGT of the same creator.
fn owner(bed: &mut Testbed) -> Outcome<()> {
    let mut sender = bed.sender(bed.peer)?;
    let mut creator = bed.member("the creator", true)?;
    let mut victim = bed.member("the owner of the SRQ", true)?;
    let mut bystander = bed.member("the third member", true)?;
    let (to_victim, tgt) = bed.pair(&mut sender, bed.peer, &mut creator)?;
    victim.process.ask(&format!("open {tgt}"))?;
    bed.start(&mut sender, to_victim, tgt, victim.srq)?;
    let (to_bystander, tgt) = bed.pair(&mut sender, bed.peer, &mut creator)?;
    bystander.process.ask(&format!("open {tgt}"))?;
    bed.start(&mut sender, to_bystander, tgt, bystander.srq)?;
    let to_creator = bed.stream(&mut sender, bed.peer, &mut creator)?;
    kill_under_load(&mut sender, &mut victim.process)?;
    let before = [to_bystander, to_creator].map(|stream| stream.completed(&mut sender));
    let [before_bystander, before_creator] = before;
    let ended = to_victim.failure(&mut sender)?;
    bed.has_failed_with(&ended, UNKNOWN_SRQ);
    std::thread::sleep(LOAD);
    bed.goes_on("bystander", &mut sender, &mut bystander, to_bystander, before_bystander?)?;
    bed.goes_on("creator", &mut sender, &mut creator, to_creator, before_creator?)?;
    let again = bed.stream(&mut sender, bed.peer, &mut bystander)?;
    again.beyond(&mut sender, 0)?;
    bed.goes_on("anew", &mut sender, &mut bystander, again, 0)
}

/// Kills the first member, which holds port 4791. Each member has its own TGTs.
fn holder(bed: &mut Testbed) -> Outcome<()> {
    let mut sender = bed.sender(bed.peer)?;
    let mut holder = bed.member("the holder of the port", true)?;
    let of_holder = bed.stream(&mut sender, bed.peer, &mut holder)?;
    of_holder.beyond(&mut sender, 0)?;
    let mut members = [bed.member("the second member", true)?, bed.member("the third member", true)?];
    let mut streams = Vec::new();
    for member in &mut members {
        streams.push(bed.stream(&mut sender, bed.peer, member)?);
    }
    kill_under_load(&mut sender, &mut holder.process)?;
    let before = [streams[0].completed(&mut sender)?, streams[1].completed(&mut sender)?];
    let ended = of_holder.failure(&mut sender)?;
    // Its QP is gone, so its peer gets no response.
    bed.has_failed_with(&ended, RETRY_EXCEEDED);
    std::thread::sleep(LOAD);
    for (at, member) in members.iter_mut().enumerate() {
        bed.goes_on(["second", "third"][at], &mut sender, member, streams[at], before[at])?;
    }
    let start = Instant::now();
    let mut late = bed.member("a member that comes later", true)?;
    let stream = bed.stream(&mut sender, bed.peer, &mut late)?;
    stream.beyond(&mut sender, 0)?;
    println!("     a new member's first message came {} ms after its start", start.elapsed().as_millis());
    bed.goes_on("late", &mut sender, &mut late, stream, 0)
}
