//! One direction of a connection, with its requests and the expected result of each.

use crate::plan::Plan;
use crate::random::Random;
use crate::target::{BAD_SRQ, LKEY, Node, RKEY};
use trunkline_verbs::{
    Completion, CompletionStatus, IoAddress, Lkey, RemoteAddress, Rkey, SendData, SendFlags, SendOperation,
    SendRequest, Sge, SrqNumber,
};

/// Overwrites the range of a finished WRITE, so that a late second execution is detected.
const SENTINEL: u8 = 0xee;

#[derive(Debug, Clone)]
pub(crate) struct Op {
    pub(crate) operation: SendOperation,
    pub(crate) flags: SendFlags,
    pub(crate) srq: SrqNumber,
    /// Bytes to send, write or read.
    pub(crate) bytes: Vec<u8>,
    /// Offset of the local buffer in the sender's memory.
    local: usize,
    sges: Vec<Sge>,
    inline: bool,
    /// Offset of the remote range in the target's memory.
    pub(crate) remote: usize,
    /// Old value that an atomic must return.
    pub(crate) old: u64,
    /// Status with which the request must complete.
    expected: CompletionStatus,
}

impl Op {
    pub(crate) fn immediate(&self) -> Option<u32> {
        match self.operation {
            SendOperation::SendWithImmediate(immediate)
            | SendOperation::RdmaWriteWithImmediate(_, immediate) => Some(immediate),
            _ => None,
        }
    }

    fn is_write(&self) -> bool {
        matches!(self.operation, SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..))
    }
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) source: usize,
    pub(crate) destination: usize,
    /// Endpoint that sends the requests.
    pub(crate) endpoint: usize,
    pub(crate) ops: Vec<Op>,
    pub(crate) posted: usize,
    /// Number of requests executed at the target, in order.
    pub(crate) executed: usize,
    /// Number of requests that have ended at the requester.
    ended: usize,
    failure: Option<CompletionStatus>,
    /// True once a flushed completion was polled. Every later request then has a completion.
    flushing: bool,
    /// True if the QP's other half failed. Any request may then be flushed.
    pub(crate) half_failed: bool,
    /// True if one end was restarted.
    pub(crate) source_gone: bool,
    pub(crate) destination_gone: bool,
    pub(crate) atomics: u64,
    /// Number of bytes that the pieces of the next READ have covered at the target.
    pub(crate) read_so_far: usize,
    /// Length of the longest piece of a READ in bytes.
    pub(crate) piece_bytes: usize,
    /// Payload of a full packet in bytes.
    pub(crate) packet_bytes: usize,
    /// Number of pieces that are not the last piece of their READ.
    pub(crate) split_reads: u64,
}

/// The ends of a flow, and the SRQs that it may name.
pub(crate) struct Ends<'a> {
    pub(crate) source: usize,
    pub(crate) destination: usize,
    pub(crate) endpoint: usize,
    pub(crate) srqs: &'a [SrqNumber],
    pub(crate) refused: bool,
}

impl Flow {
    /// Draws all requests of a flow, and allocates their memory.
    pub(crate) fn draw(random: &mut Random, plan: &Plan, nodes: &mut [Node], ends: &Ends<'_>) -> Self {
        let mut flow = Self {
            source: ends.source,
            destination: ends.destination,
            endpoint: ends.endpoint,
            ops: Vec::new(),
            posted: 0,
            executed: 0,
            ended: 0,
            failure: None,
            flushing: false,
            half_failed: false,
            source_gone: false,
            destination_gone: false,
            atomics: 0,
            read_so_far: 0,
            packet_bytes: plan.mtu.bytes() as usize,
            piece_bytes: (plan.tuning.read_piece * plan.mtu.bytes()) as usize,
            split_reads: 0,
        };
        let word = nodes[flow.destination].allocate(8);
        let mut value = 0_u64;
        let refused_at = random.below(plan.messages);
        for number in 0..plan.messages {
            let mut op = flow.draw_op(random, plan, nodes, ends.srqs, word, &mut value);
            if ends.refused && number == refused_at {
                refuse(&mut op, random, ends.srqs[0] != SrqNumber::new(0));
            }
            flow.ops.push(op);
        }
        flow
    }

