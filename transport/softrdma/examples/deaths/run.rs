//! The scenarios, and what must hold in each.

use crate::Outcome;
use crate::pattern::Random;
use crate::process::{Numbers, Process};
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Load before the kill, and after.
const LOAD: Duration = Duration::from_secs(1);
/// How long anything may take on a loaded machine.
const BOUND: Duration = Duration::from_secs(20);
/// A stream that goes on does so within this: a missed message is sent again within the ACK timeout, 134 ms,
/// and 4791 or a TGT is taken over within 100 ms. The rest is for a loaded machine.
const RECOVERY_MS: u64 = 2000;
/// `IBV_WC_RETRY_EXC_ERR` and `IBV_WC_REM_INV_RD_REQ_ERR`.
const RETRY_EXCEEDED: u64 = 12;
const UNKNOWN_SRQ: u64 = 15;

/// A stream from a sender to a member's SRQ.
#[derive(Debug, Clone, Copy)]
struct Stream {
    number: u64,
}

/// A receiving process with its SRQ.
struct Member {
    process: Process,
    srq: u32,
}

struct Scene {
    name: &'static str,
    failed: usize,
    /// Started so far.
    senders: usize,
    host: IpAddr,
    peer: IpAddr,
    other_peer: IpAddr,
    file: PathBuf,
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _gone = std::fs::remove_file(&self.file);
    }
}

pub(super) fn run(scenario: &str) -> Outcome<()> {
    let mut random = Random(RandomState::new().hash_one(std::process::id()));
    let mut address =
        |last| IpAddr::V4(Ipv4Addr::new(127, 64 | random.byte() & 63, 1 + random.byte() % 250, last));
    let (host, peer, other_peer) = (address(1), address(2), address(3));
    let file = std::env::temp_dir().join(format!("trunkline-deaths-{}", std::process::id()));
    std::fs::write(&file, b"")?;
    type Scenario = fn(&mut Scene) -> Outcome<()>;
    let (name, act): (&'static str, Scenario) = match scenario {
        "receiver" => ("receiver", receiver),
        "sender" => ("sender", sender),
        "creator" => ("creator", creator),
        "owner" => ("owner", owner),
        "holder" => ("holder", holder),
        other => return Err(format!("there is no scenario {other}").into()),
    };
    let mut scene = Scene { name, failed: 0, senders: 0, host, peer, other_peer, file };
    act(&mut scene)?;
    if scene.failed > 0 {
        return Err(format!("{} claims do not hold", scene.failed).into());
    }
    Ok(())
}

impl Scene {
    fn claim(&mut self, holds: bool, name: &str, measured: &str) {
        let scenario = self.name;
        if holds {
            println!("pass deaths-{scenario}-{name} ({measured})");
        } else {
            self.failed += 1;
            println!("fail deaths-{scenario}-{name}: {measured}");
        }
    }

    /// A stream that worked has ended with this status.
    fn was_told(&mut self, ended: &Numbers, status: u64) {
        self.claim(
            ended["failed"] == status && ended["completed"] > 0,
            "told",
            &format!(
                "{} messages before; status {} after {} ms",
                ended["completed"], ended["failed"], ended["failed_ms"]
            ),
        );
    }

    /// A process at the host's address; a member of the file's domain if it shares.
    fn member(&self, name: &str, shares: bool) -> Outcome<Member> {
        let mut arguments = vec!["receive".to_owned(), self.host.to_string()];
        if shares {
            arguments.push(self.file.display().to_string());
        }
        let process = Process::start(name, &arguments)?;
        let srq = process.after("SRQ")?.parse()?;
        Ok(Member { process, srq })
    }

    fn sender(&mut self, address: IpAddr) -> Outcome<Process> {
        self.senders += 1;
        let first = 1000 * self.senders;
        Process::start("the sender", &["send".to_owned(), address.to_string(), first.to_string()])
    }

    /// An INI at the sender and a TGT that `creator` makes for it.
    fn pair(&self, sender: &mut Process, from: IpAddr, creator: &mut Member) -> Outcome<(Stream, u32)> {
        let answer = sender.ask("ini")?;
        let (number, qpn) = answer.split_once(' ').ok_or("not an INI")?;
        let tgt = creator.process.ask(&format!("create {from} {qpn}"))?.parse()?;
        Ok((Stream { number: number.parse()? }, tgt))
    }

    fn start(&self, sender: &mut Process, stream: Stream, tgt: u32, srq: u32) -> Outcome<()> {
        sender.ask(&format!("connect {} {} {tgt} {srq}", stream.number, self.host))?;
        Ok(())
    }

