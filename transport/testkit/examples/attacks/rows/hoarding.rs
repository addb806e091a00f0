//! Peers with valid sessions whose pollers collect credit in turn and then fall silent without releasing it.

use super::flooded::nothing_lost;
use crate::honest::{PartyPair, Setup};
use crate::{Outcome, Plan};
use std::time::{Duration, Instant};
use trunkline_testkit::Claims;

/// Number of pollers of a hoarding peer, and number of calls per poller.
const POLLERS: u16 = 4;
const CALLS: u64 = 20;
/// Duration of each count of calls.
const COUNTED: Duration = Duration::from_secs(3);
/// Minimum fraction of the usual number of calls that must succeed while the peers hoard credit.
const PART: f64 = 0.1;
/// Time limit for the peers that hold all credit to lose their sessions.
const ENDS: Duration = Duration::from_secs(30);
/// Pause between two checks.
const PAUSE: Duration = Duration::from_millis(100);
/// Cause in the log.
const CAUSE: &str = "credit that it does not use";

pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let before = pair.client.tally()?;
    let calls = counted(&mut pair)?;
    let mut hoarders = Vec::new();
    for count in ["one", "two"] {
        let mut hoarder = Setup::new(&pair.folder, plan).pollers(POLLERS).hostile("hoarding").start()?;
        let outcome = hoarder.process.numbers(&format!("turns {server} {CALLS}"))?;
        findings.note(count, &format!("{} pollers of the last one could not call", outcome["failed"]));
        hoarders.push(hoarder);
        let now = counted(&mut pair)?;
        let ratio = now as f64 / calls.max(1) as f64;
        let measured = format!("{now} small calls, {calls} before: x{ratio:.2}");
        findings.claim(ratio >= PART, &format!("{count}-throughput"), &measured);
    }
    // The peers together hold all credit beyond the base credit, which the honest pair needs.
    let start = Instant::now();
    let ends = loop {
        let ended = pair.server.log_line(&[CAUSE])?;
        if ended.is_some() || start.elapsed() > ENDS {
            break ended;
        }
        std::thread::sleep(PAUSE);
    };
    findings.claim(ends.is_some(), "session-ends", &format!("{ends:?} after {:?}", start.elapsed()));
    nothing_lost(findings, &before, &pair.client.tally()?);
    pair.serves_newcomer(plan, findings, "newcomer-is-served")
}

/// Returns the number of small calls that end during [`COUNTED`].
fn counted(pair: &mut PartyPair) -> Outcome<u64> {
    let before = pair.client.tally()?["small"];
    std::thread::sleep(COUNTED);
    Ok(pair.client.tally()?["small"] - before)
}