    fn draw_op(
        &self,
        random: &mut Random,
        plan: &Plan,
        nodes: &mut [Node],
        srqs: &[SrqNumber],
        word: usize,
        value: &mut u64,
    ) -> Op {
        let mtu = u64::from(plan.mtu.bytes());
        let kind = random.below(8);
        let length = match random.below(4) {
            _ if kind >= 6 => 8,
            0 => random.below(9),
            1 => random.below(5) * mtu,
            _ => random.below(4 * mtu),
        };
        // Only READs are cut into pieces.
        let length = usize::try_from(if kind == 5 { 3 * length } else { length }).expect("small");
        let bytes: Vec<u8> = (0..length).map(|_| random.next().to_le_bytes()[0]).collect();
        let local = nodes[self.source].allocate(length);
        let remote = if kind >= 6 { word } else { nodes[self.destination].allocate(length) };
        let at = RemoteAddress { address: IoAddress(remote as u64), rkey: RKEY };
        let immediate = random.between_u32(0, u32::MAX);
        let old = *value;
        let operation = match kind {
            0 | 1 => SendOperation::Send,
            2 => SendOperation::SendWithImmediate(immediate),
            3 => SendOperation::RdmaWrite(at),
            4 => SendOperation::RdmaWriteWithImmediate(at, immediate),
            5 => SendOperation::RdmaRead(at),
            6 => {
                let add = random.next();
                *value = old.wrapping_add(add);
                SendOperation::FetchAdd { remote: at, add }
            }
            _ => {
                let (compare, swap) = (if random.chance(500) { old } else { random.next() }, random.next());
                if compare == old {
                    *value = swap;
                }
                SendOperation::CompareSwap { remote: at, compare, swap }
            }
        };
        match operation {
            SendOperation::RdmaRead(_) => {
                nodes[self.destination].memory[remote..][..length].copy_from_slice(&bytes)
            }
            _ if kind < 6 => nodes[self.source].memory[local..][..length].copy_from_slice(&bytes),
            _ => {}
        }
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALED, random.chance(700));
        flags.set(SendFlags::FENCE, random.chance(100));
        flags.set(SendFlags::SOLICITED, random.chance(300));
        Op {
            operation,
            flags,
            srq: random.pick(srqs),
            sges: cut(random, local, length),
            inline: kind < 5 && length <= 64 && random.chance(300),
            bytes,
            local,
            remote,
            old,
            expected: CompletionStatus::Success,
        }
    }

    /// Passes the next request to `post`. Returns false if there is none or if `post` refuses it.
    pub(crate) fn post_next(&mut self, post: impl FnOnce(&SendRequest<'_>) -> bool) -> bool {
        let Some(op) = self.ops.get(self.posted) else { return false };
        let request = SendRequest {
            wr_id: self.posted as u64,
            operation: op.operation,
            data: if op.inline { SendData::Inline(&op.bytes) } else { SendData::Gather(&op.sges) },
            flags: op.flags,
            remote_srq: op.srq,
        };
        let taken = post(&request);
        self.posted += usize::from(taken);
        taken
    }

    /// Checks that a completion may come next.
    pub(crate) fn complete(&mut self, completion: &Completion, nodes: &mut [Node]) {
        let index = usize::try_from(completion.wr_id).expect("ours");
        assert!(index < self.posted, "a completion for request {index}, which was never posted");
        assert!(index >= self.ended, "request {index} completed twice");
        if completion.status.is_success() {
            assert!(!self.flushing && self.failure.is_none(), "success of request {index} after a failure");
            assert!(self.ops[index].flags.contains(SendFlags::SIGNALED), "unsignalled {index} reported");
            self.succeed_until(index + 1, nodes, true);
        } else if completion.status == CompletionStatus::WorkRequestFlushed {
            // This is a request after the failed one, or an unanswered READ before it.
            self.succeed_until(index, nodes, !self.flushing && self.failure.is_none());
            self.flushing = true;
            self.ended = index + 1;
        } else {
            assert_eq!(self.failure, None, "two failures");
            self.failure = Some(completion.status);
            self.succeed_until(index, nodes, !self.flushing);
            self.ended = index + 1;
            let op = &self.ops[index];
            if !op.expected.is_success() {
                assert_eq!(completion.status, op.expected, "request {index}");
            } else {
                assert!(self.destination_gone, "request {index} failed: {}", completion.status.explain());
                assert_eq!(completion.status, CompletionStatus::RetryExceeded);
            }
        }
    }

    /// Records that unsignalled requests before `end` have succeeded.
    fn succeed_until(&mut self, end: usize, nodes: &mut [Node], allowed: bool) {
        for index in self.ended..end {
            let op = &self.ops[index];
            assert!(allowed, "request {index} has no completion, after a failure");
            let last = index + 1 == end;
            assert!(last || !op.flags.contains(SendFlags::SIGNALED), "completion of {index} is lost");
            assert!(op.expected.is_success(), "request {index} should have been refused");
            self.check_done(index, nodes);
        }
        self.ended = self.ended.max(end);
    }

    /// Checks the effect of a request that succeeded.
    fn check_done(&self, index: usize, nodes: &mut [Node]) {
        let op = &self.ops[index];
        let length = op.bytes.len();
        assert!(
            self.destination_gone || self.executed > index,
            "request {index} completed before it was executed"
        );
        let local = &nodes[self.source].memory[op.local..][..length];
        match op.operation {
            SendOperation::RdmaRead(_) => assert_eq!(local, &op.bytes[..], "READ {index}"),
            SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. } => {
                let old = u64::from_ne_bytes(local.try_into().expect("8 bytes"));
                assert_eq!(old, op.old, "old value of atomic {index}");
            }
            _ if op.is_write() && !self.destination_gone => {
                let range = &mut nodes[self.destination].memory[op.remote..][..length];
                assert_eq!(range, &op.bytes[..], "WRITE {index}");
                range.fill(SENTINEL);
            }
            _ => {}
        }
    }

    /// Returns true if all requests were posted and have ended.
    pub(crate) fn is_over(&self) -> bool {
        self.source_gone || self.posted == self.ops.len()
    }

    /// Makes the final checks, when no work is outstanding.
    pub(crate) fn check_end(&mut self, nodes: &mut [Node]) {
        if self.source_gone {
            return;
        }
        assert_eq!(self.posted, self.ops.len(), "not everything was posted");
        if self.failure.is_some() || self.flushing {
            assert!(self.failure.is_some() || self.half_failed, "flushed without a failure");
            assert_eq!(self.ended, self.ops.len(), "requests without a completion after a failure");
            return;
        }
        // Check the requests after the last signalled one.
        let tail = self.ended..self.ops.len();
        for index in tail {
            assert!(!self.ops[index].flags.contains(SendFlags::SIGNALED), "completion of {index} is lost");
            assert!(self.ops[index].expected.is_success(), "request {index} should have been refused");
            self.check_done(index, nodes);
        }
        if self.destination_gone {
            return;
        }
        assert_eq!(self.executed, self.ops.len());
        for (index, op) in self.ops.iter().enumerate().filter(|(_, op)| op.is_write()) {
            let range = &nodes[self.destination].memory[op.remote..][..op.bytes.len()];
            assert!(range.iter().all(|byte| *byte == SENTINEL), "WRITE {index} was executed again");
        }
    }
}

