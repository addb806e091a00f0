//! Buffers for received items of a stream and for items to send.
//!
//! Small items share one buffer, so that they need no separate allocations. Peers are charged for windows, not for buffers,
//! so a buffer grows at most to the size of its window. A reader keeps its emptied buffer, so that a steady stream does not
//! allocate.

use super::BATCH;
use crate::codec::EncodeValue;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{DATA_BYTES, StreamHeader};
use bytes::Bytes;
use std::collections::VecDeque;
use std::mem;
use trunkline_transport::MessageHeader;

/// Largest item, in bytes, that is copied into the shared buffer.
const COPIED: usize = 4096;
/// Capacity, in bytes, above which an empty buffer is freed.
const KEPT: usize = 64 << 10;
/// Minimum capacity of a buffer, in bytes.
const LEAST: usize = 512;
/// Size of a batch to send, including the headers of its items and the item that completes it.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small constant")]
const BATCH_BYTES: usize = BATCH.bytes as usize + BATCH.items as usize * DATA_BYTES + COPIED;

/// A buffered item.
#[derive(Debug)]
enum Stored {
    /// The length of an item in the shared buffer.
    Copied(u32),
    /// An item in its own allocation.
    Own(Bytes),
}

impl Stored {
    /// Returns the size of the item in the shared buffer, in bytes.
    fn copied(&self) -> usize {
        match self {
            Self::Copied(length) => *length as usize,
            Self::Own(_) => 0,
        }
    }
}

/// The items in one buffer, in order.
#[derive(Debug, Default)]
struct Items {
    bytes: Vec<u8>,
    /// Start of the first item in the shared buffer.
    start: usize,
    items: VecDeque<Stored>,
}

impl Items {
    /// Adds an item, preceded by `room` bytes. The buffer grows to at most `most` bytes, or to the size that the item
    /// requires.
    fn push(&mut self, room: usize, most: usize, item: Item<'_>) {
        let bytes = item.as_slice();
        let copied = if bytes.len() <= COPIED { bytes } else { &[] };
        let needed = self.bytes.len() + room + copied.len();
        if needed > self.bytes.capacity() {
            let capacity = (self.bytes.capacity() * 2).max(LEAST).min(most).max(needed);
            self.bytes.reserve_exact(capacity - self.bytes.len());
        }
        self.bytes.resize(self.bytes.len() + room, 0);
        self.bytes.extend_from_slice(copied);
        self.items.push_back(match u32::try_from(bytes.len()) {
            Ok(length) if bytes.len() <= COPIED => Stored::Copied(length),
            _ => Stored::Own(item.into_bytes()),
        });
    }

    /// Removes the first item and the `room` bytes in front of it.
    fn pop(&mut self, room: usize) {
        let Some(item) = self.items.pop_front() else { return };
        self.start += room + item.copied();
        if self.items.is_empty() {
            self.start = 0;
            self.bytes.clear();
            if self.bytes.capacity() > KEPT {
                self.bytes = Vec::new();
            }
        }
    }
}

/// Items to send, each with space for its header.
#[derive(Debug, Default)]
pub struct ItemBuffer {
    items: Items,
    /// Size of the items added since the last [`Self::take_added`], without headers.
    added: usize,
}

/// The next item to send.
pub(super) struct Next<'b> {
    pub(super) header: MessageHeader,
    /// Number of the call, followed by the item if the item is small.
    pub(super) head: &'b [u8],
    /// The item, if it is large.
    pub(super) body: Bytes,
}

