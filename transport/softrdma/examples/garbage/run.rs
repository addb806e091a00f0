//! Runs one flood against one exchange and says what held.

use crate::Outcome;
use crate::flood::{Attack, Flood};
use crate::forge::Forge;
use crate::group::seed;
use crate::process::{Numbers, Process};
use crate::sender::Sender;
use crate::tap::Tap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey};

/// How long the exchange is looked at before, and how long it may take afterwards.
const BEFORE: Duration = Duration::from_secs(2);
const BOUND: Duration = Duration::from_secs(30);
/// Memory may grow by this: what sockets' batches, tables of addresses and the allocator keep.
const GROWTH_KIB: u64 = 16 * 1024;
/// Under a flood that the ICRC keeps out, the exchange does at least this part of what it did.
const SLOWEST: u64 = 20;
/// After a break all lines are up again within this; a loaded machine is slow.
const AT_ONCE: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) flood: Flood,
    pub(super) packets: u64,
    pub(super) over: Duration,
}

/// A directory that goes when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = std::fs::remove_dir_all(&self.0);
    }
}

/// Both sides' numbers.
struct Both([Numbers; 2]);

impl Both {
    fn ask(sides: &mut [Process; 2]) -> Outcome<Self> {
        let [a, b] = sides;
        Ok(Self([a.numbers("status")?, b.numbers("status")?]))
    }

    fn sum(&self, name: &str) -> u64 {
        self.0.iter().map(|side| side.get(name).copied().unwrap_or(0)).sum()
    }

    fn rounds(&self) -> u64 {
        self.sum("attacked_rounds") + self.sum("bystander_rounds")
    }
}

/// Claims, each printed with what was measured.
#[derive(Default)]
struct Verdict {
    failed: usize,
    flood: &'static str,
}

impl Verdict {
    fn claim(&mut self, holds: bool, name: &str, measured: &str) {
        let flood = self.flood;
        if holds {
            println!("pass garbage-{flood}-{name} ({measured})");
        } else {
            self.failed += 1;
            println!("fail garbage-{flood}-{name}: {measured}");
        }
    }
}

