//! The listening end, which executes the client's control messages on any number of connections.

use super::link::{Area, Link, SLOTS};
use super::protocol::{ControlMessage, Hello, Purpose, REFUSAL_BYTES, REQUEST_BYTES, Verb};
use super::report::Report;
use super::station::{Deadline, Station};
use crate::check::{Deviation, Verdict};
use std::sync::Arc;
use trunkline_verbs::{CmEvent, CmEventKind, CmId, CmIdNumber, ConnectParameters};

/// A connection and the state of its shutdown.
#[derive(Debug)]
struct Session {
    link: Link,
    /// True after the client's RTU has arrived. A kernel does not end the connection before the RTU, although messages may
    /// arrive.
    is_established: bool,
    /// True if the client has announced that the connection will fail.
    may_fail: bool,
    /// The deviation that a flushed send represents. A flush is allowed if the client has ended the connection, because a
    /// client may disconnect before it acknowledges the answer.
    flushed: Option<Deviation>,
    is_last: bool,
}

#[derive(Debug)]
struct Server<'a> {
    station: &'a Station,
    sessions: Vec<Session>,
    is_over: bool,
}

/// Serves clients until one of them sends [`Verb::Stop`].
pub(super) fn serve(station: &Station, port: u16, report: &mut Report<'_>) -> Verdict {
    let listener = station.listen(port)?;
    report.note("listening");
    let mut server = Server { station, sessions: Vec::new(), is_over: false };
    let mut deadline = Deadline::new();
    while !server.is_over {
        if server.turn(report) {
            deadline = Deadline::new();
        } else {
            deadline.wait(|| "the client sent nothing".into())?;
        }
    }
    for error in server.sessions.iter().filter_map(|session| session.flushed.as_ref()) {
        report.fail("server-connection", error);
    }
    drop(listener);
    Ok(())
}

impl Server<'_> {
    /// Handles available events and messages. Returns true if there were any.
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
                    // The next event can only be the end of the connection.
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
                self.accept(id, &parameters, &event.private_data)
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

    fn accept(&mut self, id: Arc<dyn CmId>, offered: &ConnectParameters, private_data: &[u8]) -> Verdict {
        let hello = Hello::from_private_data(private_data, REQUEST_BYTES)?;
        if hello.purpose == Purpose::Refuse {
            return Ok(id.reject(&hello.private_data(REFUSAL_BYTES))?);
        }
        let mut link = Link::new(self.station, id, hello.purpose)?;
        link.peer = hello.arena;
        link.accept(offered)?;
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
            return Ok(()); // the connection was refused or has already ended
        };
        // Handle the messages that arrived before the connection ended.
        let mut session = self.sessions.swap_remove(index);
        while session.turn(report).unwrap_or(false) {}
        self.is_over |= session.is_last;
        if session.may_fail { Ok(()) } else { session.link.close() }
    }
}

impl Session {
    /// Polls for completions, and executes one control message if one is available. Returns true if there was a completion
    /// or a message.
    fn turn(&mut self, report: &mut Report<'_>) -> Verdict<bool> {
        if self.may_fail || !self.is_established {
            return Ok(false);
        }
        let moved = self.link.pump()?;
        let Some(arrival) = self.link.arrival_now() else { return Ok(moved) };
        let control = self.link.read_control(arrival)?;
        self.execute(&control, report)?;
        Ok(true)
    }

    fn execute(&mut self, control: &ControlMessage, report: &mut Report<'_>) -> Verdict {
        let (link, size, seed) = (&mut self.link, control.size(), control.seed);
        let mut answer = ControlMessage { wrong: 0, value: 0, ..*control };
        match control.verb {
            Verb::Listen => answer.wrong = link.take_messages(control, 1, false)?,
            Verb::Starve => answer.wrong = link.take_messages(control, 0, true)?,
            Verb::Send if usize::from(control.count) > SLOTS => link.send_burst(control)?,
            Verb::Send => link.send_messages(control)?,
            Verb::CheckSink => answer.wrong = link.judge_area(Area::Sink, size, seed)?,
            Verb::AwaitWrite => answer.wrong = link.take_write(size, seed)?,
            Verb::Offer => link.offer(size, seed)?,
            Verb::Write => link.write(size, seed, control.manner)?,
            Verb::Read => answer.wrong = link.read(size, seed)?,
            Verb::Atomics => link.change_word()?,
            Verb::Word => answer.value = link.set_word(seed)?,
            Verb::Break => self.may_fail = true,
            Verb::Stop => self.is_last = true,
            Verb::Disconnect => return Ok(link.id.disconnect()?),
        }
        report.count(size * usize::from(control.count), answer.wrong);
        self.link.send_control(&answer)
    }
}
