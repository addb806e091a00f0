//! Posted receives.
//!
//! Owns the requests of an SRQ or of an RC receive queue, or the requests that an SRQ has lent to a shard.
//! The ring is allocated when the queue is created, so that posting does not allocate. A shard takes one
//! request for each message.
#![forbid(unsafe_code)]

use crate::device::tables::keys::{KeyView, PdNumber, Refused};
use trunkline_machine::mutant;
use trunkline_machine::rings::lending::Stock;
use trunkline_verbs::{PostError, ReceiveRequest, Sge, VerbsError};

/// A ring of receives.
#[derive(Debug)]
pub(in crate::device) struct ReceiveQueue {
    requests: Vec<(u64, usize)>,
    /// Maximum number of posted requests. The ring grows beyond it if lent requests return to a full queue.
    capacity: usize,
    /// SGEs of the requests, `stride` entries for each.
    sges: Vec<Sge>,
    stride: usize,
    head: usize,
    length: usize,
    /// True if the queue's CQ has lost a completion. Requests are then no longer taken.
    broken: bool,
}

/// A receive that was taken for a message. The QP reuses the buffer for the next message.
#[derive(Debug, Default)]
pub(in crate::device) struct Taken {
    pub(in crate::device) wr_id: u64,
    sges: Vec<Sge>,
    bytes: u64,
}

impl ReceiveQueue {
    pub(in crate::device) fn new(max_wr: u32, max_sge: u32) -> Self {
        Self::with_room(max_wr as usize, max_sge as usize)
    }

    fn with_room(slots: usize, stride: usize) -> Self {
        Self {
            requests: vec![(0, 0); slots],
            capacity: slots,
            sges: vec![Sge::default(); slots * stride],
            stride,
            head: 0,
            length: 0,
            broken: false,
        }
    }

    /// Returns the number of requests that messages can take; 0 if the queue is broken.
    pub(in crate::device) fn len(&self) -> usize {
        if self.broken { 0 } else { self.length }
    }

    /// Marks the queue as broken, so that requests are no longer taken (contract G10).
    pub(in crate::device) fn break_off(&mut self) {
        self.broken = true;
    }

    pub(in crate::device) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Returns the maximum number of posted requests.
    pub(in crate::device) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns the number of SGEs per request.
    pub(in crate::device) fn max_sge(&self) -> usize {
        self.stride
    }

    /// Changes the capacity to `max_wr` requests. Returns false if more requests are posted.
    pub(in crate::device) fn resize(&mut self, max_wr: u32) -> bool {
        if self.length > max_wr as usize {
            return false;
        }
        self.make_room(max_wr as usize);
        self.capacity = max_wr as usize;
        true
    }

    /// Moves the requests, which must fit, to a ring with `slots` slots.
    fn make_room(&mut self, slots: usize) {
        let mut resized = Self::with_room(slots, self.stride);
        for index in 0..self.length {
            let from = (self.head + index) % self.requests.len();
            resized.requests[index] = self.requests[from];
            resized.sges[index * self.stride..][..self.stride]
                .copy_from_slice(&self.sges[from * self.stride..][..self.stride]);
        }
        resized.capacity = self.capacity;
        resized.length = self.length;
        resized.broken = self.broken;
        *self = resized;
    }

    /// Returns the index of the slot after the last request. The ring must not be full.
    fn free_slot(&self) -> usize {
        let ahead = self.head + self.length;
        if ahead < self.requests.len() { ahead } else { ahead - self.requests.len() }
    }

    pub(in crate::device) fn post(&mut self, request: &ReceiveRequest<'_>) -> Result<(), VerbsError> {
        if request.scatter.len() > self.stride {
            return Err(VerbsError::Invalid("more SGEs than the receive queue was made for"));
        }
        if self.length >= self.capacity {
            return Err(VerbsError::OutOfResources("the receive queue is full"));
        }
        let slot = self.free_slot();
        self.requests[slot] = (request.wr_id, request.scatter.len());
        self.sges[slot * self.stride..][..request.scatter.len()].copy_from_slice(request.scatter);
        self.length += 1;
        Ok(())
    }

    /// Moves the oldest request into `taken`. Returns false if there is none.
    #[inline]
    pub(in crate::device) fn take(&mut self, taken: &mut Taken) -> bool {
        if self.len() == 0 {
            return false;
        }
        let (wr_id, count) = self.requests[self.head];
        taken.wr_id = wr_id;
        taken.sges.clear();
        taken.bytes = 0;
        for sge in &self.sges[self.head * self.stride..][..count] {
            taken.sges.push(*sge);
            taken.bytes += u64::from(sge.length);
        }
        self.head = if self.head + 1 == self.requests.len() { 0 } else { self.head + 1 };
        self.length -= 1;
        true
    }

    /// Discards all requests.
    pub(in crate::device) fn clear(&mut self) {
        self.length = 0;
    }
}

impl Stock for ReceiveQueue {
    fn len(&self) -> usize {
        self.len()
    }

