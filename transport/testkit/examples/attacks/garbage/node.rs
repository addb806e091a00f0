//! One side of an exchange, in a separate process.
//!
//! It listens, connects its lines to the other side, and executes the commands on its standard input:
//!
//! | command | answer |
//! |---|---|
//! | `status` | `STATUS key=value ...` |
//! | `counters` | `COUNTERS name=value ...` |
//! | `renew` | none; reconnects every line that is not a bystander |
//! | `forgive` | `FORGIVE`; resets the counts of the lines that are not bystanders |
//! | end of input | none; the process ends |
//!
//! At start it prints `BYSTANDER qpn` for each QP that forged packets must not name, and `FORBIDDEN rkey address` for
//! registered memory to which attacked connections have no access rights. `READY` follows when all lines are up.

use super::group::{Group, RECEIVE};
use super::line::{Line, Tally};
use super::served::{Hello, Served};
use crate::Outcome;
use clap::Args;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Input, NextLine, Random, wait_readable};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, Completion, CompletionChannel, Device,
    EndpointRequest, EndpointSide, Notify, PortSpace, QpType, RemoteAddress,
};

/// Number of lines of each kind. The four kinds are attacked and bystander lines over XRC and over RC.
const LINES: u64 = 1;
/// Maximum number of accepted connections. It bounds the effect of forged requests.
const MAX_SERVED: usize = 256;
/// Maximum sleep between two rounds.
const NAP: Duration = Duration::from_millis(1);

struct Node {
    device: Arc<SoftDevice>,
    cm: Arc<dyn CmChannel>,
    listeners: [Arc<dyn CmId>; 2],
    /// The group of the attacked lines, and the group of the bystanders.
    groups: [Group; 2],
    lines: Vec<Line>,
    served: HashMap<CmIdNumber, Served>,
    /// Number of received messages with wrong bytes, for attacked lines and for bystanders.
    received_wrong: [u64; 2],
    /// Number of requests that could not be accepted.
    unacceptable: u64,
    announced: usize,
    is_ready: bool,
}

/// Arguments of the process for one side.
#[derive(Debug, Args)]
pub(crate) struct Side {
    own: IpAddr,
    peer: IpAddr,
    /// Port for XRC connections on both sides. The next port is for RC connections.
    port: u16,
    /// File for the capture of this side's packets.
    capture: Option<PathBuf>,
}

