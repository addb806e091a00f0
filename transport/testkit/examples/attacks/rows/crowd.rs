//! Peers that keep to the protocol and take more than their share, and honest peers in great number.

use super::flooded::nothing_lost;
use crate::findings::Findings;
use crate::honest::{Pair, Setup};
use crate::{Outcome, Plan};
use std::time::Duration;
use trunkline_testkit::Folder;

/// Calls that are held: more than a poller of the attacked node has handlers.
const HELD: u64 = 70_000;
/// Processes that hold calls. They are one peer each.
const HOLDERS: u64 = 2;
/// Memory that the attacked node may take, in MiB.
const CEILING_MIB: u64 = 512;
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
