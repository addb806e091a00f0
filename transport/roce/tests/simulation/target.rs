//! A node's memory and receive queues, and the target that checks each access to them.

use crate::work::Flow;
use std::collections::VecDeque;
use trunkline_roce::engine::{
    LocalFault, LocalMemory, NakCode, Placement, PlacementRequest, ReadOutcome, ReadPiece, RemoteRange,
    Target, Work,
};
use trunkline_verbs::{Lkey, RemoteAddress, Rkey, SendOperation, Sge, SrqNumber};

pub(crate) const LKEY: Lkey = Lkey(7);
pub(crate) const RKEY: Rkey = Rkey(9);
pub(crate) const BAD_SRQ: SrqNumber = SrqNumber::new(0xbad);

#[derive(Debug, Default)]
pub(crate) struct Node {
    pub(crate) memory: Vec<u8>,
    pub(crate) queues: Vec<Queue>,
    pub(crate) paused_until: u64,
    /// Completed receives to post again, with queue and buffer.
    pub(crate) used: Vec<(usize, Receive)>,
}

/// An SRQ, or the receive queue of one RC QP (number 0).
#[derive(Debug)]
pub(crate) struct Queue {
    pub(crate) number: SrqNumber,
    pub(crate) free: VecDeque<Receive>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Receive {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

impl Node {
    pub(crate) fn allocate(&mut self, length: usize) -> usize {
        let start = self.memory.len().next_multiple_of(8);
        self.memory.resize(start + length, 0);
        start
    }
}

fn at(address: u64, length: usize, memory: &[u8]) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(address).ok()?;
    let end = start.checked_add(length)?;
    (end <= memory.len()).then_some(start..end)
}

/// The node's memory as seen by its requesters.
pub(crate) struct Local<'a>(pub(crate) &'a mut Vec<u8>);

impl LocalMemory for Local<'_> {
    fn read(&self, piece: Sge, out: &mut Vec<u8>) -> Result<(), LocalFault> {
        let range = at(piece.address.0, piece.length as usize, self.0).ok_or(LocalFault)?;
        out.extend_from_slice(&self.0[range]);
        Ok(())
    }

    fn write(&mut self, piece: Sge, bytes: &[u8]) -> Result<(), LocalFault> {
        assert_eq!(piece.lkey, LKEY);
        let range = at(piece.address.0, bytes.len(), self.0).ok_or(LocalFault)?;
        self.0[range].copy_from_slice(bytes);
        Ok(())
    }
}

/// A placement that completes late.
#[derive(Debug)]
pub(crate) struct Deferred {
    place: PlacementRequest<'static>,
    payload: Vec<u8>,
}

impl Deferred {
    fn new(place: &PlacementRequest<'_>) -> Self {
        let (work, payload) = match place.work {
            Work::Send { offset, payload, first, last, immediate } => {
                (Work::Send { offset, payload: &[], first, last, immediate }, payload)
            }
            Work::Write { range, offset, payload, first, last, immediate } => {
                (Work::Write { range, offset, payload: &[], first, last, immediate }, payload)
            }
            Work::Read { range } => (Work::Read { range }, &[][..]),
            Work::CompareSwap { remote, compare, swap } => {
                (Work::CompareSwap { remote, compare, swap }, &[][..])
            }
            Work::FetchAdd { remote, add } => (Work::FetchAdd { remote, add }, &[][..]),
        };
        Self {
            place: PlacementRequest { psn: place.psn, srq: place.srq, solicited: place.solicited, work },
            payload: payload.to_vec(),
        }
    }

    pub(crate) fn carry_out(&self, target: &mut Checked<'_>) -> Placement {
        let mut place: PlacementRequest<'_> = self.place;
        match &mut place.work {
            Work::Send { payload, .. } | Work::Write { payload, .. } => *payload = &self.payload,
            _ => {}
        }
        target.carry_out(&place)
    }
}

pub(crate) struct Checked<'a> {
    pub(crate) node: &'a mut Node,
    pub(crate) flow: &'a mut Flow,
    /// Receive queue of an RC QP.
    pub(crate) own_queue: Option<usize>,
    /// Receive of the message in progress.
    pub(crate) holding: &'a mut Option<(usize, Receive)>,
    pub(crate) deferred: &'a mut Option<Deferred>,
    /// True if the next placement completes late.
    pub(crate) late: bool,
    /// True if the next READ's bytes are returned late.
    pub(crate) late_read: bool,
    pub(crate) asked_later: &'a mut u64,
}

