//! Garbage at the UDP port of a running exchange. `deploy/checks/40-garbage.sh` runs these attacks.
//!
//! A run starts two pairs of processes that exchange SENDs, WRITEs, READs and atomics over XRC and RC and compare every
//! byte. One process of each pair writes a capture file. The run forges packets from the captured packets and sends them to
//! the other process, the victim. The two victims share an address, so one of them forwards packets from port 4791 to the
//! other. Forged packets do not name the QPs of some connections, the bystanders.
//!
//! | flood | packets | claims |
//! |---|---|---|
//! | `random` | random bytes | bytes are correct, connections stay up, memory and slow-down are bounded |
//! | `stale` | changed real packets with their old ICRC | as for `random` |
//! | `right` | changed real packets with a correct ICRC | as for `random`, for bystanders; memory without access rights is unchanged; new connections work |

mod exchange;
mod flood;
mod forge;
mod group;
mod line;
mod node;
mod served;

use crate::{Outcome, Plan};
use exchange::{All, Exchanges};
pub(crate) use flood::Flood;
pub(crate) use node::{Side, serve};
use std::time::Duration;
use trunkline_testkit::{Claims, Folder, Random};

/// Duration of the exchanges before the flood starts.
const BEFORE: Duration = Duration::from_secs(2);
/// Maximum factor by which a flood may slow down the exchanges if the ICRC check drops all its packets.
const SLOWEST: u64 = 20;
/// Time limit for all lines to be up again after a break. It allows for a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(5);
/// Maximum growth of private memory during a flood of any duration. It allows for socket buffers, address tables, and
/// memory that the allocator keeps.
const GROWTH_KIB: u64 = 16 * 1024;
/// Maximum growth of memory including the memory that all processes of the host share. The shared tables are 39 MiB, and
/// their pages are mapped at the first access. Packets to random QP numbers access all of them.
const SHARED_GROWTH_KIB: u64 = 64 * 1024;

/// Runs one flood against the exchanges.
pub(crate) fn run(flood: Flood, plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let mut random = Random::from_entropy();
    findings.note("seed", &format!("{:#x}, {} packets", random.0, plan.packets));
    let mut exchanges = Exchanges::start(folder.path(), &mut random)?;

    let began = exchanges.status()?;
    std::thread::sleep(BEFORE);
    let before = exchanges.status()?;
    let memory_before = exchanges.memory_kib()?;
    if !exchanges.can_forge_ports() {
        findings.skip_claim("own-port", "raw sockets are not permitted here");
    }
    let took = exchanges.flood(flood, plan, &mut random)?;
    let after = exchanges.status()?;

    let (counters, sent) = (exchanges.counters()?, exchanges.sent());
    let counter = |name: &str| counters.get(name).copied().unwrap_or(0);
    let reached =
        counter("packets_received") + counter("drop_receive_queue_full") + counter("drop_receive_too_long");
    let dropped: Vec<String> = counters
        .iter()
        .filter(|(name, value)| **value > 0 && (name.starts_with("drop_") || name.starts_with("cm_")))
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    let seen = match flood {
        Flood::Random | Flood::Stale => counter("drop_bad_icrc") > 0,
        Flood::Right => counter("fatal_nak_sent") > 0 && counter("drop_unknown_qp") > 0,
    };
    findings.claim(
        reached >= sent / 10 * 9 && sent == plan.packets && seen,
        "arrived",
        &format!("{sent} sent in {:.1} s; {}", took.as_secs_f64(), dropped.join(", ")),
    );
    let (rate_before, rate_after) = (rate(&began, &before, BEFORE), rate(&before, &after, took));
    findings.claim(
        flood == Flood::Right || rate_after * SLOWEST >= rate_before,
        "goes-on",
        &format!("{rate_before} rounds/s before, {rate_after} under the flood"),
    );
    let fresh = exchanges.settle(flood)?;
    let ended = exchanges.status()?;
    judge(findings, flood, [&before, &after, &ended], fresh);
    memory(findings, memory_before, exchanges.memory_kib()?);
    if findings.failed() > 0 {
        findings.note("counters-of-the-victims", &format!("{counters:?}"));
    }
    Ok(())
}

fn rate(from: &All, to: &All, over: Duration) -> u64 {
    let rounds = to.rounds().saturating_sub(from.rounds());
    let over_ms = u64::try_from(over.as_millis()).unwrap_or(u64::MAX).max(1);
    rounds * 1000 / over_ms
}

/// Reports the claims about the effects of the flood on the exchanges.
fn judge(findings: &mut Claims, flood: Flood, [before, after, ended]: [&All; 3], fresh: Option<Duration>) {
    let wrong =
        |group: &str| ended.sum(&format!("{group}_wrong")) + ended.sum(&format!("{group}_received_wrong"));
    let broken = |group: &str| ended.sum(&format!("{group}_broken"));
    let grew = |name: &str| after.sum(name).saturating_sub(before.sum(name));
    let is_clean = |group: &str| wrong(group) == 0 && broken(group) == 0;
    let rounds = |group: &str| grew(&format!("{group}_rounds"));
    let measured = |group: &str| {
        let (rounds, wrong, broken) = (rounds(group), wrong(group), broken(group));
        format!("{rounds} rounds under the flood, {wrong} with a wrong byte, {broken} breaks")
    };
    let bystanders = is_clean("bystander") && rounds("bystander") > 0;
    findings.claim(bystanders, "bystanders", &measured("bystander"));
    if flood == Flood::Right {
        let slowest_ms = after.0.iter().map(|side| side["attacked_longest_ms"]).max().unwrap_or(0);
        let (breaks, again) = (grew("attacked_broken"), grew("attacked_reconnected"));
        findings.note(
            "attacked-connections",
            &format!(
                "{breaks} breaks, {again} reconnected, the slowest after {slowest_ms} ms, {} rounds",
                rounds("attacked")
            ),
        );
    } else {
        findings.claim(is_clean("attacked"), "exchange", &measured("attacked"));
    }
    findings.claim(
        ended.sum("attacked_harmed") + ended.sum("bystander_harmed") == 0,
        "guards",
        "memory without remote access, read-only memory, bytes after receives",
    );
    // `renew` has reset the counts of attacked lines.
    findings.claim(
        fresh.is_some_and(|took| took < AT_ONCE) && is_clean("attacked"),
        "new-connections",
        &format!(
            "all up after {fresh:?}, {} with a wrong byte, {} breaks",
            wrong("attacked"),
            broken("attacked"),
        ),
    );
}

/// Reports the claim that the memory of the processes has grown within the limits.
fn memory(findings: &mut Claims, before: Vec<[u64; 2]>, after: Vec<[u64; 2]>) {
    let memory: Vec<_> = before.into_iter().zip(after).collect();
    let is_bounded = memory.iter().all(|([all_then, own_then], [all, own])| {
        *own <= own_then + GROWTH_KIB && *all <= all_then + SHARED_GROWTH_KIB
    });
    let shown: Vec<String> = memory
        .iter()
        .map(|([all_then, own_then], [all, own])| {
            format!("{own_then} -> {own} KiB of its own, {all_then} -> {all} in all")
        })
        .collect();
    findings.claim(is_bounded, "memory", &shown.join(", "));
}
