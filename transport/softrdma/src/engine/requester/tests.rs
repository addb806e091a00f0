//! The requester's rules, one by one.

use super::*;
use crate::engine::segment::Transmit;
use crate::engine::testing::{
    BAD_LKEY, MTU, PEER, Ram, SRQ, ack, answer, attributes, in_state, nak, remote, sge,
};
use crate::engine::{NakCode, Time};
use crate::wire::{Aeth, CreditCode, Operation, Packet, Reth, RnrTimer, Syndrome};
use proptest::prelude::*;
use trunkline_verbs::{CompletionOpcode, SendData, SendFlags, SendOperation, SendRequest, Sge};

const MS: u64 = 1_000_000;
/// The nominal timeout of the rig, 4.096 us * 2^10.
const TIMEOUT: u64 = 4_194_304;

/// What was sent, read back.
#[derive(Debug, Clone, PartialEq)]
struct Sent {
    operation: Operation,
    psn: u32,
    ack_request: bool,
    reth: Option<Reth>,
    payload: Vec<u8>,
}

struct Rig {
    requester: Requester,
    ram: Ram,
    now: Time,
}

impl Rig {
    fn new() -> Self {
        Self::with(&attributes(QpType::XrcIni), Tuning::default())
    }

    /// Without probes, for tests of the nominal timeout.
    fn patient() -> Self {
        Self::with(&attributes(QpType::XrcIni), Tuning { probe_floor_ns: 0, ..Tuning::default() })
    }

    fn with(attributes: &QpAttributes, tuning: Tuning) -> Self {
        let capacities = QueueCapacities {
            max_send_wr: 64,
            max_send_sge: 6,
            max_inline_data: 64,
            ..QueueCapacities::default()
        };
        let mut requester =
            Requester::new(QpNumber::new(0x11), attributes.qp_type, capacities, false, tuning);
        for state in [QpState::Init, QpState::ReadyToReceive, attributes.state] {
            requester.modify(&QpAttributes { state, ..*attributes });
        }
        Self { requester, ram: Ram::new(), now: Time(0) }
    }

    fn try_post(
        &mut self,
        wr_id: u64,
        operation: SendOperation,
        sges: &[Sge],
        flags: SendFlags,
    ) -> Result<(), PostRefused> {
        let data = SendData::Gather(sges);
        self.requester.post(&SendRequest { wr_id, operation, data, flags, remote_srq: SRQ })
    }

    fn post(&mut self, wr_id: u64, operation: SendOperation, length: u32) {
        self.try_post(wr_id, operation, &[sge(1000, length)], SendFlags::SIGNALED).expect("room");
    }

    fn send(&mut self, wr_id: u64) {
        self.post(wr_id, SendOperation::Send, 10);
    }

    /// Sends all it wants to send now.
    fn flush(&mut self) -> Vec<Sent> {
        let mut all = Vec::new();
        let mut out = Vec::new();
        while let Some(Transmit { psn, .. }) = self.requester.poll_transmit(self.now, &self.ram, &mut out) {
            let packet = Packet::parse(&out).expect("well formed");
            assert_eq!((packet.bth.psn, packet.bth.destination), (psn, PEER));
            assert_eq!(packet.xrceth.map(|(_, srq)| srq), Some(SRQ), "contract rocev2 2.3");
            all.push(Sent {
                operation: packet.bth.opcode.operation(),
                psn: psn.get(),
                ack_request: packet.bth.ack_request,
                reth: packet.reth,
                payload: packet.payload.to_vec(),
            });
            out.clear();
        }
        assert!(out.is_empty());
        all
    }

    fn psns(&mut self) -> Vec<u32> {
        self.flush().into_iter().map(|sent| sent.psn).collect()
    }

    fn hear(&mut self, packet: &Packet<'_>) -> Response {
        self.requester.handle_response(self.now, packet, &mut self.ram)
    }

    /// The READ requests it sends now: PSN, offset from 0x4000, packets.
    fn reads(&mut self) -> Vec<(u32, u64, u32)> {
        let sent = self.flush();
        sent.into_iter()
            .map(|sent| {
                let reth = sent.reth.expect("a READ");
                (sent.psn, reth.address.0 - 0x4000, reth.length.div_ceil(MTU))
            })
            .collect()
    }

    /// Answers packets `from..end` of one READ request that began with PSN `start`.
    fn hear_piece(&mut self, start: u32, psns: std::ops::Range<u32>, end: u32) {
        for psn in psns {
            let operation = match (psn == start, psn + 1 == end) {
                (true, true) => Operation::READ_RESPONSE_ONLY,
                (true, false) => Operation::READ_RESPONSE_FIRST,
                (false, false) => Operation::READ_RESPONSE_MIDDLE,
                (false, true) => Operation::READ_RESPONSE_LAST,
            };
            let bytes = [u8::try_from(psn % 256).expect("a byte"); MTU as usize];
            self.hear(&response(operation, psn, &bytes));
        }
    }

