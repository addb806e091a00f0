//! Runs one flood against one exchange and says what held.

use crate::Outcome;
use crate::flood::{Attack, Flood};
use crate::forge::Forge;
use crate::group::seed;
use crate::pattern::Random;
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
/// Between the end of the flood and the new connections.
const REST: Duration = Duration::from_millis(500);
/// Memory of its own may grow by this, however long the flood: what sockets' batches, tables of addresses and
/// the allocator keep.
const GROWTH_KIB: u64 = 16 * 1024;
/// The same with what all processes of the host share: its tables, 39 MiB, whose pages a process gets with its
/// first look at them. Packets for numbers at random make it look at all.
const SHARED_GROWTH_KIB: u64 = 64 * 1024;
/// Under a flood that the ICRC keeps out, the exchange does at least this part of what it did.
const SLOWEST: u64 = 20;
/// After a break all lines are up again within this; a loaded machine is slow.
const AT_ONCE: Duration = Duration::from_secs(5);

/// Ports at which the two exchanges listen, and the next ones.
const PORTS: [u16; 2] = [7, 9];

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

/// The numbers of all sides.
struct All(Vec<Numbers>);

impl All {
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

/// Two exchanges whose victims share an address, and the ways to imitate their peers.
struct Scene {
    /// The first victim, which holds port 4791, and its peer; the second and its peer.
    sides: Vec<Process>,
    ways: Vec<(Sender, Tap)>,
    forge: Forge,
    victim: IpAddr,
}

impl Scene {
    fn set(scratch: &Path, random: &mut Random) -> Outcome<Self> {
        let mut address =
            |last| IpAddr::V4(Ipv4Addr::new(127, 64 | random.byte() & 63, 1 + random.byte() % 250, last));
        let (victim, peers) = (address(1), [address(2), address(3)]);
        let mut scene = Self { sides: Vec::new(), ways: Vec::new(), forge: Forge::default(), victim };
        for (peer, port) in peers.into_iter().zip(PORTS) {
            let capture = scratch.join(format!("{port}.pcap"));
            let pair = [node(victim, peer, port, None)?, node(peer, victim, port, Some(&capture))?];
            for (side, is_victim) in pair.into_iter().zip([true, false]) {
                let (bystanders, forbidden) = ready(&side)?;
                scene.forge.protect(bystanders);
                scene.forge.forbidden.extend(forbidden.into_iter().filter(|_| is_victim));
                scene.sides.push(side);
            }
            let mut tap = Tap::open(&capture, peer, victim)?;
            tap.follow(|seen| scene.forge.learn_ids(seen))?;
            tap.last.clear();
            scene.ways.push((Sender::new(peer, random)?, tap));
        }
        Ok(scene)
    }

    fn status(&mut self) -> Outcome<All> {
        Ok(All(self.sides.iter_mut().map(|side| side.numbers("status")).collect::<Result<_, _>>()?))
    }

    /// The counters of both victims, added up.
    fn counters(&mut self) -> Outcome<Numbers> {
        let mut sum = self.sides[0].numbers("counters")?;
        for (name, value) in self.sides[2].numbers("counters")? {
            *sum.entry(name).or_default() += value;
        }
        Ok(sum)
    }

    fn memory_kib(&self) -> Outcome<Vec<[u64; 2]>> {
        self.sides.iter().map(Process::resident_kib).collect()
    }

