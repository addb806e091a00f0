//! A process that shares an XRC domain with others and executes commands from its standard input.
//!
//! It answers each command with one line. Between commands it sleeps in a read, so that the device's own
//! thread does all work.

use crate::common::host::{Host, part};
use crate::common::node::{BOUND, Node, bring_up_with, wait_readable};
use nix::sys::signal::Signal;
use std::fs::OpenOptions;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Process, print_line, same_test};
use trunkline_verbs::{
    Completion, Device, IoAddress, Notify, QpModify, QpNumber, QpState, QpType, QueuePair, RemoteAddress,
    Rkey, SrqNumber,
};

const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";
const DOMAIN: &str = "TRUNKLINE_TEST_DOMAIN";
const MEMORY: usize = 1 << 20;
/// Length of each receive in bytes.
const RECEIVE: u32 = 8192;
/// Offset of the receives, which use the upper half of the memory.
const RECEIVES_AT: usize = MEMORY / 2;
const SLOTS: u64 = 64;

/// Runs the actor. Without a part it does nothing.
pub(crate) fn play() {
    if part().is_none() {
        return;
    }
    let address: IpAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let options = SoftOptions { addresses: vec![address], ..SoftOptions::from_env().unwrap() };
    let device = SoftDevice::open(options).expect("the device opens");
    let file = OpenOptions::new().create(true).append(true).open(std::env::var(DOMAIN).unwrap()).unwrap();
    let mut stage = Stage {
        node: Node::in_domain(device, address, MEMORY, Some(file.as_fd())),
        handles: Vec::new(),
        next: 0,
    };
    print_line("ready");
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = stage.command(&words);
        print_line(&format!("= {answer}"));
    }
}

struct Stage {
    node: Node,
    handles: Vec<Arc<dyn QueuePair>>,
    /// Work request id of the next receive.
    next: u64,
}

impl Stage {
    fn command(&mut self, words: &[&str]) -> String {
        let number = |index: usize| words[index].parse::<u32>().unwrap();
        match words[0] {
            "srq" => self.node.srq.number().unwrap().get().to_string(),
            "remote" => {
                let remote = self.node.remote(0);
                format!("{} {}", remote.rkey.0, remote.address.0)
            }
            "tgt" => {
                let tgt = self.node.qp(QpType::XrcTgt);
                self.handles.push(Arc::clone(&tgt));
                tgt.number().get().to_string()
            }
            "open" => match self.node.device.open_qp(&self.node.xrcd, QpNumber::new(number(1))) {
                Ok(handle) => {
                    self.handles.push(handle);
                    "ok".to_owned()
                }
                Err(error) => error.errno().to_string(),
            },
            "connect" => {
                let peer: IpAddr = words[1].parse().unwrap();
                bring_up_with(&*self.handles[0], peer, QpNumber::new(number(2)));
                "ok".to_owned()
            }
            "error" => self.modify(&QpModify { state: Some(QpState::Error), ..QpModify::default() }),
            "reset" => self.modify(&QpModify { state: Some(QpState::Reset), ..QpModify::default() }),
            "query" => {
                let attributes = self.handles[0].query().unwrap();
                format!("{:?} {}", attributes.state, attributes.destination_qp.get())
            }
            "post" => {
                for _ in 0..number(1) {
                    self.post();
                }
                "ok".to_owned()
            }
            "take" => self.take(number(1)),
            "word" => {
                let mut word = [0; 8];
                self.node.memory.read(number(1) as usize, &mut word).unwrap();
                u64::from_le_bytes(word).to_string()
            }
            "counter" => self.node.counter(words[1]).to_string(),
            other => panic!("no such command: {other}"),
        }
    }

    fn modify(&self, change: &QpModify) -> String {
        let result = self.handles[0].modify(change);
        result.map_or_else(|error| error.errno().to_string(), |()| "ok".to_owned())
    }

    fn post(&mut self) {
        let offset = RECEIVES_AT + usize::try_from(self.next % SLOTS).unwrap() * RECEIVE as usize;
        self.node.receive(self.next, offset, RECEIVE);
        self.next += 1;
    }

