//! Packets of a live session with arbitrary PSNs, sent from the other side's address and another port.

use super::flooded::{ROUNDS, compare, unbound};
use crate::forge::{Forger, Tap, paced};
use crate::honest::PartyPair;
use crate::{Outcome, Plan};
use std::time::Duration;
use trunkline_testkit::{Claims, Random, wait_until};

pub(crate) fn run(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let mut pair = PartyPair::start(plan, true)?;
    let (server, client) = (pair.server.address, pair.client.address);
    let mut random = Random::from_entropy();
    let mut tap = Tap::open(&pair.capture, client.ip(), server.ip())?;
    wait_until("packets of the session", Duration::from_secs(10), || {
        tap.follow(|_| {}).ok()?;
        tap.with_any_psn(true, &mut random).and_then(|_| tap.with_any_psn(false, &mut random)).ok()
    });
    let nowhere = unbound(server)?;
    let mut forgers = [Forger::at(client.ip())?, Forger::at(server.ip())?];
    let (mut answered, mut answered_bytes, mut sent) = (0, 0, 0);
    let before = pair.server.process.numbers("counters")?;
    compare(&mut pair, plan, findings, |_, is_real| {
        paced(plan.packets / ROUNDS, plan.over() / u32::try_from(ROUNDS)?, |number| {
            if number % 1000 == 0 {
                tap.follow(|_| {})?;
            }
            let to_server = random.one_in(2);
            let (packet, to) = tap.with_any_psn(to_server, &mut random)?;
            let forger = &mut forgers[usize::from(!to_server)];
            forger.send(&packet, if is_real { to } else { nowhere })?;
            if number % 100 == 0 {
                let caught = forger.caught();
                answered += caught.packets;
                answered_bytes += caught.bytes;
            }
            sent += u64::from(is_real);
            Ok(())
        })?;
        Ok(())
    })?;
    for forger in &forgers {
        let caught = forger.caught();
        answered += caught.packets;
        answered_bytes += caught.bytes;
    }
    let after = pair.server.process.numbers("counters")?;
    for (name, value) in &after {
        let more = value - before.get(name).copied().unwrap_or(0);
        if more > 0 && name.starts_with("drop_") {
            findings.note(name, &more.to_string());
        }
    }
    let measured = format!("{sent} forged packets, {answered} packets ({answered_bytes} bytes) came back");
    findings.claim(answered == 0, "nothing-answered", &measured);
    Ok(())
}
