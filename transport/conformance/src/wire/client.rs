//! The connecting end. It sends orders to the server and checks every result.

use super::link::{Area, INLINE, LARGEST, Link, SLOTS, Work};
use super::protocol::{ControlMessage, Hello, Manner, Purpose, REFUSAL_BYTES, Verb};
use super::report::Report;
use super::station::Station;
use super::transfers::{FIRST_VALUE, LAST_VALUE};
use crate::check::{Deviation, Verdict, check, equal};
use std::net::SocketAddr;
use trunkline_verbs::{CmEventKind, CompletionStatus, RejectReason, SendOperation};

/// Message sizes in bytes: near the size of one packet, near the size of four packets, and long.
const SIZES: [usize; 10] = [1, 64, 1023, 1024, 1025, 4095, 4096, 4097, 65_536, LARGEST];
/// Message sizes of a short run, in bytes.
const FEW_SIZES: [usize; 3] = [1, 1025, 65_536];
/// Number of messages that uses all receives more than once.
const STARVING: u16 = 19;
const _: () = assert!(STARVING as usize > 2 * SLOTS);
/// Number of READs posted together. It exceeds the number that may be outstanding at either end.
const READS: usize = 40;
const READ_SIZE: usize = 3000;
/// Number of simultaneous connections.
const LINKS: u64 = 4;

/// Options of a client.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) server: SocketAddr,
    /// True if both ends use SRQs.
    pub(super) srq: bool,
    /// True to use fewer sizes and to omit all checks other than transfers.
    pub(super) short: bool,
}

#[derive(Debug)]
struct Client<'a, 'b> {
    station: &'a Station,
    plan: Plan,
    report: &'a mut Report<'b>,
    seed: u64,
}

