//! Credits, slots, memory and open calls, checked over all nodes between two turns.
//!
//! A spender and a grantor are paired by the TGT between them. Every granted credit is in exactly one place:
//! in transit to the spender, held by the spender, released and on its way back, in a message in transit, or
//! consumed. Each of these is a difference of two positions, so credits are conserved exactly when no
//! difference is negative and the sum is within the SRQ's depth.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_transport::ledger::{
    Granting, MemoryLedger, PollerLedger, ROUND_MESSAGES, Spending, TURN_MESSAGES, UpperLedger,
};
use trunkline_verbs::QpNumber;

/// Differences of positions from this on count as negative.
const NEGATIVE: u32 = 1 << 31;

/// Maximum bytes that sessions which are not up may leave at a poller.
const MOST_EARLY: usize = 16 << 20;

/// Checks conservation, at any time. Returns the number of pairs compared.
pub(crate) fn conserved(ledgers: &[PollerLedger]) -> Result<usize, String> {
    let mut grants = BTreeMap::new();
    for ledger in ledgers {
        within_depth(ledger)?;
        turns_are_short(ledger)?;
        for granting in &ledger.granting {
            grants.insert((ledger.node.ip(), granting.target, ledger.poller), *granting);
        }
    }
    let mut pairs = 0;
    for_each_pair(ledgers, &grants, |spending, granting| {
        pairs += 1;
        for (what, more, less) in [
            ("the spender has more than it was told of", granting.told, spending.granted),
            ("more is told than was granted", granting.granted, granting.told),
            ("more has arrived than was sent", spending.sent, granting.consumed),
            ("more is back than was released", spending.released, granting.released),
            (
                "more was sent and released than granted",
                spending.granted.wrapping_sub(spending.released),
                spending.sent,
            ),
        ] {
            if more.wrapping_sub(less) >= NEGATIVE {
                return Err(format!("credits are not conserved: {what}: {spending:?}, {granting:?}"));
            }
        }
        Ok(())
    })?;
    Ok(pairs)
}

/// Checks that nothing is in transit and everything is back, after a long time without calls.
pub(crate) fn at_rest(ledgers: &[PollerLedger]) -> Result<(), String> {
    let mut grants = BTreeMap::new();
    for ledger in ledgers {
        let PollerLedger { node, poller, receives, sends, outstanding_wr, memory, budgets, upper, .. } =
            ledger;
        for (what, slots) in [("receives are posted", receives), ("send slots are free", sends)] {
            if let Some((now, all)) = slots.filter(|(now, all)| now != all) {
                return Err(format!("{now} of {all} {what} at rest at poller {poller} of {node}"));
            }
        }
        if *outstanding_wr != 0 {
            return Err(format!(
                "{outstanding_wr} work requests are out at rest at poller {poller} of {node}"
            ));
        }
        let is_back = |memory: &MemoryLedger| memory.bytes == 0 && memory.regions.0 == memory.regions.1;
        if !memory.iter().all(is_back) {
            return Err(format!("memory for large messages is in use at rest at {node}: {memory:?}"));
        }
        let mut all = budgets.iter().chain(&upper.budgets);
        let is_free = all.all(|budget| budget.used.is_empty() && budget.counted.is_empty());
        let UpperLedger { calls, handlers, slots, has_timer, .. } = *upper;
        if (calls, handlers, slots, has_timer) != (0, 0, 0, false) || !is_free {
            return Err(format!("calls are open at rest at poller {poller} of {node}: {upper:?}"));
        }
        for granting in &ledger.granting {
            grants.insert((node.ip(), granting.target, *poller), *granting);
        }
    }
    for_each_pair(ledgers, &grants, |spending, granting| {
        let is_settled = spending.sent == granting.consumed
            && spending.granted == granting.told
            && spending.released == granting.released;
        let lost = || format!("credits are on their way at rest: {spending:?}, {granting:?}");
        is_settled.then_some(()).ok_or_else(lost)
    })
}

/// Checks, at rest, that the SRQs of a node's device hold what its pollers have posted, at home or lent to a
/// shard.
pub(crate) fn receives_are_posted(
    ledgers: &[PollerLedger],
    node: SocketAddr,
    posted: usize,
) -> Result<(), String> {
    let own = ledgers.iter().filter(|ledger| ledger.node == node);
    let expected = own.filter_map(|ledger| ledger.receives).map(|(now, _)| now as usize).sum::<usize>();
    if posted == expected {
        return Ok(());
    }
    Err(format!("the device of {node} holds {posted} receives at rest; its pollers have posted {expected}"))
}

/// Checks that a poller's grants are within its SRQs and within each peer's share, that only sessions which
/// are up hold credit, and that each of their pairs has its base.
fn within_depth(ledger: &PollerLedger) -> Result<(), String> {
    let at = || format!("at poller {} of {}", ledger.poller, ledger.node);
    for (home, srq) in (0..).zip(&ledger.outstanding) {
        let of_home = || ledger.granting.iter().filter(|granting| granting.home == home);
        let sum = of_home().map(Granting::outstanding).fold(0, u32::wrapping_add);
        if sum != srq.outstanding || sum > srq.capacity {
            return Err(format!(
                "{sum} credits of SRQ {home} are outstanding {}, which counts {srq:?}",
                at()
            ));
        }
        if let Some(granting) = of_home().find(|granting| !granting.is_up || granting.outstanding() == 0) {
            return Err(format!("a pair has no session, or not its base credit, {}: {granting:?}", at()));
        }
        let mut peers = BTreeMap::<_, (u32, u32)>::new();
        for granting in of_home() {
            let (pairs, credits) = peers.entry(granting.peer).or_default();
            (*pairs, *credits) = (*pairs + 1, *credits + granting.outstanding());
        }
        if let Some((peer, (_, credits))) =
            peers.into_iter().find(|(_, (pairs, credits))| *credits > srq.per_peer + pairs)
        {
            return Err(format!("{peer:?} has {credits} credits of SRQ {home} {}: {srq:?}", at()));
        }
    }
    let (bytes, shared) = ledger.early;
    if bytes > MOST_EARLY || shared > 0 {
        return Err(format!(
            "{bytes} bytes of early frames are kept {}, {shared} of these in memory of others",
            at()
        ));
    }
    Ok(())
}

/// Checks that the frames of a peer did not wait for more than a turn of each other waiting peer, and one round of peers
/// that do not wait.
fn turns_are_short(ledger: &PollerLedger) -> Result<(), String> {
    let (messages, peers) = ledger.longest_wait;
    let most = u64::from(TURN_MESSAGES) * (peers as u64 + 1) + u64::from(ROUND_MESSAGES);
    if messages > most {
        return Err(format!(
            "{messages} messages were handled between two turns of a peer, of {peers} that waited, at poller {} of {}",
            ledger.poller, ledger.node
        ));
    }
    Ok(())
}

type Grants = BTreeMap<(IpAddr, QpNumber, u16), Granting>;

/// Calls `judge` with both halves of each pair known to both sides.
fn for_each_pair(
    ledgers: &[PollerLedger],
    grants: &Grants,
    mut judge: impl FnMut(&Spending, &Granting) -> Result<(), String>,
) -> Result<(), String> {
    for spending in ledgers.iter().flat_map(|ledger| &ledger.spending) {
        if let Some(granting) = grants.get(&(spending.peer.ip(), spending.target, spending.poller)) {
            judge(spending, granting)?;
        }
    }
    Ok(())
}
