//! A peer that sends arbitrary frames in any order, including mutations of valid frames, while calls and streams are in
//! flight in both directions.

use super::server::{Arrived, Server, next};
use super::service::{ECHO, FEED, GATHER, HANG, METHODS, TALK};
use super::{Frame, poll};
use crate::call::{Call, Opened, StreamWait, outgoing};
use crate::client::CallOptions;
use crate::stream::{ItemBuffer, Sender, Streaming, channel};
use crate::wire::frame::{
    Header, MethodRef, Number, RepliedBy, RequestHeader, StreamHeader, StreamPart, Unparsed,
};
use crate::wire::metadata::MetadataBytes;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::pin::Pin;
use std::time::Duration;
use trunkline_testkit::Random;
use trunkline_transport::{MessageHeader, PeerKey};

const RUNS: u64 = 48;
const STEPS: usize = 400;
/// Metadata with one key.
const METADATA: &[u8] = b"\x01\x01\0kv";
/// Frame flags that belong to the driver.
const OF_DRIVER: u8 = 0xf1;

struct Run {
    server: Server,
    random: Random,
    /// Requests sent by the node.
    asked: Vec<Arrived>,
    made: Vec<super::server::Made>,
    opening: Vec<(Call<StreamWait>, Opened)>,
    streams: Vec<Streaming<Bytes>>,
    senders: Vec<Sender<Bytes>>,
    /// Frames that were sent, for mutations, with kind, flags, word and contents.
    valid: Vec<Vec<u8>>,
    /// Number of requests minus number of replies, by call number.
    unanswered: BTreeMap<u64, usize>,
    /// Number of requests, and number of requests without a reply.
    requests: (usize, usize),
}

impl Run {
    fn new(seed: u64) -> Self {
        Self {
            server: Server::new(),
            random: Random(seed),
            asked: Vec::new(),
            made: Vec::new(),
            opening: Vec::new(),
            streams: Vec::new(),
            senders: Vec::new(),
            valid: vec![vec![0x10, 0, 0, 0]],
            unanswered: BTreeMap::new(),
            requests: (0, 0),
        }
    }

    fn step(&mut self) {
        match self.random.below(20) {
            0..=3 => self.request(),
            4 => {
                let call = self.random.below(8) as u64;
                self.send(&Header::Cancel { call });
            }
            5..=8 => self.stream(),
            9 | 10 => self.reply(),
            11 => {
                if let Some(number) = self.number() {
                    self.send(&Header::Number { call: 1, number });
                }
            }
            12 | 13 => self.mutation(),
            14 => self.call(),
            15 => self.open(),
            16 => self.take(),
            17 => self.give_up(),
            18 => {
                self.server.peer.hold(true);
                self.server.world.wait(Duration::from_millis(3));
                self.server.peer.hold(false);
            }
            _ => {
                let time = Duration::from_millis(self.random.below(64) as u64);
                self.server.world.wait(time);
            }
        }
        self.server.world.wait(Duration::from_micros(50));
        self.receive();
        let work = self.server.open_work();
        let waited_for = self.made.len() + self.opening.len() + self.streams.len();
        assert!(work.handlers <= self.requests.0, "more handlers run than requests were sent");
        assert!(work.calls <= waited_for, "a call is kept that nobody waits for");
    }

    /// Counts the frames that the node has sent.
    fn receive(&mut self) {
        while let Some((line, from, header)) = self.server.arrived() {
            match header {
                Header::Request(header) => self.asked.push(Arrived { line, from, header }),
                Header::Reply { call, .. } => {
                    let unanswered = self.unanswered.get_mut(&call).filter(|unanswered| **unanswered > 0);
                    *unanswered.unwrap_or_else(|| panic!("more replies than requests: {header:?}")) -= 1;
                }
                _ => {}
            }
        }
    }

    fn bytes(&mut self) -> Vec<u8> {
        let most = if self.random.one_in(24) { 40_000 } else { 100 };
        let mut bytes = vec![0; self.random.below(most)];
        self.random.fill(&mut bytes);
        bytes
    }

