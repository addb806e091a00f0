//! Send requests on their way from C to the device.
//!
//! Owns a list that both ways of posting fill: `post` from linked lists, `wr` from calls of
//! `ibv_wr_*`. Its memory is used again, so that posting allocates nothing in the long run.
#![forbid(unsafe_code)]

use std::ops::Range;
use trunkline_verbs::{
    PostError, QueuePair, SendData, SendFlags, SendOperation, SendRequest, Sge, SrqNumber,
};

/// Where the bytes of an entry are in the batch.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

/// A request.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) operation: SendOperation,
    pub(super) bytes: Bytes,
    pub(super) flags: SendFlags,
    pub(super) remote_srq: SrqNumber,
}

/// Requests, their gather lists and inline bytes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
}

/// Requests handed to the device at a time.
const AT_ONCE: usize = 16;

impl Batch {
    pub(super) fn clear(&mut self) {
        self.entries.clear();
        self.sges.clear();
        self.inline.clear();
    }

    fn request(&self, entry: &Entry) -> SendRequest<'_> {
        SendRequest {
            wr_id: entry.wr_id,
            operation: entry.operation,
            data: match &entry.bytes {
                Bytes::Gather(range) => SendData::Gather(&self.sges[range.clone()]),
                Bytes::Inline(range) => SendData::Inline(&self.inline[range.clone()]),
            },
            flags: entry.flags,
            remote_srq: entry.remote_srq,
        }
    }

    /// Posts until one is refused.
    pub(super) fn post(&self, qp: &dyn QueuePair) -> Result<(), PostError> {
        let Some(first) = self.entries.first() else { return Ok(()) };
        for (chunk, entries) in self.entries.chunks(AT_ONCE).enumerate() {
            let mut requests = [self.request(first); AT_ONCE];
            for (request, entry) in requests.iter_mut().zip(entries) {
                *request = self.request(entry);
            }
            qp.post_send(&requests[..entries.len()]).map_err(|refused| PostError {
                index: chunk * AT_ONCE + refused.index,
                cause: refused.cause,
            })?;
        }
        Ok(())
    }

    /// Posts all or none.
    pub(super) fn post_whole(&self, qp: &dyn QueuePair) -> Result<(), PostError> {
        let requests: Vec<SendRequest<'_>> = self.entries.iter().map(|entry| self.request(entry)).collect();
        qp.post_send_whole(&requests)
    }
}
