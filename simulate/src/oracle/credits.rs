//! Checks of credits, slots, memory, budgets, half-open sessions and open calls in all nodes, between two turns.
//!
//! A spender and a grantor are paired by the TGT between them. Every granted credit is in exactly one state: in transit
//! to the spender, held by the spender, released and in transit back, used by a message in transit, or consumed. The
//! number of credits in each state is the difference between two positions. Credits are therefore conserved if and only
//! if no difference is negative and the sum does not exceed the depth of the SRQ.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_transport::PeerKey;
use trunkline_transport::ledger::{
    BudgetLedger, DriverLedger, Granting, MemoryLedger, PollerLedger, ROUND_MESSAGES, SessionEntry,
    SessionLedger, Spending, TURN_MESSAGES,
};

/// Minimum value of a difference that is interpreted as negative.
const NEGATIVE: u32 = 1 << 31;

/// Maximum memory of half-open sessions on a poller, in bytes.
const MOST_EARLY: usize = 16 << 20;

/// Maximum number of pollers per node, by which the last accepted request may exceed the limit.
const MOST_POLLERS: u32 = 32;

/// Checks that credits are conserved, and returns the number of pairs compared. May be called at any time.
pub(crate) fn conserved(ledgers: &[PollerLedger]) -> Result<usize, String> {
    for ledger in ledgers {
        within_depth(ledger)?;
        turns_are_short(ledger)?;
    }
    let pairs = pairs(ledgers);
    for (spending, granting) in &pairs {
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
    }
    Ok(pairs.len())
}

/// Checks that all credits, slots and memory have been returned. Called after a long time without calls.
pub(crate) fn at_rest(ledgers: &[PollerLedger]) -> Result<(), String> {
    for ledger in ledgers {
        let PollerLedger { node, poller, receives, sends, outstanding_wr, memory, budgets, driver, .. } =
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
        let mut all = budgets.iter().chain(&driver.budgets);
        let is_free = all.all(|budget| budget.used.is_empty() && budget.counted.is_empty());
        let DriverLedger { calls, handlers, slots, has_timer, .. } = *driver;
        if (calls, handlers, slots, has_timer) != (0, 0, 0, false) || !is_free {
            return Err(format!("calls are open at rest at poller {poller} of {node}: {driver:?}"));
        }
    }
    let is_moving = |(spending, granting): &(&Spending, &Granting)| {
        spending.sent != granting.consumed
            || spending.granted != granting.told
            || spending.released != granting.released
    };
    match pairs(ledgers).into_iter().find(is_moving) {
        Some((spending, granting)) => {
            Err(format!("credits are on their way at rest: {spending:?}, {granting:?}"))
        }
        None => Ok(()),
    }
}

/// Checks, at rest, that the SRQs of a node's device hold all receives posted by its pollers, including receives lent to
/// a shard.
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

/// Checks that a poller's grants do not exceed its SRQs and each peer's share, that only established sessions hold credit,
/// and that each pair in such a session has its base credit.
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

/// Checks that the frames of a peer waited for at most one turn of each other waiting peer, and for one round of peers
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

/// Returns the two halves of each pair that exists on both sides.
fn pairs(ledgers: &[PollerLedger]) -> Vec<(&Spending, &Granting)> {
    let mut grants = BTreeMap::new();
    for ledger in ledgers {
        let own = ledger.granting.iter();
        grants.extend(own.map(|granting| ((ledger.node.ip(), granting.target, ledger.poller), granting)));
    }
    let spending = ledgers.iter().flat_map(|ledger| &ledger.spending);
    let half = |one: &Spending| grants.get(&(one.peer.host(), one.target, one.poller)).copied();
    spending.filter_map(|spending| Some((spending, half(spending)?))).collect()
}

/// Charges for one resource by all pollers of a node.
#[derive(Debug, Default)]
struct Sum {
    all: usize,
    of_host: BTreeMap<IpAddr, usize>,
    of_peer: BTreeMap<PeerKey, usize>,
}

/// Checks that a poller charges each peer for exactly the resources that it holds for the peer, and that the pollers of a
/// node together stay within its limits. May be called at any time.
pub(crate) fn budgets_are_kept(ledgers: &[PollerLedger]) -> Result<(), String> {
    let mut sums = BTreeMap::<(SocketAddr, &str), Sum>::new();
    for ledger in ledgers {
        for budget in ledger.budgets.iter().chain(&ledger.driver.budgets) {
            is_exact(ledger, budget)?;
            let sum = sums.entry((ledger.node, budget.name)).or_default();
            for (peer, units) in &budget.used {
                let of_peer = sum.of_peer.entry(*peer).or_default();
                let of_host = sum.of_host.entry(peer.host()).or_default();
                *of_peer += units;
                *of_host += units;
                sum.all += units;
                let limit = budget.limit;
                let is_kept =
                    *of_peer <= limit.per_peer && *of_host <= limit.per_host() && sum.all <= limit.in_all;
                if !is_kept {
                    return Err(format!(
                        "the budget of {} is exceeded at {}: {sum:?}, allowed: {:?}",
                        budget.name, ledger.node, budget.limit
                    ));
                }
            }
        }
    }
    Ok(())
}