impl ItemBuffer {
    /// Encodes a value with its codec and adds it.
    ///
    /// # Errors
    /// Returns `Internal` if the value cannot be encoded.
    pub fn value<V: EncodeValue>(&mut self, value: &V) -> Result<(), Status> {
        let Items { bytes, items, .. } = &mut self.items;
        // Otherwise the codec would double a full buffer, beyond the size of a batch.
        let capacity = bytes.capacity();
        if capacity - bytes.len() < COPIED && capacity < BATCH_BYTES {
            bytes.reserve_exact((2 * capacity).clamp(LEAST, BATCH_BYTES) - bytes.len());
        }
        let start = bytes.len() + DATA_BYTES;
        bytes.resize(start, 0);
        if let Err(error) = value.encode(bytes) {
            bytes.truncate(start - DATA_BYTES);
            let text = format!("an item of the stream cannot be encoded: {error}");
            return Err(Status::ran(Code::Internal, text).because(Reason::BadReply));
        }
        let length = bytes.len() - start;
        self.added += length;
        if length > COPIED {
            items.push_back(Stored::Own(Bytes::copy_from_slice(&bytes[start..])));
            bytes.truncate(start);
        } else {
            items.push_back(Stored::Copied(u32::try_from(length).unwrap_or_default()));
        }
        if bytes.capacity() > BATCH_BYTES {
            bytes.shrink_to(BATCH_BYTES);
        }
        Ok(())
    }

    /// Adds raw bytes.
    ///
    /// # Errors
    /// Never fails. The signature is the same as for `value`, so that stubs can call either function.
    pub fn bytes(&mut self, item: Bytes) -> Result<(), Status> {
        self.added += item.len();
        self.items.push(DATA_BYTES, BATCH_BYTES, Item::Own(item));
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.items.is_empty()
    }

    /// Returns true if there is exactly one item, of 1 to `most` bytes. In a REPLY, an empty item would mean a stream
    /// without items.
    pub(super) fn fits_reply(&self, most: usize) -> bool {
        let bytes = match self.items.items.front() {
            Some(stored @ Stored::Copied(_)) => stored.copied(),
            Some(Stored::Own(item)) => item.len(),
            None => 0,
        };
        self.items.items.len() == 1 && (1..=most).contains(&bytes)
    }

    /// Removes the first item. Appends it to `small`, or returns it if it has its own allocation.
    pub(super) fn take_first(&mut self, small: &mut Vec<u8>) -> Bytes {
        let Some(Next { head, body, .. }) = self.next(0, false, 0) else { return Bytes::new() };
        small.extend_from_slice(&head[DATA_BYTES..]);
        self.pop();
        body
    }

    /// Returns the size of the items added since the last call, in bytes.
    pub(super) fn take_added(&mut self) -> usize {
        mem::take(&mut self.added)
    }

    /// Returns the first item with its header, and its size in bytes.
    pub(super) fn next(&mut self, call: u64, from_caller: bool, number: u16) -> Option<Next<'_>> {
        let Items { bytes, start, items } = &mut self.items;
        let item = items.front()?;
        let body = if let Stored::Own(body) = item { body.clone() } else { Bytes::new() };
        let head = bytes.get_mut(*start..*start + DATA_BYTES + item.copied())?;
        let header = StreamHeader::emit_data(call, from_caller, number, head.first_chunk_mut()?);
        Some(Next { header, head, body })
    }

    /// Removes the first item.
    pub(super) fn pop(&mut self) {
        self.items.pop(DATA_BYTES);
    }
}

/// A received item.
pub(crate) enum Item<'b> {
    /// An item in memory that the caller reuses after the call.
    Borrowed(&'b [u8]),
    /// An item that owns its memory.
    Own(Bytes),
}

impl Item<'_> {
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Borrowed(item) => item,
            Self::Own(item) => item,
        }
    }

    pub(super) fn into_bytes(self) -> Bytes {
        match self {
            Self::Borrowed(item) => Bytes::copy_from_slice(item),
            Self::Own(item) => item,
        }
    }
}

/// Received items.
#[derive(Debug, Default)]
pub(super) struct ReceivedItems(Items);

impl ReceivedItems {
    /// Adds an item, and copies it unless it owns its memory. `left` is the number of bytes that may still arrive, including
    /// this item.
    pub(super) fn push(&mut self, item: Item<'_>, left: usize) {
        let most = self.0.bytes.len() + left;
        self.0.push(0, most, item);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.items.is_empty()
    }