type Transfer = (&'static str, fn(&mut Client<'_, '_>, &mut Link) -> Verdict);

const TRAFFIC: [Transfer; 16] = [
    ("send", |client, link| client.sends(link, Manner::Plain)),
    ("send-back", |client, link| client.sends_back(link, Manner::Plain)),
    ("send-immediate", |client, link| client.sends(link, Manner::Immediate)),
    ("send-immediate-back", |client, link| client.sends_back(link, Manner::Immediate)),
    ("send-inline", |client, link| client.sends(link, Manner::Inline)),
    ("send-inline-back", |client, link| client.sends_back(link, Manner::Inline)),
    ("write", |client, link| client.writes(link, Manner::Plain)),
    ("write-back", |client, link| client.writes_back(link, Manner::Plain)),
    ("write-immediate", |client, link| client.writes(link, Manner::Immediate)),
    ("write-immediate-back", |client, link| client.writes_back(link, Manner::Immediate)),
    ("read", |client, link| client.reads(link)),
    ("read-back", |client, link| client.reads_back(link)),
    ("atomics", |client, link| client.atomics(link)),
    ("atomics-back", |client, link| client.atomics_back(link)),
    ("batch", |client, link| client.batch(link)),
    ("many-reads", |client, link| client.many_reads(link)),
];

type Scene = (&'static str, fn(&mut Client<'_, '_>) -> Verdict);

/// The checks that open their own connections.
const CONNECTIONS: [Scene; 7] = [
    ("starved-receiver", |client| client.starve()),
    ("connections-at-once", |client| client.at_once()),
    ("disconnect-by-client", |client| client.disconnect()),
    ("disconnect-by-server", |client| client.disconnected()),
    ("reject-with-private-data", |client| client.rejected()),
    ("nobody-listens", |client| client.nobody_listens()),
    ("wrong-key", |client| client.wrong_key()),
];

/// Runs all checks in the plan.
pub(super) fn run(station: &Station, plan: Plan, report: &mut Report<'_>) -> Verdict {
    let mut client = Client { station, plan, report, seed: 1 };
    client.traffic();
    if !plan.short {
        for (name, check) in CONNECTIONS {
            let verdict = check(&mut client);
            client.report.verdict(name, verdict);
        }
    }
    let mut link = client.dial()?;
    client.order(&mut link, Verb::Stop, 0)?;
    client.disconnect_and_close(link)
}

impl Client<'_, '_> {
    /// Runs all transfers on one connection. After a failure, the next transfer gets a new connection.
    fn traffic(&mut self) {
        let mut link = None;
        for (name, transfer) in TRAFFIC {
            let verdict = match link.take() {
                Some(link) => Ok(link),
                None => self.dial(),
            }
            .and_then(|mut fresh| {
                let verdict = transfer(self, &mut fresh);
                link = Some(fresh);
                verdict
            });
            if matches!(verdict, Err(Deviation::Failed(_))) {
                link = None;
            }
            self.report.verdict(name, verdict);
        }
        if let Some(link) = link {
            let verdict = self.disconnect_and_close(link);
            self.report.verdict("traffic-end", verdict);
        }
    }

    fn dial(&self) -> Verdict<Link> {
        let purpose = if self.plan.srq { Purpose::Srq } else { Purpose::Queue };
        self.station.dial(self.plan.server, purpose)
    }

    fn disconnect_and_close(&self, link: Link) -> Verdict {
        link.id.disconnect()?;
        self.station.disconnected(link.id.number())?;
        link.close()
    }

    fn sizes(&self) -> &'static [usize] {
        if self.plan.short { &FEW_SIZES } else { &SIZES }
    }

    fn next_seed(&mut self) -> u64 {
        self.seed += 1000;
        self.seed
    }

    /// Sends an order and waits for its answer.
    fn order(&mut self, link: &mut Link, verb: Verb, size: usize) -> Verdict<ControlMessage> {
        let control = ControlMessage::new(verb, size, self.next_seed());
        link.send_control(&control)?;
        self.answered(link, &control)
    }

    /// Waits for the answer to an order. The answer must report no wrong bytes.
    fn answered(&mut self, link: &mut Link, control: &ControlMessage) -> Verdict<ControlMessage> {
        let arrival = link.arrival()?;
        let answer = link.read_control(arrival)?;
        let echo = ControlMessage { wrong: 0, value: 0, ..answer };
        equal("the order in the answer", echo, *control)?;
        self.right(control, answer.wrong)?;
        Ok(answer)
    }

    fn right(&mut self, control: &ControlMessage, wrong: u64) -> Verdict {
        self.report.count(control.size() * usize::from(control.count), wrong);
        check(wrong == 0, || {
            format!("{wrong} bytes wrong with {} messages of {} bytes", control.count, control.size)
        })
    }

    fn messages(&mut self, verb: Verb, manner: Manner, link: &Link) -> Verdict<Vec<ControlMessage>> {
        let sizes: &[usize] = match manner {
            Manner::Inline if !link.has_inline() => {
                return Err(Deviation::Skipped(format!("the device cannot send {INLINE} bytes inline")));
            }
            Manner::Inline => &[1, 9, INLINE],
            Manner::Plain | Manner::Immediate => self.sizes(),
        };
        let count = if manner == Manner::Plain { 3 } else { 1 };
        Ok(sizes
            .iter()
            .map(|size| ControlMessage {
                manner,
                count,
                ..ControlMessage::new(verb, *size, self.next_seed())
            })
            .collect())
    }

    fn sends(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for control in self.messages(Verb::Listen, manner, link)? {
            link.send_control(&control)?;
            link.send_messages(&control)?;
            self.answered(link, &control)?;
        }
        Ok(())
    }

    fn sends_back(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for control in self.messages(Verb::Send, manner, link)? {
            link.send_control(&control)?;
            let wrong = link.take_messages(&control, 1, false)?;
            self.right(&control, wrong)?;
            self.answered(link, &control)?;
        }
        Ok(())
    }

    fn writes(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for size in self.sizes() {
            let verb = if manner == Manner::Immediate { Verb::AwaitWrite } else { Verb::CheckSink };
            let control = ControlMessage { manner, ..ControlMessage::new(verb, *size, self.next_seed()) };
            if manner == Manner::Immediate {
                link.send_control(&control)?;
            }
            link.write(*size, control.seed, manner)?;
            if manner != Manner::Immediate {
                link.send_control(&control)?;
            }
            self.answered(link, &control)?;
        }
        Ok(())
    }

    fn writes_back(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for size in self.sizes() {
            let control =
                ControlMessage { manner, ..ControlMessage::new(Verb::Write, *size, self.next_seed()) };
            link.send_control(&control)?;
            let wrong = if manner == Manner::Immediate {
                let wrong = link.take_write(*size, control.seed)?;
                self.answered(link, &control)?;
                wrong
            } else {
                self.answered(link, &control)?;
                link.judge_area(Area::Sink, *size, control.seed)?
            };
            self.right(&control, wrong)?;
        }
        Ok(())
    }

    fn reads(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let control = self.order(link, Verb::Offer, *size)?;
            let wrong = link.read(*size, control.seed)?;
            self.right(&control, wrong)?;
        }
        Ok(())
    }

    fn reads_back(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let control = ControlMessage::new(Verb::Read, *size, self.next_seed());
            link.offer(*size, control.seed)?;
            link.send_control(&control)?;
            self.answered(link, &control)?;
        }
        Ok(())
    }

    fn atomics(&mut self, link: &mut Link) -> Verdict {
        self.word(link, FIRST_VALUE)?;
        link.change_word()?;
        let last = self.word(link, 0)?;
        check(last == LAST_VALUE, || format!("the word ended as {last:#x} instead of {LAST_VALUE:#x}"))
    }

    /// Sets the server's word. Returns its previous value.
    fn word(&mut self, link: &mut Link, value: u64) -> Verdict<u64> {
        let control = ControlMessage::new(Verb::Word, 0, value);
        link.send_control(&control)?;
        Ok(self.answered(link, &control)?.value)
    }

    fn atomics_back(&mut self, link: &mut Link) -> Verdict {
        link.set_word(FIRST_VALUE)?;
        self.order(link, Verb::Atomics, 0)?;
        let last = link.set_word(0)?;
        check(last == LAST_VALUE, || format!("the word ended as {last:#x} instead of {LAST_VALUE:#x}"))
    }

    /// Posts a WRITE, a READ of the same memory, an atomic and a message together. Checks that they are executed in this
    /// order.
    fn batch(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let control = ControlMessage::new(Verb::Listen, *size, self.next_seed());
            self.word(link, 77)?;
            link.send_control(&control)?;
            super::pattern::fill(&link.memory, Area::Source.offset(), *size, control.seed)?;
            let sink = link.remote(Area::Sink.offset());
            let add = SendOperation::FetchAdd { remote: link.remote(super::link::WORD), add: 3 };
            let whole = |operation, offset| Work { operation, offset, length: *size, is_inline: false };
            link.post(&[
                whole(SendOperation::RdmaWrite(sink), Area::Source.offset()),
                whole(SendOperation::RdmaRead(sink), Area::Landing.offset()),
                Work { operation: add, offset: super::link::OLD_VALUE, length: 8, is_inline: false },
                whole(SendOperation::Send, Area::Source.offset()),
            ])?;
            link.finish()?;
            self.answered(link, &control)?;
            let wrong = link.judge_area(Area::Landing, *size, control.seed)?;
            self.right(&control, wrong)?;
            equal("the word before", link.memory.load(super::link::OLD_VALUE)?, 77)?;
            equal("the word afterwards", self.word(link, 0)?, 80)?;
            let control = ControlMessage { verb: Verb::CheckSink, ..control };
            link.send_control(&control)?;
            self.answered(link, &control)?;
        }
        Ok(())
    }

    fn many_reads(&mut self, link: &mut Link) -> Verdict {
        let control = self.order(link, Verb::Offer, READS * READ_SIZE)?;
        let work: Vec<Work> = (0..READS)
            .map(|index| Work {
                operation: SendOperation::RdmaRead(link.remote(Area::Offer.offset() + index * READ_SIZE)),
                offset: Area::Landing.offset() + index * READ_SIZE,
                length: READ_SIZE,
                is_inline: false,
            })
            .collect();
        link.post(&work)?;
        link.finish()?;
        let wrong = link.judge_area(Area::Landing, READS * READ_SIZE, control.seed)?;
        self.right(&control, wrong)
    }

    /// Sends more messages than the server has receives. The server reposts receives late, so it responds with RNR NAKs.
    fn starve(&mut self) -> Verdict {
        let mut link = self.dial()?;
        let control =
            ControlMessage { count: STARVING, ..ControlMessage::new(Verb::Starve, 1500, self.next_seed()) };
        link.send_control(&control)?;
        link.send_burst(&control)?;
        self.answered(&mut link, &control)?;
        let control = ControlMessage { verb: Verb::Send, ..control };
        link.send_control(&control)?;
        let wrong = link.take_messages(&control, 0, true)?;
        self.right(&control, wrong)?;
        self.answered(&mut link, &control)?;
        self.disconnect_and_close(link)
    }

    fn at_once(&mut self) -> Verdict {
        let purpose = if self.plan.srq { Purpose::Srq } else { Purpose::Queue };
        let mut links = Vec::new();
        for _ in 0..LINKS {
            let link = Link::new(self.station, self.station.active(self.plan.server)?, purpose)?;
            link.connect()?;
            links.push(link);
        }
        links.iter_mut().try_for_each(|link| self.station.await_connection(link))?;
        let mut controls = Vec::new();
        for link in &mut links {
            let control = ControlMessage::new(Verb::Listen, 5000, self.next_seed());
            link.send_control(&control)?;
            controls.push(control);
        }
        // Send in reverse order. The server handles the first order and stores the other messages, which fit into its SRQ.
        for (link, control) in links.iter_mut().zip(&controls).rev() {
            link.send_messages(control)?;
        }
        for (link, control) in links.iter_mut().zip(&controls) {
            self.answered(link, control)?;
        }
        links.into_iter().try_for_each(|link| self.disconnect_and_close(link))
    }

    fn disconnect(&mut self) -> Verdict {
        let mut link = self.dial()?;
        self.order(&mut link, Verb::Offer, 1)?;
        self.disconnect_and_close(link)
    }

    fn disconnected(&mut self) -> Verdict {
        let mut link = self.dial()?;
        link.send_last_control(&ControlMessage::new(Verb::Disconnect, 0, 0))?;
        self.station.disconnected(link.id.number())?;
        link.close()
    }

    /// Sends a request that must be refused. Returns the reason and the private data of the rejection.
    fn refusal(&mut self, server: SocketAddr) -> Verdict<(RejectReason, Vec<u8>)> {
        let link = Link::new(self.station, self.station.active(server)?, Purpose::Refuse)?;
        link.connect()?;
        let event = self.station.event(link.id.number())?;
        match event.kind {
            CmEventKind::Rejected(reason) => Ok((reason, event.private_data)),
            kind => Err(Deviation::Failed(format!("{kind:?} instead of a refusal"))),
        }
    }

    fn rejected(&mut self) -> Verdict {
        let (reason, private_data) = self.refusal(self.plan.server)?;
        equal("the reason", reason, RejectReason::CONSUMER)?;
        let hello = Hello::from_private_data(&private_data, REFUSAL_BYTES)?;
        equal("the purpose in the refusal", hello.purpose, Purpose::Refuse)
    }

    fn nobody_listens(&mut self) -> Verdict {
        let nobody = SocketAddr::new(self.plan.server.ip(), self.plan.server.port() ^ 0x4000);
        equal("the reason", self.refusal(nobody)?.0, RejectReason::INVALID_SERVICE_ID)
    }

    /// Checks that a WRITE with a key unknown to the server is refused and leaves the memory unchanged.
    fn wrong_key(&mut self) -> Verdict {
        let mut link = self.dial()?;
        self.order(&mut link, Verb::Break, 0)?;
        let sink = link.wrong_key(Area::Sink.offset());
        link.do_one(SendOperation::RdmaWrite(sink), Area::Source.offset(), 2000)?;
        equal("how the WRITE ended", link.failure()?, CompletionStatus::RemoteAccessError)?;
        self.disconnect_and_close(link)
    }
}