    /// Goes to the next deadline; the time it took.
    fn wait(&mut self) -> u64 {
        let next = self.requester.next_timeout().expect("something to wait for");
        let waited = next.since(self.now);
        self.now = self.now.max(next);
        self.requester.handle_timeout(self.now);
        waited
    }

    fn completions(&mut self) -> Vec<(u64, CompletionStatus)> {
        std::iter::from_fn(|| self.requester.poll_completion()).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn events(&mut self) -> Vec<RequesterEvent> {
        std::iter::from_fn(|| self.requester.poll_event()).collect()
    }
}

use CompletionStatus as S;

#[test]
fn messages_are_cut_into_packets() {
    let mut rig = Rig::new();
    rig.post(1, SendOperation::SendWithImmediate(7), 2 * MTU + 3);
    rig.post(2, SendOperation::RdmaWrite(remote(5)), MTU);
    rig.post(3, SendOperation::Send, 0);
    let sent = rig.flush();
    let shape: Vec<_> = sent.iter().map(|s| (s.operation, s.psn, s.ack_request, s.payload.len())).collect();
    assert_eq!(
        shape,
        [
            (Operation::SEND_FIRST, 100, false, 256),
            (Operation::SEND_MIDDLE, 101, false, 256),
            (Operation::SEND_LAST_IMM, 102, true, 3),
            (Operation::WRITE_ONLY, 103, true, 256),
            (Operation::SEND_ONLY, 104, true, 0),
        ]
    );
    let bytes: Vec<u8> = sent[..3].iter().flat_map(|s| s.payload.clone()).collect();
    assert_eq!(bytes, rig.ram.0[1000..1000 + 2 * 256 + 3]);
    rig.hear(&ack(104));
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success), (3, S::Success)]);
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn unsignalled_success_is_silent() {
    let mut rig = Rig::new();
    rig.try_post(1, SendOperation::Send, &[sge(0, 1)], SendFlags::empty()).expect("room");
    rig.send(2);
    rig.flush();
    rig.hear(&ack(100));
    assert_eq!(rig.completions(), []);
    assert_eq!(rig.requester.outstanding(), 1);
    rig.hear(&ack(101));
    assert_eq!(rig.completions(), [(2, S::Success)]);
}

#[test]
fn inline_data_and_sges_are_copied() {
    let mut rig = Rig::new();
    let mut bytes = *b"inline";
    let request = SendRequest {
        wr_id: 1,
        operation: SendOperation::Send,
        data: SendData::Inline(&[]),
        flags: SendFlags::SIGNALED,
        remote_srq: SRQ,
    };
    rig.requester.post(&SendRequest { data: SendData::Inline(&bytes), ..request }).expect("room");
    bytes.fill(0);
    assert_eq!(rig.flush()[0].payload, b"inline");
    let long = [0; 65];
    let too_long = SendRequest { data: SendData::Inline(&long), ..request };
    assert_eq!(rig.requester.post(&too_long), Err(PostRefused::BadInline));
    let read =
        SendRequest { operation: SendOperation::RdmaRead(remote(0)), data: SendData::Inline(&[]), ..request };
    assert_eq!(rig.requester.post(&read), Err(PostRefused::BadInline));
}

#[test]
fn what_cannot_be_carried_out_is_not_taken() {
    let mut rig = Rig::with(&in_state(QpType::XrcIni, QpState::ReadyToReceive), Tuning::default());
    assert_eq!(
        rig.try_post(1, SendOperation::Send, &[], SendFlags::empty()),
        Err(PostRefused::NotReady(QpState::ReadyToReceive)),
        "contract E8"
    );
    let mut rig = Rig::with(&attributes(QpType::XrcIni), Tuning { max_message: 100, ..Tuning::default() });
    let post = |rig: &mut Rig, operation, sges: &[Sge]| rig.try_post(1, operation, sges, SendFlags::empty());
    assert_eq!(post(&mut rig, SendOperation::Send, &[sge(0, 101)]), Err(PostRefused::TooLong));
    assert_eq!(post(&mut rig, SendOperation::Send, &[sge(0, u32::MAX); 6]), Err(PostRefused::TooLong));
    assert_eq!(post(&mut rig, SendOperation::Send, &[sge(0, 1); 7]), Err(PostRefused::TooManySges));
    let add = SendOperation::FetchAdd { remote: remote(8), add: 1 };
    assert_eq!(post(&mut rig, add, &[sge(0, 4)]), Err(PostRefused::BadAtomic));
    for _ in 0..64 {
        assert_eq!(post(&mut rig, SendOperation::Send, &[sge(0, 1); 6]), Ok(()));
    }
    assert_eq!(post(&mut rig, SendOperation::Send, &[]), Err(PostRefused::QueueFull));
    let none = QpAttributes { max_rd_atomic: 0, ..attributes(QpType::XrcIni) };
    let mut rig = Rig::with(&none, Tuning::default());
    assert_eq!(post(&mut rig, add, &[sge(0, 8)]), Err(PostRefused::NoReadResources));
}