impl Checked<'_> {
    fn queue(&self, srq: Option<SrqNumber>) -> Option<usize> {
        match srq {
            None => self.own_queue,
            Some(number) => self.node.queues.iter().position(|queue| queue.number == number),
        }
    }

    fn carry_out(&mut self, place: &PlacementRequest<'_>) -> Placement {
        let Some(queue) = self.queue(place.srq) else { return Placement::Nak(NakCode::INVALID_RD_REQUEST) };
        let index = self.flow.executed;
        let op =
            self.flow.ops.get(index).unwrap_or_else(|| panic!("more messages than were sent: {place:?}"));
        assert_eq!(place.srq.unwrap_or_default(), op.srq, "request {index} went to another queue");
        let (length, operation) = (op.bytes.len(), op.operation);
        let last = match place.work {
            Work::Send { offset, payload, first, last, immediate } => {
                assert!(
                    matches!(operation, SendOperation::Send | SendOperation::SendWithImmediate(_)),
                    "request {index} arrived as a SEND"
                );
                if first {
                    assert!(self.holding.is_none());
                    let Some(receive) = self.node.queues[queue].free.pop_front() else {
                        return Placement::Rnr;
                    };
                    *self.holding = Some((queue, receive));
                }
                let receive = self.holding.expect("a message in progress has its receive").1;
                assert!(offset as usize + payload.len() <= receive.length);
                self.bytes_fit(index, offset, payload, last);
                self.node.memory[receive.address + offset as usize..][..payload.len()]
                    .copy_from_slice(payload);
                if last {
                    assert_eq!(immediate, self.flow.ops[index].immediate(), "immediate of {index}");
                    assert_eq!(self.node.memory[receive.address..][..length], self.flow.ops[index].bytes);
                    self.node.used.extend(self.holding.take());
                }
                last
            }
            Work::Write { range, offset, payload, last, immediate, .. } => {
                if !self.may_reach(&range, SendOperation::RdmaWrite(range.start)) {
                    return Placement::Nak(NakCode::REMOTE_ACCESS);
                }
                self.bytes_fit(index, offset, payload, last);
                if last {
                    assert_eq!(immediate, self.flow.ops[index].immediate(), "immediate of {index}");
                }
                if immediate.is_some() {
                    let Some(receive) = self.node.queues[queue].free.pop_front() else {
                        return Placement::Rnr;
                    };
                    self.node.used.push((queue, receive));
                }
                let start = usize::try_from(range.at(offset).0).expect("checked");
                self.node.memory[start..][..payload.len()].copy_from_slice(payload);
                last
            }
            Work::Read { range } => {
                if !self.may_reach(&range, SendOperation::RdmaRead(range.start)) {
                    return Placement::Nak(NakCode::REMOTE_ACCESS);
                }
                self.flow.read_so_far += range.length as usize;
                let last = self.flow.read_so_far == length;
                self.flow.split_reads += u64::from(!last);
                if last {
                    self.flow.read_so_far = 0;
                }
                last
            }
            Work::CompareSwap { remote, compare, swap } => {
                assert_eq!(
                    operation,
                    SendOperation::CompareSwap { remote, compare, swap },
                    "request {index}"
                );
                return self.atomic(remote, |old| if old == compare { swap } else { old });
            }
            Work::FetchAdd { remote, add } => {
                assert_eq!(operation, SendOperation::FetchAdd { remote, add }, "request {index}");
                return self.atomic(remote, |old| old.wrapping_add(add));
            }
        };
        self.flow.executed += usize::from(last);
        Placement::Placed
    }

    fn atomic(&mut self, remote: RemoteAddress, apply: impl FnOnce(u64) -> u64) -> Placement {
        let word = usize::try_from(remote.address.0).expect("checked");
        let word: &mut [u8; 8] = (&mut self.node.memory[word..word + 8]).try_into().expect("8 bytes");
        let old = u64::from_ne_bytes(*word);
        *word = apply(old).to_ne_bytes();
        self.flow.executed += 1;
        self.flow.atomics += 1;
        Placement::Atomic(old)
    }

    /// Asserts that the payload is the next part of the request.
    fn bytes_fit(&self, index: usize, offset: u32, payload: &[u8], last: bool) {
        let op = &self.flow.ops[index];
        let end = offset as usize + payload.len();
        assert_eq!(
            op.bytes.get(offset as usize..end),
            Some(payload),
            "bytes of request {index} from {offset}"
        );
        assert_eq!(last, end == op.bytes.len(), "end of request {index}");
    }

    /// Returns true if the range belongs to the next request (for a READ, to its next piece) and the key is valid.
    fn may_reach(&self, range: &RemoteRange, shape: SendOperation) -> bool {
        let index = self.flow.executed;
        let op = &self.flow.ops[index];
        let before = self.flow.read_so_far;
        let (rest, length) = (op.bytes.len() - before, range.length as usize);
        let piece = self.flow.piece_bytes;
        let fits = if matches!(shape, SendOperation::RdmaRead(_)) {
            // A probe, which requests one packet, may arrive before the request that it repeats.
            length == rest.min(piece - before % piece) || length == self.flow.packet_bytes && length < rest
        } else {
            length == rest
        };
        assert!(fits, "length {length} of request {index} from {before}");
        assert_eq!(range.start.address.0, (op.remote + before) as u64, "address of request {index}");
        match (op.operation, shape) {
            (SendOperation::RdmaRead(_), SendOperation::RdmaRead(_)) => {}
            (
                SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..),
                SendOperation::RdmaWrite(_),
            ) => {}
            other => panic!("request {index} arrived as something else: {other:?}"),
        }
        range.length == 0 || range.start.rkey == RKEY
    }
}

impl Target for Checked<'_> {
    fn place(&mut self, request: &PlacementRequest<'_>) -> Placement {
        if std::mem::take(&mut self.late) {
            *self.asked_later += 1;
            *self.deferred = Some(Deferred::new(request));
            return Placement::Later;
        }
        self.carry_out(request)
    }

    fn read(&mut self, piece: &ReadPiece, out: &mut Vec<u8>) -> ReadOutcome {
        if std::mem::take(&mut self.late_read) {
            *self.asked_later += 1;
            return ReadOutcome::Later;
        }
        if piece.length == 0 {
            return ReadOutcome::Read;
        }
        let range = at(piece.range.at(piece.offset).0, piece.length as usize, &self.node.memory);
        let Some(range) = range.filter(|_| piece.range.start.rkey == RKEY) else {
            return ReadOutcome::Nak(NakCode::REMOTE_ACCESS);
        };
        out.extend_from_slice(&self.node.memory[range]);
        ReadOutcome::Read
    }
}
