//! The end that listens: it does what letters tell it, on any number of connections.

use super::link::{Area, Link, SLOTS};
use super::protocol::{Hello, Letter, Purpose, REFUSAL_BYTES, REQUEST_BYTES, Verb};
use super::report::Report;
use super::station::{Patience, Station};
use crate::check::{Deviation, Verdict};
use std::sync::Arc;
use trunkline_verbs::{CmEvent, CmEventKind, CmId, CmIdNumber, ConnectParameters};

/// A connection, and what is known of its end.
#[derive(Debug)]
struct Session {
    link: Link,
    /// The client's RTU has arrived: before that, a kernel ends no connection, though messages may come.
    is_established: bool,
    /// It was told that the connection will fail.
    may_fail: bool,
    /// A send was flushed, which is right if the client has ended the connection: who has an answer may
    /// hang up before its acknowledgement is on the wire.
    flushed: Option<Deviation>,
    is_last: bool,
}

#[derive(Debug)]
struct Server<'a> {
    station: &'a Station,
    sessions: Vec<Session>,
    is_over: bool,
}

/// Serves until a client says that it was the last.
pub(super) fn serve(station: &Station, port: u16, report: &mut Report<'_>) -> Verdict {
    let listener = station.listen(port)?;
    report.note("listening");
    let mut server = Server { station, sessions: Vec::new(), is_over: false };
    let mut patience = Patience::new();
    while !server.is_over {
        if server.turn(report) {
            patience = Patience::new();
        } else {
            patience.wait(|| "nothing came from the client".into())?;
        }
    }
    for error in server.sessions.iter().filter_map(|session| session.flushed.as_ref()) {
        report.fail("server-connection", error);
    }
    drop(listener);
    Ok(())
}

impl Server<'_> {
    /// Does what there is to do; answers whether there was anything.
    fn turn(&mut self, report: &mut Report<'_>) -> bool {
        let mut busy = false;
        while let Some(event) = self.station.event_now() {
            busy = true;
            if let Err(error) = self.event(event, report) {
                report.fail("server-events", &error);
            }
        }
        let mut index = 0;
        while index < self.sessions.len() {
            match self.sessions[index].turn(report) {
                Ok(moved) => busy |= moved,
                Err(error) => {
                    let session = &mut self.sessions[index];
                    if session.link.is_cut_off {
                        session.flushed = Some(error);
                    } else if !session.may_fail {
                        report.fail("server-connection", &error);
                    }
                    // What follows is its end.
                    session.may_fail = true;
                }
            }
            index += 1;
        }
        busy
    }

    fn event(&mut self, event: CmEvent, report: &mut Report<'_>) -> Verdict {
        match event.kind {
            CmEventKind::ConnectRequest { id, parameters } => {
                self.asked(id, &parameters, &event.private_data)
            }
            CmEventKind::Disconnected { .. } => self.ended(event.id, report),
            CmEventKind::Established => {
                for session in self.sessions.iter_mut().filter(|session| session.link.id.number() == event.id)
                {
                    session.is_established = true;
                }
                Ok(())
            }
            CmEventKind::TimewaitExit => Ok(()),
            kind => Err(Deviation::Failed(format!("{kind:?} at the server"))),
        }
    }

    fn asked(&mut self, id: Arc<dyn CmId>, asked: &ConnectParameters, private_data: &[u8]) -> Verdict {
        let hello = Hello::from_private_data(private_data, REQUEST_BYTES)?;
        if hello.purpose == Purpose::Refuse {
            return Ok(id.reject(&hello.private_data(REFUSAL_BYTES))?);
        }
        let mut link = Link::new(self.station, id, hello.purpose)?;
        link.peer = hello.arena;
        link.accept(asked)?;
        self.sessions.push(Session {
            link,
            is_established: false,
            may_fail: false,
            flushed: None,
            is_last: false,
        });
        Ok(())
    }

    fn ended(&mut self, id: CmIdNumber, report: &mut Report<'_>) -> Verdict {
        let Some(index) = self.sessions.iter().position(|session| session.link.id.number() == id) else {
            return Ok(()); // refused, or ended before
        };
        // Messages may have come before the end that nobody has looked at.
        let mut session = self.sessions.swap_remove(index);
        while session.turn(report).unwrap_or(false) {}
        self.is_over |= session.is_last;
        if session.may_fail { Ok(()) } else { session.link.close() }
    }
}

impl Session {
    /// Obeys one letter, if one has come.
    fn turn(&mut self, report: &mut Report<'_>) -> Verdict<bool> {
        if self.may_fail || !self.is_established {
            return Ok(false);
        }
        let moved = self.link.pump()?;
        let Some(arrival) = self.link.arrival_now() else { return Ok(moved) };
        let letter = self.link.letter(arrival)?;
        self.obey(&letter, report)?;
        Ok(true)
    }

    fn obey(&mut self, letter: &Letter, report: &mut Report<'_>) -> Verdict {
        let (link, size, seed) = (&mut self.link, letter.size(), letter.seed);
        let mut answer = Letter { wrong: 0, value: 0, ..*letter };
        match letter.verb {
            Verb::Listen => answer.wrong = link.take_messages(letter, 1, false)?,
            Verb::Starve => answer.wrong = link.take_messages(letter, 0, true)?,
            Verb::Send if usize::from(letter.count) > SLOTS => link.send_burst(letter)?,
            Verb::Send => link.send_messages(letter)?,
            Verb::CheckSink => answer.wrong = link.judge_area(Area::Sink, size, seed)?,
            Verb::AwaitWrite => answer.wrong = link.take_write(size, seed)?,
            Verb::Offer => link.offer(size, seed)?,
            Verb::Write => link.write(size, seed, letter.manner)?,
            Verb::Read => answer.wrong = link.read(size, seed)?,
            Verb::Atomics => link.change_word()?,
            Verb::Word => answer.value = link.set_word(seed)?,
            Verb::Break => self.may_fail = true,
            Verb::Stop => self.is_last = true,
            Verb::Disconnect => return Ok(link.id.disconnect()?),
        }
        report.count(size * usize::from(letter.count), answer.wrong);
        self.link.say(&answer)
    }
}
