//! A process that executes verbs on command.
//!
//! Each command and each answer is one line. A command begins with the name of its verb, and the controlling process
//! chooses the names of objects. Answers begin with [`ANSWER`], so that other output of the process, such as output of a
//! test harness, is ignored.

use crate::Port;
use crate::check::Deviation;
use crate::connect::{End, Terms, init_mask, rtr_mask};
use crate::lab::Side;
use crate::traffic::{poll_one, receive};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::{
    AsyncEvent, Completion, CompletionQueue, Gid, MemoryError, QpModify, QpNumber, QpState, QpType,
    QueuePair, SharedReceiveQueue, VerbsError, XrcDomain, XrcdFlags,
};

/// Prefix of each answer.
pub(super) const ANSWER: &str = "@puppet ";
/// Time limit of a wait that must succeed.
const WAIT_AT_MOST: Duration = Duration::from_secs(60);
/// Time to wait for an event that must not happen.
const QUIET: Duration = Duration::from_millis(60);

/// Executes commands on a device until the input ends.
///
/// # Errors
/// Returns an error if the input cannot be read or the output cannot be written.
pub fn serve_puppet(port: Port, input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut puppet = match Side::new(port) {
        Ok(side) => Puppet::new(side),
        Err(deviation) => return Err(io::Error::other(format!("{deviation:?}"))),
    };
    writeln!(output, "\n{ANSWER}ok ready")?;
    output.flush()?;
    for line in input.lines() {
        let line = line?;
        let words: Vec<&str> = line.split_whitespace().collect();
        match puppet.execute(&words) {
            Ok(text) => writeln!(output, "{ANSWER}ok {text}")?,
            Err(Refusal::Verb(error)) => writeln!(output, "{ANSWER}errno {} {error}", error.errno())?,
            Err(Refusal::Other(why)) => writeln!(output, "{ANSWER}wrong {line}: {why}")?,
        }
        output.flush()?;
    }
    Ok(())
}

/// The reason why a command was not executed.
enum Refusal {
    Verb(VerbsError),
    Other(String),
}

impl From<VerbsError> for Refusal {
    fn from(error: VerbsError) -> Self {
        Self::Verb(error)
    }
}

impl From<Deviation> for Refusal {
    fn from(deviation: Deviation) -> Self {
        Self::Other(format!("{deviation:?}"))
    }
}

impl From<MemoryError> for Refusal {
    fn from(error: MemoryError) -> Self {
        Deviation::from(error).into()
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Other(error.to_string())
    }
}

type Answer = Result<String, Refusal>;

/// A shared receive queue and its CQ.
type Queue = (Arc<dyn SharedReceiveQueue>, Arc<dyn CompletionQueue>);

struct Puppet {
    side: Side,
    domains: HashMap<String, Arc<dyn XrcDomain>>,
    queues: HashMap<String, Queue>,
    qps: HashMap<String, Arc<dyn QueuePair>>,
}

fn of<'a, T>(map: &'a HashMap<String, T>, name: &str) -> Result<&'a T, Refusal> {
    map.get(name).ok_or_else(|| Refusal::Other(format!("there is no object named {name}")))
}

fn parsed<T: std::str::FromStr>(word: &str) -> Result<T, Refusal> {
    word.parse().map_err(|_| Refusal::Other(format!("{word} has the wrong format")))
}

impl Puppet {
    fn new(side: Side) -> Self {
        Self { side, domains: HashMap::new(), queues: HashMap::new(), qps: HashMap::new() }
    }