    fn shift(&mut self, into: &mut Self, most: usize) {
        let count = self.length.min(most);
        if into.length + count > into.requests.len() {
            into.make_room(into.length + count);
        }
        for index in 0..count {
            if index + 1 == count && mutant!(lent_receive_is_lost) {
                self.head = if self.head + 1 == self.requests.len() { 0 } else { self.head + 1 };
                self.length -= 1;
                continue;
            }
            let to = into.free_slot();
            into.requests[to] = self.requests[self.head];
            into.sges[to * self.stride..][..self.stride]
                .copy_from_slice(&self.sges[self.head * self.stride..][..self.stride]);
            into.length += 1;
            self.head = if self.head + 1 == self.requests.len() { 0 } else { self.head + 1 };
            self.length -= 1;
        }
    }

    fn small(&self, room: usize) -> Self {
        Self::with_room(room, self.stride)
    }
}

/// Posts requests up to the first that is refused.
pub(in crate::device) fn post_all(
    queue: &mut ReceiveQueue,
    requests: &[ReceiveRequest<'_>],
) -> Result<(), PostError> {
    for (index, request) in requests.iter().enumerate() {
        queue.post(request).map_err(|cause| PostError { index, cause })?;
    }
    Ok(())
}

impl Taken {
    /// Returns the total length of the SGEs, in bytes.
    pub(in crate::device) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Writes a part of a message into the receive. The caller has checked that the part fits.
    #[inline]
    pub(in crate::device) fn scatter(
        &self,
        keys: KeyView<'_>,
        pd: PdNumber,
        offset: u32,
        mut payload: &[u8],
    ) -> Result<(), Refused> {
        let mut skip = offset;
        for sge in &self.sges {
            if payload.is_empty() {
                break;
            }
            if skip >= sge.length {
                skip -= sge.length;
                continue;
            }
            let room = (sge.length - skip) as usize;
            let (now, later) = payload.split_at(room.min(payload.len()));
            keys.scatter(pd, Sge { address: sge.address.plus(u64::from(skip)), ..*sge }, now)?;
            payload = later;
            skip = 0;
        }
        if payload.is_empty() { Ok(()) } else { Err(Refused) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::tables::keys::Keys;
    use crate::device::tables::random::Random;
    use std::sync::Arc;
    use trunkline_machine::rings::readers::{Reader, Readers};
    use trunkline_verbs::{Access, Lkey, Memory};

    #[test]
    fn receive_requests_are_taken_in_posted_order() {
        let mut queue = ReceiveQueue::new(2, 1);
        let mut taken = Taken::default();
        assert!(!queue.take(&mut taken));
        for round in 0..5 {
            queue.post(&ReceiveRequest { wr_id: round, scatter: &[] }).unwrap();
            queue.post(&ReceiveRequest { wr_id: round + 100, scatter: &[Sge::default()] }).unwrap();
            assert!(queue.post(&ReceiveRequest { wr_id: 9, scatter: &[] }).is_err(), "full");
            assert!(queue.take(&mut taken));
            assert_eq!(taken.wr_id, round);
            assert!(queue.take(&mut taken));
            assert_eq!(taken.wr_id, round + 100);
        }
        let two = [Sge::default(); 2];
        assert!(queue.post(&ReceiveRequest { wr_id: 9, scatter: &two }).is_err(), "too many SGEs");
    }

    #[test]
    fn lent_receives_return_to_refilled_queue() {
        let mut queue = ReceiveQueue::new(4, 1);
        let post = |queue: &mut ReceiveQueue, wr_id| {
            queue.post(&ReceiveRequest { wr_id, scatter: &[Sge::default()] })
        };
        (0..4).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
        let mut lent = queue.small(3);
        queue.shift(&mut lent, 3);
        (4..7).for_each(|wr_id| post(&mut queue, wr_id).unwrap());
        assert!(post(&mut queue, 9).is_err());
        lent.shift(&mut queue, usize::MAX);
        assert_eq!((lent.len(), queue.len(), queue.capacity()), (0, 7, 4));
        assert!(!queue.resize(6), "more are posted");
        let mut taken = Taken::default();
        let ids = [(); 7].map(|()| {
            assert!(queue.take(&mut taken));
            taken.wr_id
        });
        assert_eq!(ids, [3, 4, 5, 6, 0, 1, 2]);
    }

    #[test]
    fn message_is_scattered_over_sges() {
        let memory = Memory::zeroed(16).unwrap();
        let readers = Readers::new();
        let keys = Keys::new(&readers, &mut Random::new(1), 64);
        let key = keys
            .insert((Arc::clone(&memory), 0..16), memory.address(0), PdNumber(1), Access::LOCAL_WRITE)
            .unwrap();
        let piece = |offset, length| Sge { address: memory.address(offset), length, lkey: Lkey(key) };
        let mut queue = ReceiveQueue::new(1, 3);
        let scatter = [piece(8, 3), piece(0, 0), piece(0, 4)];
        queue.post(&ReceiveRequest { wr_id: 1, scatter: &scatter }).unwrap();
        let mut taken = Taken::default();
        assert!(queue.take(&mut taken));
        assert_eq!(taken.bytes(), 7);
        let mut reader = Reader::new(&readers);
        let reading = reader.enter();
        let view = keys.view(&reading);
        taken.scatter(view, PdNumber(1), 0, b"ab").unwrap();
        taken.scatter(view, PdNumber(1), 2, b"cdefg").unwrap();
        assert!(taken.scatter(view, PdNumber(1), 7, b"h").is_err());
        let mut out = [0; 16];
        memory.read(0, &mut out).unwrap();
        assert_eq!(&out, b"defg\0\0\0\0abc\0\0\0\0\0");
    }
}