    /// A stream through a TGT of the member's own.
    fn stream(&self, sender: &mut Process, from: IpAddr, member: &mut Member) -> Outcome<Stream> {
        let (stream, tgt) = self.pair(sender, from, member)?;
        self.start(sender, stream, tgt, member.srq)?;
        Ok(stream)
    }

    /// Whether a stream went on: more messages after the mark, none lost, doubled or wrong.
    fn goes_on(
        &mut self,
        name: &str,
        sender: &mut Process,
        member: &mut Member,
        stream: Stream,
        before: u64,
    ) -> Outcome<()> {
        let sent = stream.at(sender)?;
        // What was acknowledged lies in the member's CQ; it may not have looked yet.
        let received = stream.wait(&mut member.process, |got| got["received"] >= sent["completed"])?;
        let holds = sent["failed"] == 0
            && sent["completed"] > before
            && sent["gap_ms"] < RECOVERY_MS
            && received["wrong"] == 0
            && received["received"] >= sent["completed"];
        let measured = format!(
            "{before} messages before, {} after, longest gap {} ms, {} wrong, status {}",
            sent["completed"].saturating_sub(before),
            sent["gap_ms"],
            received["wrong"],
            sent["failed"],
        );
        self.claim(holds, name, &measured);
        Ok(())
    }
}

impl Stream {
    fn at(self, process: &mut Process) -> Outcome<Numbers> {
        process.numbers(&format!("stream {}", self.number))
    }

    fn completed(self, sender: &mut Process) -> Outcome<u64> {
        Ok(self.at(sender)?["completed"])
    }

    /// Waits until it has failed; answers its status and after how long.
    fn failure(self, sender: &mut Process) -> Outcome<Numbers> {
        self.wait(sender, |numbers| numbers["failed"] != 0)
    }

    /// Waits until a message was acknowledged beyond `count`.
    fn beyond(self, sender: &mut Process, count: u64) -> Outcome<Numbers> {
        self.wait(sender, |numbers| numbers["completed"] > count || numbers["failed"] != 0)
    }