#[test]
fn a_dead_peer_costs_retry_count_and_one_timeouts() {
    // contract rocev2 7.22: finite, first transmission plus retry_cnt.
    let mut rig = Rig::patient();
    rig.send(1);
    rig.try_post(2, SendOperation::Send, &[sge(0, 1)], SendFlags::empty()).expect("room");
    for _ in 0..4 {
        assert_eq!(rig.psns(), [100, 101]);
        assert_eq!(rig.wait(), TIMEOUT);
    }
    assert_eq!(rig.psns(), [] as [u32; 0]);
    // The unsignalled one is flushed too (contract I1).
    assert_eq!(rig.completions(), [(1, S::RetryExceeded), (2, S::WorkRequestFlushed)]);
    assert_eq!(rig.events(), [RequesterEvent::Failed(S::RetryExceeded)]);
    assert_eq!(rig.requester.state(), QpState::Error);
    assert_eq!(rig.requester.counters().timeouts, 4);
    assert_eq!(rig.requester.next_timeout(), None);
    // contract E8
    rig.send(3);
    assert_eq!(rig.completions(), [(3, S::WorkRequestFlushed)]);
}

#[test]
fn seven_retries_are_seven() {
    let mut rig = Rig::with(
        &QpAttributes { retry_count: 7, ..attributes(QpType::XrcIni) },
        Tuning { probe_floor_ns: 0, ..Tuning::default() },
    );
    rig.send(1);
    let mut sent = 0;
    while rig.requester.state() == QpState::ReadyToSend {
        sent += rig.flush().len();
        rig.wait();
    }
    assert_eq!(sent, 8);
}

#[test]
fn probes_are_early_double_and_cost_no_retry() {
    let mut rig = Rig::new();
    rig.send(1);
    rig.send(2);
    assert_eq!(rig.psns(), [100, 101]);
    assert_eq!(rig.wait(), MS);
    // The oldest alone.
    assert_eq!(rig.psns(), [100]);
    assert_eq!(rig.wait(), 2 * MS);
    assert_eq!(rig.psns(), [100]);
    // The nominal timeout runs from the first transmission all the while.
    assert_eq!(rig.wait(), TIMEOUT - 3 * MS);
    assert_eq!(rig.psns(), [100, 101]);
    let counters = *rig.requester.counters();
    assert_eq!((counters.probes, counters.timeouts, counters.retransmits), (2, 1, 4));
    while rig.requester.state() == QpState::ReadyToSend {
        rig.wait();
        rig.flush();
    }
    assert_eq!(rig.now.0, 4 * TIMEOUT, "probes must not put off death, nor hasten it");
}

#[test]
fn a_probe_answered_alone_shows_that_the_rest_is_lost() {
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.wait();
    assert_eq!(rig.psns(), [100]);
    rig.hear(&ack(100));
    assert_eq!(rig.psns(), [101, 102]);
    // Not so if the answer covers more.
    rig.send(4);
    rig.flush();
    rig.wait();
    assert_eq!(rig.psns(), [101]);
    rig.hear(&ack(102));
    assert_eq!(rig.psns(), [] as [u32; 0]);
}

#[test]
fn a_trickle_of_new_packets_puts_no_probe_off() {
    let mut rig = Rig::new();
    for wr_id in 0..4 {
        rig.send(wr_id);
        rig.flush();
        rig.now = rig.now.plus_ns(MS / 4);
    }
    rig.requester.handle_timeout(rig.now);
    assert_eq!(rig.psns(), [100]);
}

#[test]
fn timeout_zero_is_never() {
    let mut rig = Rig::with(
        &QpAttributes { timeout: 0, ..attributes(QpType::XrcIni) },
        Tuning { probe_floor_ns: 0, ..Tuning::default() },
    );
    rig.send(1);
    rig.flush();
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn progress_gives_all_retries_back() {
    // contract rocev2 7.23
    let mut rig = Rig::patient();
    rig.send(1);
    rig.send(2);
    rig.flush();
    for _ in 0..3 {
        rig.wait();
        rig.flush();
    }
    rig.hear(&ack(100));
    for _ in 0..3 {
        rig.wait();
        assert_eq!(rig.psns(), [101]);
    }
    rig.wait();
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::RetryExceeded)]);
}

