//! Peers that keep to the protocol and take more than their share, and honest peers in great number.

use super::flooded::nothing_lost;
use crate::findings::Findings;
use crate::honest::{Pair, Setup};
use crate::{Outcome, Plan};
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::Folder;

/// Calls that are held: more than a poller of the attacked node has handlers.
const HELD: u64 = 70_000;
/// Processes that hold calls. They are one peer each.
const HOLDERS: u64 = 2;
/// Memory that the attacked node may take, in MiB.
const CEILING_MIB: u64 = 512;
/// Calls with arguments that are kept, as many as are made at once, and the empty texts in each: one message of
/// 15 KB, which takes 360 KB in memory.
const KEPT: u64 = 6000;
const KEPT_AT_ONCE: u64 = 250;
const TEXTS: u64 = 15_000;
/// Memory that a node may take next to them, in MiB: one peer's decoded arguments, 256, the messages,
/// 94, and what a node takes without them.
const KEPT_CEILING_MIB: u64 = 512;
/// Honest processes, and pollers of each.
const PROCESSES: usize = 16;
const POLLERS: u16 = 32;
/// Receives that a poller of the node that they join keeps posted.
const DEPTH: u32 = 64;

/// One kind of hostile peer: its calls never end.
pub(crate) fn handlers(plan: &Plan, findings: &mut Findings) -> Outcome<()> {
    let mut pair = Pair::start(plan, false)?;
    let server = pair.server.address;
    let mut hostile = Vec::new();
    let before = pair.client.tally()?;
    for _ in 0..HOLDERS {
        let mut party = Setup::new(&pair.folder, plan).start()?;
        party.first(server)?;
        // In portions, because the queue of calls of a client is bounded.
        for _ in 0..HELD / 1000 / HOLDERS {
            party.process.ask(&format!("hold {server} 1000"))?;
            std::thread::sleep(Duration::from_millis(20));
        }
        hostile.push(party);
    }
    std::thread::sleep(Duration::from_secs(2));
    nothing_lost(findings, &before, &pair.client.tally()?);
    let mut newcomer = Setup::new(&pair.folder, plan).start()?;
    let outcome = newcomer.first(server);
    findings.claim(outcome.is_ok(), "newcomer-is-served", &format!("{outcome:?}"));
    let [resident, _] = pair.server.process.resident_kib()?;
    findings.claim(resident >> 10 <= CEILING_MIB, "memory", &format!("{} MiB", resident >> 10));
    Ok(())
}

/// One hostile peer: its calls never end, and their arguments take far more memory than their messages.
pub(crate) fn decoded(plan: &Plan, findings: &mut Findings) -> Outcome<()> {
    let mut pair = Pair::start(plan, false)?;
    let server = pair.server.address;
    // Not more memory than this, whatever happens: the machine is others' too.
    let id = pair.server.process.id().to_string();
    Command::new("prlimit").args(["--pid", &id, "--as=4294967296"]).status()?;
    let before = pair.client.tally()?;
    let mut hostile = Setup::new(&pair.folder, plan).start()?;
    hostile.first(server)?;
    let mut under_way = 0;
    for _ in 0..KEPT / KEPT_AT_ONCE {
        let numbers = hostile.process.numbers(&format!("keep {server} {KEPT_AT_ONCE} {TEXTS}"))?;
        under_way = numbers["under_way"];
        // After these calls in the same session, so that they have arrived.
        hostile.first(server)?;
    }
    findings.note("under-way", &format!("{under_way} of {KEPT} calls"));
    nothing_lost(findings, &before, &pair.client.tally()?);
    let most = pair.server.most_mib()?;
    findings.claim(most <= KEPT_CEILING_MIB, "memory", &format!("{most} MiB at most"));
    let mut newcomer = Setup::new(&pair.folder, plan).start()?;
    let failed = newcomer.process.numbers(&format!("count {server} {TEXTS}"))?["failed"];
    findings.claim(failed == 0, "newcomer-is-served", &format!("{failed} calls with such arguments failed"));
    let refused = hostile.process.numbers(&format!("count {server} {TEXTS}"))?["failed"];
    findings.claim(
        refused == 1,
        "hostile-is-refused",
        &format!("{refused} calls of the hostile peer failed"),
    );
    Ok(())
}

/// Many honest pollers.
pub(crate) fn pollers(plan: &Plan, findings: &mut Findings) -> Outcome<()> {
    let folder = Folder::new()?;
    let server = Setup::new(&folder, plan).depth(DEPTH).start()?;
    let start = |_| Setup::new(&folder, plan).pollers(POLLERS).start();
    let mut parties = (0..PROCESSES).map(start).collect::<Result<Vec<_>, _>>()?;
    for party in &mut parties {
        party.process.tell(&format!("each {}", server.address))?;
    }
    let mut failed = 0;
    for party in &mut parties {
        let answer = party.process.after("EACH")?;
        failed += answer.rsplit('=').next().unwrap_or_default().parse::<u64>()?;
    }
    let measured = format!("{failed} of {} pollers could not call", PROCESSES * usize::from(POLLERS));
    findings.claim(failed == 0, "all-exchange", &measured);
    Ok(())
}
