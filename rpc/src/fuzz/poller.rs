//! The RPC half of a poller, with peers and callers that do what the input encodes.

use crate::call::{Opened, Outcome, StreamWait, no_items};
use crate::upper::fake::{ECHO, HANG, METHODS, Rig};
use crate::wire::frame::{Asked, By, Header, Number, RequestHeader, StreamHeader, StreamPart};
use crate::wire::metadata::MetadataBytes;
use std::time::Duration;
use trunkline_machine::rings::cell::Getter;
use trunkline_transport::{
    Origin, PeerDown, PeerEvent, PeerKey, PollerIndex, SendFailure, SendOutcome, SessionNumber, Token,
    Upper as _,
};

/// Maximum number of steps of one input.
const STEPS: usize = 256;

/// Reads values from the input.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    fn bytes(&mut self) -> &'a [u8] {
        let length = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(length);
        self.0 = rest;
        bytes
    }

    fn origin(&mut self) -> Origin {
        let byte = self.byte();
        Origin {
            peer: PeerKey::new(([127, 0, 0, 1], u16::from(byte & 3)).into()),
            session: SessionNumber(0),
            poller: PollerIndex(u16::from(byte >> 7)),
        }
    }
}

/// A poller, and its requests so far.
struct Run<'a> {
    rig: Rig,
    input: Input<'a>,
    waiting: Vec<Getter<Outcome>>,
    streams: Vec<(StreamWait, Opened)>,
    requests: usize,
}