#[test]
fn a_sequence_nak_acknowledges_and_goes_back() {
    // contract rocev2 7.20
    let mut rig = Rig::new();
    for wr_id in 1..=4 {
        rig.send(wr_id);
    }
    rig.flush();
    assert_eq!(rig.hear(&nak(102, NakCode::PSN_SEQUENCE)), Response::Progress);
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success)]);
    assert_eq!(rig.psns(), [102, 103]);
    // A copy of it changes nothing.
    rig.hear(&nak(102, NakCode::PSN_SEQUENCE));
    assert_eq!(rig.psns(), [] as [u32; 0]);
}

#[test]
fn repeated_packets_are_equal() {
    // contract rocev2 7.25
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaWriteWithImmediate(remote(64), 3), 3 * MTU + 1);
    let first = rig.flush();
    rig.hear(&nak(102, NakCode::PSN_SEQUENCE));
    let mut again = rig.flush();
    for (sent, before) in again.iter_mut().zip(&first[2..]) {
        sent.ack_request = before.ack_request;
    }
    assert_eq!(again, first[2..]);
}

#[test]
fn old_and_impossible_answers_change_nothing() {
    // contract rocev2 7.18
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.hear(&ack(101));
    assert_eq!(rig.hear(&ack(100)), Response::Stale);
    assert_eq!(rig.hear(&nak(101, NakCode::REMOTE_ACCESS)), Response::Stale);
    assert_eq!(rig.hear(&ack(103)), Response::Unexpected);
    assert_eq!(rig.hear(&nak(103, NakCode::REMOTE_ACCESS)), Response::Unexpected);
    assert_eq!(
        rig.hear(&answer(Operation::ACKNOWLEDGE, 102, Syndrome::Reserved(0x40), &[])),
        Response::Unexpected
    );
    let mut foreign = ack(102);
    foreign.bth.opcode = crate::wire::Opcode::new(crate::wire::Service::RC, Operation::ACKNOWLEDGE);
    assert_eq!(rig.hear(&foreign), Response::Unexpected);
    assert_eq!(rig.requester.outstanding(), 1);
    assert_eq!(rig.completions().len(), 2);
}

fn rnr(psn: u32) -> Packet<'static> {
    answer(Operation::ACKNOWLEDGE, psn, Syndrome::Rnr { timer: RnrTimer(12) }, &[])
}

#[test]
fn rnr_waits_and_sends_all_that_follows_again() {
    // contract rocev2 7.21
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.send(wr_id);
    }
    rig.flush();
    rig.hear(&rnr(101));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    // What else comes of the same burst is tolerated (contract rocev2 7.10).
    rig.hear(&nak(101, NakCode::PSN_SEQUENCE));
    rig.hear(&rnr(101));
    assert_eq!(rig.wait(), 640_000);
    assert_eq!(rig.psns(), [101, 102]);
}

#[test]
fn rnr_retries_are_counted_and_seven_is_for_ever() {
    let mut rig = Rig::new();
    rig.send(1);
    for _ in 0..2 {
        assert_eq!(rig.psns(), [100]);
        rig.hear(&rnr(100));
        rig.wait();
    }
    assert_eq!(rig.psns(), [100]);
    rig.hear(&rnr(100));
    assert_eq!(rig.completions(), [(1, S::RnrRetryExceeded)]);

    let mut rig = Rig::with(&QpAttributes { rnr_retry: 7, ..attributes(QpType::XrcIni) }, Tuning::default());
    rig.send(1);
    for _ in 0..100 {
        assert_eq!(rig.psns(), [100]);
        rig.hear(&rnr(100));
        rig.wait();
    }
    rig.flush();
    rig.hear(&ack(100));
    assert_eq!(rig.completions(), [(1, S::Success)]);
}

#[test]
fn fatal_naks_end_in_their_status() {
    // contract rocev2 6.2
    let statuses = [
        (NakCode::INVALID_REQUEST, S::RemoteInvalidRequest),
        (NakCode::REMOTE_ACCESS, S::RemoteAccessError),
        (NakCode::REMOTE_OPERATIONAL, S::RemoteOperationError),
        (NakCode::INVALID_RD_REQUEST, S::RemoteInvalidRdRequest),
        (NakCode(9), S::RemoteOperationError),
    ];
    for (code, status) in statuses {
        let mut rig = Rig::new();
        for wr_id in 1..=3 {
            rig.send(wr_id);
        }
        rig.flush();
        rig.hear(&nak(101, code));
        assert_eq!(rig.completions(), [(1, S::Success), (2, status), (3, S::WorkRequestFlushed)]);
        assert_eq!(rig.events(), [RequesterEvent::Failed(status)]);
        assert_eq!(rig.hear(&ack(102)), Response::Unexpected);
    }
}

