//! A flood against a pair of honest nodes. It alternates with the same flood to an unbound port, so that the flood's own
//! load on the machine is not counted.

use crate::honest::PartyPair;
use crate::{Outcome, Plan};
use std::net::SocketAddr;
use std::net::UdpSocket;
use std::time::Duration;
use trunkline_testkit::{Claims, Numbers};

/// Number of rounds in a run. Each round contains both floods.
pub(crate) const ROUNDS: u64 = 4;
/// Maximum factor by which the 99th percentile may grow.
const FACTOR: f64 = 2.0;
/// Time for queues to drain after a flood.
const REST: Duration = Duration::from_millis(200);

/// Returns an unbound port at the server's address.
pub(crate) fn unbound(server: SocketAddr) -> Outcome<SocketAddr> {
    Ok(UdpSocket::bind((server.ip(), 0))?.local_addr()?)
}

/// Runs the rounds. `flood` runs one flood, to the nodes if its argument is true.
pub(crate) fn compare(
    pair: &mut PartyPair,
    plan: &Plan,
    findings: &mut Claims,
    mut flood: impl FnMut(&mut PartyPair, bool) -> Outcome<()>,
) -> Outcome<()> {
    let before = pair.client.tally()?;
    let sessions = pair.sessions()?;
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // The order alternates between rounds.
        let mut p99 = [0, 0];
        for is_real in [round % 2 == 0, round % 2 == 1] {
            pair.client.tally()?;
            flood(pair, is_real)?;
            p99[usize::from(is_real)] = pair.client.tally()?["p99_us"];
            std::thread::sleep(REST);
        }
        findings.note("p99", &format!("{} us, at a port without a receiver {} us", p99[1], p99[0]));
        ratios.push(p99[1] as f64 / p99[0].max(1) as f64);
    }
    ratios.sort_by(f64::total_cmp);
    let median = (ratios[ratios.len() / 2] + ratios[(ratios.len() - 1) / 2]) / 2.0;
    let measured = format!("median ratio {median:.2} of {}", ratios.len());
    findings.timed(plan.strict, median <= FACTOR, "latency", &measured);
    let after = pair.client.tally()?;
    nothing_lost(findings, &before, &after);
    let now = pair.sessions()?;
    findings.claim(now == sessions, "session-lives", &format!("{} more sessions came up", now - sessions));
    Ok(())
}

/// Reports the claims about the calls made between two tallies.
pub(crate) fn nothing_lost(findings: &mut Claims, before: &Numbers, after: &Numbers) {
    let made = |name: &str| after[name] - before[name];
    let measured = |name: &str| format!("{} of {} calls", made(name), made("small") + made("large"));
    findings.claim(made("failed") == 0, "no-call-fails", &measured("failed"));
    findings.claim(made("wrong") == 0, "no-wrong-byte", &measured("wrong"));
    let both = made("small") > 0 && made("large") > 0;
    let calls = format!("{} small and {} large calls", made("small"), made("large"));
    findings.claim(both, "calls-go-on", &calls);
}