impl Run<'_> {
    fn step(&mut self) {
        let choice = self.input.byte();
        match choice & 7 {
            0 => {
                let (from, bytes) = (self.input.origin(), self.input.bytes());
                self.requests += 1;
                self.rig.message(from, bytes.to_vec());
            }
            1 => self.request(),
            2 => self.reply(),
            3 => self.outcome(),
            4 => {
                let Origin { peer, .. } = self.input.origin();
                let event = match self.input.byte() {
                    up @ 0..=127 => {
                        PeerEvent::Up { session: SessionNumber(0), epoch: 1, pollers: u16::from(up & 31) }
                    }
                    _ => PeerEvent::Down { cause: PeerDown::Died },
                };
                self.rig.peer(peer, event);
            }
            5 => {
                let method = if self.input.byte() & 1 == 0 { ECHO } else { HANG };
                let (port, limit) = (self.input.byte() & 3, self.input.byte());
                let limit = Duration::from_millis(u64::from(limit));
                self.waiting.push(self.rig.submit(u16::from(port), method, limit, port & 2 == 2));
            }
            6 => {
                let at = usize::from(self.input.byte());
                if at < self.waiting.len() {
                    drop(self.waiting.swap_remove(at));
                    self.rig.inbox.ask_for_sweep();
                }
            }
            _ if choice & 8 != 0 => self.stream(),
            _ if choice & 16 != 0 => {
                let method = &METHODS[usize::from(self.input.byte()) % METHODS.len()];
                self.streams.push(self.rig.open(u16::from(self.input.byte() & 3), method, no_items()));
            }
            _ if choice & 32 != 0 => drop(self.streams.pop()),
            _ => self.rig.carrier.wait(Duration::from_millis(u64::from(self.input.byte()))),
        }
        self.rig.run();
        let (calls, running) = self.rig.poller.sizes();
        assert!(calls <= self.waiting.len() + self.streams.len(), "a call is kept that nobody waits for");
        assert!(running <= self.requests, "more handlers run than requests came");
        let next = self.rig.poller.next_timer();
        assert!(next.is_none_or(|next| next > self.rig.carrier.now), "a timer was missed");
    }

    /// Sends a request or a cancellation with a plausible header.
    fn request(&mut self) {
        let (from, call, kind) = (self.input.origin(), self.input.byte(), self.input.byte());
        let method = &METHODS[usize::from(kind) % METHODS.len()];
        let asked = match kind & 0x20 {
            0 => Asked::from(method),
            _ => Asked::Number(u16::from(self.input.byte())),
        };
        let header = RequestHeader {
            call: u64::from(call),
            one_way: kind & 0x80 != 0,
            opens: method.streams.any(),
            asked,
            time_left_us: u32::from(self.input.byte()) << 10,
            metadata: 0,
        };
        let header =
            if kind & 0x40 == 0 { Header::Request(header) } else { Header::Cancel { call: header.call } };
        self.requests += 1;
        self.message(from, header);
    }

    /// Sends a frame of a stream.
    fn stream(&mut self) {
        let (from, call, kind) = (self.input.origin(), self.input.byte(), self.input.byte());
        let (from_caller, word) = (kind & 0x80 != 0, self.input.byte());
        let part = match kind & 7 {
            0 => StreamPart::Reset,
            1 => StreamPart::Accept,
            2 => StreamPart::Window { bytes: u32::from(word) << (kind >> 3 & 15), items: word.into() },
            3 => StreamPart::End { items: word.into() },
            _ => StreamPart::Data { number: word.into() },
        };
        let call = if from_caller { u64::from(call) } else { self.token(call).0 };
        self.message(from, Header::Stream(StreamHeader { call, from_caller, part }));
    }

    /// Sends a reply to a call that was made, or to an unknown call.
    fn reply(&mut self) {
        let (from, call, code) = (self.input.origin(), self.input.byte(), self.input.byte());
        let call = self.token(call).0;
        let by = By::from_number(self.input.byte());
        let number = self.number();
        self.message(from, Header::Reply { call, code, by, number, metadata: MetadataBytes::default() });
    }

    /// Returns the number of a known or unknown method, or none.
    fn number(&mut self) -> Option<Number> {
        let (choice, number) = (self.input.byte(), self.input.byte());
        let method = METHODS.get(usize::from(choice))?;
        Some(Number { number: number.into(), schema: method.service.schema(), method: method.hash })
    }

    fn message(&mut self, from: Origin, header: Header) {
        let (encoded, body) = (self.input.bytes(), self.input.bytes());
        let mut bytes = Vec::new();
        header.emit(u32::try_from(encoded.len()).unwrap_or_default(), &mut bytes);
        bytes.extend_from_slice(encoded);
        bytes.extend_from_slice(body);
        self.rig.message(from, bytes);
    }

    fn outcome(&mut self) {
        let (token, kind) = (self.input.byte(), self.input.byte());
        let failure = SendFailure { may_have_arrived: kind & 2 == 2, cause: PeerDown::Died };
        let outcome = if kind & 1 == 0 { SendOutcome::Delivered } else { SendOutcome::Failed(failure) };
        let token = self.token(token);
        self.rig.sent(token, outcome);
    }

    /// Returns the token of a sent message, which is the number of its call, or an arbitrary token.
    fn token(&self, number: u8) -> Token {
        let given = self.rig.carrier.given.get(usize::from(number));
        given.map_or(Token(u64::from(number)), |given| given.token)
    }
}

/// Drives a poller with the input. Checks that nothing panics, that there are no more replies than requests, and that
/// every caller gets an outcome.
pub fn poller(data: &[u8]) {
    let mut run =
        Run { rig: Rig::new(), input: Input(data), waiting: Vec::new(), streams: Vec::new(), requests: 0 };
    for _ in 0..STEPS {
        if run.input.0.is_empty() {
            break;
        }
        run.step();
    }
    let Run { mut rig, waiting, requests, .. } = run;
    rig.poller.shutdown(&mut rig.carrier);
    let replies = |bytes: &[u8]| matches!(Header::parse(bytes), Ok((Header::Reply { .. }, _)));
    let replies = rig.carrier.given.iter().filter(|given| replies(&given.bytes)).count();
    assert!(replies <= requests, "more replies than requests");
    for mut getter in waiting {
        assert!(getter.try_take().is_some(), "a caller has no outcome");
    }
}