fn is_exact(ledger: &PollerLedger, budget: &BudgetLedger) -> Result<(), String> {
    let BudgetLedger { name, used, counted, .. } = budget;
    let wrong = || {
        let PollerLedger { node, poller, .. } = ledger;
        format!("{name} are charged as {used:?}, but are {counted:?} at poller {poller} of {node}")
    };
    (used == counted).then_some(()).ok_or_else(wrong)
}

/// Checks the sessions begun by other nodes. Half-open sessions have no charged TGTs. The connections of strangers stay
/// within the limits per host and in total. If a host has several sessions, their connections stay within the share of a
/// host. May be called at any time.
pub(crate) fn sessions_are_bounded(
    sessions: &[SessionLedger],
    pollers: &[PollerLedger],
) -> Result<(), String> {
    for ledger in sessions {
        let half_open = || ledger.sessions.iter().filter(|session| !session.is_up);
        within_bounds(ledger, half_open().filter(|session| !session.is_named))?;
        within_shares(ledger)?;
        within_unproven(ledger)?;
        for session in half_open() {
            without_credit(ledger.node, session, pollers)?;
        }
    }
    Ok(())
}

fn within_bounds<'a>(
    ledger: &SessionLedger,
    strangers: impl Iterator<Item = &'a SessionEntry>,
) -> Result<(), String> {
    let (of_host, of_all) = ledger.half_open_limit;
    let (mut by_host, mut all) = (BTreeMap::<IpAddr, u32>::new(), 0);
    for session in strangers {
        *by_host.entry(session.peer.host()).or_default() += session.announced;
        all += session.announced;
    }
    let most = by_host.values().max().copied().unwrap_or(0);
    if most >= of_host + MOST_POLLERS || all >= of_all + MOST_POLLERS {
        return Err(format!(
            "half-open sessions at {} have {all} connections, of one host {most}; allowed: {of_all}, {of_host}",
            ledger.node
        ));
    }
    Ok(())
}

/// Checks the limits on unproven sessions: per host for strangers, and per peer for newcomers.
fn within_unproven(ledger: &SessionLedger) -> Result<(), String> {
    let (of_host, of_peer) = ledger.unproven_limit;
    let mut by_host = BTreeMap::<IpAddr, usize>::new();
    for session in &ledger.sessions {
        let (unproven, candidates) = session.unproven;
        if candidates > of_peer {
            return Err(format!("{} has {candidates} candidates of {}", ledger.node, session.peer));
        }
        if !session.is_named {
            *by_host.entry(session.peer.host()).or_default() += unproven;
        }
    }
    match by_host.into_iter().find(|(_, unproven)| *unproven > of_host) {
        Some((host, unproven)) => Err(format!("{} has {unproven} unproven sessions of {host}", ledger.node)),
        None => Ok(()),
    }
}

fn within_shares(ledger: &SessionLedger) -> Result<(), String> {
    let mut by_host = BTreeMap::<IpAddr, (u32, usize)>::new();
    for session in ledger.sessions.iter().filter(|session| !session.is_named) {
        let (connections, sessions) = by_host.entry(session.peer.host()).or_default();
        *connections += session.announced;
        *sessions += usize::from(session.announced > 0);
    }
    let (node, most) = (ledger.node, ledger.host_limit);
    // The first session of a host may have any size. Without a device, there is neither a limit nor a new session.
    let exceeds = |&(_, (connections, sessions)): &(IpAddr, (u32, usize))| {
        most > 0 && sessions > 1 && connections > most
    };
    match by_host.into_iter().find(exceeds) {
        Some((host, (connections, sessions))) => Err(format!(
            "{sessions} sessions of {host} at {node} have {connections} connections; allowed: {most}"
        )),
        None => Ok(()),
    }
}

fn without_credit(node: SocketAddr, session: &SessionEntry, pollers: &[PollerLedger]) -> Result<(), String> {
    for ledger in pollers.iter().filter(|ledger| ledger.node == node) {
        let mut charged = ledger.granting.iter().filter(|granting| !granting.is_up);
        if let Some(granting) = charged.find(|granting| session.targets.contains(&granting.target)) {
            let peer = session.peer;
            return Err(format!("a session of {peer} holds credit at {node} and is not up: {granting:?}"));
        }
    }
    Ok(())
}
