//! Runs one flood against the exchanges and prints the claims.

use crate::Outcome;
use crate::exchange::{All, Exchanges};
use crate::flood::{Attack, Flood};
use crate::judge;
use std::time::Duration;
use trunkline_testkit::{Claims, Folder, Random};

/// Duration of the exchanges before the flood.
const BEFORE: Duration = Duration::from_secs(2);
/// Under a flood that the ICRC check drops, the exchanges keep at least one part in this many of their rate.
const SLOWEST: u64 = 20;

/// The arguments of a run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) flood: Flood,
    pub(super) packets: u64,
    pub(super) over: Duration,
}

pub(super) fn run(plan: &Plan) -> Outcome<()> {
    let folder = Folder::new()?;
    let mut random = Random::from_entropy();
    println!("{} packets, flood {}, seed {:#x}", plan.packets, plan.flood.name(), random.0);
    let mut exchanges = Exchanges::start(folder.path(), &mut random)?;

    let began = exchanges.status()?;
    std::thread::sleep(BEFORE);
    let before = exchanges.status()?;
    let rate_before = rate(&began, &before, BEFORE);
    let memory_before = exchanges.memory_kib()?;
    if !exchanges.ways.iter().all(|(sender, _)| sender.has_raw()) {
        println!("skip garbage-{}-own-port: raw sockets are not permitted here", plan.flood.name());
    }
    let Exchanges { ways, forge, victim, .. } = &mut exchanges;
    let mut attack = Attack { flood: plan.flood, victim: *victim, ways, forge, random: &mut random };
    let took = attack.run(plan.packets, plan.over)?;
    let after = exchanges.status()?;

    let mut claims = Claims::new(format!("garbage-{}", plan.flood.name()));
    let counters = exchanges.counters()?;
    let sent = exchanges.ways.iter().map(|(sender, _)| sender.sent).sum();
    judge::arrived(&mut claims, plan, sent, took, &counters);
    let rate_after = rate(&before, &after, took);
    claims.claim(
        plan.flood == Flood::Right || rate_after * SLOWEST >= rate_before,
        "goes-on",
        &format!("{rate_before} rounds/s before, {rate_after} under the flood"),
    );
    let fresh = exchanges.settle(plan.flood)?;
    let ended = exchanges.status()?;
    judge::judge(&mut claims, plan.flood, &before, &after, &ended, fresh);
    judge::memory(&mut claims, memory_before, exchanges.memory_kib()?);
    Ok(claims.end().map_err(|failed| format!("{failed}; counters of the victims: {counters:?}"))?)
}

fn rate(from: &All, to: &All, over: Duration) -> u64 {
    let rounds = to.rounds().saturating_sub(from.rounds());
    let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX).max(1);
    rounds * 1000 / over_ms
}