#[test]
fn a_refusal_behind_a_lost_read_answer_names_the_refused() {
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0)), 1);
    rig.send(2);
    rig.flush();
    rig.hear(&nak(101, NakCode::REMOTE_ACCESS));
    assert_eq!(rig.completions(), [(1, S::WorkRequestFlushed), (2, S::RemoteAccessError)]);
}

fn response(operation: Operation, psn: u32, payload: &[u8]) -> Packet<'_> {
    answer(operation, psn, Syndrome::ACK, payload)
}

#[test]
fn a_read_restarts_at_the_first_missing_response() {
    // contract rocev2 7.24, 7.18
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 4 * MTU);
    let sent = rig.flush();
    assert_eq!((sent.len(), sent[0].psn), (1, 100));
    let bytes = |value| [value; MTU as usize];
    rig.hear(&response(Operation::READ_RESPONSE_FIRST, 100, &bytes(1)));
    // 101 is lost.
    assert_eq!(rig.hear(&response(Operation::READ_RESPONSE_MIDDLE, 102, &bytes(3))), Response::Progress);
    rig.hear(&response(Operation::READ_RESPONSE_LAST, 103, &bytes(4)));
    let again = rig.flush();
    assert_eq!(again.len(), 1);
    let reth = again[0].reth.expect("a READ");
    assert_eq!((again[0].psn, reth.address.0, reth.length), (101, 0x4000 + 256, 3 * MTU));
    rig.hear(&response(Operation::READ_RESPONSE_FIRST, 101, &bytes(2)));
    assert_eq!(rig.hear(&response(Operation::READ_RESPONSE_FIRST, 100, &bytes(9))), Response::Stale);
    rig.hear(&response(Operation::READ_RESPONSE_MIDDLE, 102, &bytes(3)));
    rig.hear(&response(Operation::READ_RESPONSE_LAST, 103, &bytes(4)));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    for (part, value) in (1..=4).enumerate() {
        assert!(rig.ram.0[1000 + part * 256..][..256].iter().all(|byte| *byte == value), "part {part}");
    }
}

#[test]
fn an_acknowledgement_beyond_a_read_shows_its_answer_lost() {
    // contract rocev2 7.18
    let mut rig = Rig::new();
    rig.send(1);
    rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
    rig.send(3);
    rig.flush();
    rig.hear(&ack(102));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [101, 102]);
    // More such answers from the same burst do not cost a retry each.
    for _ in 0..10 {
        rig.hear(&ack(102));
    }
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 101, b"abc"));
    rig.hear(&ack(102));
    assert_eq!(rig.completions(), [(2, S::Success), (3, S::Success)]);
    assert_eq!(rig.requester.counters().implied_losses, 11);
}

#[test]
fn a_read_answer_acknowledges_what_came_before() {
    let mut rig = Rig::new();
    rig.send(1);
    rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
    rig.flush();
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 101, b"abc"));
    assert_eq!(rig.completions(), [(1, S::Success), (2, S::Success)]);
}

#[test]
fn answers_of_the_wrong_kind_are_fatal() {
    // contract rocev2 7.27
    let wrong: [&dyn Fn() -> Packet<'static>; 4] = [
        &|| response(Operation::READ_RESPONSE_ONLY, 100, b"abc"),
        &|| response(Operation::READ_RESPONSE_ONLY, 101, b"toolong"),
        &|| response(Operation::READ_RESPONSE_LAST, 101, b""),
        &|| {
            let mut packet = response(Operation::ATOMIC_ACKNOWLEDGE, 101, b"");
            packet.atomic_ack = Some(1);
            packet
        },
    ];
    for make in wrong {
        let mut rig = Rig::new();
        rig.send(1);
        rig.post(2, SendOperation::RdmaRead(remote(0)), 3);
        rig.flush();
        assert_eq!(rig.hear(&make()), Response::Unexpected);
        assert!(rig.completions().iter().any(|(_, status)| *status == S::BadResponse));
        assert_eq!(rig.requester.state(), QpState::Error);
    }
}

