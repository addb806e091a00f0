//! What a simulation counts in a poller.
#![forbid(unsafe_code)]

use super::Core;
use crate::budget::Counted;
use crate::ledger::{PollerLedger, UpperLedger};
use std::net::{Ipv4Addr, SocketAddr};

impl Core {
    /// The credits, slots and memory of this moment, with what the upper half has open.
    pub(super) fn ledger(&self, upper: UpperLedger) -> PollerLedger {
        let res = &self.res;
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let known = self.trunks.live().filter_map(|trunk| Some((trunk, self.peers.address(trunk.peer())?)));
        let granted =
            |(target, known): (_, &super::targets::Target)| res.grants.positions(target, known.pair()?);
        let mut counted = Counted::default();
        self.trunks.all().for_each(|trunk| trunk.count(&mut counted));
        self.peers.count(&mut counted);
        PollerLedger {
            node: res.shared.local_address.get().copied().unwrap_or(unknown),
            poller: res.index.0,
            spending: known.flat_map(|(trunk, address)| trunk.spending(address)).collect(),
            granting: self.targets.all().filter_map(granted).collect(),
            outstanding: res.grants.outstanding(),
            receives: self.queues.is_attached().then(|| res.receives.count()),
            sends: self.queues.is_attached().then(|| res.sends.count()),
            outstanding_wr: res.sends.outstanding(),
            memory: [res.shared.sources.ledger(), res.shared.sinks.ledger()],
            budgets: res.shares.ledger(counted),
            upper,
        }
    }
}
