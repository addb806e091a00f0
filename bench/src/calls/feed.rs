//! Service whose streams are measured. Items are numbered, so that both sides can check their order.

use crate::meter::machine::memory;
use std::pin::Pin;
use std::task::{Context, Poll};
use trunkline::{Bytes, Status, Stream, Streaming};

/// Size of the number at the start of an item, in bytes.
const NUMBER: usize = 8;
/// Value of each byte after the number.
const FILL: u8 = 0x5a;

/// Service with streams in each direction.
#[trunkline::service(name = "trunkline.bench.Feed", version = 1)]
pub(crate) trait Feed {
    /// Sends `items` numbered items of `size` bytes.
    async fn watch(&self, items: u64, size: u64)
    -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    /// Reads numbered items. Returns the number of items and the total number of bytes.
    async fn upload(&self, items: Streaming<Bytes>) -> Result<(u64, u64), Status>;

    /// Accepts the item with this number.
    async fn store(&self, number: u64, item: Bytes) -> Result<(), Status>;

    /// Returns each received item.
    async fn chat(
        &self,
        items: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status>;

    /// Returns the current and the peak resident memory of the process, in bytes.
    async fn memory(&self) -> Result<(u64, u64), Status>;
}

#[derive(Debug)]
pub(crate) struct Source;

impl Feed for Source {
    async fn watch(
        &self,
        items: u64,
        size: u64,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        let size = usize::try_from(size).map_err(|_| Status::invalid_argument("the size is too large"))?;
        Ok(Accepted(Numbered::new(items, size)))
    }

    async fn upload(&self, items: Streaming<Bytes>) -> Result<(u64, u64), Status> {
        let mut checked = Checked::default();
        checked.read(items).await?;
        Ok(checked.outcome())
    }

    async fn store(&self, number: u64, item: Bytes) -> Result<(), Status> {
        Checked { items: number, bytes: 0 }.add(&item)
    }

    async fn chat(
        &self,
        items: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        Ok(items)
    }

    async fn memory(&self) -> Result<(u64, u64), Status> {
        let read = |field| memory(field).map_err(Status::internal);
        Ok((read("VmRSS:")?, read("VmHWM:")?))
    }
}

#[derive(Debug)]
pub(crate) struct Numbered {
    next: u64,
    items: u64,
    size: usize,
}

impl Numbered {
    pub(crate) const fn new(items: u64, size: usize) -> Self {
        Self { next: 0, items, size }
    }
}

impl Stream for Numbered {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.next == self.items {
            return Poll::Ready(None);
        }
        let item = numbered(self.next, self.size);
        self.next += 1;
        Poll::Ready(Some(item))
    }
}

pub(crate) fn numbered(number: u64, size: usize) -> Bytes {
    let mut item = vec![FILL; size.max(NUMBER)];
    item[..NUMBER].copy_from_slice(&number.to_le_bytes());
    item.into()
}

/// Stream of the items that a handler sends.
struct Accepted(Numbered);

impl Stream for Accepted {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.0).poll_next(task).map(|item| item.map(Ok))
    }
}

/// Returns true if all bytes are [`FILL`]. The loop has no early exit, so that the compiler can vectorise it.
fn is_filled(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |wrong, byte| wrong | (byte ^ FILL)) == 0
}

/// Checker of the order and the bytes of numbered items.
#[derive(Debug, Default)]
pub(crate) struct Checked {
    items: u64,
    bytes: u64,
}

impl Checked {
    /// Reads a stream to its end.
    ///
    /// # Errors
    /// Returns an error if the stream fails or an item is out of order.
    pub(crate) async fn read(&mut self, mut items: Streaming<Bytes>) -> Result<(), Status> {
        while let Some(item) = items.message().await? {
            self.add(&item)?;
        }
        Ok(())
    }

    fn add(&mut self, item: &[u8]) -> Result<(), Status> {
        let is_next = item
            .split_at_checked(NUMBER)
            .is_some_and(|(number, fill)| *number == self.items.to_le_bytes() && is_filled(fill));
        if !is_next {
            return Err(Status::data_loss(format!("item {} has other contents", self.items)));
        }
        self.items += 1;
        self.bytes += item.len() as u64;
        Ok(())
    }

    /// Returns the number of items and the total number of bytes.
    pub(crate) const fn outcome(&self) -> (u64, u64) {
        (self.items, self.bytes)
    }

    /// Returns the outcome that is expected for this number of items of this size.
    pub(crate) const fn expected(items: u64, size: usize) -> (u64, u64) {
        (items, items * size as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misordered_or_changed_items_are_refused() {
        let mut checked = Checked::default();
        let item = |number: u64, fill: u8| [&number.to_le_bytes()[..], &[fill; 56]].concat();
        checked.add(&item(0, 0x5a)).unwrap();
        for wrong in [item(0, 0x5a), item(2, 0x5a), item(1, 0x5b), vec![1]] {
            checked.add(&wrong).unwrap_err();
        }
        checked.add(&item(1, 0x5a)).unwrap();
        assert_eq!(checked.outcome(), Checked::expected(2, 64));
    }
}
