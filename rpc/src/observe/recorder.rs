//! A poller's part of the node's flight record, which contains the last sampled calls and the last failures.
//!
//! Only the poller writes its rings. It stores an event as a few relaxed words between two changes of the slot's sequence
//! number, without locks or allocations. A reader skips an event that is being replaced. Sampled calls and failures have
//! separate rings, because at a million calls per second a ring covers only a few milliseconds of samples.

use crate::observe::counted::{CODES, CallFailure, CountedMethods, MethodCounters};
use crate::status::reason::Reason;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;
use trunkline_transport::{EventKind, PeerKey, RecordedEvent};
use trunkline_verbs::{Clock, Time};

/// Number of events in each of a poller's two rings.
const EVENTS: usize = 512;
/// Size of an event, in words.
const WORDS: usize = 6;
/// Value for an unknown latency.
const NO_LATENCY: u64 = u64::MAX;
/// Sequence number of a slot that is empty or being written.
const UNREADABLE: u64 = 0;

/// A slot for one event.
#[derive(Debug)]
struct Slot {
    /// Number of the event in its ring, starting at 1.
    sequence: AtomicU64,
    words: [AtomicU64; WORDS],
}

/// The last events written by one thread.
#[derive(Debug)]
struct Ring {
    slots: Box<[Slot]>,
    /// Number of events written. Only the writer accesses it.
    written: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        let slot =
            |_| Slot { sequence: AtomicU64::new(UNREADABLE), words: [const { AtomicU64::new(0) }; WORDS] };
        Self { slots: (0..EVENTS).map(slot).collect(), written: AtomicU64::new(0) }
    }

    /// Adds an event. Only one thread may call this.
    fn push(&self, words: [u64; WORDS]) {
        let number = self.written.load(Ordering::Relaxed).wrapping_add(1);
        self.written.store(number, Ordering::Relaxed);
        let Some(slot) = usize::try_from(number).ok().and_then(|number| self.slots.get(number % EVENTS))
        else {
            return;
        };
        slot.sequence.store(UNREADABLE, Ordering::Relaxed);
        // SYNC: recorded-event. A reader that sees a new word also sees that the slot is unreadable, or a later number.
        fence(Ordering::Release);
        slot.words.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        slot.sequence.store(number, Ordering::Release);
    }

    /// Returns the events, except those that are being written.
    fn read(&self) -> impl Iterator<Item = [u64; WORDS]> + '_ {
        self.slots.iter().filter_map(|slot| {
            let before = slot.sequence.load(Ordering::Acquire);
            let words = slot.words.each_ref().map(|word| word.load(Ordering::Relaxed));
            // SYNC: recorded-event. The words are read before the number is read again.
            fence(Ordering::Acquire);
            let after = slot.sequence.load(Ordering::Relaxed);
            (before == after && before != UNREADABLE).then_some(words)
        })
    }
}

/// The rings of one poller.
#[derive(Debug)]
pub(crate) struct Recorder {
    calls: Ring,
    failures: Ring,
    clock: Clock,
}

impl Recorder {
    /// Memory of a recorder, in bytes.
    pub(crate) const BYTES: usize = 2 * EVENTS * size_of::<Slot>();

    pub(crate) fn new(clock: Clock) -> Self {
        Self { calls: Ring::new(), failures: Ring::new(), clock }
    }

    /// Records a call that has ended.
    #[cold]
    #[inline(never)]
    pub(crate) fn call(&self, method: &MethodCounters, peer: PeerKey, ns: u64) {
        self.calls.push(self.words(EventKind::Call, method, peer, CallFailure::ERROR, ns));
    }

    /// Records the failure of a call, with the latency if it is known.
    #[cold]
    #[inline(never)]
    pub(crate) fn failed(
        &self,
        method: &MethodCounters,
        peer: PeerKey,
        failure: CallFailure,
        ns: Option<u64>,
    ) {
        let ns = ns.unwrap_or(NO_LATENCY);
        self.failures.push(self.words(EventKind::CallFailed, method, peer, failure, ns));
    }

    /// Records the failure of a call that did not begin.
    #[cold]
    #[inline(never)]
    pub(crate) fn refused(&self, method: &MethodCounters, peer: PeerKey, failure: CallFailure) {
        self.failures.push(self.words(EventKind::CallRefused, method, peer, failure, NO_LATENCY));
    }

    fn words(
        &self,
        kind: EventKind,
        method: &MethodCounters,
        peer: PeerKey,
        failure: CallFailure,
        ns: u64,
    ) -> [u64; WORDS] {
        let address = peer.address();
        let ip = match address.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let half = |bits: u128| u64::try_from(bits & u128::from(u64::MAX)).unwrap_or_default();
        let (high, low) = (half(ip.to_bits() >> 64), half(ip.to_bits()));
        let kind = match kind {
            EventKind::Call => 0,
            EventKind::CallFailed => 1,
            _ => 2,
        };
        let udp_port = peer.udp_port().unwrap_or(0);
        let [port, udp_port, code, reason] =
            [address.port(), udp_port, failure.code.into(), failure.reason.into()].map(u64::from);
        let what = kind | code << 8 | reason << 16 | port << 32 | udp_port << 48;
        [self.clock.now().0, what, u64::from(method.number()), high, low, ns]
    }

