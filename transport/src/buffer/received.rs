//! Receive slots, which are posted to the SRQ, completed by the device, and lent to the reader of the message.
//!
//! Each slot is free, posted, or owned by one [`Received`]. Only a [`Received`] lends slices, and the device writes
//! only to posted slots. Short frames are copied, so their slots are freed immediately.

use super::short::{BLOCK_BYTES, SHORT_BYTES, ShortFrames};
use super::slots::SlotRegion;
use arrayvec::ArrayVec;
use bytes::{Bytes, BytesMut};
use crossbeam_queue::ArrayQueue;
use std::fmt;
use std::sync::Arc;
use trunkline_verbs::{
    Access, IoAddress, ProtectionDomain, ReceiveRequest, Sge, SharedReceiveQueue, VerbsError,
};

/// Number of receives posted by one call.
const REPOST: usize = 16;
/// Bit that marks the work request numbers of receives. The lower bits are the slot.
const RECEIVE_BIT: u64 = 1 << 63;

#[derive(Debug)]
struct SlotPool {
    region: SlotRegion,
    /// Slots of dropped messages. It can hold all slots, so a push never fails.
    returned: ArrayQueue<u32>,
}

impl SlotPool {
    /// Returns the first bytes of a slot.
    ///
    /// # Safety
    /// While the slice exists, the slot must not be written, including by the device.
    unsafe fn bytes(&self, slot: u32, end: usize) -> &[u8] {
        // SAFETY: the caller guarantees that the slot is not written.
        let slice = unsafe { self.region.memory.slice(self.region.offset(slot), end) };
        slice.unwrap_or_default()
    }
}

/// Slots of one registration.
#[derive(Debug)]
struct Chunk {
    /// Number of the first slot.
    first: u32,
    shared: Arc<SlotPool>,
}

/// The poller's half, with the lists of free and posted slots.
#[derive(Debug)]
pub(crate) struct ReceiveSlots {
    slot_bytes: usize,
    /// Chunks, in the order of their slot numbers.
    chunks: Vec<Chunk>,
    free: Vec<u32>,
    posted: Vec<bool>,
    short: ShortFrames,
    /// Number of receives that could not be posted for lack of slots.
    missing: usize,
}

impl ReceiveSlots {
    /// Creates the poller's half, without slots.
    pub(crate) fn new(slot_bytes: usize) -> Self {
        let (chunks, free, posted, short) = (Vec::new(), Vec::new(), Vec::new(), ShortFrames::default());
        Self { slot_bytes, chunks, free, posted, short, missing: 0 }
    }

    /// Registers more slots.
    ///
    /// # Errors
    /// Returns the error of the memory allocation or of the device. The number of slots is then unchanged.
    pub(crate) fn extend(
        &mut self,
        pd: &dyn ProtectionDomain,
        slots: u32,
        start: IoAddress,
    ) -> Result<(), VerbsError> {
        let too_many = |_| VerbsError::Invalid("too many slots");
        let first = u32::try_from(self.posted.len()).map_err(too_many)?;
        let count = usize::try_from(slots).map_err(too_many)?.max(1);
        let region = SlotRegion::new(pd, slots, self.slot_bytes, start, Access::LOCAL_WRITE)?;
        self.chunks
            .push(Chunk { first, shared: Arc::new(SlotPool { region, returned: ArrayQueue::new(count) }) });
        self.posted.resize(self.posted.len() + count, false);
        // Slots that were used before are taken first, since their pages are already mapped.
        self.free.splice(0..0, (first..first + slots).rev());
        Ok(())
    }

    /// Releases the device and all free and posted slots. Lent slots stay readable.
    pub(crate) fn close(&mut self) {
        for Chunk { shared, .. } in &self.chunks {
            shared.region.close();
            while shared.returned.pop().is_some() {}
        }
        self.free.clear();
        self.posted.fill(false);
        self.missing = 0;
    }

    /// Returns the number of slots that can be posted now, including returned ones.
    pub(crate) fn free(&mut self) -> usize {
        for Chunk { first, shared } in &self.chunks {
            while let Some(slot) = shared.returned.pop() {
                self.free.push(first + slot);
            }
        }
        self.free.len()
    }