/// Runs one side until the end of its input.
pub(crate) fn serve(Side { own, peer, port, capture }: Side) -> Outcome<()> {
    let (xrc_port, rc_port) = (port, port + 1);
    let device = SoftDevice::open(SoftOptions { addresses: vec![own], capture, ..SoftOptions::from_env()? })?;
    let completions = device.create_completion_channel()?;
    let cm = device.connection_manager().create_channel()?;
    let groups = [Group::new(&device, &completions)?, Group::new(&device, &completions)?];
    let listen = |port, qp_type| -> Outcome<Arc<dyn CmId>> {
        let side = EndpointSide::Passive { local: SocketAddr::new(own, port) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let id = device.connection_manager().create_endpoint(&request, &cm)?;
        id.listen(64)?;
        Ok(id)
    };
    let listeners = [listen(xrc_port, QpType::XrcTgt)?, listen(rc_port, QpType::Rc)?];
    for remote in groups.iter().flat_map(Group::forbidden) {
        println!("{}", forbidden(remote));
    }
    let mut seeds = Random::from_entropy();
    let mut lines = Vec::new();
    for bystander in [false, true] {
        for (qp_type, port) in [(QpType::XrcIni, xrc_port), (QpType::Rc, rc_port)] {
            for _ in 0..LINES {
                let (index, remote) = (lines.len() as u64, SocketAddr::new(peer, port));
                let group = &groups[usize::from(bystander)];
                lines.push(Line::new(index, group, bystander, qp_type, remote, seeds.next())?);
            }
        }
    }
    let mut node = Node {
        device,
        cm,
        listeners,
        groups,
        lines,
        served: HashMap::new(),
        received_wrong: [0; 2],
        unacceptable: 0,
        announced: 0,
        is_ready: false,
    };
    node.work(&*completions, &Input::open())
}

fn forbidden(remote: RemoteAddress) -> String {
    format!("FORBIDDEN {} {}", remote.rkey.0, remote.address.0)
}

impl Node {
    fn work(&mut self, completions: &dyn CompletionChannel, input: &Input) -> Outcome<()> {
        let cm = Arc::clone(&self.cm);
        loop {
            match input.next_line() {
                NextLine::Line(command) => self.answer(&command)?,
                NextLine::NotYet => {}
                NextLine::End => return Ok(()),
            }
            let mut busy = self.take_completions()?;
            while let Some(event) = self.cm.next_event() {
                self.take_event(event)?;
                busy = true;
            }
            while self.device.next_async_event().is_some() {}
            let now = Instant::now();
            for line in &mut self.lines {
                line.drive(&self.device, &self.groups[usize::from(line.is_bystander())], &self.cm, now)?;
            }
            self.announce();
            if !busy {
                for group in &self.groups {
                    group.cq.request_notify(Notify::Any)?;
                }
                if !self.take_completions()? {
                    wait_readable(&[completions.as_fd(), cm.as_fd()], NAP);
                    while completions.next_event().is_some() {}
                }
            }
        }
    }

    fn take_completions(&mut self) -> Outcome<bool> {
        let mut some = [Completion::default(); 32];
        let mut busy = false;
        for at in 0..self.groups.len() {
            loop {
                let count = self.groups[at].cq.poll(&mut some);
                for completion in &some[..count] {
                    self.take_completion(at, completion)?;
                }
                busy |= count > 0;
                if count < some.len() {
                    break;
                }
            }
        }
        Ok(busy)
    }

    fn take_completion(&mut self, group: usize, completion: &Completion) -> Outcome<()> {
        if completion.wr_id & RECEIVE == 0 {
            let index = usize::try_from(completion.wr_id >> 32)?;
            let line = self.lines.get_mut(index).ok_or("a completion of no line")?;
            return line.complete(completion);
        }
        let bytes = self.groups[group].take(completion.wr_id, completion.byte_length)?;
        if !completion.status.is_success() {
            return Ok(()); // the QP failed during a message, and its line counts the failure
        }
        let from = self.served.values_mut().find(|served| served.qp.number() == completion.qp_number);
        // A message may be polled after its connection has ended.
        if from.is_some_and(|served| !served.is_next(&bytes, completion.immediate)) {
            self.received_wrong[group] += 1;
        }
        Ok(())
    }

    fn take_event(&mut self, event: CmEvent) -> Outcome<()> {
        if let CmEventKind::ConnectRequest { id, parameters } = event.kind {
            return self.take_request(event.id, id, &parameters.private_data);
        }
        let line = self.lines.iter_mut().find(|line| line.id() == Some(event.id));
        match (event.kind, line) {
            (CmEventKind::Established, Some(line)) => line.established(&event.private_data),
            (CmEventKind::Established | CmEventKind::TimewaitExit, _) => {}
            (_, Some(line)) => line.break_off(),
            (_, None) => {
                if let Some(served) = self.served.remove(&event.id) {
                    served.end();
                }
            }
        }
        Ok(())
    }

    fn take_request(&mut self, listener: CmIdNumber, id: Arc<dyn CmId>, private: &[u8]) -> Outcome<()> {
        let hello = Hello::parse(private).filter(|_| self.served.len() < MAX_SERVED);
        let Some(hello) = hello else {
            let _refused = id.reject(b"");
            return Ok(());
        };
        let is_rc = listener == self.listeners[1].number();
        let qp_type = if is_rc { QpType::Rc } else { QpType::XrcTgt };
        let group = &self.groups[usize::from(hello.bystander)];
        match Served::accept(&self.device, group, Arc::clone(&id), qp_type, hello) {
            Ok(served) => {
                if hello.bystander && !self.is_ready {
                    println!("BYSTANDER {}", served.qp.number().get());
                    println!("{}", forbidden(served.window()));
                }
                self.served.insert(id.number(), served);
            }
            // A forged request may be invalid or withdrawn. Continue with the next request.
            Err(_) => self.unacceptable += 1,
        }
        Ok(())
    }

    /// Prints the QPs of bystanders, and `READY` once all lines are up.
    fn announce(&mut self) {
        if self.is_ready {
            return;
        }
        let up: Vec<&Line> = self.lines.iter().filter(|line| line.is_up()).collect();
        if up.len() > self.announced && up.len() == self.lines.len() {
            for number in up.iter().filter(|line| line.is_bystander()).filter_map(|line| line.qp_number()) {
                println!("BYSTANDER {number}");
            }
            self.announced = up.len();
        }
        let served = self.served.len();
        if up.len() == self.lines.len() && served >= self.lines.len() {
            self.is_ready = true;
            println!("READY");
        }
    }

    fn answer(&mut self, question: &str) -> Outcome<()> {
        match question {
            "status" => println!("STATUS {}", self.status()?),
            "counters" => {
                let mut text = String::new();
                for counter in self.device.counters() {
                    write!(text, " {}={}", counter.name, counter.value)?;
                }
                println!("COUNTERS{text}");
            }
            "renew" => {
                for line in self.lines.iter_mut().filter(|line| !line.is_bystander()) {
                    line.renew();
                }
            }
            "forgive" => {
                for line in self.lines.iter_mut().filter(|line| !line.is_bystander()) {
                    line.tally = Tally::default();
                }
                self.received_wrong[0] = 0;
                println!("FORGIVE");
            }
            other => return Err(format!("unknown command {other:?}").into()),
        }
        Ok(())
    }

    fn status(&self) -> Outcome<String> {
        let mut text = String::new();
        for (group, name) in ["attacked", "bystander"].into_iter().enumerate() {
            let lines = || self.lines.iter().filter(|line| usize::from(line.is_bystander()) == group);
            let sum = |number: fn(&Tally) -> u64| lines().map(|line| number(&line.tally)).sum::<u64>();
            let longest_ms = lines().map(|line| line.tally.longest_ms).max().unwrap_or(0);
            let down = lines().filter(|line| !line.is_up()).count();
            write!(
                text,
                "{name}_rounds={} {name}_wrong={} {name}_broken={} {name}_reconnected={} \
                 {name}_longest_ms={longest_ms} {name}_down={down} {name}_received_wrong={} ",
                sum(|tally| tally.rounds),
                sum(|tally| tally.wrong),
                sum(|tally| tally.broken),
                sum(|tally| tally.reconnected),
                self.received_wrong[group],
            )?;
            for what in self.groups[group].harmed()? {
                eprintln!("{name}: {what} was changed");
                write!(text, "{name}_harmed=1 ")?;
            }
        }
        write!(text, "served={} unacceptable={}", self.served.len(), self.unacceptable)?;
        Ok(text)
    }
}
