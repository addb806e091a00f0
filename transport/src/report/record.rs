//! The flight record of a node, which contains its last events, for `Node::record` and `trunkctl record`.
//!
//! Calls are too frequent to record without sampling, so the layer above keeps a ring of sampled calls per poller.
//! This record contains the node's other events, such as sessions, drains, held pollers and changes of the device.
//! They are as rare as log lines, and are recorded by the CM machine and by threads of the program, never by a
//! poller. Memory is fixed, so a new event replaces the oldest one.
#![forbid(unsafe_code)]

use super::status::{clean, clean_to};
use crate::{PeerDown, PeerKey};
use std::collections::VecDeque;
use std::fmt::{self, Write as _};
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use trunkline_softrdma::device::MAX_NODE_BYTES;
use trunkline_verbs::{Clock, Time};

/// The first line.
const MAGIC: &str = "trunkline-record 1";
/// Maximum number of events in each list. The first list is for the node's own events, the second for sessions, which
/// peers can begin and end at any rate. The third is for requests refused after the peer proved its address. The last
/// is for requests refused before such a proof, since their addresses may be forged.
const LISTS: [usize; 4] = [128, 512, 96, 32];
/// Maximum length of a cause, in bytes.
const LONGEST_CAUSE: usize = 1024;

/// Kind of a recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A sampled call, one in 64 finished calls of a method. Its failure is a separate event.
    Call,
    /// A call that failed.
    CallFailed,
    /// A call that ended before its handler started or its request was sent.
    CallRefused,
    /// A session that came up.
    SessionUp,
    /// A session that ended.
    SessionDown,
    /// A failed attempt to open a session.
    SessionNotMade,
    /// A peer's request for a session that this node refused.
    SessionRefused,
    /// The beginning of a drain.
    Drain,
    /// The removal of the device.
    DeviceRemoved,
    /// The return of the device.
    DeviceBack,
    /// A poller that a handler or task has occupied for longer than `hold_limit`.
    PollerHeld,
}

impl EventKind {
    const ALL: [Self; 11] = [
        Self::Call,
        Self::CallFailed,
        Self::CallRefused,
        Self::SessionUp,
        Self::SessionDown,
        Self::SessionNotMade,
        Self::SessionRefused,
        Self::Drain,
        Self::DeviceRemoved,
        Self::DeviceBack,
        Self::PollerHeld,
    ];

    /// Returns the name, such as `session down`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::CallFailed => "call failed",
            Self::CallRefused => "call refused",
            Self::SessionUp => "session up",
            Self::SessionDown => "session down",
            Self::SessionNotMade => "session not established",
            Self::SessionRefused => "session refused",
            Self::Drain => "drain",
            Self::DeviceRemoved => "device removed",
            Self::DeviceBack => "device back",
            Self::PollerHeld => "poller held",
        }
    }

    fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Returns the index in [`LISTS`]; for refused requests, the first of their two lists.
    fn list(self) -> usize {
        match self {
            Self::SessionUp | Self::SessionDown | Self::SessionNotMade => 1,
            Self::SessionRefused => 2,
            _ => 0,
        }
    }

    /// Returns the kind's rank. When the record is full, events of higher ranks are removed first.
    fn rank(self) -> u8 {
        match self {
            Self::Call => 3,
            Self::CallFailed | Self::CallRefused | Self::SessionRefused => 2,
            Self::SessionUp | Self::SessionDown | Self::SessionNotMade => 1,
            _ => 0,
        }
    }
}

/// An event in the record of a node. Texts are empty and values `None` where they do not apply.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedEvent {
    /// Time by the node's clock, in nanoseconds.
    pub at_ns: u64,
    /// Calendar time, computed from the clocks when the record is read.
    pub time: SystemTime,
    /// Poller of a call, or the held poller.
    pub poller: Option<u16>,
    /// Kind of the event.
    pub kind: EventKind,
    /// Role of this node in a call: `server` or `client`.
    pub side: String,
    /// Method of a call, such as `shop.Orders.get`, or `_OTHER` if this node does not serve it. For a held
    /// poller, the code that holds it.
    pub method: String,
    /// Address of the peer, with the UDP port of its device if that is not this node's.
    pub peer: Option<PeerKey>,
    /// Code of a failed call, such as `UNAVAILABLE`; `ERROR` for an error of the method's own type.
    pub code: String,
    /// Latency of a call, or the time for which a poller has been held.
    pub took: Option<Duration>,
    /// Reason for a failed call, or cause of another event.
    pub cause: String,
}

