//! The QP of one connection, its memory and its completions.

use super::pattern::{blank, touched, wrong};
use super::protocol::{ANSWER_BYTES, CONTROL_BYTES, ControlMessage, Hello, Manner, Purpose, REQUEST_BYTES};
use super::station::{Deadline, Station};
use crate::check::{Deviation, Verdict, equal};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use trunkline_verbs::{
    Access, CmId, Completion, CompletionFlags, CompletionOpcode, CompletionQueue, CompletionStatus,
    ConnectParameters, CqInit, Device, Memory, MemoryRegion, ProtectionDomain, QpInit, QpType,
    QueueCapacities, QueuePair, ReceiveRequest, RemoteAddress, Rkey, SendData, SendFlags, SendOperation,
    SendRequest, Sge, SharedReceiveQueue, SrqInit, SrqKind, SrqNumber,
};

/// Size of the largest message, in bytes.
pub(super) const LARGEST: usize = 1 << 20;
/// Number of blank bytes around each area that the peer writes.
const GUARD: usize = 64;
/// Number of receives of a connection or an SRQ.
pub(super) const SLOTS: usize = 8;
const SLOT: usize = LARGEST + GUARD;
const AREA: usize = LARGEST + 2 * GUARD;
/// Number of inline bytes that are requested.
pub(super) const INLINE: usize = 64;
/// Maximum number of outstanding control messages.
const CONTROLS_MAX: usize = 8;
const ARENA: usize = 4 * AREA + GUARD + CONTROLS_MAX * CONTROL_BYTES;
/// Maximum number of outstanding sends.
const DEPTH: u32 = 64;

/// The areas of an arena, which have the same offsets at both ends.
#[derive(Debug, Clone, Copy)]
pub(super) enum Area {
    /// Source of messages and WRITEs.
    Source,
    /// Target of the peer's WRITEs.
    Sink,
    /// Source of the peer's READs.
    Offer,
    /// Target of the local READs.
    Landing,
}

impl Area {
    pub(super) fn offset(self) -> usize {
        self as usize * AREA + GUARD
    }
}

/// Offset of the word that the peer changes with atomics. The results of local atomics are stored after it.
pub(super) const WORD: usize = 4 * AREA;
pub(super) const OLD_VALUE: usize = WORD + 8;

/// Memory for the receives of a QP or an SRQ.
#[derive(Debug)]
pub(super) struct Slots {
    memory: Arc<Memory>,
    region: Arc<dyn MemoryRegion>,
    srq: Option<Arc<dyn SharedReceiveQueue>>,
}

impl Slots {
    pub(super) fn of_queue(pd: &Arc<dyn ProtectionDomain>) -> Verdict<Rc<Self>> {
        let memory = Memory::zeroed(SLOTS * SLOT)?;
        blank(&memory, 0, memory.len())?;
        let region = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE)?;
        Ok(Rc::new(Self { memory, region, srq: None }))
    }

    pub(super) fn of_srq(device: &Arc<dyn Device>, pd: &Arc<dyn ProtectionDomain>) -> Verdict<Rc<Self>> {
        let init = SrqInit { pd: Arc::clone(pd), kind: SrqKind::Basic, max_wr: 16, max_sge: 1, context: 0 };
        let srq = Some(device.create_srq(init)?);
        let slots = Rc::into_inner(Self::of_queue(pd)?).expect("there is only one reference so far");
        let slots = Self { srq, ..slots };
        (0..SLOTS).try_for_each(|slot| slots.post(slot, None))?;
        Ok(Rc::new(slots))
    }

    fn post(&self, slot: usize, qp: Option<&Arc<dyn QueuePair>>) -> Verdict {
        let length = u32::try_from(LARGEST).expect("below 4 GiB");
        let scatter = [Sge { address: self.memory.address(slot * SLOT), length, lkey: self.region.lkey() }];
        let requests = [ReceiveRequest { wr_id: slot as u64, scatter: &scatter }];
        match (&self.srq, qp) {
            (Some(srq), _) => srq.post_receive(&requests)?,
            (None, Some(qp)) => qp.post_receive(&requests)?,
            (None, None) => {}
        }
        Ok(())
    }
}

