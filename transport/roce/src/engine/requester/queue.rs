//! The send queue, which holds posted requests in the form in which they are sent.

use super::pace::{messages, piece_end};
use super::{PostRefused, Requester};
use crate::engine::segment::{PSN_SPAN_MAX, RequestKind, packets};
use crate::engine::{LocalFault, LocalMemory};
use crate::wire::{Operation, Packet};
use core::ops::Range;
use trunkline_verbs::{
    Completion, CompletionOpcode, CompletionStatus, Psn, QpState, SendData, SendFlags, SendOperation,
    SendRequest, Sge, SrqNumber,
};

/// Returns true if a READ response is the last packet of the response to its request.
pub(super) fn is_end(packet: &Packet<'_>) -> bool {
    matches!(packet.bth.opcode.operation(), Operation::READ_RESPONSE_LAST | Operation::READ_RESPONSE_ONLY)
}

/// Bytes of an entry, or their location. Lists and buffers are returned to the queue for reuse.
#[derive(Debug)]
pub(super) enum Data {
    /// A gather list with a single SGE.
    One(Sge),
    /// Any other gather list.
    List(Vec<Sge>),
    /// The inline bytes.
    Inline(Vec<u8>),
}

/// Lists and buffers of ended requests, for reuse.
#[derive(Debug, Default)]
pub(super) struct Spare {
    lists: Vec<Vec<Sge>>,
    buffers: Vec<Vec<u8>>,
}

impl Spare {
    fn copy(&mut self, data: &SendData<'_>) -> Data {
        match *data {
            SendData::Gather([sge]) => Data::One(*sge),
            SendData::Gather(sges) => Data::List(copied(self.lists.pop(), sges)),
            SendData::Inline(bytes) => Data::Inline(copied(self.buffers.pop(), bytes)),
        }
    }

    fn keep(&mut self, data: Data) {
        match data {
            Data::One(_) => {}
            Data::List(list) => self.lists.push(list),
            Data::Inline(buffer) => self.buffers.push(buffer),
        }
    }
}

fn copied<T: Copy>(spare: Option<Vec<T>>, items: &[T]) -> Vec<T> {
    let mut copy = spare.unwrap_or_default();
    copy.clear();
    copy.extend_from_slice(items);
    copy
}

/// A posted request.
#[derive(Debug)]
pub(super) struct Wqe {
    pub(super) wr_id: u64,
    pub(super) operation: SendOperation,
    pub(super) kind: RequestKind,
    pub(super) signaled: bool,
    pub(super) fence: bool,
    pub(super) solicited: bool,
    pub(super) remote_srq: SrqNumber,
    pub(super) length: u32,
    pub(super) data: Data,
    pub(super) first_psn: Psn,
    /// Number of PSNs that the request covers.
    pub(super) psns: u32,
    /// Message number. For a READ in pieces, it is the number of the last piece.
    pub(super) ssn: Psn,
    /// Number of response packets per piece; READs only.
    pub(super) piece: u32,
    /// Number of response packets placed before the first missing one; READs only.
    pub(super) received: u32,
    /// Packet at which a piece is divided into two requests, or 0; READs only.
    pub(super) split: u32,
    /// True if the requested part of a piece ends before the piece does; READs only.
    pub(super) is_repeated: bool,
    /// Fault that prevents sending. The request fails after all earlier requests have ended.
    pub(super) fault: Option<CompletionStatus>,
}

impl Wqe {
    pub(super) fn end_psn(&self) -> Psn {
        self.first_psn.plus(self.psns)
    }

    /// Returns the packet number after the piece of a READ, or after the part of a split piece, that contains packet
    /// `packet`.
    pub(super) fn piece_end(&self, packet: u32) -> u32 {
        let end = self.whole_piece_end(packet);
        if packet < self.split { end.min(self.split) } else { end }
    }

    /// Returns the packet number after the whole piece of a READ, even if only a part was requested.
    pub(super) fn whole_piece_end(&self, packet: u32) -> u32 {
        piece_end(packet, self.psns, self.piece)
    }

    /// Returns the packet numbers of a READ, from `first` on, that a response contains; `None` if such a response is
    /// invalid.
    #[inline]
    pub(super) fn covered_by(
        &self,
        response: &Packet<'_>,
        first: u32,
        mtu: u32,
        most: u32,
    ) -> Option<Range<u32>> {
        let length = u32::try_from(response.payload.len()).unwrap_or(u32::MAX);
        let span = packets(length, mtu);
        let end = first.saturating_add(span);
        let expected = span.saturating_mul(mtu).min(self.length.saturating_sub(first.saturating_mul(mtu)));
        // Each piece of a READ is a separate request to the peer.
        let piece_end = self.whole_piece_end(first);
        let is_end = is_end(response);
        // The response to a part that was requested again may end before its piece does.
        let ends_rightly = is_end == (end == piece_end) || is_end && self.is_repeated;
        (ends_rightly && end <= piece_end && length == expected && length <= most).then_some(first..end)
    }