impl RecordedEvent {
    /// Creates an event. [`Self::in_order`] sets its calendar time.
    #[doc(hidden)]
    #[must_use]
    pub fn new(kind: EventKind, at: Time) -> Self {
        Self {
            at_ns: at.0,
            time: SystemTime::UNIX_EPOCH,
            poller: None,
            kind,
            side: String::new(),
            method: String::new(),
            peer: None,
            code: String::new(),
            took: None,
            cause: String::new(),
        }
    }

    /// Sorts events by time, and sets their calendar time.
    #[doc(hidden)]
    pub fn in_order(events: &mut [Self], clock: &Clock) {
        let now = clock.now();
        let calendar = calendar(clock, now);
        events.sort_by_key(|event| event.at_ns);
        events.iter_mut().for_each(|event| event.date(calendar, now.0));
    }

    /// Sets the calendar time, from simultaneous readings of both clocks.
    fn date(&mut self, calendar: SystemTime, now_ns: u64) {
        let ago = Duration::from_nanos(now_ns.saturating_sub(self.at_ns));
        self.time = calendar.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH);
    }

    fn to_line(&self) -> String {
        let Self { at_ns, time: _, poller, kind, side, method, peer, code, took, cause } = self;
        let or_none = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
        let poller = or_none(poller.map(|poller| poller.to_string()));
        let peer = or_none(peer.map(|peer| peer.to_string()));
        let took = or_none(took.map(|took| took.as_nanos().to_string()));
        let (side, method, code) = (clean(side), clean(method), clean(code));
        let (kind, cause) = (kind.name(), clean_to(LONGEST_CAUSE, cause));
        format!("event\t{at_ns}\t{poller}\t{kind}\t{side}\t{method}\t{peer}\t{code}\t{took}\t{cause}\n")
    }

    fn parse(fields: &[&str]) -> Option<Self> {
        let ["event", at_ns, poller, kind, side, method, peer, code, took, cause] = *fields else {
            return None;
        };
        let some = |text: &str| Some(text.to_owned()).filter(|text| text != "-");
        let took = some(took).map(|took| took.parse()).transpose().ok()?;
        Some(Self {
            poller: some(poller).map(|poller| poller.parse()).transpose().ok()?,
            side: clean(side),
            method: clean(method),
            peer: some(peer).map(|peer| peer.parse()).transpose().ok()?,
            code: clean(code),
            took: took.map(Duration::from_nanos),
            cause: clean_to(LONGEST_CAUSE, cause),
            ..Self::new(EventKind::parse(kind)?, Time(at_ns.parse().ok()?))
        })
    }
}

/// Displays the event without its time, in one line.
impl fmt::Display for RecordedEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at_ns: _, time: _, poller, kind, side, method, peer, code, took, cause } = self;
        f.write_str(kind.name())?;
        if let Some(poller) = poller {
            write!(f, ", poller {poller}")?;
        }
        for text in [side, method].into_iter().filter(|text| !text.is_empty()) {
            write!(f, ", {text}")?;
        }
        if let Some(peer) = peer {
            write!(f, ", peer {peer}")?;
        }
        // A call that failed before it was sent has no latency.
        if let Some(took) = took.filter(|took| !took.is_zero()) {
            write!(f, ", {took:.1?}")?;
        }
        for text in [code, cause].into_iter().filter(|text| !text.is_empty()) {
            write!(f, ", {text}")?;
        }
        Ok(())
    }
}

/// The record of a running node, as sent to `trunkctl record` through the node's socket.
#[doc(hidden)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Address that the node listens on first.
    pub address: SocketAddr,
    /// Events of the node, sorted by time.
    pub events: Vec<RecordedEvent>,
    /// Number of omitted events.
    pub omitted: usize,
}