    pub(crate) fn posted(&self) -> u32 {
        u32::try_from(self.posted.iter().filter(|posted| **posted).count()).unwrap_or(u32::MAX)
    }

    /// Posts receives for `count` completed ones, and for the receives missing from earlier calls. Receives without a
    /// free slot are counted as missing.
    pub(crate) fn repost(&mut self, srq: &dyn SharedReceiveQueue, count: usize) {
        let wanted = count + self.missing;
        let (_, missing) = self.fill(srq, wanted);
        if missing > 0 && self.missing == 0 {
            tracing::error!(missing, "receive slots ran out although a reserve is kept");
        }
        self.missing = missing;
    }

    /// Returns true if receives are missing for lack of slots.
    pub(crate) fn is_missing_any(&self) -> bool {
        self.missing > 0
    }

    /// Posts `count` receives to the SRQ, or fewer if slots are short. Returns the number posted.
    pub(crate) fn post(&mut self, srq: &dyn SharedReceiveQueue, count: usize) -> usize {
        self.fill(srq, count).0
    }

    /// Posts `count` receives. Returns the number posted, and the number not posted for lack of slots.
    fn fill(&mut self, srq: &dyn SharedReceiveQueue, count: usize) -> (usize, usize) {
        let mut posted = 0;
        while posted < count {
            let mut slots = ArrayVec::<(u32, Sge), REPOST>::new();
            slots.extend(std::iter::from_fn(|| self.take()).take((count - posted).min(REPOST)));
            let filled = slots.len();
            if filled == 0 {
                return (posted, count - posted);
            }
            let mut requests = ArrayVec::<ReceiveRequest<'_>, REPOST>::new();
            requests.extend(slots.iter().map(|(slot, scatter)| ReceiveRequest {
                wr_id: RECEIVE_BIT | u64::from(*slot),
                scatter: std::slice::from_ref(scatter),
            }));
            if let Err(error) = srq.post_receive(&requests) {
                if error.cause != VerbsError::Gone {
                    tracing::error!(%error, "receive refused by the SRQ although it fits");
                }
                for (slot, _) in &slots[error.index.min(filled)..filled] {
                    drop(self.complete(*slot, 0));
                }
                posted += error.index.min(filled);
                break;
            }
            posted += filled;
        }
        (posted, 0)
    }

    /// Returns the slot of a receive's work request number; `None` for a send.
    pub(crate) fn slot_of(wr_id: u64) -> Option<u32> {
        (wr_id & RECEIVE_BIT != 0).then(|| u32::try_from(wr_id & !RECEIVE_BIT).unwrap_or(u32::MAX))
    }

    /// Takes a free slot for posting.
    fn take(&mut self) -> Option<(u32, Sge)> {
        if self.free.is_empty() {
            self.free();
        }
        let slot = self.free.pop()?;
        *self.posted.get_mut(usize::try_from(slot).ok()?)? = true;
        let (shared, at) = place(&self.chunks, slot)?;
        Some((slot, shared.region.sge(at, 0, self.slot_bytes)))
    }

    /// Completes a posted slot with `length` bytes. Returns `None` if the slot was not posted, which is a fault of the
    /// device.
    pub(crate) fn complete(&mut self, slot: u32, length: u32) -> Option<Received> {
        let posted = self.posted.get_mut(usize::try_from(slot).ok()?)?;
        if !std::mem::take(posted) {
            return None;
        }
        let end = usize::try_from(length).ok()?.min(self.slot_bytes);
        let (shared, at) = place(&self.chunks, slot)?;
        if end <= SHORT_BYTES {
            // SAFETY: the slot was posted and has completed, and becomes free only after this, so neither the
            // device nor anything else writes to it.
            let bytes = unsafe { shared.bytes(at, end) };
            let content = Content::Short(self.short.copy(bytes));
            self.free.push(slot);
            return Some(Received { content, end });
        }
        let lent = Lent { shared: Arc::clone(shared), slot: at };
        Some(Received { content: Content::Lent(lent), end })
    }