    /// Returns the events of this poller without calendar time. `methods` provides the names of the methods.
    pub(crate) fn events(&self, methods: [&CountedMethods; 2], poller: u16) -> Vec<RecordedEvent> {
        let words = self.calls.read().chain(self.failures.read());
        words.map(|words| event(words, methods, poller)).collect()
    }
}

#[allow(clippy::cast_possible_truncation, reason = "parts of words")]
fn event(
    [at, what, method, high, low, ns]: [u64; WORDS],
    methods: [&CountedMethods; 2],
    poller: u16,
) -> RecordedEvent {
    let kind = match what as u8 {
        0 => EventKind::Call,
        1 => EventKind::CallFailed,
        _ => EventKind::CallRefused,
    };
    let ip = Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).to_canonical();
    let number = method as u32;
    let named = methods.into_iter().find_map(|methods| methods.name_of(number));
    let (side, service, method) = named.unwrap_or_default();
    let mut event = RecordedEvent::new(kind, Time(at));
    event.poller = Some(poller);
    event.side = side.to_owned();
    event.method = if service.is_empty() { method.to_owned() } else { format!("{service}.{method}") };
    let address = SocketAddr::new(ip, (what >> 32) as u16);
    event.peer = Some(PeerKey::new(address).with_udp_port(Some((what >> 48) as u16)));
    event.took = Some(ns).filter(|ns| *ns != NO_LATENCY).map(Duration::from_nanos);
    if kind != EventKind::Call {
        let code = CODES.get(usize::from((what >> 8) as u8));
        event.code = code.copied().unwrap_or_default().to_owned();
        let reason = Reason::from_number((what >> 16) as u8);
        event.cause = reason.map(|reason| format!("{reason:?}")).unwrap_or_default();
    }
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{Code, Status};
    use std::sync::atomic::AtomicBool;

    fn peer(text: &str) -> PeerKey {
        text.parse().unwrap()
    }

    #[test]
    fn events_keep_method_peer_code_and_reason_beside_many_calls() {
        let methods = ["server", "client"].map(CountedMethods::new);
        let [served, called] = methods.each_ref().map(CountedMethods::add_others);
        let own = Recorder::new(Clock::monotonic());
        own.failed(&called, peer("[fd00::7]:7000/4792"), CallFailure::from(&Status::aborted("no")), Some(7));
        own.failed(&served, peer("10.0.0.7:1"), CallFailure::ERROR, None);
        own.refused(
            &served,
            peer("10.0.0.7:65535"),
            CallFailure::because(Code::Unavailable, Reason::Overloaded),
        );
        (0..3 * EVENTS as u64).for_each(|ns| own.call(&called, peer("10.0.0.7:1"), ns));
        let events = own.events(methods.each_ref(), 3);
        let (calls, failures): (Vec<_>, Vec<_>) =
            events.into_iter().partition(|event| event.kind == EventKind::Call);
        let texts: Vec<_> = failures.iter().map(ToString::to_string).collect();
        let expected = [
            "call failed, poller 3, client, _OTHER, peer [fd00::7]:7000/4792, 7.0ns, ABORTED",
            "call failed, poller 3, server, _OTHER, peer 10.0.0.7:1, ERROR",
            "call refused, poller 3, server, _OTHER, peer 10.0.0.7:65535, UNAVAILABLE, Overloaded",
        ];
        assert_eq!(texts, expected);
        let latencies = calls.iter().map(|call| call.took.unwrap().as_nanos() as usize);
        let mut latencies: Vec<_> = latencies.collect();
        latencies.sort_unstable();
        assert_eq!(latencies, (2 * EVENTS..3 * EVENTS).collect::<Vec<_>>(), "the newest are kept");
    }

    #[test]
    fn unfinished_event_is_skipped() {
        let ring = Ring::new();
        (1..=3).for_each(|number| ring.push([number; WORDS]));
        ring.slots[2].sequence.store(UNREADABLE, Ordering::Relaxed);
        assert_eq!(ring.read().collect::<Vec<_>>(), [[1; WORDS], [3; WORDS]]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a reader beside the writer")]
    fn reader_sees_no_torn_event() {
        let (ring, is_over) = (Ring::new(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut rounds = 0;
                while !is_over.load(Ordering::Relaxed) || rounds == 0 {
                    for words in ring.read() {
                        assert!(words.iter().all(|word| *word == words[0]), "{words:?}");
                    }
                    rounds += 1;
                }
            });
            (0..1_000_000).for_each(|number| ring.push([number; WORDS]));
            is_over.store(true, Ordering::Relaxed);
            reader.join().unwrap();
        });
        assert_eq!(ring.read().count(), EVENTS);
    }
}
