//! Nodes started with less address space than they need, with little more than they need, and with enough.

use crate::honest::Setup;
use crate::{Outcome, Plan};
use std::time::Duration;
use trunkline_testkit::{Claims, Folder};

/// Range and step of the limits, in KiB. The program itself needs 25 MiB, and every node serves at the highest limit.
const LEAST_KIB: u64 = 32 << 10;
const MOST_KIB: u64 = 400 << 10;
const STEP_KIB: u64 = 8 << 10;
/// Distance below which no further limits between two limits with different outcomes are tried, in KiB.
const CLOSE_KIB: u64 = 64;

/// Additional address space of loaded nodes above the lowest limit at which a node serves, in KiB.
const SPARE_KIB: [u64; 3] = [256, 16 << 10, 64 << 10];
/// Number of peers that load the node, number of concurrent calls per peer, and bytes per call in each direction.
const PEERS: u64 = 6;
const FLOODED: u64 = 16;
const FLOODED_BYTES: u64 = 4 << 20;
/// Duration of the load after all peers have joined.
const LOADED: Duration = Duration::from_secs(3);

/// The outcome of a start under a limit. Refusals with the same reason are equal.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Started {
    Serves,
    Refused(String),
    /// The node was ended by a signal, without an error or with an error that does not name the limit; or it neither ended
    /// nor served.
    Wrong(String),
}

/// Checks that every node serves, or ends with an error that names the limit and the command to raise it.
pub(super) fn judge(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    for (name, flag, command) in
        [("address-space", "--as", "ulimit -v"), ("private-memory", "--data", "ulimit -d")]
    {
        let mut sweep =
            Sweep { plan, flag, command, wrong: Vec::new(), serve: 0, refused: 0, least: MOST_KIB };
        let mut before = (LEAST_KIB, sweep.start(LEAST_KIB)?);
        for kib in (LEAST_KIB + STEP_KIB..=MOST_KIB).step_by(STEP_KIB.try_into()?) {
            let here = (kib, sweep.start(kib)?);
            sweep.between(&before, &here)?;
            before = here;
        }
        let Sweep { wrong, serve, refused, least, .. } = sweep;
        let first = wrong.first().map_or(String::new(), |first| format!("; the first: {first}"));
        let measured = format!("{serve} limits serve, {refused} refuse, {} do neither{first}", wrong.len());
        findings.claim(wrong.is_empty() && serve > 0 && refused > 0, name, &measured);
        for spare_kib in SPARE_KIB {
            under_load(
                plan,
                findings,
                &format!("{name}-load-{spare_kib}"),
                &format!("{flag}={}", (least + spare_kib) << 10),
            )?;
        }
    }
    Ok(())
}

/// Checks that a node with little more memory than it needs at start continues to serve while peers join and send large
/// messages.
fn under_load(plan: &Plan, findings: &mut Claims, name: &str, limit: &str) -> Outcome<()> {
    let folder = Folder::new()?;
    let mut server = Setup::new(&folder, plan).within(&["prlimit", limit]).start()?;
    let mut peers = Vec::new();
    for number in 0..PEERS {
        let mut peer = Setup::new(&folder, plan).start()?;
        peer.first(server.address)?;
        match number {
            0 => peer.load(server.address)?,
            _ => {
                peer.process.ask(&format!("flood {} {FLOODED} {FLOODED_BYTES}", server.address)).map(drop)?
            }
        }
        peers.push(peer);
    }
    let before = peers[0].tally()?;
    std::thread::sleep(LOADED);
    let after = peers[0].tally()?;
    let ended = server.process.wait(Duration::ZERO);
    drop(peers);
    let newcomer = Setup::new(&folder, plan).start()?.first(server.address);
    let measured = format!(
        "ended: {ended:?}; {} small and {} large calls of one peer; a newcomer: {newcomer:?}",
        after["small"] - before["small"],
        after["large"] - before["large"],
    );
    findings.claim(ended.is_none() && newcomer.is_ok() && after["small"] > before["small"], name, &measured);
    Ok(())
}

struct Sweep<'a> {
    plan: &'a Plan,
    flag: &'static str,
    command: &'static str,
    wrong: Vec<String>,
    serve: usize,
    refused: usize,
    /// The lowest limit at which a node serves, in KiB.
    least: u64,
}

impl Sweep<'_> {
    /// Tries limits between two limits with different outcomes. A third outcome in a narrow range is then found.
    fn between(&mut self, low: &(u64, Started), high: &(u64, Started)) -> Outcome<()> {
        if low.1 == high.1 || high.0 - low.0 <= CLOSE_KIB {
            return Ok(());
        }
        let middle = low.0.midpoint(high.0);
        let middle = (middle, self.start(middle)?);
        self.between(low, &middle)?;
        self.between(&middle, high)
    }

    /// Starts a node under a limit, and records the outcome.
    fn start(&mut self, kib: u64) -> Outcome<Started> {
        let started = self.started(kib)?;
        match &started {
            Started::Serves => {
                self.serve += 1;
                self.least = self.least.min(kib);
            }
            Started::Refused(_) => self.refused += 1,
            Started::Wrong(how) => self.wrong.push(format!("{kib} KiB: {how}")),
        }
        Ok(started)
    }

    fn started(&self, kib: u64) -> Outcome<Started> {
        let folder = Folder::new()?;
        let limit = format!("{}={}", self.flag, kib << 10);
        let attempt = Setup::new(&folder, self.plan).within(&["prlimit", &limit]).attempt()?;
        if attempt.serves {
            return Ok(Started::Serves);
        }
        if attempt.is_refused_clearly() && attempt.last.contains(self.command) {
            let is_no_digit = |letter: &char| !letter.is_ascii_digit();
            return Ok(Started::Refused(attempt.last.chars().filter(is_no_digit).collect()));
        }
        Ok(Started::Wrong(attempt.to_string()))
    }
}