    /// Sends a frame with random content.
    fn send(&mut self, header: &Header) {
        let mut bytes = Vec::new();
        let encoded = if self.random.one_in(2) { self.bytes() } else { Vec::new() };
        let encoded =
            if let Header::Reply { .. } | Header::Request(_) = header { encoded } else { Vec::new() };
        let MessageHeader { kind, flags, word } =
            header.emit(u32::try_from(encoded.len()).expect("short"), &mut bytes);
        if header.metadata_bytes() > 0 {
            bytes.extend_from_slice(METADATA);
        }
        bytes.extend(encoded);
        let has_item = matches!(header, Header::Stream(StreamHeader { part: StreamPart::Data { .. }, .. }));
        if has_item || self.random.one_in(4) {
            bytes.extend(self.bytes());
        }
        let [low, high] = word.to_le_bytes();
        bytes.splice(0..0, [kind, flags, low, high]);
        self.valid.push(bytes.clone());
        self.post(bytes);
    }

    /// Sends a frame with this kind, these flags, this word and these contents.
    fn post(&mut self, mut bytes: Vec<u8>) {
        let word = u16::from_le_bytes([bytes[2], bytes[3]]);
        let header = MessageHeader { kind: bytes[0], flags: bytes[1] & OF_DRIVER, word };
        bytes.drain(..4);
        if let Some(Unparsed::Request { call, one_way }) = Header::unparsed(header, &bytes) {
            *self.unanswered.entry(call).or_default() += 1;
            self.requests.0 += 1;
            self.requests.1 += usize::from(one_way);
        }
        let to = PeerKey::new(self.server.node.local_address());
        self.server.peer.post(0, to, None, &Frame { header, bytes, time_left: None });
    }

    fn request(&mut self) {
        let method = self.random.pick(&METHODS);
        let number = u16::try_from(self.random.below(METHODS.len() + 1)).expect("small");
        let method_ref =
            if self.random.one_in(3) { MethodRef::Number(number) } else { MethodRef::from(method) };
        let header = RequestHeader {
            call: self.random.below(8) as u64,
            one_way: method.one_way != self.random.one_in(12),
            opens: method.streams.any(),
            method_ref,
            metadata: if self.random.one_in(4) { 5 } else { 0 },
        };
        self.send(&Header::Request(RequestHeader { one_way: header.one_way && !header.opens, ..header }));
    }

    /// Returns the number of a call from the node, or a random number.
    fn call_of_node(&mut self) -> u64 {
        match self.asked.last() {
            Some(_) if !self.random.one_in(8) => {
                let late = self.asked.len().saturating_sub(6);
                let at = late + self.random.below(self.asked.len() - late);
                self.asked[at].header.call
            }
            _ => self.random.next(),
        }
    }

    /// Sends a stream frame in either direction.
    fn stream(&mut self) {
        let from_caller = self.random.one_in(2);
        let call = if from_caller { self.random.below(8) as u64 } else { self.call_of_node() };
        let part = match self.random.below(9) {
            0 => StreamPart::Reset,
            1 | 2 => StreamPart::Accept,
            3 => {
                let bytes = u32::from(self.random.byte()) << 8;
                StreamPart::Window { bytes, items: u32::from(self.random.byte() & 0x3f) }
            }
            4 => StreamPart::End { items: self.random.below(3) as u64 },
            _ => StreamPart::Data { number: u16::try_from(self.random.below(4)).expect("small") },
        };
        self.send(&Header::Stream(StreamHeader { call, from_caller, part }));
    }

    fn reply(&mut self) {
        let call = self.call_of_node();
        let number = self.number();
        let (code, by) = match self.random.below(4) {
            0 => (self.random.byte(), RepliedBy::from_number(self.random.byte() & !0x40)),
            1 => (self.random.byte(), RepliedBy::Handler),
            _ => (0, RepliedBy::Handler),
        };
        let trailing = if self.random.one_in(4) { 5 } else { 0 };
        let metadata = MetadataBytes { initial: 0, trailing };
        self.send(&Header::Reply { call, code, by, number, metadata });
    }

    fn number(&mut self) -> Option<Number> {
        let (method, number) = (self.random.pick(&METHODS), self.random.byte().into());
        let number = Number { number, schema: method.service.schema(), method: method.hash };
        self.random.one_in(2).then_some(number)
    }

    /// Sends an earlier frame with some changes.
    fn mutation(&mut self) {
        let mut bytes = self.random.pick(&self.valid).clone();
        for _ in 0..=self.random.below(3) {
            let near = if self.random.one_in(4) { bytes.len() } else { bytes.len().min(40) };
            let at = self.random.below(near);
            match self.random.below(6) {
                0 | 1 => bytes[at] ^= 1 << self.random.below(8),
                2 => bytes[at] = *self.random.pick(&[0, 1, 0x7f, 0x80, 0xff]),
                3 => bytes.truncate(at.max(1)),
                4 => drop(bytes.splice(at..at, [self.random.byte()])),
                _ => {
                    let other = self.random.pick(&self.valid);
                    bytes.truncate(at);
                    bytes.extend_from_slice(other);
                }
            }
        }
        bytes.resize(bytes.len().max(4), 0);
        // The transport reserves some kinds of frames, which it does not accept from a driver.
        if bytes[0] < 0x10 {
            bytes[0] |= 0x10;
        }
        self.post(bytes);
    }

