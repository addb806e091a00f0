//! Batches of send requests.
//!
//! Both posting interfaces fill a [`Batch`]: `post` from linked lists, and `wr` from calls to `ibv_wr_*`. The memory of a
//! batch is reused, so that posting does not allocate in steady state.
#![forbid(unsafe_code)]

use std::ops::Range;
use trunkline_verbs::{
    PostError, QueuePair, SendData, SendFlags, SendOperation, SendRequest, Sge, SrqNumber,
};

/// The data of a request, as a range in `Batch::sges` or `Batch::inline`.
#[derive(Debug, Clone)]
pub(super) enum Bytes {
    Gather(Range<usize>),
    Inline(Range<usize>),
}

/// A send request. Its SGEs or inline bytes are in the batch.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) wr_id: u64,
    pub(super) operation: SendOperation,
    pub(super) bytes: Bytes,
    pub(super) flags: SendFlags,
    pub(super) remote_srq: SrqNumber,
}

/// Send requests with their gather lists and inline bytes.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<Entry>,
    pub(super) sges: Vec<Sge>,
    pub(super) inline: Vec<u8>,
}

/// Number of requests passed to the device at a time.
const CHUNK: usize = 16;

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

    /// Posts the requests in order until one is refused.
    pub(super) fn post(&self, qp: &dyn QueuePair) -> Result<(), PostError> {
        let Some(first) = self.entries.first() else { return Ok(()) };
        for (chunk, entries) in self.entries.chunks(CHUNK).enumerate() {
            let mut requests = [self.request(first); CHUNK];
            for (request, entry) in requests.iter_mut().zip(entries) {
                *request = self.request(entry);
            }
            qp.post_send(&requests[..entries.len()]).map_err(|refused| PostError {
                index: chunk * CHUNK + refused.index,
                cause: refused.cause,
            })?;
        }
        Ok(())
    }

    /// Posts all requests or none.
    pub(super) fn post_whole(&self, qp: &dyn QueuePair) -> Result<(), PostError> {
        let requests: Vec<SendRequest<'_>> = self.entries.iter().map(|entry| self.request(entry)).collect();
        qp.post_send_whole(&requests)
    }
}