    /// Returns the bytes of a frame of at most [`BLOCK_BYTES`], copied into a block.
    pub(crate) fn shared(&mut self, frame: Received) -> Bytes {
        match frame.into_short() {
            Ok(bytes) => bytes,
            Err(frame) if frame.as_ref().len() <= BLOCK_BYTES => self.short.copy(frame.as_ref()).freeze(),
            Err(frame) => Bytes::copy_from_slice(frame.as_ref()),
        }
    }

    /// Returns true if the frame occupies a slot of this poller.
    pub(crate) fn lends(&self, frame: &Received) -> bool {
        let Content::Lent(lent) = &frame.content else { return false };
        self.chunks.iter().any(|chunk| Arc::ptr_eq(&lent.shared, &chunk.shared))
    }
}

/// Returns the chunk of a slot, and the slot's index in it.
#[inline]
fn place(chunks: &[Chunk], slot: u32) -> Option<(&Arc<SlotPool>, u32)> {
    let chunk = chunks.iter().rev().find(|chunk| chunk.first <= slot)?;
    Some((&chunk.shared, slot - chunk.first))
}

impl Drop for ReceiveSlots {
    fn drop(&mut self) {
        for Chunk { shared, .. } in &self.chunks {
            shared.region.close();
        }
    }
}

/// A received frame. Its slot is returned when the frame is dropped.
pub(crate) struct Received {
    content: Content,
    end: usize,
}

enum Content {
    Lent(Lent),
    /// A frame copied into a block that other frames share.
    Short(BytesMut),
    Copied(Box<[u8]>),
}

struct Lent {
    shared: Arc<SlotPool>,
    slot: u32,
}

impl Received {
    /// Returns true if the frame owns a receive slot.
    pub(crate) fn is_lent(&self) -> bool {
        matches!(self.content, Content::Lent(_))
    }

    /// Returns true if the frame is a copy in separate memory.
    pub(crate) fn is_copied(&self) -> bool {
        matches!(self.content, Content::Copied(_))
    }

    /// Copies the frame into separate memory, and returns its slot immediately.
    pub(crate) fn copied(self) -> Self {
        let copy = Box::<[u8]>::from(self.as_ref());
        Self { end: copy.len(), content: Content::Copied(copy) }
    }

    /// Returns the bytes of a short frame.
    ///
    /// # Errors
    /// Returns the frame itself if it is not short.
    pub(crate) fn into_short(self) -> Result<Bytes, Self> {
        match self.content {
            Content::Short(bytes) => Ok(bytes.freeze()),
            content => Err(Self { content, end: self.end }),
        }
    }

    /// Returns the frame's bytes, to decrypt them in place.
    pub(crate) fn as_mut(&mut self) -> &mut [u8] {
        match &mut self.content {
            Content::Lent(lent) => {
                let region = &lent.shared.region;
                // SAFETY: as in `as_ref`. The slot has no other reader, because lending it consumes this value.
                let slice = unsafe { region.memory.slice_mut(region.offset(lent.slot), self.end) };
                slice.unwrap_or_default()
            }
            Content::Short(bytes) => bytes,
            Content::Copied(bytes) => bytes.get_mut(..self.end).unwrap_or_default(),
        }
    }

    pub(crate) fn truncate(&mut self, length: usize) {
        self.end = self.end.min(length);
        if let Content::Short(bytes) = &mut self.content {
            bytes.truncate(length);
        }
    }

    /// Creates a frame without a device.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { end: bytes.len(), content: Content::Copied(bytes.into()) }
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        match &self.content {
            // SAFETY: `complete` creates one value per posting, and the slot is posted again only after that value is
            // dropped. The device therefore does not write to the slot while this value exists.
            Content::Lent(lent) => unsafe { lent.shared.bytes(lent.slot, self.end) },
            Content::Short(bytes) => bytes,
            Content::Copied(bytes) => bytes.get(..self.end).unwrap_or_default(),
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let returned = self.shared.returned.push(self.slot);
        debug_assert!(returned.is_ok());
    }
}

