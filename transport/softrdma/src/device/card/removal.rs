//! A card that is taken out of its slot (contract I5).
//!
//! Nothing of the device works any more from here on: its tables are empty, so that whatever is
//! asked of an object finds nothing, and no packet comes or goes. Peers are told nothing.

use super::Card;
use super::connect::{PendingCmEvent, PendingCmEventKind};
use crate::link::{Link, LinkError, ReceiveBatch, SendBatch};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;
use trunkline_verbs::{AsyncEventKind, AsyncSubject, CmIdNumber, Counter, Time, VerbsError};

/// How often a removable device looks whether it was taken away.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What is left of a card's link.
#[derive(Debug)]
struct NoLink {
    name: &'static str,
    /// What the link had counted.
    counted: Vec<Counter>,
}

impl Link for NoLink {
    fn name(&self) -> &'static str {
        self.name
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        Err(LinkError::NoSuchAddress { address })
    }

    fn close(&mut self, _address: IpAddr) {}

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        Err(LinkError::NoSuchAddress { address })
    }

    fn send(&mut self, batch: &mut SendBatch, _now: Time) {
        batch.clear();
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        batch.clear();
        0
    }

    fn arm(&mut self) -> bool {
        false
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        into.extend(self.counted.iter().cloned());
    }
}

impl Card {
    /// Whether the card still sits in its slot.
    ///
    /// # Errors
    /// [`VerbsError::Gone`].
    pub(in crate::device) fn present(&self) -> Result<(), VerbsError> {
        if self.is_gone { Err(VerbsError::Gone) } else { Ok(()) }
    }

    /// When [`Card::look_for_removal`] looks.
    pub(super) fn next_look(&self) -> Option<Time> {
        self.away.as_ref().map(|(_, next)| *next)
    }

    /// Looks whether the operator has taken the device away, if it is time to.
    pub(super) fn look_for_removal(&mut self, now: Time) {
        let Some((files, next)) = &mut self.away else { return };
        if *next > now {
            return;
        }
        *next = now + LOOK_EVERY;
        if files.any() {
            self.away = None;
            self.remove(now);
        }
    }

    /// Takes the card out.
    pub(in crate::device) fn remove(&mut self, now: Time) {
        if std::mem::replace(&mut self.is_gone, true) {
            return;
        }
        // Other members go on with the TGTs that they share with us.
        for number in self.shared_handles() {
            while self.close_shared(number).is_some() {}
        }
        self.flush(now);
        let mut counted = Vec::new();
        self.link.counters(&mut counted);
        self.link = Box::new(NoLink { name: self.link.name(), counted });
        self.members = None;
        self.descriptors_changed += 1;
        self.outgoing.clear();
        for number in self.qps.numbers() {
            self.remove_qp(number);
        }
        for number in self.srqs.numbers() {
            self.destroy_srq(number);
        }
        self.keys.clear();
        self.remove_endpoints(now);
        self.events.raise(AsyncEventKind::DeviceFatal, AsyncSubject::Device);
    }

    /// Listeners first: requests that nobody took go with them, untold.
    fn remove_endpoints(&mut self, now: Time) {
        let listens = |card: &Self, id: &CmIdNumber| {
            card.cm.endpoints.get(id).is_some_and(|endpoint| endpoint.listener.is_some())
        };
        let mut ids = self.cm.endpoints.keys().copied().collect::<Vec<_>>();
        ids.sort_unstable_by_key(|id| (!listens(self, id), *id));
        for id in ids {
            let Some(channel) = self.cm.endpoints.get(&id).map(|endpoint| endpoint.channel.clone()) else {
                continue;
            };
            self.drop_endpoint(id, now);
            let kind = PendingCmEventKind::DeviceRemoval;
            if channel.push(PendingCmEvent { id, kind, private_data: Vec::new() }).is_err() {
                tracing::warn!(?id, "a connection channel is full, the removal of the device is not told");
            }
        }
    }
}
