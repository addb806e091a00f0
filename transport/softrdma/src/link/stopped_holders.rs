//! Detection of stopped processes that hold the device's UDP port at an address at which this member listens.
//!
//! A stopped holder does not forward packets, so new clients cannot reach this member, which does not detect the
//! failure. The background machine of the first shard checks the holders before it sleeps, and does not wake for a
//! check. It reads the state of at most one process per second, and only while another member holds the port at an
//! address at which this one listens.
#![forbid(unsafe_code)]

use super::port_owner::is_stopped;
use crate::host::{MemberId, Members};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Bound;
use std::sync::Weak;
use std::time::Duration;
use trunkline_verbs::Time;

/// Interval between two checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Periodic check of the holders, which logs when a holder is found stopped or running again.
#[derive(Debug)]
pub(crate) struct StoppedHolders {
    /// Connections with the other members; dropped when the device leaves.
    members: Weak<Members>,
    /// Time of the next check.
    next: Time,
    /// Holder that was checked last.
    last: Option<MemberId>,
    /// Process ids of the holders that were stopped at their last check.
    stopped: BTreeMap<MemberId, u32>,
}

impl StoppedHolders {
    pub(crate) fn new(members: Weak<Members>) -> Self {
        Self { members, next: Time(0), last: None, stopped: BTreeMap::new() }
    }

    /// Checks the next holder, if a check is due.
    pub(crate) fn look(&mut self, now: Time) {
        if now < self.next {
            return;
        }
        self.next = now + LOOK_EVERY;
        let Some(members) = self.members.upgrade() else { return };
        self.look_at(&members.host().other_holders(), |holder| {
            members.process_of(holder).map(|pid| (pid, is_stopped(pid)))
        });
    }

    /// Checks one of the holders. `state_of` returns the pid of a holder, and true if it is stopped.
    fn look_at(
        &mut self,
        holders: &BTreeMap<MemberId, Vec<IpAddr>>,
        state_of: impl FnOnce(MemberId) -> Option<(u32, bool)>,
    ) {
        self.stopped.retain(|holder, pid| {
            let holds = holders.contains_key(holder);
            if !holds {
                tracing::info!(
                    pid,
                    cause = "it has ended, or this process no longer listens at its addresses",
                    "stopped process no longer blocks new clients"
                );
            }
            holds
        });
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = holders.range((after, Bound::Unbounded)).next().or_else(|| holders.first_key_value());
        self.last = next.map(|(holder, _)| *holder);
        let Some((holder, addresses)) = next else { return };
        match (state_of(*holder), self.stopped.contains_key(holder)) {
            (Some((pid, true)), false) => {
                self.stopped.insert(*holder, pid);
                tracing::warn!(
                    pid,
                    ?addresses,
                    cause = "the process that holds the UDP port at these addresses is stopped",
                    remedy = "continue (SIGCONT) or end that process",
                    "new clients do not reach this process"
                );
            }
            (Some((pid, false)), true) => {
                self.stopped.remove(holder);
                tracing::info!(
                    pid,
                    ?addresses,
                    cause = "the process that holds the UDP port at these addresses runs again",
                    "new clients reach this process again"
                );
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_reads_state_of_next_holder() {
        let member = |slot| MemberId { slot, generation: 1 };
        let mut holders = BTreeMap::from([1, 2, 3].map(|slot| (member(slot), Vec::new())));
        let mut check = StoppedHolders::new(Weak::new());
        let mut look = |holders: &BTreeMap<_, _>, stopped: u16| {
            let mut read = Vec::new();
            check.look_at(holders, |holder| {
                read.push(holder.slot);
                Some((holder.slot.into(), holder.slot == stopped))
            });
            (read, check.stopped.values().copied().collect::<Vec<_>>())
        };
        assert_eq!(
            [(); 3].map(|()| look(&holders, 2)),
            [1, 2, 3].map(|slot| (vec![slot], vec![2; usize::from(slot > 1)]))
        );
        assert_eq!(look(&holders, 0), (vec![1], vec![2]), "it was not read again");
        assert_eq!(look(&holders, 0), (vec![2], vec![]), "it runs");
        assert_eq!(look(&holders, 3), (vec![3], vec![3]));
        holders.remove(&member(3));
        assert_eq!(look(&holders, 3), (vec![1], vec![]), "it has no port");
        assert_eq!(look(&BTreeMap::new(), 0), (vec![], vec![]));
    }

    #[test]
    fn stopped_holders_are_checked_once_per_second() {
        let mut check = StoppedHolders::new(Weak::new());
        let due = [1, 2, 1_000_000_000, 1_000_000_001, 1_999_999_999].map(|now_ns| {
            let before = check.next;
            check.look(Time(now_ns));
            check.next != before
        });
        assert_eq!(due, [true, false, false, true, false]);
    }
}