    /// Passes the first item to `with`, then removes it.
    pub(super) fn take<T>(&mut self, with: impl FnOnce(Item<'_>) -> T) -> Option<T> {
        let value = match self.0.items.front_mut()? {
            Stored::Copied(length) => {
                let end = self.0.start + *length as usize;
                with(Item::Borrowed(self.0.bytes.get(self.0.start..end)?))
            }
            Stored::Own(item) => with(Item::Own(mem::take(item))),
        };
        self.0.pop(0);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Bincode, Coding};

    #[test]
    fn items_keep_order_and_sizes_and_buffer_is_empty_afterwards() {
        let mut buffer = ItemBuffer::default();
        let sizes = [0, 5, COPIED, COPIED + 1, 7, 100_000, 0];
        for size in sizes {
            buffer.bytes(vec![7; size].into()).unwrap();
        }
        buffer.value(&Coding::<Bincode, _>::of(&"text".to_owned())).unwrap();
        assert_eq!(buffer.take_added(), sizes.iter().sum::<usize>() + 5);
        let mut received = ReceivedItems::default();
        for size in sizes.into_iter().chain([5]) {
            let Next { header, head, body } = buffer.next(3, false, 9).unwrap();
            let item = [&head[DATA_BYTES..], &body].concat();
            let data = MessageHeader { kind: 0x21, flags: 0, word: 9 };
            assert_eq!((item.len(), header), (size, data));
            received.push(Item::Borrowed(&item), item.len());
            buffer.pop();
        }
        assert!(buffer.is_empty() && buffer.next(3, false, 9).is_none());
        assert!(buffer.items.bytes.is_empty());
        for size in sizes.into_iter().chain([5]) {
            let length = received.take(|item| item.as_slice().len());
            assert_eq!(length, Some(size));
        }
        assert!(received.is_empty() && received.0.bytes.is_empty());
    }

    #[test]
    fn received_items_take_no_more_memory_than_their_window() {
        const WINDOW: usize = 16 << 10;
        for size in [1, 30, 1000, 1500, COPIED - 1, COPIED] {
            let (mut received, mut batch) = (ReceivedItems::default(), ReceivedItems::default());
            let (mut left, mut consumed) = (WINDOW, 0);
            let item = vec![7; size];
            for step in 0_u32..20_000 {
                // The reader stops, reads fast, and alternates between both.
                let reads = [false, step % 8 < 7, step % 97 < 50, step % 5003 < 2500][step as usize / 5000];
                if !reads {
                    if left > 0 {
                        received.push(Item::Borrowed(&item), left);
                        left = left.saturating_sub(size);
                    }
                } else if batch.take(|_| ()).is_some() {
                    consumed += size;
                } else {
                    left = (left + mem::take(&mut consumed)).min(WINDOW);
                    mem::swap(&mut received, &mut batch);
                }
                let taken = received.0.bytes.capacity();
                assert!(taken <= WINDOW + size, "{taken} bytes for items of {size} at {step}");
            }
        }
    }

    #[test]
    fn items_to_send_take_no_more_memory_than_batch() {
        for size in [1, 30, 1000, COPIED - 10, COPIED - 1, COPIED, 100_000] {
            let (mut waiting, mut sending) = (ItemBuffer::default(), ItemBuffer::default());
            let text = "a".repeat(size);
            for round in 0..8 {
                let (mut bytes, mut items) = (0, 0);
                while bytes < 16 << 10 && items < 256 {
                    if round % 2 == 0 {
                        waiting.value(&Coding::<Bincode, _>::of(&text)).unwrap();
                    } else {
                        waiting.bytes(text.clone().into()).unwrap();
                    }
                    (bytes, items) = (bytes + waiting.take_added(), items + 1);
                }
                mem::swap(&mut waiting, &mut sending);
                let taken = sending.items.bytes.capacity();
                assert!(taken <= BATCH_BYTES, "{taken} bytes for items of {size} in round {round}");
                while !sending.is_empty() {
                    sending.pop();
                }
            }
        }
    }
}
