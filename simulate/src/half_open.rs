//! Sessions that are not up yet, checked over each node between two turns.
//!
//! | rule | violated when |
//! |---|---|
//! | they hold no credit | a TGT of a half-open session is charged |
//! | they are bounded | strangers' half-open sessions have more connections than one host, or all hosts, may have |

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