    /// Polls completions, and reposts each receive. Returns status and first word of each.
    fn take(&mut self, count: u32) -> String {
        let mut all = Vec::new();
        for _ in 0..count {
            let completion = self.completion();
            let at = RECEIVES_AT + usize::try_from(completion.wr_id % SLOTS).unwrap() * RECEIVE as usize;
            let mut word = [0; 8];
            self.node.memory.read(at, &mut word).unwrap();
            all.push(format!("{:?}/{}", completion.status, u64::from_le_bytes(word)));
            self.post();
        }
        all.join(" ")
    }

    /// Sleeps until a completion arrives.
    fn completion(&self) -> Completion {
        let mut one = [Completion::default()];
        loop {
            if self.node.cq.poll(&mut one) == 1 {
                return one[0];
            }
            self.node.cq.request_notify(Notify::Any).unwrap();
            if self.node.cq.poll(&mut one) == 1 {
                return one[0];
            }
            wait_readable(&*self.node.channel);
            while self.node.channel.next_event().is_some() {}
        }
    }
}

/// The test's side of an actor: a process that executes verbs on command.
#[derive(Debug)]
pub(crate) struct Actor(Process);

impl Actor {
    pub(crate) fn start(host: &Host, address: IpAddr, variables: &[(&str, &str)]) -> Self {
        let mut command = same_test(super::MODULE, "play");
        command.env(ADDRESS, address.to_string()).env(DOMAIN, host.path("domain"));
        let mut process = host.start("actor", &mut command, variables);
        process.after("ready").unwrap();
        Self(process)
    }

    /// Sends a command without waiting for the answer.
    pub(crate) fn tell(&mut self, command: &str) {
        self.0.tell(command).unwrap();
    }

    /// Returns the answer to a command.
    pub(crate) fn answer(&mut self) -> String {
        self.0.after("= ").unwrap()
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer()
    }

    pub(crate) fn number(&mut self, command: &str) -> u32 {
        self.ask(command).parse().unwrap()
    }

    pub(crate) fn ok(&mut self, command: &str) {
        assert_eq!(self.ask(command), "ok", "{command}");
    }

    pub(crate) fn srq(&mut self) -> SrqNumber {
        SrqNumber::new(self.number("srq"))
    }

    /// Returns the address `offset` bytes into the actor's memory.
    pub(crate) fn remote(&mut self, offset: u64) -> RemoteAddress {
        let answer = self.ask("remote");
        let (rkey, address) = answer.split_once(' ').unwrap();
        let address = IoAddress(address.parse::<u64>().unwrap() + offset);
        RemoteAddress { address, rkey: Rkey(rkey.parse().unwrap()) }
    }

    /// Polls completions of receives.
    pub(crate) fn taken(&mut self, count: u32) -> Vec<Taken> {
        let answer = self.ask(&format!("take {count}"));
        answer.split(' ').map(Taken::parse).collect()
    }

    /// Kills the process by SIGKILL.
    pub(crate) fn kill(mut self) {
        self.0.kill().unwrap();
    }

    /// Stops the process by SIGSTOP.
    pub(crate) fn stop(&self) {
        self.0.stop();
    }

    pub(crate) fn go_on(&self) {
        self.0.signal(Signal::SIGCONT);
    }

    /// Repeats a command until the answer is the wanted one.
    pub(crate) fn until(&mut self, command: &str, wanted: impl Fn(&str) -> bool) {
        let until = Instant::now() + BOUND;
        loop {
            let answer = self.ask(command);
            if wanted(&answer) {
                return;
            }
            assert!(Instant::now() < until, "{command}: {answer}");
            std::thread::yield_now();
        }
    }
}

/// A completion of a receive, as an actor reports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) status: String,
    pub(crate) word: u64,
}

impl Taken {
    fn parse(text: &str) -> Self {
        let (status, word) = text.split_once('/').unwrap();
        Self { status: status.to_owned(), word: word.parse().unwrap() }
    }
}