impl NodeRecord {
    /// Returns the text form, at most [`MAX_NODE_BYTES`] long. If events do not fit, sampled calls are omitted first,
    /// then failures. Within a kind, the oldest events are omitted first.
    #[must_use]
    pub fn to_text(&self, clock: &Clock) -> String {
        let now = clock.now();
        let since_epoch = calendar(clock, now).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut text =
            format!("{MAGIC}\naddress\t{}\nnow\t{}\t{}\n", self.address, now.0, since_epoch.as_nanos());
        // Reserve 64 bytes for the line with the number of omitted events.
        let mut room = MAX_NODE_BYTES - text.len() - 64;
        let mut by_rank: Vec<_> = self.events.iter().enumerate().collect();
        by_rank.sort_by_key(|(index, event)| (event.kind.rank(), std::cmp::Reverse(*index)));
        let lines = by_rank.into_iter().map(|(index, event)| (index, event.to_line()));
        let mut lines: Vec<_> = lines
            .take_while(|(_, line)| {
                let fits = line.len() <= room;
                room = room.saturating_sub(line.len());
                fits
            })
            .collect();
        lines.sort_unstable_by_key(|(index, _)| *index);
        let omitted = self.omitted + self.events.len() - lines.len();
        lines.iter().for_each(|(_, line)| text += line);
        // Writing to a string does not fail.
        let _written = writeln!(text, "omitted\t{omitted}");
        text
    }

    /// Parses the text form. Returns `None` if it is malformed. Events of unknown kinds are omitted.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        lines.next().filter(|line| *line == MAGIC)?;
        let (mut address, mut now, mut events, mut omitted) = (None, None, Vec::new(), 0);
        for line in lines {
            let fields: Vec<_> = line.split('\t').collect();
            match *fields.as_slice() {
                ["address", text] => address = Some(text.parse().ok()?),
                ["now", node, calendar] => {
                    let since_epoch = Duration::from_nanos(calendar.parse().ok()?);
                    now = Some((node.parse().ok()?, SystemTime::UNIX_EPOCH + since_epoch));
                }
                ["omitted", text] => omitted = text.parse().ok()?,
                ["event", ..] => events.extend(RecordedEvent::parse(&fields)),
                _ => {}
            }
        }
        let (now_ns, calendar) = now?;
        events.iter_mut().for_each(|event| event.date(calendar, now_ns));
        Some(Self { address: address?, events, omitted })
    }
}

/// Cause of an event of the node, converted to text when the record is read.
#[derive(Debug, Clone, Copy)]
enum Cause {
    None,
    Down(PeerDown),
    Text(&'static str),
}

/// An event of the node.
#[derive(Debug, Clone, Copy)]
struct NodeEvent {
    at: Time,
    kind: EventKind,
    peer: Option<PeerKey>,
    cause: Cause,
    held: Option<Held>,
}

/// A poller that a handler or a task has occupied for long.
#[doc(hidden)]
#[derive(Debug, Clone, Copy)]
pub struct Held {
    /// Index of the poller.
    pub poller: u16,
    /// Service and method of the handler; `None` for a task.
    pub by: Option<(&'static str, &'static str)>,
    /// Time for which the handler or task has held the poller.
    pub time: Duration,
}

/// The last events of a node, without calls.
#[doc(hidden)]
#[derive(Debug)]
pub struct NodeEvents {
    events: Mutex<[VecDeque<NodeEvent>; LISTS.len()]>,
    clock: Clock,
}

impl NodeEvents {
    /// Creates the record of a node with this clock. Recording an event does not allocate.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self { events: Mutex::new(LISTS.map(VecDeque::with_capacity)), clock }
    }