/// A message that has arrived.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrival {
    pub(super) slot: usize,
    pub(super) length: usize,
    pub(super) opcode: CompletionOpcode,
    pub(super) immediate: Option<u32>,
}

/// A work request for the send queue, which operates on `length` bytes of the arena.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    pub(super) operation: SendOperation,
    pub(super) offset: usize,
    pub(super) length: usize,
    pub(super) is_inline: bool,
}

/// One end of a connection.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) id: Arc<dyn CmId>,
    pub(super) qp: Arc<dyn QueuePair>,
    pub(super) memory: Arc<Memory>,
    /// The peer's arena, once the peer has announced it.
    pub(super) peer: RemoteAddress,
    region: Arc<dyn MemoryRegion>,
    cq: Arc<dyn CompletionQueue>,
    slots: Rc<Slots>,
    purpose: Purpose,
    arrivals: VecDeque<Arrival>,
    /// The work request id and the expected completion opcode of each outstanding send, oldest first.
    under_way: VecDeque<(u64, CompletionOpcode)>,
    next_wr: u64,
    /// Number of flushed receives. If it is not 0, the connection has ended, and an event will report the end.
    flushed: usize,
    /// True if the last send is allowed to be flushed.
    is_ending: bool,
    /// True if a send was flushed because the QP moved to ERR before the acknowledgement arrived.
    pub(super) is_cut_off: bool,
}

impl Link {
    /// Creates the QP, queues and memory for an endpoint, and posts its receives.
    pub(super) fn new(station: &Station, id: Arc<dyn CmId>, purpose: Purpose) -> Verdict<Self> {
        let device = &station.device;
        let slots = match purpose {
            Purpose::Srq => station.srq_slots()?,
            Purpose::Queue | Purpose::Refuse => Slots::of_queue(&station.pd)?,
        };
        let cq = device.create_cq(CqInit { capacity_cqe: 2 * DEPTH, ..CqInit::default() })?;
        let memory = Memory::zeroed(ARENA)?;
        blank(&memory, 0, memory.len())?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = station.pd.register(Arc::clone(&memory), rights)?;
        let most_inline = device.attributes().max_inline_data;
        let qp = device.create_qp(QpInit {
            pd: Some(Arc::clone(&station.pd)),
            send_cq: Some(Arc::clone(&cq)),
            receive_cq: Some(Arc::clone(&cq)),
            srq: slots.srq.clone(),
            capacities: QueueCapacities {
                max_send_wr: DEPTH,
                max_receive_wr: 16,
                max_send_sge: 2,
                max_receive_sge: 1,
                max_inline_data: most_inline.min(64),
            },
            ..QpInit::new(QpType::Rc)
        })?;
        id.attach(Arc::clone(&qp))?;
        if slots.srq.is_none() {
            (0..SLOTS).try_for_each(|slot| slots.post(slot, Some(&qp)))?;
        }
        Ok(Self {
            id,
            qp,
            memory,
            peer: RemoteAddress::default(),
            region,
            cq,
            slots,
            purpose,
            arrivals: VecDeque::new(),
            under_way: VecDeque::new(),
            next_wr: 1000,
            flushed: 0,
            is_ending: false,
            is_cut_off: false,
        })
    }

    fn hello(&self, size: usize) -> Vec<u8> {
        let arena = RemoteAddress { address: self.memory.address(0), rkey: self.region.rkey() };
        Hello { purpose: self.purpose, arena }.private_data(size)
    }

    /// Requests the connection.
    pub(super) fn connect(&self) -> Verdict {
        Ok(self.id.connect(&self.parameters(self.hello(REQUEST_BYTES)))?)
    }