#[test]
fn atomics_bring_the_old_value_in_host_order() {
    let mut rig = Rig::new();
    rig.try_post(
        1,
        SendOperation::FetchAdd { remote: remote(8), add: 1 },
        &[sge(1000, 3), sge(2000, 5)],
        SendFlags::SIGNALED,
    )
    .expect("room");
    assert_eq!(rig.flush()[0].operation, Operation::FETCH_ADD);
    let mut packet = response(Operation::ATOMIC_ACKNOWLEDGE, 100, b"");
    packet.atomic_ack = Some(0x0102_0304_0506_0708);
    rig.hear(&packet);
    let mut bytes = rig.ram.0[1000..1003].to_vec();
    bytes.extend_from_slice(&rig.ram.0[2000..2005]);
    assert_eq!(bytes, 0x0102_0304_0506_0708_u64.to_ne_bytes());
    let completion = rig.requester.poll_completion().expect("signalled");
    assert_eq!((completion.opcode, completion.byte_length), (CompletionOpcode::FetchAdd, 8));
}

#[test]
fn reads_wait_for_their_turn() {
    // contract rocev2 7.17
    let mut rig = Rig::new();
    for wr_id in 1..=3 {
        rig.post(wr_id, SendOperation::RdmaRead(remote(0)), 1);
    }
    rig.send(4);
    assert_eq!(rig.psns(), [100, 101]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 100, b"x"));
    assert_eq!(rig.psns(), [102, 103]);
}

#[test]
fn a_fence_waits_for_reads() {
    // contract rocev2 7.17
    let mut rig = Rig::new();
    rig.post(1, SendOperation::RdmaRead(remote(0)), 1);
    rig.send(2);
    rig.try_post(3, SendOperation::Send, &[], SendFlags::FENCE).expect("room");
    assert_eq!(rig.psns(), [100, 101]);
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 100, b"x"));
    assert_eq!(rig.psns(), [102]);
}

#[test]
fn the_window_bounds_what_is_unacknowledged() {
    // contract rocev2 7.16
    let tuning = Tuning { window: 8, ack_every: 3, ..Tuning::default() };
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::Send, 20 * MTU);
    let sent = rig.flush();
    let asking: Vec<_> = sent.iter().filter(|sent| sent.ack_request).map(|sent| sent.psn).collect();
    assert_eq!((sent.len(), asking), (8, vec![102, 105, 107]));
    rig.hear(&ack(102));
    assert_eq!(rig.psns(), [108, 109, 110]);
    // The PSNs of a READ's answer are not packets of the window.
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::RdmaRead(remote(0)), 50 * MTU);
    rig.send(2);
    assert_eq!(rig.psns(), [100, 150]);
}

/// Pieces of four packets, eight packets under way.
fn in_pieces(max_rd_atomic: u8) -> Rig {
    let tuning = Tuning { read_piece: 4, read_window: 8, ..Tuning::default() };
    Rig::with(&QpAttributes { max_rd_atomic, ..attributes(QpType::XrcIni) }, tuning)
}

#[test]
fn a_long_read_is_asked_for_in_pieces() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 14 * MTU - 1);
    assert_eq!(rig.reads(), [(100, 0, 4), (104, 4 * 256, 4)]);
    rig.hear_piece(100, 100..103, 104);
    // One is missing, and the window is full but for three.
    assert_eq!(rig.reads(), []);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), [(108, 8 * 256, 4)]);
    rig.hear_piece(104, 104..108, 108);
    // The last piece has two packets, so room is found for it earlier.
    rig.hear_piece(108, 108..110, 112);
    assert_eq!(rig.reads(), [(112, 12 * 256, 2)]);
    rig.hear_piece(108, 110..112, 112);
    assert_eq!(rig.completions(), []);
    rig.hear(&response(Operation::READ_RESPONSE_FIRST, 112, &[112; 256]));
    rig.hear(&response(Operation::READ_RESPONSE_LAST, 113, &[113; 255]));
    assert_eq!(rig.completions(), [(1, S::Success)]);
    for psn in 0..13 {
        assert_eq!(rig.ram.0[1000 + psn * 256], u8::try_from(100 + psn).expect("a byte"));
    }
    assert_eq!(rig.requester.counters().retransmits, 0);
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn a_piece_restarts_up_to_its_own_end() {
    // contract rocev2 7.24: what the peer kept are the pieces, not the whole.
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
    assert_eq!(rig.reads(), [(100, 0, 4), (104, 4 * 256, 4)]);
    rig.hear_piece(100, 100..102, 104);
    // 102 is lost.
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), [(102, 2 * 256, 2), (104, 4 * 256, 4)]);
    rig.hear_piece(102, 102..104, 104);
    assert_eq!(rig.reads(), [(108, 8 * 256, 4)]);
    // The last of a piece alone, and then a whole piece.
    rig.hear_piece(104, 104..107, 108);
    rig.hear_piece(108, 108..109, 112);
    assert_eq!(rig.reads(), [(107, 7 * 256, 1), (108, 8 * 256, 4)]);
    rig.hear_piece(107, 107..108, 108);
    rig.hear_piece(108, 108..112, 112);
    assert_eq!(rig.completions(), [(1, S::Success)]);
}