    /// Returns the clock of the node.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn lock(&self) -> MutexGuard<'_, [VecDeque<NodeEvent>; LISTS.len()]> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, kind: EventKind, peer: Option<PeerKey>, cause: Cause, held: Option<Held>) {
        let event = NodeEvent { at: self.clock.now(), kind, peer, cause, held };
        self.add_to(kind.list(), event);
    }

    fn add_to(&self, index: usize, event: NodeEvent) {
        let list = &mut self.lock()[index];
        if list.len() >= LISTS[index] {
            list.pop_front();
        }
        list.push_back(event);
    }

    /// Records an event without a peer.
    pub fn note(&self, kind: EventKind) {
        self.add(kind, None, Cause::None, None);
    }

    /// Records a held poller.
    pub fn held(&self, held: Held) {
        self.add(EventKind::PollerHeld, None, Cause::None, Some(held));
    }

    /// Records that a session is up.
    pub(crate) fn up(&self, peer: PeerKey) {
        self.add(EventKind::SessionUp, Some(peer), Cause::None, None);
    }

    /// Records the end of a session, or a failed attempt to open one.
    pub(crate) fn down(&self, kind: EventKind, peer: PeerKey, cause: PeerDown) {
        self.add(kind, Some(peer), Cause::Down(cause), None);
    }

    /// Records the refusal of a peer's request. If `is_proven` is false, the address may be forged.
    pub(crate) fn refused(&self, peer: Option<PeerKey>, cause: &'static str, is_proven: bool) {
        let kind = EventKind::SessionRefused;
        let event = NodeEvent { at: self.clock.now(), kind, peer, cause: Cause::Text(cause), held: None };
        self.add_to(kind.list() + usize::from(!is_proven), event);
    }

    /// Returns the events, without calendar time.
    #[must_use]
    pub fn events(&self) -> Vec<RecordedEvent> {
        let events: Vec<_> = self.lock().iter().flatten().copied().collect();
        let complete = |NodeEvent { at, kind, peer, cause, held }: NodeEvent| {
            let by =
                |Held { by, .. }: Held| by.map_or_else(|| "a task".to_owned(), |(a, b)| format!("{a}.{b}"));
            RecordedEvent {
                poller: held.map(|held| held.poller),
                method: held.map(by).unwrap_or_default(),
                took: held.map(|held| held.time),
                peer,
                cause: match cause {
                    Cause::None => String::new(),
                    Cause::Down(cause) => cause.to_string(),
                    Cause::Text(cause) => cause.to_owned(),
                },
                ..RecordedEvent::new(kind, at)
            }
        };
        events.into_iter().map(complete).collect()
    }
}