    fn options(&mut self) -> CallOptions {
        let limit = Duration::from_millis(1 + self.random.below(64) as u64);
        match self.random.below(3) {
            0 => CallOptions::new().timeout(limit),
            1 => CallOptions::new().idle_timeout(limit),
            _ => CallOptions::new(),
        }
    }

    fn call(&mut self) {
        let method = *self.random.pick(&[ECHO, HANG, &METHODS[5]]);
        let (options, body) = (self.options(), self.bytes());
        self.made.push(self.server.call(method, options, body.into()));
    }

    fn open(&mut self) {
        let method = *self.random.pick(&[FEED, GATHER, TALK]);
        let (sender, receiver) = channel::<Bytes>(4);
        let items = outgoing(receiver, |item: Bytes, buffer: &mut ItemBuffer| buffer.bytes(item));
        let (options, body) = (self.options(), self.bytes());
        let (mut wait, opened) = self.server.channel.open(&options, method, &(), body.into(), items);
        assert!(poll(Pin::new(&mut wait)).is_none());
        self.opening.push((wait, opened));
        self.senders.push(sender);
    }

    /// Takes the outcomes and items that have arrived, and sends further items to streams.
    fn take(&mut self) {
        self.made.retain_mut(|call| poll(Pin::new(call)).is_none());
        for (mut wait, opened) in std::mem::take(&mut self.opening) {
            match poll(Pin::new(&mut wait)) {
                None => self.opening.push((wait, opened)),
                Some(Ok(_)) => self.streams.push(opened.bytes(|bytes| bytes)),
                Some(Err(_)) => {}
            }
        }
        self.streams.retain_mut(|items| !matches!(next(items), Some(Ok(None) | Err(_))));
        for sender in &self.senders {
            let _full = sender.try_send(Bytes::from_static(b"item"));
        }
        if self.senders.len() > 4 {
            let sender = self.senders.swap_remove(self.random.below(4));
            if self.random.one_in(2) {
                sender.finish();
            }
        }
    }

    /// Drops a call.
    fn give_up(&mut self) {
        match self.random.below(3) {
            0 => drop(self.made.pop()),
            1 => drop(self.opening.pop()),
            _ => drop(self.streams.pop()),
        }
    }

    /// Ends the session. Checks that every caller gets an outcome and that all state is released.
    fn end(mut self) {
        if self.random.one_in(2) {
            self.send(&Header::Drained);
        }
        self.server.peer.end();
        self.server.until_lost();
        self.server.world.run();
        self.receive();
        for mut call in self.made {
            assert!(poll(Pin::new(&mut call)).is_some(), "a caller has no outcome");
        }
        for (mut wait, opened) in self.opening {
            let outcome = poll(Pin::new(&mut wait)).expect("the call that opens a stream has no outcome");
            if outcome.is_ok() {
                self.streams.push(opened.bytes(|bytes| bytes));
            }
        }
        for mut items in self.streams {
            while !matches!(next(&mut items).expect("a stream has no end"), Ok(None) | Err(_)) {}
        }
        drop(self.senders);
        self.server.world.run();
        let work = self.server.open_work();
        assert_eq!(work.calls, 0, "a call is left");
        assert!(work.handlers <= self.requests.1, "a handler outlives its caller");
        for budget in &work.budgets {
            assert_eq!(budget.used, budget.counted, "{}", budget.name);
        }
        if work.handlers == 0 {
            self.server.assert_at_rest("the session");
        }
    }
}

#[test]
fn random_orders_of_frames_do_not_break_node() {
    let mut replies = 0;
    for seed in 0..RUNS {
        let seed_of = format!("seed {seed}");
        let result = std::panic::catch_unwind(|| {
            let mut run = Run::new(seed);
            (0..STEPS).for_each(|_| run.step());
            let replies = run.requests.0 - run.unanswered.values().sum::<usize>();
            run.end();
            replies
        });
        replies += result.unwrap_or_else(|_| panic!("{seed_of}"));
    }
    assert!(replies > STEPS, "only {replies} replies came: the peer is not heard");
}