#[test]
fn a_probe_asks_for_the_rest_of_a_piece() {
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
    rig.flush();
    rig.hear_piece(100, 100..101, 104);
    rig.wait();
    assert_eq!(rig.reads(), [(101, 256, 3)]);
    // The answers were late, not lost: what follows is not asked for again.
    rig.hear_piece(100, 101..103, 104);
    assert_eq!(rig.reads(), []);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.reads(), [(108, 8 * 256, 4)]);
}

#[test]
fn a_response_that_ends_a_piece_elsewhere_is_fatal() {
    // contract rocev2 7.27
    for (operation, psn) in [(Operation::READ_RESPONSE_LAST, 102), (Operation::READ_RESPONSE_MIDDLE, 103)] {
        let mut rig = in_pieces(16);
        rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 12 * MTU);
        rig.flush();
        rig.hear_piece(100, 100..psn, 104);
        assert_eq!(rig.hear(&response(operation, psn, &[0; 256])), Response::Unexpected);
        assert_eq!(rig.completions(), [(1, S::BadResponse)]);
    }
}

#[test]
fn each_piece_is_one_of_max_rd_atomic() {
    let mut rig = in_pieces(1);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    rig.post(2, SendOperation::RdmaRead(remote(0x4000)), 1);
    assert_eq!(rig.psns(), [100]);
    rig.hear_piece(100, 100..103, 104);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.psns(), [104]);
    rig.hear_piece(104, 104..108, 108);
    assert_eq!(rig.completions(), [(1, S::Success)]);
    assert_eq!(rig.psns(), [108]);
}

#[test]
fn a_piece_longer_than_the_window_goes_alone() {
    let tuning = Tuning { read_piece: 4, read_window: 2, ..Tuning::default() };
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    assert_eq!(rig.psns(), [100]);
    rig.hear_piece(100, 100..103, 104);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear_piece(100, 103..104, 104);
    assert_eq!(rig.psns(), [104]);
}

#[test]
fn a_read_that_was_begun_is_finished_before_sqd() {
    let mut rig = in_pieces(1);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    rig.flush();
    rig.requester
        .modify(&QpAttributes { max_rd_atomic: 1, ..in_state(QpType::XrcIni, QpState::SendQueueDrained) });
    rig.hear_piece(100, 100..104, 104);
    assert_eq!(rig.events(), []);
    assert_eq!(rig.psns(), [104]);
    rig.hear_piece(104, 104..108, 108);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    assert_eq!(rig.events(), [RequesterEvent::Drained]);
}

#[test]
fn credits_count_pieces_as_the_peer_does() {
    // contract rocev2 6.6: the peer's MSN grows with each READ request.
    let mut rig = in_pieces(16);
    rig.post(1, SendOperation::RdmaRead(remote(0x4000)), 8 * MTU);
    rig.flush();
    for wr_id in 2..=4 {
        rig.send(wr_id);
    }
    rig.hear_piece(100, 100..107, 104);
    let mut last = response(Operation::READ_RESPONSE_LAST, 107, &[0; 256]);
    last.aeth = Some(Aeth::new(Syndrome::Ack { credits: CreditCode(1) }, 2));
    rig.requester.handle_response(rig.now, &last, &mut rig.ram);
    // Message 3 is promised; the others wait for its acknowledgement.
    assert_eq!(rig.psns(), [108]);
}

#[test]
fn credits_hold_back_all_but_a_probe() {
    // contract rocev2 6.6
    let mut rig = Rig::new();
    for wr_id in 1..=2 {
        rig.send(wr_id);
    }
    rig.flush();
    let grant = |psn, msn, code| {
        let mut packet = ack(psn);
        packet.aeth = Some(Aeth::new(Syndrome::Ack { credits: CreditCode(code) }, msn));
        packet
    };
    for wr_id in 3..=6 {
        rig.send(wr_id);
    }
    rig.hear(&grant(101, 2, 1));
    // One is promised, one is not.
    assert_eq!(rig.psns(), [102]);
    rig.hear(&grant(102, 3, 0));
    assert_eq!(rig.psns(), [103]);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear(&ack(103));
    assert_eq!(rig.psns(), [104, 105]);
}

