//! Peers that keep a poller busy without breaking any rule, while a caller makes one call at a time.

use super::flooded::nothing_lost;
use crate::honest::{PartyPair, Setup};
use crate::{Outcome, Plan};
use std::time::Duration;
use trunkline_testkit::Claims;

/// Number of rounds. Each round measures the caller alone, beside a busy honest peer, and beside the attacker.
const ROUNDS: usize = 5;
/// Duration of each measurement.
const COUNTED: Duration = Duration::from_secs(1);
/// Number of concurrent calls or streams of a busy peer.
const CONCURRENT: usize = 256;
/// Number of streams opened by a peer that accepts no replies.
const OPENS: u64 = 460_000;
/// Number of these streams over gRPC, whose calls need more memory in the attacker. It exceeds the maximum number of a
/// client's calls in flight.
const GRPC_OPENS: u64 = 70_000;
/// Minimum ratio of the call rate beside an attacker to the call rate beside a busy honest peer.
const PART: f64 = 0.5;
/// Maximum increase of the median round-trip time over the caller's time alone, in microseconds.
const MORE_US: u64 = 500;
/// Maximum memory of the attacked node while a peer accepts no replies, in MiB. It is the budget for waiting replies plus
/// one fifth, and the memory of a node without peers.
const CEILING_MIB: u64 = 128 * 6 / 5 + 64;

/// Number of small calls in a measurement, and their median duration in microseconds.
#[derive(Debug, Clone, Copy)]
struct Measured {
    calls: u64,
    p50_us: u64,
}

/// Attacks with streams of one item, as many as the peer can open.
pub(crate) fn short_streams(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    rushed("streams", plan, findings)
}

/// Attacks with calls whose arguments take a long time to decode.
pub(crate) fn long_calls(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    rushed("long", plan, findings)
}

/// Attacks with calls or streams of the given kind.
fn rushed(kind: &str, plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let before = pair.client.tally()?;
    let mut busy = Setup::new(&pair.folder, plan).start()?;
    busy.first(server)?;
    let (mut alone, mut honest, mut attacked) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        alone.push(counted(&mut pair)?);
        for (what, measured) in [("calls", &mut honest), (kind, &mut attacked)] {
            busy.process.ask(&format!("rush {server} {what} {CONCURRENT}"))?;
            measured.push(counted(&mut pair)?);
            busy.process.ask("calm")?;
        }
    }
    judge(plan, findings, [alone, honest, attacked].map(median));
    nothing_lost(findings, &before, &pair.client.tally()?);
    Ok(())
}

/// Attacks with streams from a peer that accepts no replies.
pub(crate) fn unanswered_streams(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let before = pair.client.tally()?;
    let alone = counted(&mut pair)?;
    let mut busy = Setup::new(&pair.folder, plan).start()?;
    busy.first(server)?;
    busy.process.ask(&format!("rush {server} calls {CONCURRENT}"))?;
    let honest = counted(&mut pair)?;
    busy.process.ask("calm")?;
    let mut hostile = Setup::new(&pair.folder, plan).hostile("stingy").start()?;
    let opens = if plan.nodes.is_none() { OPENS } else { GRPC_OPENS };
    hostile.process.ask(&format!("open {server} {opens}"))?;
    let attacked = (0..ROUNDS).map(|_| counted(&mut pair)).collect::<Outcome<Vec<_>>>()?;
    judge(plan, findings, [alone, honest, median(attacked)]);
    let most = pair.server.most_mib()?;
    findings.claim(most <= CEILING_MIB, "memory", &format!("{most} MiB at most"));
    drop(hostile);
    let ended = counted(&mut pair)?;
    findings.note("after-its-end", &format!("{} calls, median {} us", ended.calls, ended.p50_us));
    nothing_lost(findings, &before, &pair.client.tally()?);
    pair.serves_newcomer(plan, findings, "newcomer-is-served")
}

/// Compares the results of the caller alone, beside a busy honest peer, and beside the attacker.
fn judge(plan: &Plan, findings: &mut Claims, [alone, honest, attacked]: [Measured; 3]) {
    let ratio = attacked.calls as f64 / honest.calls.max(1) as f64;
    let calls = format!("{attacked:?}, beside an honest peer {honest:?}: x{ratio:.2}");
    let times = format!("median {} us, alone {} us", attacked.p50_us, alone.p50_us);
    findings.timed(plan.strict, ratio >= PART, "throughput", &calls);
    findings.timed(plan.strict, attacked.p50_us <= alone.p50_us + MORE_US, "latency", &times);
}

fn counted(pair: &mut PartyPair) -> Outcome<Measured> {
    let before = pair.client.tally()?["small"];
    std::thread::sleep(COUNTED);
    let after = pair.client.tally()?;
    Ok(Measured { calls: after["small"] - before, p50_us: after["p50_us"] })
}

/// Returns the median of the calls and the median of the times.
fn median(mut all: Vec<Measured>) -> Measured {
    let middle = all.len() / 2;
    let mut at = |number: fn(&Measured) -> u64| {
        all.sort_unstable_by_key(number);
        number(&all[middle])
    };
    Measured { calls: at(|measured| measured.calls), p50_us: at(|measured| measured.p50_us) }
}
