//! Buffers for the items of a stream: items to send, and received items.
//!
//! Small items share one buffer, so they need no allocation each.

use crate::codec::EncodeValue;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::frame::{DATA_BYTES, StreamHeader};
use bytes::Bytes;
use std::collections::VecDeque;
use std::mem;

/// Largest item, in bytes, that is copied into the shared buffer.
const COPIED: usize = 4096;
/// Capacity in bytes beyond which an empty buffer is freed.
const KEPT: usize = 64 << 10;

/// An item in a buffer.
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

/// The items of one buffer, in order.
#[derive(Debug, Default)]
struct Items {
    bytes: Vec<u8>,
    /// Start of the first item.
    start: usize,
    items: VecDeque<Stored>,
}

impl Items {
    /// Adds an item with `room` bytes in front of it.
    fn push(&mut self, room: usize, item: &[u8], own: impl FnOnce() -> Bytes) {
        self.bytes.resize(self.bytes.len() + room, 0);
        match u32::try_from(item.len()) {
            Ok(length) if item.len() <= COPIED => {
                self.bytes.extend_from_slice(item);
                self.items.push_back(Stored::Copied(length));
            }
            _ => self.items.push_back(Stored::Own(own())),
        }
    }

    /// Removes the first item, which has `room` bytes in front of it.
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

/// Items to send, each with room for its header.
#[derive(Debug, Default)]
pub struct ItemBuffer {
    items: Items,
    /// Bytes of the items that were added, without headers.
    added: usize,
}

/// The next item to send.
pub(super) struct Next<'b> {
    /// Header, and the item if it is small.
    pub(super) head: &'b [u8],
    /// The item if it is large.
    pub(super) body: Bytes,
}

impl ItemBuffer {
    /// Adds a value, which its codec encodes.
    ///
    /// # Errors
    /// `Internal` when the value cannot be encoded.
    pub fn value<V: EncodeValue>(&mut self, value: &V) -> Result<(), Status> {
        let Items { bytes, items, .. } = &mut self.items;
        let start = bytes.len() + DATA_BYTES;
        bytes.resize(start, 0);
        if let Err(error) = value.encode(bytes) {
            bytes.truncate(start - DATA_BYTES);
            let text = format!("an item of the stream cannot be encoded: {error}");
            return Err(Status::ran(Code::Internal, text).because(Reason::BadReply));
        }
        let length = bytes.len() - start;
        self.added += length;
        match u32::try_from(length) {
            Ok(short) if length <= COPIED => items.push_back(Stored::Copied(short)),
            _ => {
                items.push_back(Stored::Own(Bytes::copy_from_slice(&bytes[start..])));
                bytes.truncate(start);
            }
        }
        Ok(())
    }

    /// Adds raw bytes.
    ///
    /// # Errors
    /// Never fails. It has the signature of `value`, so that stubs need not distinguish the two.
    pub fn bytes(&mut self, item: Bytes) -> Result<(), Status> {
        self.added += item.len();
        self.items.push(DATA_BYTES, &item, || item.clone());
        Ok(())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.items.items.is_empty()
    }

    /// Returns the bytes of the items added since the last time.
    pub(super) fn take_added(&mut self) -> usize {
        mem::take(&mut self.added)
    }

    /// Returns the first item with its header, and the number of its bytes.
    pub(super) fn next(&mut self, call: u64, from_caller: bool, number: u16) -> Option<Next<'_>> {
        let Items { bytes, start, items } = &mut self.items;
        let item = items.front()?;
        let body = if let Stored::Own(body) = item { body.clone() } else { Bytes::new() };
        let head = bytes.get_mut(*start..*start + DATA_BYTES + item.copied())?;
        let length = u32::try_from(head.len() + body.len()).unwrap_or(0);
        StreamHeader::emit_data(call, from_caller, number, length, head.first_chunk_mut()?);
        Some(Next { head, body })
    }

    /// Removes the first item.
    pub(super) fn pop(&mut self) {
        self.items.pop(DATA_BYTES);
    }
}

/// An item that was received.
pub(super) enum Item<'b> {
    Small(&'b [u8]),
    Large(Bytes),
}

impl Item<'_> {
    pub(super) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Small(item) => item,
            Self::Large(item) => item,
        }
    }
}

/// Items that were received.
#[derive(Debug, Default)]
pub(super) struct ReceivedItems(Items);

impl ReceivedItems {
    /// Copies an item out of receive memory.
    pub(super) fn push(&mut self, item: &[u8]) {
        self.0.push(0, item, || Bytes::copy_from_slice(item));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.items.is_empty()
    }

    /// Passes the first item on and removes it.
    pub(super) fn take<T>(&mut self, with: impl FnOnce(Item<'_>) -> T) -> Option<T> {
        let value = match self.0.items.front_mut()? {
            Stored::Copied(length) => {
                let end = self.0.start + *length as usize;
                with(Item::Small(self.0.bytes.get(self.0.start..end)?))
            }
            Stored::Own(item) => with(Item::Large(mem::take(item))),
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
    fn items_keep_their_order_and_sizes_and_leave_nothing() {
        let mut buffer = ItemBuffer::default();
        let sizes = [0, 5, COPIED, COPIED + 1, 7, 100_000, 0];
        for size in sizes {
            buffer.bytes(vec![7; size].into()).unwrap();
        }
        buffer.value(&Coding::<Bincode, _>::of(&"text".to_owned())).unwrap();
        assert_eq!(buffer.take_added(), sizes.iter().sum::<usize>() + 5);
        let mut received = ReceivedItems::default();
        for size in sizes.into_iter().chain([5]) {
            let Next { head, body } = buffer.next(3, false, 9).unwrap();
            let item = [&head[DATA_BYTES..], &body].concat();
            assert_eq!((item.len(), head[..4].to_vec()), (size, vec![0x21, 0, 9, 0]));
            received.push(&item);
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
}
