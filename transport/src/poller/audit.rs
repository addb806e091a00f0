//! Counts of a poller for a simulation.
#![forbid(unsafe_code)]

use super::Core;
use super::targets::Target;
use crate::budget::Counted;
use crate::ledger::{Granting, PollerLedger, UpperLedger};
use crate::trunk::Trunk;
use std::net::{Ipv4Addr, SocketAddr};

impl Core {
    /// Returns the current credits, slots and memory, with the upper half's open work.
    pub(super) fn ledger(&self, upper: UpperLedger) -> PollerLedger {
        let res = &self.res;
        let unknown = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
        let granted = |(qp, target): (_, &Target)| {
            let (peer, number) = target.session();
            let is_up = self.find_trunk(peer, number).is_some();
            Some(Granting { is_up, ..res.grants.positions(qp, target.pair()?)? })
        };
        let mut counted = Counted::default();
        self.trunks.all().for_each(|trunk| trunk.count(&mut counted));
        self.peers.count(&mut counted);
        PollerLedger {
            node: res.shared.local_address.get().copied().unwrap_or(unknown),
            poller: res.index.0,
            spending: self.trunks.live().flat_map(Trunk::spending).collect(),
            granting: self.targets.all().filter_map(granted).collect(),
            outstanding: res.grants.outstanding(),
            early: self.targets.count_early(),
            receives: self.queues.is_attached().then(|| res.receives.count()),
            sends: self.queues.is_attached().then(|| res.sends.count()),
            outstanding_wr: res.sends.outstanding(),
            memory: [&res.shared.sources, &res.shared.sinks, &res.shared.buffers].map(|pool| pool.ledger()),
            budgets: res.shares.ledger(counted),
            longest_wait: self.turns.longest_wait(),
            upper,
        }
    }
}