    fn wait(self, sender: &mut Process, until: impl Fn(&Numbers) -> bool) -> Outcome<Numbers> {
        let start = Instant::now();
        loop {
            let numbers = self.at(sender)?;
            if until(&numbers) || start.elapsed() > BOUND {
                return Ok(numbers);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Load, a mark, SIGKILL.
fn kill_under_load(sender: &mut Process, victim: &mut Process) -> Outcome<()> {
    std::thread::sleep(LOAD);
    sender.ask("mark")?;
    victim.kill()
}

fn receiver(scene: &mut Scene) -> Outcome<()> {
    let mut sender = scene.sender(scene.peer)?;
    let mut member = scene.member("the receiver", false)?;
    let stream = scene.stream(&mut sender, scene.peer, &mut member)?;
    kill_under_load(&mut sender, &mut member.process)?;
    let ended = stream.failure(&mut sender)?;
    scene.was_told(&ended, RETRY_EXCEEDED);
    let start = Instant::now();
    let mut successor = scene.member("the successor", false)?;
    let stream = scene.stream(&mut sender, scene.peer, &mut successor)?;
    stream.beyond(&mut sender, 0)?;
    let took = start.elapsed().as_millis();
    std::thread::sleep(LOAD);
    scene.goes_on("successor", &mut sender, &mut successor, stream, 0)?;
    println!("     the successor's first message came {took} ms after its start");
    Ok(())
}

fn sender(scene: &mut Scene) -> Outcome<()> {
    let mut member = scene.member("the receiver", false)?;
    let mut victim = scene.sender(scene.other_peer)?;
    let mut sender = scene.sender(scene.peer)?;
    let torn = scene.stream(&mut victim, scene.other_peer, &mut member)?;
    let stream = scene.stream(&mut sender, scene.peer, &mut member)?;
    kill_under_load(&mut sender, &mut victim)?;
    let before = stream.completed(&mut sender)?;
    std::thread::sleep(LOAD);
    scene.goes_on("other", &mut sender, &mut member, stream, before)?;
    let torn = torn.at(&mut member.process)?;
    let measured = format!("{} messages of the killed one, {} wrong", torn["received"], torn["wrong"]);
    scene.claim(torn["received"] > 0 && torn["wrong"] == 0, "torn", &measured);
    let mut again = scene.sender(scene.other_peer)?;
    let stream = scene.stream(&mut again, scene.other_peer, &mut member)?;
    let first = stream.beyond(&mut again, 0)?;
    scene.claim(first["completed"] > 0, "successor", &format!("status {}", first["failed"]));
    Ok(())
}

/// Streams to two members through TGTs that a third has created and both have opened.
fn creator(scene: &mut Scene) -> Outcome<()> {
    let mut sender = scene.sender(scene.peer)?;
    let mut creator = scene.member("the creator", true)?;
    let mut members = [scene.member("the second member", true)?, scene.member("the third member", true)?];
    let mut streams = Vec::new();
    for at in [0, 1] {
        let (stream, tgt) = scene.pair(&mut sender, scene.peer, &mut creator)?;
        for member in &mut members {
            member.process.ask(&format!("open {tgt}"))?;
        }
        scene.start(&mut sender, stream, tgt, members[at].srq)?;
        streams.push(stream);
    }
    kill_under_load(&mut sender, &mut creator.process)?;
    let before = [streams[0].completed(&mut sender)?, streams[1].completed(&mut sender)?];
    std::thread::sleep(2 * LOAD);
    for (at, member) in members.iter_mut().enumerate() {
        let name = ["first", "second"][at];
        let sent = streams[at].at(&mut sender)?;
        if sent["failed"] == 0 {
            scene.goes_on(name, &mut sender, member, streams[at], before[at])?;
            continue;
        }
        // A message that the death tore apart may end its QP: no wrong byte, and a new one works.
        let received = streams[at].at(&mut member.process)?;
        let whole = received["wrong"] == 0 && received["received"] >= sent["completed"];
        let measured = format!("status {} after {} ms", sent["failed"], sent["failed_ms"]);
        scene.claim(whole, &format!("{name}-torn"), &measured);
        let again = scene.stream(&mut sender, scene.peer, member)?;
        again.beyond(&mut sender, 0)?;
        scene.goes_on(&format!("{name}-anew"), &mut sender, member, again, 0)?;
    }
    Ok(())
}

/// One TGT carries the load to the victim's SRQ, another, of the same creator, that of a member who lives.
fn owner(scene: &mut Scene) -> Outcome<()> {
    let mut sender = scene.sender(scene.peer)?;
    let mut creator = scene.member("the creator", true)?;
    let mut victim = scene.member("the owner of the SRQ", true)?;
    let mut bystander = scene.member("the third member", true)?;
    let (to_victim, tgt) = scene.pair(&mut sender, scene.peer, &mut creator)?;
    victim.process.ask(&format!("open {tgt}"))?;
    scene.start(&mut sender, to_victim, tgt, victim.srq)?;
    let (to_bystander, tgt) = scene.pair(&mut sender, scene.peer, &mut creator)?;
    bystander.process.ask(&format!("open {tgt}"))?;
    scene.start(&mut sender, to_bystander, tgt, bystander.srq)?;
    let to_creator = scene.stream(&mut sender, scene.peer, &mut creator)?;
    kill_under_load(&mut sender, &mut victim.process)?;
    let before = [to_bystander, to_creator].map(|stream| stream.completed(&mut sender));
    let [before_bystander, before_creator] = before;
    let ended = to_victim.failure(&mut sender)?;
    scene.was_told(&ended, UNKNOWN_SRQ);
    std::thread::sleep(LOAD);
    scene.goes_on("bystander", &mut sender, &mut bystander, to_bystander, before_bystander?)?;
    scene.goes_on("creator", &mut sender, &mut creator, to_creator, before_creator?)?;
    let again = scene.stream(&mut sender, scene.peer, &mut bystander)?;
    again.beyond(&mut sender, 0)?;
    scene.goes_on("anew", &mut sender, &mut bystander, again, 0)
}

/// The first member holds 4791; each member has TGTs of its own.
fn holder(scene: &mut Scene) -> Outcome<()> {
    let mut sender = scene.sender(scene.peer)?;
    let mut holder = scene.member("the holder of the port", true)?;
    let of_holder = scene.stream(&mut sender, scene.peer, &mut holder)?;
    of_holder.beyond(&mut sender, 0)?;
    let mut members = [scene.member("the second member", true)?, scene.member("the third member", true)?];
    let mut streams = Vec::new();
    for member in &mut members {
        streams.push(scene.stream(&mut sender, scene.peer, member)?);
    }
    kill_under_load(&mut sender, &mut holder.process)?;
    let before = [streams[0].completed(&mut sender)?, streams[1].completed(&mut sender)?];
    let ended = of_holder.failure(&mut sender)?;
    // Its QP has gone with it; nobody answers for it.
    scene.was_told(&ended, RETRY_EXCEEDED);
    std::thread::sleep(LOAD);
    for (at, member) in members.iter_mut().enumerate() {
        scene.goes_on(["second", "third"][at], &mut sender, member, streams[at], before[at])?;
    }
    let start = Instant::now();
    let mut late = scene.member("a member that comes later", true)?;
    let stream = scene.stream(&mut sender, scene.peer, &mut late)?;
    stream.beyond(&mut sender, 0)?;
    println!("     a new member's first message came {} ms after its start", start.elapsed().as_millis());
    scene.goes_on("late", &mut sender, &mut late, stream, 0)
}