    /// Returns how many pieces of a READ, or parts of pieces, end within the `packets` packets from number `packet` on.
    pub(super) fn piece_ends(&self, packet: u32, packets: u32) -> u32 {
        let ends = std::iter::successors(Some(self.piece_end(packet)), |end| Some(self.piece_end(*end)));
        let ends = ends.take_while(|end| *end < self.psns && *end <= packet + packets).count();
        u32::try_from(ends).unwrap_or(u32::MAX) + u32::from(packet + packets == self.psns)
    }

    /// Returns true if the request is answered with data instead of an acknowledgement, and counts against `max_rd_atomic`.
    pub(super) fn is_read_or_atomic(&self) -> bool {
        matches!(self.kind, RequestKind::Read | RequestKind::Atomic)
    }

    /// Returns true if the request consumes a receive at the peer.
    pub(super) fn needs_receive(&self) -> bool {
        matches!(
            self.operation,
            SendOperation::Send
                | SendOperation::SendWithImmediate(_)
                | SendOperation::RdmaWriteWithImmediate(..)
        )
    }

    /// Appends `length` bytes of the request from `offset` on.
    pub(super) fn gather(
        &self,
        memory: &impl LocalMemory,
        offset: u32,
        length: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), LocalFault> {
        if let Data::Inline(bytes) = &self.data {
            let start = usize::try_from(offset).unwrap_or(usize::MAX);
            let end = start.saturating_add(usize::try_from(length).unwrap_or(usize::MAX));
            out.extend_from_slice(bytes.get(start..end).ok_or(LocalFault)?);
            return Ok(());
        }
        for piece in pieces(self.sges(), offset, length) {
            memory.read(piece, out)?;
        }
        Ok(())
    }

    /// Writes `bytes` to the request's gather list from `offset` on.
    pub(super) fn scatter(
        &self,
        memory: &mut impl LocalMemory,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), LocalFault> {
        let length = u32::try_from(bytes.len()).map_err(|_| LocalFault)?;
        let mut rest = bytes;
        for piece in pieces(self.sges(), offset, length) {
            let (now, later) = rest
                .split_at_checked(usize::try_from(piece.length).unwrap_or(usize::MAX))
                .ok_or(LocalFault)?;
            memory.write(piece, now)?;
            rest = later;
        }
        Ok(())
    }

    /// Returns the request's completion with `status`.
    pub(super) fn completion(&self, status: CompletionStatus) -> Completion {
        let opcode = match self.operation {
            SendOperation::Send | SendOperation::SendWithImmediate(_) => CompletionOpcode::Send,
            SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..) => {
                CompletionOpcode::RdmaWrite
            }
            SendOperation::RdmaRead(_) => CompletionOpcode::RdmaRead,
            SendOperation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
            SendOperation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        };
        let byte_length = if self.is_read_or_atomic() { self.length } else { 0 };
        Completion { wr_id: self.wr_id, status, opcode, byte_length, ..Completion::default() }
    }

    fn sges(&self) -> &[Sge] {
        match &self.data {
            Data::One(sge) => std::slice::from_ref(sge),
            Data::List(sges) => sges,
            Data::Inline(_) => &[],
        }
    }
}

/// Returns the parts of a gather list that hold `length` bytes from `offset` on.
fn pieces(sges: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> {
    let (mut skip, mut left) = (offset, length);
    sges.iter().filter_map(move |sge| {
        let skipped = skip.min(sge.length);
        skip -= skipped;
        let taken = left.min(sge.length - skipped);
        left -= taken;
        (taken > 0).then(|| Sge {
            address: sge.address.plus(u64::from(skipped)),
            length: taken,
            lkey: sge.lkey,
        })
    })
}

fn kind_of(operation: &SendOperation) -> RequestKind {
    match operation {
        SendOperation::Send | SendOperation::SendWithImmediate(_) => RequestKind::Send,
        SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..) => RequestKind::Write,
        SendOperation::RdmaRead(_) => RequestKind::Read,
        SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => RequestKind::Atomic,
    }
}

impl Requester {
    /// Checks that [`Requester::post`] would accept a request after `before` other requests.
    ///
    /// # Errors
    /// Same as [`Requester::post`].
    pub fn check(&self, request: &SendRequest<'_>, before: usize) -> Result<(), PostRefused> {
        self.check_request(request, before).map(drop)
    }