    /// Returns the parameters of a connection request.
    pub(super) fn parameters(&self, private_data: Vec<u8>) -> ConnectParameters {
        ConnectParameters {
            private_data,
            // The kernel's soft RoCE retries without a limit if this is 7. An accepting side uses the value in the request.
            retry_count: 6,
            // 0.13 s, because rxe detects the loss of a last packet only through this timeout.
            ack_timeout: 15,
            srq: self.slots.srq.is_some(),
            ..ConnectParameters::default()
        }
    }

    /// Accepts a peer's request, which offers the parameters `offered`.
    pub(super) fn accept(&self, offered: &ConnectParameters) -> Verdict {
        let srq = self.slots.srq.is_some();
        Ok(self.id.accept(&ConnectParameters {
            private_data: self.hello(ANSWER_BYTES),
            srq,
            ..offered.clone()
        })?)
    }

    /// Returns an address in the peer's arena.
    pub(super) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { address: self.peer.address.plus(offset as u64), ..self.peer }
    }

    /// Returns an address in this end's arena, for peers that do not get the arena's address from a [`Hello`].
    pub(super) fn own(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { address: self.memory.address(offset), rkey: self.region.rkey() }
    }

    /// Returns true if [`INLINE`] bytes can be sent inline.
    pub(super) fn has_inline(&self) -> bool {
        self.qp.capacities().max_inline_data as usize >= INLINE
    }

    /// Posts work requests together. Data of more than one byte is gathered from two SGEs.
    pub(super) fn post(&mut self, work: &[Work]) -> Verdict {
        let mut pieces = Vec::with_capacity(work.len());
        let mut inline = Vec::with_capacity(work.len());
        for item in work {
            let first = item.length / 2 - usize::from(item.length > 8 && item.length % 2 == 0);
            let sge = |offset, length: usize| Sge {
                address: self.memory.address(offset),
                length: u32::try_from(length).expect("below 4 GiB"),
                lkey: self.region.lkey(),
            };
            let atomic =
                matches!(item.operation, SendOperation::CompareSwap { .. } | SendOperation::FetchAdd { .. });
            let list = if atomic || first == 0 {
                vec![sge(item.offset, item.length)]
            } else {
                vec![sge(item.offset, first), sge(item.offset + first, item.length - first)]
            };
            pieces.push(list);
            let mut copy = Vec::new();
            if item.is_inline {
                copy.resize(item.length, 0);
                self.memory.read(item.offset, &mut copy)?;
            }
            inline.push(copy);
        }
        let first_wr = self.next_wr;
        let requests: Vec<SendRequest<'_>> = work
            .iter()
            .enumerate()
            .map(|(index, item)| SendRequest {
                wr_id: first_wr + index as u64,
                operation: item.operation,
                data: if item.is_inline {
                    SendData::Inline(&inline[index])
                } else {
                    SendData::Gather(&pieces[index])
                },
                flags: SendFlags::SIGNALED,
                remote_srq: SrqNumber::new(0),
            })
            .collect();
        self.qp.post_send(&requests)?;
        for item in work {
            self.under_way.push_back((self.next_wr, opcode_of(item.operation)));
            self.next_wr += 1;
        }
        Ok(())
    }

    /// Posts one operation on the arena.
    pub(super) fn do_one(&mut self, operation: SendOperation, offset: usize, length: usize) -> Verdict {
        self.post(&[Work { operation, offset, length, is_inline: false }])
    }

    /// Sends `length` bytes from the source area.
    pub(super) fn send_source(&mut self, length: usize, seed: u64, manner: Manner) -> Verdict {
        let operation = match manner {
            Manner::Immediate => SendOperation::SendWithImmediate(immediate_of(seed)),
            Manner::Plain | Manner::Inline => SendOperation::Send,
        };
        let is_inline = manner == Manner::Inline;
        self.post(&[Work { operation, offset: Area::Source.offset(), length, is_inline }])
    }

    /// Sends a control message.
    pub(super) fn send_control(&mut self, control: &ControlMessage) -> Verdict {
        self.post_control(control)?;
        self.finish()
    }

    /// Sends a control message that makes the server end the connection. The end may be reported before the send completes.
    pub(super) fn send_last_control(&mut self, control: &ControlMessage) -> Verdict {
        self.is_ending = true;
        self.post_control(control)
    }

    fn post_control(&mut self, control: &ControlMessage) -> Verdict {
        let place = usize::try_from(self.next_wr).expect("few") % CONTROLS_MAX;
        let offset = WORD + GUARD + place * CONTROL_BYTES;
        self.memory.write(offset, &control.bytes())?;
        self.do_one(SendOperation::Send, offset, CONTROL_BYTES)
    }

    /// Polls for completions. Returns true if there were any. Returns an error if one of them has failed.
    pub(super) fn pump(&mut self) -> Verdict<bool> {
        let mut batch = [Completion::default(); 16];
        let count = self.cq.poll(&mut batch);
        for completion in &batch[..count] {
            let is_receive = completion.wr_id < SLOTS as u64;
            if is_receive && completion.status == CompletionStatus::WorkRequestFlushed {
                self.flushed += 1;
                continue;
            }
            if self.is_ending && completion.status == CompletionStatus::WorkRequestFlushed {
                continue;
            }
            if !completion.status.is_success() {
                self.is_cut_off |= completion.status == CompletionStatus::WorkRequestFlushed;
                let why = completion.status.explain();
                return Err(Deviation::Failed(format!("work request {} failed: {why}", completion.wr_id)));
            }
            equal("the QP number of a completion", completion.qp_number, self.qp.number())?;
            if is_receive {
                let has_immediate = completion.flags.contains(CompletionFlags::WITH_IMMEDIATE);
                self.arrivals.push_back(Arrival {
                    slot: usize::try_from(completion.wr_id).expect("below the number of slots"),
                    length: completion.byte_length as usize,
                    opcode: completion.opcode,
                    immediate: has_immediate.then_some(completion.immediate),
                });
            } else {
                let oldest = self.under_way.pop_front();
                equal("the completed send", Some((completion.wr_id, completion.opcode)), oldest)?;
            }
        }
        Ok(count > 0)
    }

    /// Waits until all sends have completed.
    pub(super) fn finish(&mut self) -> Verdict {
        let mut deadline = Deadline::new();
        while !self.under_way.is_empty() {
            if self.pump()? {
                deadline = Deadline::new();
            }
            deadline.wait(|| "a send did not complete".into())?;
        }
        Ok(())
    }

    /// Returns the next message, if it has arrived.
    pub(super) fn arrival_now(&mut self) -> Option<Arrival> {
        self.arrivals.pop_front()
    }

    /// Waits for the next message.
    pub(super) fn arrival(&mut self) -> Verdict<Arrival> {
        let mut deadline = Deadline::new();
        loop {
            if let Some(arrival) = self.arrival_now() {
                return Ok(arrival);
            }
            if self.pump()? {
                continue;
            }
            deadline.wait(|| "no message arrived".into())?;
        }
    }

    /// Parses a control message and reposts its buffer.
    pub(super) fn read_control(&mut self, arrival: Arrival) -> Verdict<ControlMessage> {
        equal("size of a control message", arrival.length, CONTROL_BYTES)?;
        let mut bytes = [0; CONTROL_BYTES];
        self.slots.memory.read(arrival.slot * SLOT, &mut bytes)?;
        self.release(arrival)?;
        ControlMessage::parse(&bytes)
    }

    /// Returns the first bytes of a message.
    pub(super) fn bytes_of<const N: usize>(&self, arrival: Arrival) -> Verdict<[u8; N]> {
        let mut bytes = [0; N];
        self.slots.memory.read(arrival.slot * SLOT, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the number of wrong bytes within a message and after its end.
    pub(super) fn judge(&self, arrival: Arrival, size: usize, seed: u64, manner: Manner) -> Verdict<u64> {
        equal("opcode of a receive", arrival.opcode, CompletionOpcode::Receive)?;
        equal("size of a message", arrival.length, size)?;
        let immediate = (manner == Manner::Immediate).then(|| immediate_of(seed));
        equal("immediate of a message", arrival.immediate, immediate)?;
        let start = arrival.slot * SLOT;
        Ok(wrong(&self.slots.memory, start, size, seed)? + touched(&self.slots.memory, start + size, GUARD)?)
    }

    /// Blanks a message's buffer and posts it again.
    pub(super) fn release(&mut self, arrival: Arrival) -> Verdict {
        // A WRITE with immediate consumes a receive without writing to its buffer.
        blank(&self.slots.memory, arrival.slot * SLOT, arrival.length)?;
        self.slots.post(arrival.slot, Some(&self.qp))
    }

    /// Checks that an area contains a pattern with blank bytes around it, and blanks the area. Returns the number of
    /// wrong bytes.
    pub(super) fn judge_area(&self, area: Area, size: usize, seed: u64) -> Verdict<u64> {
        let offset = area.offset();
        let around =
            touched(&self.memory, offset - GUARD, GUARD)? + touched(&self.memory, offset + size, GUARD)?;
        let inside = wrong(&self.memory, offset, size, seed)?;
        blank(&self.memory, offset - GUARD, size + 2 * GUARD)?;
        Ok(inside + around)
    }

    /// Closes this end: moves the QP to ERR, and waits until all its receives are flushed.
    pub(super) fn close(mut self) -> Verdict {
        // Answer the peer's DREQ if one has arrived. Otherwise the call is refused, and its error is ignored.
        let _ = self.id.disconnect();
        let due = if self.slots.srq.is_none() { SLOTS } else { 0 };
        let mut deadline = Deadline::new();
        while self.flushed + self.arrivals.len() < due {
            self.pump()?;
            deadline.wait(|| format!("{} of {due} receives were flushed", self.flushed))?;
        }
        self.qp.destroy()?;
        Ok(())
    }

    /// Returns an address in the peer's arena with an rkey that does not exist at the peer.
    pub(super) fn wrong_key(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { rkey: Rkey(self.peer.rkey.0 ^ 0x0055_aa00), ..self.remote(offset) }
    }

    /// Waits until the only outstanding send fails. Its completion precedes the flushed receives.
    pub(super) fn failure(&mut self) -> Verdict<CompletionStatus> {
        let mut deadline = Deadline::new();
        let mut one = [Completion::default()];
        while self.cq.poll(&mut one) == 0 {
            deadline.wait(|| "a send did not complete".into())?;
        }
        equal(
            "the first failed completion",
            Some(one[0].wr_id),
            self.under_way.pop_front().map(|(wr_id, _)| wr_id),
        )?;
        Ok(one[0].status)
    }
}

/// Returns the immediate data for a seed.
pub(super) fn immediate_of(seed: u64) -> u32 {
    u32::try_from(seed & u64::from(u32::MAX)).expect("masked") ^ 0x8000_0001
}

fn opcode_of(operation: SendOperation) -> CompletionOpcode {
    match operation {
        SendOperation::Send | SendOperation::SendWithImmediate(_) => CompletionOpcode::Send,
        SendOperation::RdmaWrite(_) | SendOperation::RdmaWriteWithImmediate(..) => {
            CompletionOpcode::RdmaWrite
        }
        SendOperation::RdmaRead(_) => CompletionOpcode::RdmaRead,
        SendOperation::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        SendOperation::FetchAdd { .. } => CompletionOpcode::FetchAdd,
    }
}