pub(super) fn run(plan: &Plan) -> Outcome<()> {
    let scratch = Scratch(std::env::temp_dir().join(format!("trunkline-garbage-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0)?;
    let capture = scratch.0.join("exchange.pcap");
    let mut random = seed();
    println!("{} packets, flood {}, seed {:#x}", plan.packets, plan.flood.name(), random.0);
    let mut address =
        |last| IpAddr::V4(Ipv4Addr::new(127, 64 | random.byte() & 63, 1 + random.byte() % 250, last));
    let (victim, peer) = (address(1), address(2));
    let mut sides = [node(victim, peer, None)?, node(peer, victim, Some(&capture))?];
    let mut forge = Forge::default();
    for (side, is_victim) in sides.iter().zip([true, false]) {
        let (bystanders, forbidden) = ready(side)?;
        forge.protect(bystanders);
        if is_victim {
            forge.forbidden = forbidden;
        }
    }
    let mut tap = Tap::open(&capture, peer, victim)?;
    tap.follow(|seen| forge.learn_ids(seen))?;
    tap.last.clear();

    let began = Both::ask(&mut sides)?;
    std::thread::sleep(BEFORE);
    let before = Both::ask(&mut sides)?;
    let rate_before = rate(&began, &before, BEFORE);
    let memory_before = memory(&sides)?;

    let mut sender = Sender::new(peer, &mut random)?;
    if !sender.has_raw() {
        println!("skip garbage-{}-own-port: raw sockets are not permitted here", plan.flood.name());
    }
    let took = Attack {
        flood: plan.flood,
        victim,
        sender: &mut sender,
        tap: &mut tap,
        forge: &mut forge,
        random: &mut random,
    }
    .run(plan.packets, plan.over)?;
    let after = Both::ask(&mut sides)?;
    let mut verdict = Verdict { failed: 0, flood: plan.flood.name() };
    let counters = sides[0].numbers("counters")?;
    arrived(&mut verdict, plan, sender.sent, took, &counters);
    let rate_after = rate(&before, &after, took);
    verdict.claim(
        plan.flood == Flood::Right || rate_after * SLOWEST >= rate_before,
        "goes-on",
        &format!("{rate_before} rounds/s before, {rate_after} under the flood"),
    );
    let fresh = settle(&mut sides, plan.flood)?;
    let ended = Both::ask(&mut sides)?;
    judge(&mut verdict, plan.flood, &before, &after, &ended, fresh);
    let grown: Vec<String> =
        memory(&sides)?.iter().zip(memory_before).map(|(now, then)| format!("{then} -> {now} KiB")).collect();
    let bounded = memory(&sides)?.iter().zip(memory_before).all(|(now, then)| *now <= then + GROWTH_KIB);
    verdict.claim(bounded, "memory", &grown.join(", "));
    drop(sides);
    remove(&capture)?;
    if verdict.failed > 0 {
        return Err(
            format!("{} claims do not hold; counters of the victim: {counters:?}", verdict.failed).into()
        );
    }
    Ok(())
}

/// One side of the exchange.
fn node(own: IpAddr, peer: IpAddr, capture: Option<&Path>) -> Outcome<Process> {
    let mut arguments = vec!["node".to_owned(), own.to_string(), peer.to_string()];
    arguments.extend(capture.map(|path| path.display().to_string()));
    Process::start(&format!("the side at {own}"), &arguments)
}

/// Waits until a side works; answers the QPs that no forged packet may name, and the memory that
/// none has a right to.
fn ready(side: &Process) -> Outcome<(Vec<u32>, Vec<RemoteAddress>)> {
    let (mut bystanders, mut forbidden) = (Vec::new(), Vec::new());
    loop {
        let line = side.line()?;
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["READY"] => return Ok((bystanders, forbidden)),
            ["BYSTANDER", number] => bystanders.push(number.parse()?),
            ["FORBIDDEN", rkey, address] => {
                let address = IoAddress(address.parse()?);
                forbidden.push(RemoteAddress { address, rkey: Rkey(rkey.parse()?) });
            }
            _ => {}
        }
    }
}

fn remove(path: &Path) -> Outcome<()> {
    Ok(std::fs::remove_file(path)?)
}

fn memory(sides: &[Process; 2]) -> Outcome<[u64; 2]> {
    Ok([sides[0].resident_kib()?, sides[1].resident_kib()?])
}

fn rate(from: &Both, to: &Both, over: Duration) -> u64 {
    let rounds = to.rounds().saturating_sub(from.rounds());
    let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX).max(1);
    rounds * 1000 / over_ms
}

/// Whether the flood reached the victim, and what became of it.
fn arrived(verdict: &mut Verdict, plan: &Plan, sent: u64, took: Duration, counters: &Numbers) {
    let of = |name: &str| counters.get(name).copied().unwrap_or(0);
    let reached = of("packets_received") + of("drop_receive_queue_full") + of("drop_receive_too_long");
    let dropped: Vec<String> = counters
        .iter()
        .filter(|(name, value)| **value > 0 && (name.starts_with("drop_") || name.starts_with("cm_")))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let seen = match plan.flood {
        Flood::Random | Flood::Stale => of("drop_bad_icrc") > 0,
        Flood::Right => of("fatal_nak_sent") > 0 && of("drop_unknown_qp") > 0,
    };
    verdict.claim(
        reached >= sent / 10 * 9 && sent == plan.packets && seen,
        "arrived",
        &format!("{sent} sent in {:.1} s; {}", took.as_secs_f64(), dropped.join(", ")),
    );
}

/// After the flood: lines are made anew where packets could name them, and all work again.
/// Answers how long that took, and whether it came to be.
fn settle(sides: &mut [Process; 2], flood: Flood) -> Outcome<Option<Duration>> {
    if flood == Flood::Right {
        for side in sides.iter_mut() {
            side.tell("renew")?;
        }
    }
    let start = Instant::now();
    let mut up = None;
    let first = Both::ask(sides)?;
    while start.elapsed() < BOUND {
        let now = Both::ask(sides)?;
        if up.is_none() && now.sum("attacked_down") + now.sum("bystander_down") == 0 {
            up = Some(start.elapsed());
        }
        let went_on = |name: &str| now.sum(name) >= first.sum(name) + 50;
        if up.is_some() && went_on("attacked_rounds") && went_on("bystander_rounds") {
            return Ok(up);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(None)
}

fn judge(
    verdict: &mut Verdict,
    flood: Flood,
    before: &Both,
    after: &Both,
    ended: &Both,
    fresh: Option<Duration>,
) {
    let bad = |what: &Both, group: &str| {
        what.sum(&format!("{group}_wrong")) + what.sum(&format!("{group}_received_wrong"))
    };
    let grew = |name: &str| after.sum(name).saturating_sub(before.sum(name));
    verdict.claim(
        bad(ended, "bystander") == 0 && ended.sum("bystander_broken") == 0 && grew("bystander_rounds") > 0,
        "bystanders",
        &format!(
            "{} rounds under the flood, {} with a wrong byte, {} breaks",
            grew("bystander_rounds"),
            bad(ended, "bystander"),
            ended.sum("bystander_broken"),
        ),
    );
    if flood == Flood::Right {
        println!(
            "     attacked connections: {} breaks, {} made again, the slowest after {} ms, {} rounds",
            grew("attacked_broken"),
            grew("attacked_reconnected"),
            after.0.iter().map(|side| side["attacked_longest_ms"]).max().unwrap_or(0),
            grew("attacked_rounds"),
        );
    } else {
        verdict.claim(
            bad(ended, "attacked") == 0 && ended.sum("attacked_broken") == 0,
            "exchange",
            &format!(
                "{} rounds under the flood, {} with a wrong byte, {} breaks",
                grew("attacked_rounds"),
                bad(ended, "attacked"),
                ended.sum("attacked_broken"),
            ),
        );
    }
    verdict.claim(
        ended.sum("attacked_harmed") + ended.sum("bystander_harmed") == 0,
        "guards",
        "memory that nobody was granted, read-only memory, bytes behind receives",
    );
    // After `renew` the counts of attacked lines began again.
    let clean = bad(ended, "attacked") == 0 && ended.sum("attacked_broken") == 0;
    verdict.claim(
        fresh.is_some_and(|took| took < AT_ONCE) && clean,
        "new-connections",
        &format!(
            "all up after {} ms, {} with a wrong byte, {} breaks",
            fresh.map_or(-1, |took| i128::try_from(took.as_millis()).unwrap_or(-1)),
            bad(ended, "attacked"),
            ended.sum("attacked_broken"),
        ),
    );
}
