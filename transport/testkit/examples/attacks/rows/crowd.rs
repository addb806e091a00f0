//! Peers that follow the protocol and take more than their share, and honest peers in great number.

use super::flooded::nothing_lost;
use crate::honest::{ANOTHER, Party, PartyPair, Setup, open_to_all, runtime_of_another};
use crate::{Outcome, Plan};
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;
use trunkline_testkit::{Claims, Folder};

/// Number of held calls: more than a poller of the attacked node has handlers.
const HELD: u64 = 70_000;
/// Number of processes that hold calls. Each is one peer.
const HOLDERS: u64 = 2;
/// Maximum memory of the attacked node in MiB.
const CEILING_MIB: u64 = 512;
/// Number of addresses of the other user, and of held calls from each: more than a peer's handlers.
const ADDRESSES: u64 = 10;
const HELD_FROM_EACH: u64 = 17_000;
/// Number of calls that a process of the node's user holds beside them: more than the part set aside for one
/// host.
const HELD_BESIDE: u64 = 2000;
/// Number of held calls that are made at once, and the pause after them.
const PORTION: u64 = 1000;
const PAUSE: Duration = Duration::from_millis(20);
/// Number of calls whose arguments are kept, number of concurrent ones, and number of empty texts in each: a
/// message of 15 KB that takes 360 KB of memory.
const KEPT: u64 = 6000;
const KEPT_AT_ONCE: u64 = 250;
const TEXTS: u64 = 15_000;
/// Maximum memory of a node beside them in MiB: 256 for one peer's decoded arguments, 94 for the messages,
/// and the memory of a node without them.
const KEPT_CEILING_MIB: u64 = 512;

/// Attacks with calls that never end.
pub(crate) fn handlers(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let mut hostile = Vec::new();
    let before = pair.client.tally()?;
    for _ in 0..HOLDERS {
        let mut party = Setup::new(&pair.folder, plan).start()?;
        party.first(server)?;
        hold(&mut party, server, HELD / HOLDERS)?;
        hostile.push(party);
    }
    std::thread::sleep(Duration::from_secs(2));
    nothing_lost(findings, &before, &pair.client.tally()?);
    pair.serves_newcomer(plan, findings, "newcomer-is-served")?;
    let [resident, _] = pair.server.process.resident_kib()?;
    findings.claim(resident >> 10 <= CEILING_MIB, "memory", &format!("{} MiB", resident >> 10));
    Ok(())
}

/// Attacks with calls that never end, by another user at several addresses of this host.
pub(crate) fn other_user(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    if !nix::unistd::geteuid().is_root() {
        findings.skip("only root can start nodes of another user");
        return Ok(());
    }
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    let (folder, runtime) = (Folder::new()?, runtime_of_another()?);
    open_to_all(&folder)?;
    let before = pair.client.tally()?;
    let mut hostile = Vec::new();
    for _ in 0..ADDRESSES {
        let setup = Setup::new(&folder, plan).runtime(runtime.path()).within(&ANOTHER);
        let Ok(mut party) = setup.start() else {
            findings.skip("another user cannot run this program, or reach its folders");
            return Ok(());
        };
        // The first calls after its handlers are used up are refused.
        let _joined = party.first(server);
        hold(&mut party, server, HELD_FROM_EACH)?;
        hostile.push(party);
    }
    std::thread::sleep(Duration::from_secs(2));
    nothing_lost(findings, &before, &pair.client.tally()?);
    let mut newcomer = Setup::new(&pair.folder, plan).start()?;
    hold(&mut newcomer, server, HELD_BESIDE)?;
    let outcome = newcomer.first(server);
    findings.claim(outcome.is_ok(), "newcomer-is-served", &format!("{outcome:?}"));
    Ok(())
}

/// Makes calls that never end, in portions because the queue of calls of a client is bounded.
fn hold(party: &mut Party, server: SocketAddr, count: u64) -> Outcome<()> {
    for _ in 0..count / PORTION {
        party.process.ask(&format!("hold {server} {PORTION}"))?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

/// Attacks with calls that never end, whose arguments take far more memory than their messages.
pub(crate) fn decoded(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, false)?;
    let server = pair.server.address;
    // A hard limit, because the machine has other users.
    let id = pair.server.process.id().to_string();
    Command::new("prlimit").args(["--pid", &id, "--as=4294967296"]).status()?;
    let before = pair.client.tally()?;
    let mut hostile = Setup::new(&pair.folder, plan).start()?;
    hostile.first(server)?;
    let mut under_way = 0;
    for _ in 0..KEPT / KEPT_AT_ONCE {
        let numbers = hostile.process.numbers(&format!("keep {server} {KEPT_AT_ONCE} {TEXTS}"))?;
        under_way = numbers["under_way"];
        // Follows these calls in the same session, so they have arrived.
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
