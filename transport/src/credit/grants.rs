//! All grants of one poller, by the SRQ that receives the messages.
//!
//! Over XRC, this is only the poller's own SRQ. Over RC, a peer's connection ends at one of this node's pollers, its
//! *home*. The connection takes receives from the home's SRQ even if a message is for another poller. Each of P pollers
//! therefore grants a P-th of each SRQ's depth, and the sum never exceeds the posted receives.
#![forbid(unsafe_code)]

use super::{CreditViolation, Grantor, PairId};
use crate::PeerKey;
use crate::report::ledger::{Granting, SrqLedger};
use trunkline_verbs::QpNumber;

/// Identifies a pair of one poller's [`Grants`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct GrantId {
    home: usize,
    pair: PairId,
}

/// Grants of one poller.
#[derive(Debug)]
pub(crate) struct Grants {
    by_home: Vec<Grantor>,
}

impl Grants {
    /// Creates the grants of a poller whose messages come through `homes` SRQs, and which may grant `share` receives
    /// of each SRQ.
    pub(crate) fn new(share: u32, homes: u16) -> Self {
        Self { by_home: (0..homes).map(|_| Grantor::new(share)).collect() }
    }

    /// Returns true if the only SRQ should be deepened before another pair is added. Over RC, where pollers
    /// divide each other's SRQs, the depths are fixed.
    pub(crate) fn is_crowded(&self) -> bool {
        matches!(&self.by_home[..], [only] if only.is_crowded())
    }

    /// Adds receives to the depth of the only SRQ.
    pub(crate) fn deepen(&mut self, more: u32) {
        if let [only] = &mut self.by_home[..] {
            only.deepen(more);
        }
    }

    /// Adds a pair of a peer, whose messages come through the SRQ of `home`, with its base credit. Returns
    /// `None` if that SRQ is too shallow for another pair.
    pub(crate) fn open(
        &mut self,
        now_ms: u64,
        target: QpNumber,
        peer: PeerKey,
        home: u16,
    ) -> Option<GrantId> {
        let home = usize::from(home);
        let pair = self.by_home.get_mut(home)?.open(now_ms, target, peer)?;
        Some(GrantId { home, pair })
    }

    pub(crate) fn close(&mut self, id: GrantId) {
        if let Some(grantor) = self.by_home.get_mut(id.home) {
            grantor.close(id.pair);
        }
    }

    /// Records a frame; see [`Grantor::apply_header`].
    pub(crate) fn apply_header(
        &mut self,
        id: GrantId,
        now_ms: u64,
        want: u8,
        released: Option<u16>,
    ) -> Result<(), CreditViolation> {
        let Some(grantor) = self.by_home.get_mut(id.home) else { return Ok(()) };
        grantor.apply_header(id.pair, now_ms, want, released)
    }

    /// Counts a received message that waits; see [`Grantor::wait`].
    pub(crate) fn wait(&mut self, id: GrantId) -> Result<(), CreditViolation> {
        self.by_home.get_mut(id.home).map_or(Ok(()), |grantor| grantor.wait(id.pair))
    }

    pub(crate) fn waited(&mut self, id: GrantId) {
        if let Some(grantor) = self.by_home.get_mut(id.home) {
            grantor.waited(id.pair);
        }
    }

    pub(crate) fn grant(&mut self, now_ms: u64) {
        for grantor in &mut self.by_home {
            grantor.grant(now_ms);
        }
    }

    /// Appends the targets of the pairs that were granted credit. A pair may appear twice.
    pub(crate) fn take_granted(&mut self, into: &mut Vec<QpNumber>) {
        for grantor in &mut self.by_home {
            grantor.take_granted(into);
        }
    }

    /// Returns the position for a frame to the pair's spender, and counts it as sent.
    pub(crate) fn tell(&mut self, id: GrantId) -> u32 {
        self.by_home.get_mut(id.home).map_or(super::START, |grantor| grantor.tell(id.pair))
    }

    /// Returns the positions of a pair, for the ledger.
    pub(crate) fn positions(&self, target: QpNumber, id: GrantId) -> Option<Granting> {
        let home = u16::try_from(id.home).unwrap_or(u16::MAX);
        self.by_home.get(id.home)?.positions(id.pair, target, home)
    }

    /// Returns the outstanding credits of each home, and their maximum for all peers and for one peer.
    pub(crate) fn outstanding(&self) -> Vec<SrqLedger> {
        self.by_home.iter().map(Grantor::ledger).collect()
    }

    /// Takes the targets of the hoarding pairs; see [`Grantor::take_hoarding`].
    pub(crate) fn take_hoarding(&mut self) -> Vec<QpNumber> {
        self.by_home.iter_mut().flat_map(Grantor::take_hoarding).collect()
    }

    /// Returns true if the position needs a separate frame.
    pub(crate) fn must_tell(&self, id: GrantId) -> bool {
        self.by_home.get(id.home).is_some_and(|grantor| grantor.must_tell(id.pair))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::START;

    /// Each of P pollers grants from each of P SRQs. The credit granted from an SRQ must not exceed its depth, for
    /// all backlogs that peers report.
    #[test]
    fn grants_of_all_pollers_never_exceed_srq_depth() {
        for (depth, pollers) in [(48, 3), (512, 3), (512, 2), (100, 7), (512, 32)] {
            let mut all =
                (0..pollers).map(|_| Grants::new(depth / u32::from(pollers), pollers)).collect::<Vec<_>>();
            let mut open = Vec::new();
            for (poller, grants) in all.iter_mut().enumerate() {
                for home in 0..pollers {
                    for peer in 0..4 {
                        let id = grants.open(0, QpNumber::new(peer), PeerKey::numbered(peer), home);
                        open.push((poller, home, id.expect("room for four peers")));
                    }
                }
            }
            for &(poller, _, id) in &open {
                all[poller].apply_header(id, 0, u8::MAX, None).unwrap();
            }
            let used = u32::try_from(open.len()).unwrap() / u32::from(pollers);
            for grants in &mut all {
                grants.grant(1);
            }
            let mut outstanding = vec![0; usize::from(pollers)];
            for &(poller, home, id) in &open {
                // All credit that was granted earlier is used up.
                let told = all[poller].tell(id).wrapping_sub(START);
                outstanding[usize::from(home)] += told;
            }
            for (home, sum) in outstanding.iter().enumerate() {
                let open = sum - used;
                assert!(open <= depth, "{open} of {depth} promised at home {home} of {pollers}");
                assert!(open > depth / 2, "only {open} of {depth} used at home {home} of {pollers}");
            }
        }
    }
}