    /// Queues a request. SGEs and inline data are copied. In ERR the request is accepted and flushed
    /// (contract E8).
    ///
    /// # Errors
    /// [`PostRefused`]. In this case the queue is unchanged.
    pub fn post(&mut self, request: &SendRequest<'_>) -> Result<(), PostRefused> {
        let (kind, length) = self.check_request(request, 0)?;
        let psns = match kind {
            RequestKind::Atomic => 1,
            _ => packets(length, self.geometry.mtu),
        };
        let piece = self.read_piece();
        let ssn = self.post_ssn.plus(messages(kind, psns, piece));
        let wqe = Wqe {
            wr_id: request.wr_id,
            operation: request.operation,
            kind,
            signaled: self.signal_all || request.flags.contains(SendFlags::SIGNALED),
            fence: request.flags.contains(SendFlags::FENCE),
            solicited: request.flags.contains(SendFlags::SOLICITED),
            remote_srq: request.remote_srq,
            length,
            data: self.spare.copy(&request.data),
            first_psn: self.post_psn,
            psns,
            ssn,
            piece,
            received: 0,
            split: 0,
            is_repeated: false,
            fault: None,
        };
        if self.state == QpState::Error {
            self.complete(wqe, CompletionStatus::WorkRequestFlushed);
            return Ok(());
        }
        self.post_psn = wqe.end_psn();
        self.post_ssn = ssn;
        self.queue.push_back(wqe);
        Ok(())
    }

    #[inline]
    fn check_request(
        &self,
        request: &SendRequest<'_>,
        before: usize,
    ) -> Result<(RequestKind, u32), PostRefused> {
        if !matches!(
            self.state,
            QpState::ReadyToSend | QpState::SendQueueDrained | QpState::SendQueueError | QpState::Error
        ) {
            return Err(PostRefused::NotReady(self.state));
        }
        let limit = usize::try_from(self.capacities.max_send_wr).unwrap_or(usize::MAX);
        if self.queue.len() + before >= limit.max(1) {
            return Err(PostRefused::QueueFull);
        }
        let kind = kind_of(&request.operation);
        Ok((kind, self.check_data(request, kind)?))
    }

    /// Checks the data of a request. Returns the message's length.
    #[inline]
    fn check_data(&self, request: &SendRequest<'_>, kind: RequestKind) -> Result<u32, PostRefused> {
        let fits = |count: usize, limit: u32| u32::try_from(count).is_ok_and(|count| count <= limit);
        let length: u64 = match request.data {
            SendData::Gather(sges) => {
                if !fits(sges.len(), self.capacities.max_send_sge) {
                    return Err(PostRefused::TooManySges);
                }
                sges.iter().map(|sge| u64::from(sge.length)).sum()
            }
            SendData::Inline(bytes) => {
                if matches!(kind, RequestKind::Read | RequestKind::Atomic)
                    || !fits(bytes.len(), self.capacities.max_inline_data)
                {
                    return Err(PostRefused::BadInline);
                }
                bytes.len() as u64
            }
        };
        if kind == RequestKind::Atomic && length != 8 {
            return Err(PostRefused::BadAtomic);
        }
        if matches!(kind, RequestKind::Read | RequestKind::Atomic) && self.max_rd_atomic == 0 {
            return Err(PostRefused::NoReadResources);
        }
        let length = u32::try_from(length).map_err(|_| PostRefused::TooLong)?;
        if length > self.tuning.max_message || packets(length, self.geometry.mtu) > PSN_SPAN_MAX {
            return Err(PostRefused::TooLong);
        }
        Ok(length)
    }

    /// Ends a request after its removal from the queue. Queues its completion, and keeps its list or buffer for reuse.
    #[inline]
    pub(super) fn complete(&mut self, wqe: Wqe, status: CompletionStatus) {
        if wqe.signaled || !status.is_success() {
            let mut completion = wqe.completion(status);
            completion.qp_number = self.number;
            self.completions.push_back(completion);
        }
        self.spare.keep(wqe.data);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::{IoAddress, Lkey};

    #[test]
    fn pieces_cross_sge_borders() {
        let sge = |address, length| Sge { address: IoAddress(address), length, lkey: Lkey(1) };
        let list = [sge(100, 10), sge(200, 0), sge(300, 5), sge(400, 20)];
        let cut = |offset, length| {
            pieces(&list, offset, length).map(|p| (p.address.0, p.length)).collect::<Vec<_>>()
        };
        assert_eq!(cut(0, 35), [(100, 10), (300, 5), (400, 20)]);
        assert_eq!(cut(8, 4), [(108, 2), (300, 2)]);
        assert_eq!(cut(15, 1), [(400, 1)]);
        assert_eq!(cut(35, 0), []);
    }
}