    fn execute(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["domain", name, path, flags] => self.open_domain(name, path, flags),
            ["race", name, path, flags, start] => {
                // All competing processes wait for this file, so that they start almost simultaneously.
                let until = Instant::now() + WAIT_AT_MOST;
                while fs::metadata(start).is_err() {
                    if Instant::now() > until {
                        return Err(Refusal::Other("the race was not started in time".to_owned()));
                    }
                    std::hint::spin_loop();
                }
                self.open_domain(name, path, flags)
            }
            ["close", name] => {
                of(&self.domains, name)?.close()?;
                self.domains.remove(name);
                done()
            }
            ["srq", name, domain] => {
                let cq = self.side.new_cq()?;
                let init = self.side.srq_init(of(&self.domains, domain)?, &cq);
                let srq = self.side.device.create_srq(init)?;
                let number = srq.number()?.get();
                self.queues.insert(name.to_owned(), (srq, cq));
                Ok(number.to_string())
            }
            ["tgt", name, domain] => {
                let init = self.side.tgt_init(of(&self.domains, domain)?);
                let qp = self.side.device.create_qp(init)?;
                self.keep_qp(name, qp)
            }
            ["open", name, domain, number] => {
                let domain = of(&self.domains, domain)?;
                let qp = self.side.device.open_qp(domain, QpNumber::new(parsed(number)?))?;
                self.keep_qp(name, qp)
            }
            ["init", name] => {
                let end = self.end(name, Gid::default(), QpNumber::new(0))?;
                end.step(QpState::Reset, QpState::Init, init_mask(), &Terms::default())?;
                done()
            }
            ["rtr", name, address, peer] => {
                let address: std::net::IpAddr = parsed(address)?;
                let end = self.end(name, address.into(), QpNumber::new(parsed(peer)?))?;
                let mask = rtr_mask(QpType::XrcTgt);
                end.step(QpState::Init, QpState::ReadyToReceive, mask, &Terms::default())?;
                done()
            }
            ["up", name, address, peer] => {
                let address: std::net::IpAddr = parsed(address)?;
                let end = self.end(name, address.into(), QpNumber::new(parsed(peer)?))?;
                end.bring_to(QpState::ReadyToSend, &Terms::default())?;
                done()
            }
            ["set", name, state] => {
                let state = match state {
                    "error" => QpState::Error,
                    "reset" => QpState::Reset,
                    _ => return Err(Refusal::Other("no such state".to_owned())),
                };
                of(&self.qps, name)?.modify(&QpModify { state: Some(state), ..QpModify::default() })?;
                done()
            }
            ["state", name] => Ok(format!("{:?}", of(&self.qps, name)?.query()?.state)),
            ["destroy", name] => {
                if let Some(qp) = self.qps.remove(name) {
                    qp.destroy()?;
                } else {
                    of(&self.queues, name)?.0.destroy()?;
                    self.queues.remove(name);
                }
                done()
            }
            _ => self.execute_traffic(words),
        }
    }

    fn execute_traffic(&mut self, words: &[&str]) -> Answer {
        match *words {
            ["receive", name, wr_id, offset, length] => {
                let piece = self.side.piece(parsed(offset)?, parsed(length)?);
                receive(&of(&self.queues, name)?.0, parsed(wr_id)?, &[piece])?;
                done()
            }
            ["limit", name, limit] => {
                of(&self.queues, name)?.0.arm_limit(parsed(limit)?)?;
                done()
            }
            ["poll", name] => {
                let cq = &of(&self.queues, name)?.1;
                let got = self.wait(WAIT_AT_MOST, || poll_one(cq));
                let got = got.ok_or_else(|| Refusal::Other("no completion arrived".to_owned()))?;
                Ok(format!(
                    "{} {:?} {:?} {} {}",
                    got.wr_id,
                    got.status,
                    got.opcode,
                    got.byte_length,
                    got.qp_number.get()
                ))
            }
            ["quiet", name] => {
                let cq = &of(&self.queues, name)?.1;
                match self.wait(QUIET, || poll_one(cq)) {
                    None => done(),
                    Some(got) => Err(Refusal::Other(format!("{got:?} came"))),
                }
            }
            ["event", kind] => {
                let event = self.wait(WAIT_AT_MOST, || self.event_of(kind));
                let event = event.ok_or_else(|| Refusal::Other("no such event arrived".to_owned()))?;
                Ok(format!("{:?}", event.subject))
            }
            ["no-event", kind] => match self.wait(QUIET, || self.event_of(kind)) {
                None => done(),
                Some(event) => Err(Refusal::Other(format!("{event:?} came"))),
            },
            ["memory"] => {
                let remote = self.side.remote(0);
                Ok(format!("{} {}", remote.address.0, remote.rkey.0))
            }
            ["word", offset] => Ok(self.side.memory.load(parsed(offset)?)?.to_string()),
            ["counter", name] => {
                let counters = self.side.device.counters();
                let value =
                    counters.iter().filter(|counter| counter.name == name).map(|counter| counter.value);
                Ok(value.sum::<u64>().to_string())
            }
            ["fill", offset, length, seed] => {
                self.side.fill(parsed(offset)?, parsed(length)?, parsed(seed)?)?;
                done()
            }
            ["holds", offset, length, seed] => {
                self.side.holds("the memory", parsed(offset)?, parsed(length)?, parsed(seed)?)?;
                done()
            }
            _ => Err(Refusal::Other("no such command".to_owned())),
        }
    }

    fn open_domain(&mut self, name: &str, path: &str, flags: &str) -> Answer {
        let mut wanted = XrcdFlags::empty();
        wanted.set(XrcdFlags::CREATE, flags.contains('c'));
        wanted.set(XrcdFlags::EXCLUSIVE, flags.contains('x'));
        let file = if path == "-" { None } else { Some(File::open(path)?) };
        let domain = self.side.device.open_xrcd(file.as_ref().map(AsFd::as_fd), wanted)?;
        self.domains.insert(name.to_owned(), domain);
        done()
    }

    fn keep_qp(&mut self, name: &str, qp: Arc<dyn QueuePair>) -> Answer {
        let number = qp.number().get();
        self.qps.insert(name.to_owned(), qp);
        Ok(number.to_string())
    }

    fn end(&self, name: &str, other: Gid, peer: QpNumber) -> Result<End<'_>, Refusal> {
        Ok(End { side: &self.side, qp: of(&self.qps, name)?, other, peer })
    }

    fn event_of(&self, kind: &str) -> Option<AsyncEvent> {
        std::iter::from_fn(|| self.side.device.next_async_event())
            .find(|event| format!("{:?}", event.kind) == kind)
    }

    /// Waits until `probe` returns a value, while the device makes progress.
    fn wait<T>(&self, limit: Duration, mut probe: impl FnMut() -> Option<T>) -> Option<T> {
        let until = Instant::now() + limit;
        loop {
            if let Some(found) = probe() {
                return Some(found);
            }
            if Instant::now() > until {
                return None;
            }
            self.side.idle.poll(&mut [Completion::default()]);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn done() -> Answer {
    Ok(String::new())
}
