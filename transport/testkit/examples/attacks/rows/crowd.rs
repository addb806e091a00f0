//! Peers that follow the protocol but take more than their share, and large numbers of honest peers.

use super::flooded::nothing_lost;
use crate::honest::{ANOTHER, Party, PartyPair, Setup, open_to_all, runtime_of_another};
use crate::{Outcome, Plan};
use std::net::SocketAddr;
use std::time::Duration;
use trunkline_testkit::{Claims, Folder};

/// Number of addresses of the other user, and number of held calls per address. The latter exceeds a peer's share of
/// handlers.
const ADDRESSES: u64 = 10;
const HELD_FROM_EACH: u64 = 17_000;
/// Number of calls held at the same time by a process of the node's own user. It exceeds the share reserved for one host.
const HELD_BESIDE: u64 = 2000;
/// Number of held calls that are started together, and the pause after them.
const PORTION: u64 = 1000;
const PAUSE: Duration = Duration::from_millis(20);

/// Attacks with calls that never end, from another user at several addresses of this host.
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
        // The first call fails if all handlers for this peer are already in use.
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

/// Makes calls that never end. It makes them in portions, because a client's call queue is bounded.
fn hold(party: &mut Party, server: SocketAddr, count: u64) -> Outcome<()> {
    for _ in 0..count / PORTION {
        party.process.ask(&format!("hold {server} {PORTION}"))?;
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
