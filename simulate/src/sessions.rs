//! Sessions that others begin, checked over each node between two turns.
//!
//! | rule | violated when |
//! |---|---|
//! | half-open ones hold no credit | a TGT of a half-open session is charged |
//! | half-open ones are bounded | strangers' half-open sessions have more connections than one host, or all hosts, may have |
//! | hosts have their share | the sessions of a host that has several have more connections than half of an SRQ has room for |

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_transport::ledger::{PollerLedger, SessionEntry, SessionLedger};

/// Maximum number of pollers of a node. The last accepted request may exceed the bound by this.
const MOST_POLLERS: u32 = 32;

/// Checks the rules, at any time.
pub(crate) fn bounded(sessions: &[SessionLedger], pollers: &[PollerLedger]) -> Result<(), String> {
    for ledger in sessions {
        let half_open = || ledger.sessions.iter().filter(|session| !session.is_up);
        within_bounds(ledger, half_open().filter(|session| !session.is_named))?;
        within_shares(ledger)?;
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
        *by_host.entry(session.peer.ip()).or_default() += session.announced;
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

fn within_shares(ledger: &SessionLedger) -> Result<(), String> {
    let mut by_host = BTreeMap::<IpAddr, (u32, usize)>::new();
    for session in ledger.sessions.iter().filter(|session| !session.is_named) {
        let (connections, sessions) = by_host.entry(session.peer.ip()).or_default();
        *connections += session.announced;
        *sessions += usize::from(session.announced > 0);
    }
    let (node, most) = (ledger.node, ledger.host_limit);
    // A host has a first session whatever its size. Without a device there is no limit, and no new session.
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