#[test]
fn draining_finishes_what_was_begun() {
    let mut rig = Rig::with(&attributes(QpType::XrcIni), Tuning { window: 2, ..Tuning::default() });
    rig.post(1, SendOperation::Send, 3 * MTU);
    rig.send(2);
    assert_eq!(rig.psns(), [100, 101]);
    rig.requester.modify(&in_state(QpType::XrcIni, QpState::SendQueueDrained));
    rig.hear(&ack(101));
    assert_eq!(rig.events(), []);
    assert_eq!(rig.psns(), [102]);
    rig.hear(&ack(102));
    assert_eq!(rig.psns(), [] as [u32; 0]);
    assert_eq!(rig.events(), [RequesterEvent::Drained]);
    rig.send(3);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.requester.modify(&attributes(QpType::XrcIni));
    assert_eq!(rig.psns(), [103, 104]);
}

#[test]
fn error_flushes_and_reset_forgets() {
    let mut rig = Rig::new();
    rig.try_post(1, SendOperation::Send, &[], SendFlags::empty()).expect("room");
    rig.send(2);
    rig.flush();
    rig.requester.modify(&in_state(QpType::XrcIni, QpState::Error));
    assert_eq!(rig.completions(), [(1, S::WorkRequestFlushed), (2, S::WorkRequestFlushed)]);
    assert_eq!(rig.events(), []);
    let mut rig = Rig::new();
    rig.send(1);
    rig.flush();
    rig.requester.modify(&in_state(QpType::XrcIni, QpState::Reset));
    assert_eq!(rig.completions(), []);
    assert_eq!(rig.requester.outstanding(), 0);
    assert_eq!(rig.requester.next_timeout(), None);
}

#[test]
fn a_bad_local_key_fails_in_its_turn() {
    let mut rig = Rig::new();
    rig.send(1);
    let bad = Sge { lkey: BAD_LKEY, ..sge(0, 1) };
    rig.try_post(2, SendOperation::Send, &[bad], SendFlags::empty()).expect("room");
    rig.send(3);
    assert_eq!(rig.psns(), [100]);
    assert_eq!(rig.completions(), []);
    rig.hear(&ack(100));
    assert_eq!(
        rig.completions(),
        [(1, S::Success), (2, S::LocalProtectionError), (3, S::WorkRequestFlushed)]
    );
    let mut rig = Rig::new();
    rig.try_post(1, SendOperation::RdmaRead(remote(0)), &[bad], SendFlags::empty()).expect("room");
    rig.flush();
    rig.hear(&response(Operation::READ_RESPONSE_ONLY, 100, b"x"));
    assert_eq!(rig.completions(), [(1, S::LocalProtectionError)]);
}

#[test]
fn psns_wrap() {
    let mut rig = Rig::with(
        &QpAttributes { sq_psn: Psn::new(0xff_ffff), ..attributes(QpType::XrcIni) },
        Tuning::default(),
    );
    rig.send(1);
    rig.post(2, SendOperation::RdmaRead(remote(0)), 2 * MTU);
    rig.send(3);
    assert_eq!(rig.psns(), [0xff_ffff, 0, 2]);
    rig.hear(&ack(0xff_ffff));
    assert_eq!(rig.completions(), [(1, S::Success)]);
}

proptest! {
    /// Whatever a hostile peer answers: no panic, and every request ends at most once, in order.
    #[test]
    fn no_answers_make_it_panic(
        answers in proptest::collection::vec((0x0d_u8..0x13, 95_u32..130, any::<u8>(), 0_usize..300, 0_u64..3), 1..60),
    ) {
        let mut rig = Rig::new();
        for wr_id in 0..8 {
            let operation = match wr_id % 4 {
                0 => SendOperation::Send,
                1 => SendOperation::RdmaRead(remote(0)),
                2 => SendOperation::RdmaWrite(remote(0)),
                _ => SendOperation::FetchAdd { remote: remote(0), add: 1 },
            };
            rig.post(wr_id, operation, if wr_id % 4 == 3 { 8 } else { 300 });
        }
        let mut next = 0;
        for (operation, psn, syndrome, length, pause_ms) in answers {
            rig.flush();
            let payload = vec![0; length];
            let mut packet = answer(Operation(operation), psn, Syndrome::new(syndrome), &payload);
            packet.atomic_ack = Some(1);
            rig.hear(&packet);
            rig.now = rig.now.plus_ns(pause_ms * MS);
            rig.requester.handle_timeout(rig.now);
            for (wr_id, _) in rig.completions() {
                prop_assert_eq!(wr_id, next);
                next += 1;
            }
        }
        prop_assert_eq!(next + rig.requester.outstanding() as u64, 8);
    }
}