impl fmt::Debug for Received {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Received").field("bytes", &self.end).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_verbs::{Device, SrqInit, SrqKind};

    #[test]
    fn copy_is_equal_and_returns_slot_at_once() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let [mut slots, other] = [(); 2].map(|()| {
            let mut slots = ReceiveSlots::new(2048);
            slots.extend(pd.as_ref(), 1, IoAddress(1 << 46)).unwrap();
            slots
        });
        let (slot, _) = slots.take().unwrap();
        slots.chunks[0].shared.region.memory.write(0, b"a received frame").unwrap();
        let frame = slots.complete(slot, 2000).unwrap();
        assert!(slots.lends(&frame) && !other.lends(&frame) && slots.free() == 0);
        let copy = frame.copied();
        assert!(!slots.lends(&copy) && slots.free() == 1);
        slots.chunks[0].shared.region.memory.write(0, b"written over now").unwrap();
        assert!(copy.as_ref().starts_with(b"a received frame") && slots.free() == 1);
        let (slot, _) = slots.take().unwrap();
        let short = slots.complete(slot, 12).unwrap();
        assert!(!slots.lends(&short) && slots.free() == 1, "a short frame has none");
        slots.chunks[0].shared.region.memory.write(0, b"written again").unwrap();
        assert_eq!(short.as_ref(), b"written over");
    }

    #[test]
    fn missing_receives_are_posted_when_slots_return() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let kind = SrqKind::Basic;
        let srq = device
            .create_srq(SrqInit { pd: Arc::clone(&pd), kind, max_wr: 8, max_sge: 1, context: 0 })
            .unwrap();
        let mut slots = ReceiveSlots::new(2048);
        slots.extend(pd.as_ref(), 4, IoAddress(1 << 46)).unwrap();
        assert_eq!(slots.post(srq.as_ref(), 3), 3);
        let taken = (0..3).map(|slot| slots.complete(slot, 2000).unwrap()).collect::<Vec<_>>();
        slots.repost(srq.as_ref(), 3);
        assert!(slots.posted() == 1 && slots.is_missing_any(), "one slot was left");
        slots.repost(srq.as_ref(), 0);
        assert!(slots.posted() == 1 && slots.is_missing_any(), "and none has come back");
        drop(taken);
        slots.repost(srq.as_ref(), 0);
        assert!(slots.posted() == 3 && !slots.is_missing_any(), "{slots:?}");
    }

    #[test]
    fn added_slots_are_posted_and_returned_like_first_slots() {
        let link = LinkChoice::InProcess(Arc::default());
        let addresses = vec!["127.0.0.1".parse().unwrap()];
        let device = SoftDevice::open(SoftOptions { link, addresses, ..SoftOptions::default() }).unwrap();
        let pd = device.alloc_pd().unwrap();
        let mut slots = ReceiveSlots::new(2048);
        for (count, start) in [(2, 1 << 46), (3, 1 << 45), (4, 1 << 44)] {
            slots.extend(pd.as_ref(), count, IoAddress(start)).unwrap();
        }
        let taken = std::iter::from_fn(|| slots.take()).collect::<Vec<_>>();
        assert_eq!(taken.iter().map(|(slot, _)| *slot).collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for (slot, sge) in &taken {
            let (shared, at) = place(&slots.chunks, *slot).unwrap();
            assert_eq!(*sge, shared.region.sge(at, 0, 2048));
            shared.region.memory.write(shared.region.offset(at), &[slot.to_le_bytes()[0]]).unwrap();
        }
        assert_eq!((slots.posted(), slots.free()), (9, 0));
        let frames = (0..9).map(|slot| slots.complete(slot, 2000).unwrap()).collect::<Vec<_>>();
        for (slot, frame) in (0..).zip(&frames) {
            assert!(slots.lends(frame) && frame.as_ref()[0] == slot);
        }
        drop(frames);
        assert_eq!((slots.posted(), slots.free()), (0, 9));
        assert!(slots.complete(9, 0).is_none());
    }
}
