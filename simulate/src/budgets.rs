//! Budgets of peers, checked over all pollers of each node between two turns.
//!
//! A poller charges each peer for exactly what it holds for that peer, and all pollers of a node together
//! stay within the node's limits.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use trunkline_transport::PeerKey;
use trunkline_transport::ledger::{BudgetLedger, PollerLedger};

/// Charges of one node's pollers for one resource.
#[derive(Debug, Default)]
struct Sum {
    all: usize,
    of_host: BTreeMap<IpAddr, usize>,
    of_peer: BTreeMap<PeerKey, usize>,
}

/// Checks the rule, at any time.
pub(crate) fn kept(ledgers: &[PollerLedger]) -> Result<(), String> {
    let mut sums = BTreeMap::<(SocketAddr, &str), Sum>::new();
    for ledger in ledgers {
        for budget in ledger.budgets.iter().chain(&ledger.upper.budgets) {
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