/// Converts a time of the clock to calendar time. A simulation's calendar begins with the Unix epoch.
#[expect(clippy::disallowed_methods, reason = "a simulation has its own calendar")]
pub(crate) fn calendar(clock: &Clock, at: Time) -> SystemTime {
    match clock.as_virtual() {
        Some(_) => SystemTime::UNIX_EPOCH + (at - Time(0)),
        None => SystemTime::now() - (clock.now() - at),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kinds: impl IntoIterator<Item = EventKind>) -> NodeRecord {
        let event = |(at_ns, kind)| RecordedEvent {
            poller: Some(1),
            side: "client".into(),
            method: "shop.Orders.get".into(),
            peer: Some("[::1]:7000".parse().unwrap()),
            code: "UNAVAILABLE".into(),
            took: Some(Duration::from_micros(7)),
            cause: "Unreachable".into(),
            ..RecordedEvent::new(kind, Time(at_ns))
        };
        let mut events: Vec<_> = (1..).zip(kinds).map(event).collect();
        events.push(RecordedEvent::new(EventKind::Drain, Time(u64::from(u32::MAX))));
        NodeRecord { address: "127.0.0.1:7000".parse().unwrap(), events, omitted: 3 }
    }

    #[test]
    fn record_text_round_trips_with_calendar_time() {
        let (written, clock) = (record(EventKind::ALL), Clock::monotonic());
        let text = written.to_text(&clock);
        let mut read = NodeRecord::parse(&text).unwrap();
        let passed = |event: &RecordedEvent| event.time.duration_since(read.events[0].time).unwrap();
        assert!(read.events[0].time > SystemTime::UNIX_EPOCH);
        assert_eq!(passed(&read.events[2]), Duration::from_nanos(2));
        read.events.iter_mut().for_each(|event| event.time = SystemTime::UNIX_EPOCH);
        assert_eq!(read, written);
        assert_eq!(NodeRecord::parse(&text.replace("drain", "dance")).unwrap().events.len(), 10);
        for length in 0..text.len() {
            // A truncated text may be parsed in part, or refused. Parsing never panics.
            let _read = NodeRecord::parse(&text[..length]);
        }
    }

    #[test]
    fn omitted_events_are_counted_and_calls_are_omitted_first() {
        let calls = std::iter::repeat_n(EventKind::Call, 4000);
        let failures = std::iter::repeat_n(EventKind::CallFailed, 100);
        let text = record(failures.chain(calls)).to_text(&Clock::monotonic());
        assert!(text.len() <= MAX_NODE_BYTES, "{}", text.len());
        let read = NodeRecord::parse(&text).unwrap();
        let count = |kind| read.events.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count(EventKind::CallFailed), count(EventKind::Drain)), (100, 1));
        assert!(count(EventKind::Call) > 100 && read.omitted + read.events.len() == 4104, "{}", read.omitted);
        let newest = read.events.iter().rev().nth(1).unwrap();
        assert_eq!(newest.at_ns, 4100);
        assert!(read.events.is_sorted_by_key(|event| event.at_ns));
    }

    /// A hostile process of the same user can claim to be a node, and a peer can cause a long text.
    #[test]
    fn record_lines_are_bounded_and_have_no_control_characters() {
        let long = "\u{1b}[2J\u{85}".repeat(1000);
        let event = RecordedEvent { method: long.clone(), cause: long, ..record([]).events.remove(0) };
        let line = event.to_line();
        assert!(line.len() <= 2048 && !line.contains('\u{1b}') && line.ends_with('\n'), "{line}");
        let fields: Vec<_> = line.trim_end().split('\t').collect();
        let mut hostile = fields.clone();
        let text = "\u{1b}[2J\u{85}".repeat(1000);
        hostile[9] = &text;
        for fields in [fields, hostile] {
            let cause = RecordedEvent::parse(&fields).unwrap().cause;
            assert!(cause.starts_with("?[2J??[2J") && cause.ends_with('…'), "{cause}");
            assert_eq!(cause.len(), 1024);
        }
    }

    #[test]
    fn cause_of_at_most_1024_bytes_is_complete() {
        for length in [257, 1024, 1025] {
            let event = RecordedEvent { cause: "x".repeat(length), ..record([]).events.remove(0) };
            let written = NodeRecord { events: vec![event.clone(); 200], ..record([]) };
            let text = written.to_text(&Clock::monotonic());
            assert!(text.len() <= MAX_NODE_BYTES, "{}", text.len());
            let read = NodeRecord::parse(&text).unwrap();
            assert_eq!(read.omitted + read.events.len(), 203);
            assert_eq!(read.events[0].cause == event.cause, length <= 1024, "{}", read.events[0].cause);
        }
    }

    #[test]
    fn events_of_each_origin_replace_only_their_own_list() {
        let events = NodeEvents::new(Clock::monotonic());
        let peer: PeerKey = "10.0.0.7:7000/4792".parse().unwrap();
        events.note(EventKind::Drain);
        events.up(peer);
        events.down(EventKind::SessionDown, peer, PeerDown::Died);
        events.refused(Some(peer), "crowded", true);
        (0..10_000).for_each(|_| events.refused(None, "malformed", false));
        let all = events.events();
        let [own, sessions, _, unproven] = LISTS;
        assert_eq!((all[3].peer, all.len()), (Some(peer), 4 + unproven));
        let refused = 1 + unproven;
        assert_eq!((all[1].kind, all[1].peer), (EventKind::SessionUp, Some(peer)));
        assert!(all[2].cause.contains("stopped answering"), "{}", all[2]);
        (0..10_000).for_each(|_| events.up(peer));
        let all = events.events();
        assert_eq!((all[0].kind, all.len()), (EventKind::Drain, 1 + sessions + refused));
        (0..10_000).for_each(|_| events.note(EventKind::PollerHeld));
        assert_eq!(events.events().len(), own + sessions + refused);
    }
}