/// Changes a request into one that the peer must refuse.
fn refuse(op: &mut Op, random: &mut Random, xrc: bool) {
    if xrc && random.chance(500) {
        op.srq = BAD_SRQ;
        op.expected = CompletionStatus::RemoteInvalidRdRequest;
        return;
    }
    let remote = RemoteAddress { address: IoAddress(op.remote as u64), rkey: Rkey(RKEY.0 + 1) };
    if op.bytes.is_empty() {
        op.bytes.push(1);
        // The content does not matter, because the peer must refuse the request before it accesses the bytes.
        let sge = Sge { address: IoAddress(0), length: 1, lkey: LKEY };
        op.sges = vec![sge];
    }
    op.inline = false;
    op.operation = SendOperation::RdmaWrite(remote);
    op.expected = CompletionStatus::RemoteAccessError;
}

/// Cuts a buffer into up to six SGEs.
fn cut(random: &mut Random, start: usize, length: usize) -> Vec<Sge> {
    let mut sges = Vec::new();
    let (mut at, end) = (start, start + length);
    while at < end {
        let take = if sges.len() == 5 { end - at } else { 1 + random.index(end - at) };
        let length = u32::try_from(take).expect("small");
        sges.push(Sge { address: IoAddress(at as u64), length, lkey: Lkey(LKEY.0) });
        at += take;
    }
    sges
}
