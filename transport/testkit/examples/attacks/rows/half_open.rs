//! Sessions that a peer never lets come up, and the frames that it sends meanwhile.

use super::flooded::nothing_lost;
use crate::forge::version_of;
use crate::honest::PartyPair;
use crate::{Outcome, Plan};
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::frame::{self, CREDIT, SETTINGS};
use trunkline_testkit::{Claims, Crowd, Decision, HandMadePeer, Random, fresh_ip};

/// Number of listeners of the host, each with a half-open session, and number of credit frames that each
/// sends after its settings. A host may have 256 such connections.
const CROWDS: [(&str, u16, usize); 2] = [("settings", 32, 0), ("credit-frames", 256, 7)];
/// Duration, longer than a node waits for a session that does not come up.
const LASTS: Duration = Duration::from_secs(7);
/// Portion of time in which calls are counted, time for which they are counted without the host, and the part
/// of those calls that must be made in each portion.
const PORTION: Duration = Duration::from_millis(500);
const QUIET: Duration = Duration::from_secs(2);
const PART: f64 = 0.1;

pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    if !plan.is_xrc() {
        findings.skip("it dials over XRC");
        return Ok(());
    }
    for (name, ports, credits) in CROWDS {
        let mut pair = PartyPair::start(plan, false)?;
        let server = pair.server.address;
        let version = version_of(fresh_ip().into(), server, true, &mut Random::from_entropy())?;
        let before = pair.client.tally()?;
        let usual = least_of(&mut pair, QUIET)?;
        let crowd = std::thread::spawn(move || {
            dial(server, ports, version, credits).map_err(|error| error.to_string())
        });
        let least = least_of(&mut pair, LASTS)?;
        let (accepted, sent) = crowd.join().map_err(|_| "the crowd has panicked")??;
        let crowd = format!("{accepted} of {ports} sessions were half-open, {sent} frames arrived");
        findings.claim(usize::from(accepted) > usize::from(ports) / 2, &format!("{name}-crowd"), &crowd);
        let measured = format!("{least} small calls within {PORTION:?} at least, {usual} before");
        let is_alive = least > 0 && least as f64 >= usual as f64 * PART;
        findings.claim(is_alive, &format!("{name}-no-stall"), &measured);
        nothing_lost(findings, &before, &pair.client.tally()?);
        pair.serves_newcomer(plan, findings, &format!("{name}-newcomer"))?;
        let short = pair.server.logged("receive slots ran out")?;
        findings.claim(short == 0, &format!("{name}-receives"), &format!("{short} times none was left"));
    }
    Ok(())
}

/// Returns the smallest number of small calls in a portion of that time.
fn least_of(pair: &mut PartyPair, over: Duration) -> Outcome<u64> {
    let (start, mut least) = (Instant::now(), u64::MAX);
    while start.elapsed() < over {
        let small = pair.client.tally()?["small"];
        std::thread::sleep(PORTION);
        least = least.min(pair.client.tally()?["small"] - small);
    }
    Ok(least)
}

/// Lets a crowd of this number of listeners dial for a while. Returns the number of accepted sessions and of
/// acknowledged frames.
fn dial(server: SocketAddr, ports: u16, version: u8, credits: usize) -> Outcome<(u16, usize)> {
    let host = fresh_ip().into();
    let device = SoftDevice::open(SoftOptions { addresses: vec![host], ..SoftOptions::default() })?;
    let settings = frame::build(SETTINGS, 0, 0, &[0; 8]);
    let credits = std::iter::repeat_n(frame::build(CREDIT, 0, 0, &[]), credits);
    let frames = std::iter::once(settings).chain(credits).collect();
    let mut crowd = Crowd::dial(HandMadePeer::new(device, host)?, server, ports, version, frames)?;
    let (start, mut accepted, mut sent) = (Instant::now(), 0, 0);
    while start.elapsed() < LASTS - PORTION {
        sent += crowd.acknowledged();
        match crowd.next_decision()? {
            Some(decision) => accepted += u16::from(decision == Decision::Accepted),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    Ok((accepted, sent))
}
