//! A peer of each kind of misbehaviour beside an equally busy honest peer.

use super::flooded::nothing_lost;
use crate::honest::{PartyPair, Setup};
use crate::{Outcome, Plan};
use std::process::Command;
use std::time::{Duration, Instant};
use trunkline_testkit::{Claims, Hostility};

/// Number of calls of a busy peer in one portion, and their length in bytes: small ones and announced ones.
const CALLS: [(usize, usize); 2] = [(100, 16_000), (4, 1_000_000)];
/// Number of pollers of a busy peer. Each has separate queues at the attacked node.
const POLLERS: u16 = 4;
/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(20);
/// Memory that one peer can make a node hold in MiB (docs/budgets.md), plus the memory of a node without
/// peers.
const CEILING_MIB: u64 = 1024;
/// Part of the calls beside a busy honest peer that must be made beside a hostile one.
const PART: f64 = 0.5;
/// Time within which a session ends whose peer breaks the protocol, rather than takes nothing.
const ENDS: Duration = Duration::from_secs(10);
/// Time within which a peer that takes nothing loses its session, after a minute.
const STALLED: Duration = Duration::from_secs(75);

pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    for hostility in Hostility::HOSTILE {
        let honest = next_to(plan, Hostility::None, findings)?;
        let calls = next_to(plan, hostility, findings)?;
        let ratio = calls as f64 / honest.max(1) as f64;
        let measured = format!("{calls} calls, {honest} next to an honest peer: x{ratio:.2}");
        findings.timed(plan.strict, ratio >= PART, &format!("{hostility}-throughput"), &measured);
    }
    Ok(())
}

/// Returns the number of calls that an honest pair makes beside a busy peer.
fn next_to(plan: &Plan, hostility: Hostility, findings: &mut Claims) -> Outcome<u64> {
    let name = hostility.to_string();
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    // A hard limit, because the machine has other users.
    let id = pair.server.process.id().to_string();
    Command::new("prlimit").args(["--pid", &id, "--as=6442450944"]).status()?;
    let mut busy = Setup::new(&pair.folder, plan).pollers(POLLERS).hostile(&name).start()?;
    let before = pair.client.tally()?;
    let start = Instant::now();
    while start.elapsed() < plan.over() / 2 {
        for (count, bytes) in CALLS {
            busy.process.ask(&format!("flood {server} {count} {bytes}"))?;
        }
    }
    let after = pair.client.tally()?;
    let calls = after["small"] + after["large"] - before["small"] - before["large"];
    findings.note(&name, &format!("{calls} calls next to it"));
    nothing_lost(findings, &before, &after);
    let most = pair.server.most_mib()?;
    findings.claim(most <= CEILING_MIB, &format!("{name}-memory"), &format!("{most} MiB at most"));
    findings.claim(
        pair.server.process.wait(Duration::ZERO).is_none(),
        &format!("{name}-lives"),
        "the attacked node",
    );
    let takes_long = [Hostility::Stingy, Hostility::Unfinished].contains(&hostility);
    if hostility != Hostility::None && (!takes_long || plan.strict) {
        let within = if takes_long { STALLED } else { ENDS };
        let about = format!("peer={} ", busy.address);
        let ends = loop {
            let ended = pair.server.log_line(&["session down", &about])?;
            if ended.is_some() || start.elapsed() > plan.over() + within {
                break ended;
            }
            std::thread::sleep(PAUSE);
        };
        findings.claim(ends.is_some(), &format!("{name}-session-ends"), &format!("{ends:?}"));
    }
    Ok(calls)
}