    /// After the flood: lines are made anew where packets could name them, and all work again.
    /// Answers how long that took, if it came to be.
    fn settle(&mut self, flood: Flood) -> Outcome<Option<Duration>> {
        if flood == Flood::Right {
            // What of the flood is still on its way is none of the new connections' business.
            std::thread::sleep(REST);
            self.status()?;
            for side in &mut self.sides {
                side.tell("renew")?;
            }
        }
        let start = Instant::now();
        let mut up = None;
        let mut first = self.status()?;
        while start.elapsed() < BOUND {
            let now = self.status()?;
            if up.is_none() && now.sum("attacked_down") + now.sum("bystander_down") == 0 {
                up = Some(start.elapsed());
                if flood == Flood::Right {
                    // What came before on connections that are gone is none of the new ones' business.
                    for side in &mut self.sides {
                        side.ask("forgive")?;
                    }
                    first = self.status()?;
                    continue;
                }
            }
            let went_on = |name: &str| now.sum(name) >= first.sum(name) + 50;
            if up.is_some() && went_on("attacked_rounds") && went_on("bystander_rounds") {
                return Ok(up);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(None)
    }
}

pub(super) fn run(plan: &Plan) -> Outcome<()> {
    let scratch = Scratch(std::env::temp_dir().join(format!("trunkline-garbage-{}", std::process::id())));
    std::fs::create_dir_all(&scratch.0)?;
    let mut random = seed();
    println!("{} packets, flood {}, seed {:#x}", plan.packets, plan.flood.name(), random.0);
    let mut scene = Scene::set(&scratch.0, &mut random)?;

    let began = scene.status()?;
    std::thread::sleep(BEFORE);
    let before = scene.status()?;
    let rate_before = rate(&began, &before, BEFORE);
    let memory_before = scene.memory_kib()?;
    if !scene.ways.iter().all(|(sender, _)| sender.has_raw()) {
        println!("skip garbage-{}-own-port: raw sockets are not permitted here", plan.flood.name());
    }
    let Scene { ways, forge, victim, .. } = &mut scene;
    let mut attack = Attack { flood: plan.flood, victim: *victim, ways, forge, random: &mut random };
    let took = attack.run(plan.packets, plan.over)?;
    let after = scene.status()?;

    let mut verdict = Verdict { failed: 0, flood: plan.flood.name() };
    let counters = scene.counters()?;
    let sent = scene.ways.iter().map(|(sender, _)| sender.sent).sum();
    arrived(&mut verdict, plan, sent, took, &counters);
    let rate_after = rate(&before, &after, took);
    verdict.claim(
        plan.flood == Flood::Right || rate_after * SLOWEST >= rate_before,
        "goes-on",
        &format!("{rate_before} rounds/s before, {rate_after} under the flood"),
    );
    let fresh = scene.settle(plan.flood)?;
    let ended = scene.status()?;
    judge(&mut verdict, plan.flood, &before, &after, &ended, fresh);
    let memory: Vec<_> = memory_before.into_iter().zip(scene.memory_kib()?).collect();
    let bounded = memory.iter().all(|([all_then, own_then], [all, own])| {
        *own <= own_then + GROWTH_KIB && *all <= all_then + SHARED_GROWTH_KIB
    });
    let shown: Vec<String> = memory
        .iter()
        .map(|([all_then, own_then], [all, own])| {
            format!("{own_then} -> {own} KiB of its own, {all_then} -> {all} in all")
        })
        .collect();
    verdict.claim(bounded, "memory", &shown.join(", "));
    if verdict.failed > 0 {
        let text = format!("{} claims do not hold; counters of the victims: {counters:?}", verdict.failed);
        return Err(text.into());
    }
    Ok(())
}

/// One side of an exchange.
fn node(own: IpAddr, peer: IpAddr, port: u16, capture: Option<&Path>) -> Outcome<Process> {
    let mut arguments = vec!["node".to_owned(), own.to_string(), peer.to_string(), port.to_string()];
    arguments.extend(capture.map(|path| path.display().to_string()));
    Process::start(&format!("the side at {own}, port {port}"), &arguments)
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

fn rate(from: &All, to: &All, over: Duration) -> u64 {
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

fn judge(
    verdict: &mut Verdict,
    flood: Flood,
    before: &All,
    after: &All,
    ended: &All,
    fresh: Option<Duration>,
) {
    let bad = |what: &All, group: &str| {
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
