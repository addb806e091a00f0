//! The requester's rules, one per test.

mod asking;
mod gaps;
mod large_packets;
mod reads;
mod retries;

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

/// A sent packet, parsed.
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

    /// Returns a requester without probes, for tests of the nominal timeout.
    fn patient() -> Self {
        Self::with(&attributes(QpType::XrcIni), Tuning { probe_floor_ns: 0, ..Tuning::default() })
    }

    /// Returns a requester with the nominal ACK timeout.
    fn with(attributes: &QpAttributes, tuning: Tuning) -> Self {
        Self::tuned(attributes, Tuning { ack_floor_ns: 0, first_ack_floor_ns: 0, ..tuning })
    }

    fn tuned(attributes: &QpAttributes, tuning: Tuning) -> Self {
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

    /// Posts a request whose completion is not reported.
    fn send_unsignaled(&mut self, wr_id: u64) {
        self.try_post(wr_id, SendOperation::Send, &[sge(1000, 10)], SendFlags::empty()).expect("room");
    }

    /// Returns a requester whose peer has answered up to PSN 100.
    fn answered(tuning: Tuning) -> Self {
        let mut rig = Self::with(&attributes(QpType::XrcIni), tuning);
        rig.send(0);
        rig.flush();
        rig.hear(&ack(100));
        rig.completions();
        rig
    }

    /// Sends everything that may be sent now. Returns the packets that request an acknowledgement.
    fn asking(&mut self) -> Vec<u32> {
        self.flush().into_iter().filter(|sent| sent.ack_request).map(|sent| sent.psn).collect()
    }

    /// Sends everything that may be sent now.
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

    /// Sends everything that may be sent now. Returns the PSN, the offset from 0x4000 and the number of packets of each READ
    /// request.
    fn reads(&mut self) -> Vec<(u32, u64, u32)> {
        let sent = self.flush();
        sent.into_iter()
            .map(|sent| {
                let reth = sent.reth.expect("a READ");
                (sent.psn, reth.address.0 - 0x4000, reth.length.div_ceil(MTU))
            })
            .collect()
    }

    /// Answers the packets `psns` of a READ request that began with PSN `start` and ends before `end`.
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

    /// Advances to the next deadline. Returns the elapsed time.
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

fn response(operation: Operation, psn: u32, payload: &[u8]) -> Packet<'_> {
    answer(operation, psn, Syndrome::ACK, payload)
}

/// Returns a requester with pieces of four packets and a READ window of eight.
fn in_pieces(max_rd_atomic: u8) -> Rig {
    let tuning = Tuning { read_piece: 4, read_window: 8, ..Tuning::default() };
    Rig::with(&QpAttributes { max_rd_atomic, ..attributes(QpType::XrcIni) }, tuning)
}

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
fn impossible_requests_are_refused() {
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
fn window_bounds_unacknowledged_packets() {
    // contract rocev2 7.16
    let tuning = Tuning { window: 8, ack_every: 3, ..Tuning::default() };
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::Send, 20 * MTU);
    let sent = rig.flush();
    let asking: Vec<_> = sent.iter().filter(|sent| sent.ack_request).map(|sent| sent.psn).collect();
    assert_eq!((sent.len(), asking), (8, vec![102, 105, 107]));
    rig.hear(&ack(102));
    assert_eq!(rig.psns(), [108, 109, 110]);
    // The PSNs of a READ's response do not count as packets of the window.
    let mut rig = Rig::with(&attributes(QpType::XrcIni), tuning);
    rig.post(1, SendOperation::RdmaRead(remote(0)), 50 * MTU);
    rig.send(2);
    assert_eq!(rig.psns(), [100, 150]);
}

#[test]
fn credits_count_each_read_piece_as_message() {
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
    // There is credit for message 3; the others wait for its acknowledgement.
    assert_eq!(rig.psns(), [108]);
}

#[test]
fn exhausted_credits_allow_one_unacknowledged_packet() {
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
    // There is credit for one message.
    assert_eq!(rig.psns(), [102]);
    rig.hear(&grant(102, 3, 0));
    assert_eq!(rig.psns(), [103]);
    assert_eq!(rig.psns(), [] as [u32; 0]);
    rig.hear(&ack(103));
    assert_eq!(rig.psns(), [104, 105]);
}

#[test]
fn draining_finishes_started_request() {
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
fn error_flushes_requests_and_reset_discards_requests() {
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
fn invalid_lkey_fails_after_earlier_requests() {
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
fn psns_wrap_at_24_bits() {
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
    /// The requester does not panic on any answers of a hostile peer, and every request ends at most once, in order.
    #[test]
    fn random_answers_do_not_panic(
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
