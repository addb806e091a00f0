//! The end that connects: it tells the server what to do and checks every outcome.

use super::link::{Area, INLINE, LARGEST, Link, SLOTS, Work};
use super::protocol::{Hello, Letter, Manner, Purpose, REFUSAL_BYTES, Verb};
use super::report::Report;
use super::station::Station;
use super::transfers::{FIRST_VALUE, LAST_VALUE};
use crate::check::{Deviation, Verdict, check, equal};
use std::net::SocketAddr;
use trunkline_verbs::{CmEventKind, CompletionStatus, RejectReason, SendOperation};

/// Sizes around one packet, around four, and long ones.
const SIZES: [usize; 10] = [1, 64, 1023, 1024, 1025, 4095, 4096, 4097, 65_536, LARGEST];
/// Those of a short run.
const FEW_SIZES: [usize; 3] = [1, 1025, 65_536];
/// Messages that use up every receive more than once.
const STARVING: u16 = 19;
const _: () = assert!(STARVING as usize > 2 * SLOTS);
/// READs at once: more than either end may have under way.
const READS: usize = 40;
const READ_SIZE: usize = 3000;
/// Connections at once.
const LINKS: u64 = 4;

/// How a client goes about it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) server: SocketAddr,
    /// SRQs at both ends.
    pub(super) srq: bool,
    /// Fewer sizes, and nothing but traffic.
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

/// What needs connections of its own.
const CONNECTIONS: [Scene; 7] = [
    ("starved-receiver", |client| client.starve()),
    ("connections-at-once", |client| client.at_once()),
    ("disconnect-by-client", |client| client.disconnect()),
    ("disconnect-by-server", |client| client.disconnected()),
    ("reject-with-private-data", |client| client.rejected()),
    ("nobody-listens", |client| client.nobody_listens()),
    ("wrong-key", |client| client.wrong_key()),
];

/// Does everything in the plan.
pub(super) fn ask(station: &Station, plan: Plan, report: &mut Report<'_>) -> Verdict {
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
    client.hang_up(link)
}

impl Client<'_, '_> {
    /// All transfers on one connection; after a failure the next one gets a fresh connection.
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
            let verdict = self.hang_up(link);
            self.report.verdict("traffic-end", verdict);
        }
    }

    fn dial(&self) -> Verdict<Link> {
        let purpose = if self.plan.srq { Purpose::Srq } else { Purpose::Queue };
        self.station.dial(self.plan.server, purpose)
    }

    fn hang_up(&self, link: Link) -> Verdict {
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

    /// Gives an order and waits for the answer.
    fn order(&mut self, link: &mut Link, verb: Verb, size: usize) -> Verdict<Letter> {
        let letter = Letter::new(verb, size, self.next_seed());
        link.say(&letter)?;
        self.answered(link, &letter)
    }

    /// Waits for the answer to an order; no byte may have been wrong.
    fn answered(&mut self, link: &mut Link, letter: &Letter) -> Verdict<Letter> {
        let arrival = link.arrival()?;
        let answer = link.letter(arrival)?;
        let echo = Letter { wrong: 0, value: 0, ..answer };
        equal("the order that was answered", echo, *letter)?;
        self.right(letter, answer.wrong)?;
        Ok(answer)
    }

    fn right(&mut self, letter: &Letter, wrong: u64) -> Verdict {
        self.report.count(letter.size() * usize::from(letter.count), wrong);
        check(wrong == 0, || {
            format!("{wrong} bytes wrong with {} messages of {} bytes", letter.count, letter.size)
        })
    }

    fn messages(&mut self, verb: Verb, manner: Manner, link: &Link) -> Verdict<Vec<Letter>> {
        let sizes: &[usize] = match manner {
            Manner::Inline if !link.has_inline() => {
                return Err(Deviation::Skipped(format!("the device has no {INLINE} bytes inline")));
            }
            Manner::Inline => &[1, 9, INLINE],
            Manner::Plain | Manner::Immediate => self.sizes(),
        };
        let count = if manner == Manner::Plain { 3 } else { 1 };
        Ok(sizes
            .iter()
            .map(|size| Letter { manner, count, ..Letter::new(verb, *size, self.next_seed()) })
            .collect())
    }

    fn sends(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for letter in self.messages(Verb::Listen, manner, link)? {
            link.say(&letter)?;
            link.send_messages(&letter)?;
            self.answered(link, &letter)?;
        }
        Ok(())
    }

    fn sends_back(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for letter in self.messages(Verb::Send, manner, link)? {
            link.say(&letter)?;
            let wrong = link.take_messages(&letter, 1, false)?;
            self.right(&letter, wrong)?;
            self.answered(link, &letter)?;
        }
        Ok(())
    }

    fn writes(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for size in self.sizes() {
            let verb = if manner == Manner::Immediate { Verb::AwaitWrite } else { Verb::CheckSink };
            let letter = Letter { manner, ..Letter::new(verb, *size, self.next_seed()) };
            if manner == Manner::Immediate {
                link.say(&letter)?;
            }
            link.write(*size, letter.seed, manner)?;
            if manner != Manner::Immediate {
                link.say(&letter)?;
            }
            self.answered(link, &letter)?;
        }
        Ok(())
    }

    fn writes_back(&mut self, link: &mut Link, manner: Manner) -> Verdict {
        for size in self.sizes() {
            let letter = Letter { manner, ..Letter::new(Verb::Write, *size, self.next_seed()) };
            link.say(&letter)?;
            let wrong = if manner == Manner::Immediate {
                let wrong = link.take_write(*size, letter.seed)?;
                self.answered(link, &letter)?;
                wrong
            } else {
                self.answered(link, &letter)?;
                link.judge_area(Area::Sink, *size, letter.seed)?
            };
            self.right(&letter, wrong)?;
        }
        Ok(())
    }

    fn reads(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let letter = self.order(link, Verb::Offer, *size)?;
            let wrong = link.read(*size, letter.seed)?;
            self.right(&letter, wrong)?;
        }
        Ok(())
    }

    fn reads_back(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let letter = Letter::new(Verb::Read, *size, self.next_seed());
            link.offer(*size, letter.seed)?;
            link.say(&letter)?;
            self.answered(link, &letter)?;
        }
        Ok(())
    }

    fn atomics(&mut self, link: &mut Link) -> Verdict {
        self.word(link, FIRST_VALUE)?;
        link.change_word()?;
        let last = self.word(link, 0)?;
        check(last == LAST_VALUE, || format!("the word ended as {last:#x} instead of {LAST_VALUE:#x}"))
    }

    /// Sets the server's word; answers what it was.
    fn word(&mut self, link: &mut Link, value: u64) -> Verdict<u64> {
        let letter = Letter::new(Verb::Word, 0, value);
        link.say(&letter)?;
        Ok(self.answered(link, &letter)?.value)
    }

    fn atomics_back(&mut self, link: &mut Link) -> Verdict {
        link.set_word(FIRST_VALUE)?;
        self.order(link, Verb::Atomics, 0)?;
        let last = link.set_word(0)?;
        check(last == LAST_VALUE, || format!("the word ended as {last:#x} instead of {LAST_VALUE:#x}"))
    }

    /// A WRITE, a READ of what it wrote, an atomic and a message with one doorbell: they are done in that order.
    fn batch(&mut self, link: &mut Link) -> Verdict {
        for size in self.sizes() {
            let letter = Letter::new(Verb::Listen, *size, self.next_seed());
            self.word(link, 77)?;
            link.say(&letter)?;
            super::pattern::fill(&link.memory, Area::Source.offset(), *size, letter.seed)?;
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
            self.answered(link, &letter)?;
            let wrong = link.judge_area(Area::Landing, *size, letter.seed)?;
            self.right(&letter, wrong)?;
            equal("the word before", link.memory.load(super::link::OLD_VALUE)?, 77)?;
            equal("the word afterwards", self.word(link, 0)?, 80)?;
            let letter = Letter { verb: Verb::CheckSink, ..letter };
            link.say(&letter)?;
            self.answered(link, &letter)?;
        }
        Ok(())
    }

    fn many_reads(&mut self, link: &mut Link) -> Verdict {
        let letter = self.order(link, Verb::Offer, READS * READ_SIZE)?;
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
        let wrong = link.judge_area(Area::Landing, READS * READ_SIZE, letter.seed)?;
        self.right(&letter, wrong)
    }

    /// More messages than receives, at an end that gives buffers back late: it has to answer RNR.
    fn starve(&mut self) -> Verdict {
        let mut link = self.dial()?;
        let letter = Letter { count: STARVING, ..Letter::new(Verb::Starve, 1500, self.next_seed()) };
        link.say(&letter)?;
        link.send_burst(&letter)?;
        self.answered(&mut link, &letter)?;
        let letter = Letter { verb: Verb::Send, ..letter };
        link.say(&letter)?;
        let wrong = link.take_messages(&letter, 0, true)?;
        self.right(&letter, wrong)?;
        self.answered(&mut link, &letter)?;
        self.hang_up(link)
    }

    fn at_once(&mut self) -> Verdict {
        let purpose = if self.plan.srq { Purpose::Srq } else { Purpose::Queue };
        let mut links = Vec::new();
        for _ in 0..LINKS {
            let link = Link::new(self.station, self.station.active(self.plan.server)?, purpose)?;
            link.connect()?;
            links.push(link);
        }
        links.iter_mut().try_for_each(|link| self.station.dialled(link))?;
        let mut letters = Vec::new();
        for link in &mut links {
            let letter = Letter::new(Verb::Listen, 5000, self.next_seed());
            link.say(&letter)?;
            letters.push(letter);
        }
        // Backwards: the server obeys the first order and holds buffers for all others, fewer than an SRQ has.
        for (link, letter) in links.iter_mut().zip(&letters).rev() {
            link.send_messages(letter)?;
        }
        for (link, letter) in links.iter_mut().zip(&letters) {
            self.answered(link, letter)?;
        }
        links.into_iter().try_for_each(|link| self.hang_up(link))
    }

    fn disconnect(&mut self) -> Verdict {
        let mut link = self.dial()?;
        self.order(&mut link, Verb::Offer, 1)?;
        self.hang_up(link)
    }

    fn disconnected(&mut self) -> Verdict {
        let mut link = self.dial()?;
        link.say_last(&Letter::new(Verb::Disconnect, 0, 0))?;
        self.station.disconnected(link.id.number())?;
        link.close()
    }

    /// What became of a request that must not be accepted.
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
        equal("the purpose that came back", hello.purpose, Purpose::Refuse)
    }

    fn nobody_listens(&mut self) -> Verdict {
        let nobody = SocketAddr::new(self.plan.server.ip(), self.plan.server.port() ^ 0x4000);
        equal("the reason", self.refusal(nobody)?.0, RejectReason::INVALID_SERVICE_ID)
    }

    /// A WRITE under a key that the server does not have is refused and touches nothing.
    fn wrong_key(&mut self) -> Verdict {
        let mut link = self.dial()?;
        self.order(&mut link, Verb::Break, 0)?;
        let sink = link.wrong_key(Area::Sink.offset());
        link.do_one(SendOperation::RdmaWrite(sink), Area::Source.offset(), 2000)?;
        equal("how the WRITE ended", link.failure()?, CompletionStatus::RemoteAccessError)?;
        self.hang_up(link)
    }
}
