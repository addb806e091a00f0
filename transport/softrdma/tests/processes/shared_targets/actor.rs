//! A puppet of the conformance suite with an SRQ, which shares an XRC domain with other processes.
//!
//! Between commands the puppet sleeps in a read, so that the device's own thread does all work.

use crate::common::node::BOUND;
use crate::common::processes::Soft;
use nix::sys::signal::Signal;
use std::net::IpAddr;
use trunkline_conformance::{ProcessBench, Puppet};
use trunkline_testkit::wait_until;
use trunkline_verbs::{IoAddress, RemoteAddress, Rkey, SrqNumber};

/// Length of each receive in bytes.
const RECEIVE: u64 = 4096;
/// Offset of the receives in the memory.
const RECEIVES_AT: u64 = 64 << 10;
const SLOTS: u64 = 16;

#[derive(Debug)]
pub(crate) struct Actor {
    puppet: Puppet,
    srq: SrqNumber,
    /// Work request id of the next receive.
    next: u64,
}

/// A completion of a receive.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) status: String,
    /// First word of the message.
    pub(crate) word: u64,
}

impl Actor {
    pub(crate) fn start(soft: &Soft, address: IpAddr) -> Self {
        let mut puppet = Puppet::adopt("an actor", soft.start_puppet(address).unwrap()).unwrap();
        puppet.does(&format!("domain d {} c", soft.host().path("domain").display())).unwrap();
        let srq = SrqNumber::new(puppet.does("srq s d").unwrap().parse().unwrap());
        Self { puppet, srq, next: 0 }
    }

    /// Executes a command, which must succeed. Returns its result.
    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.puppet.does(command).unwrap()
    }

    pub(crate) fn number(&mut self, command: &str) -> u32 {
        self.ask(command).parse().unwrap()
    }

    pub(crate) fn srq(&self) -> SrqNumber {
        self.srq
    }

    /// Returns the address of the actor's memory.
    pub(crate) fn remote(&mut self) -> RemoteAddress {
        let answer = self.ask("memory");
        let (address, rkey) = answer.split_once(' ').unwrap();
        RemoteAddress { address: IoAddress(address.parse().unwrap()), rkey: Rkey(rkey.parse().unwrap()) }
    }

    pub(crate) fn post(&mut self, count: u32) {
        for _ in 0..count {
            self.ask(&format!("receive s {} {} {RECEIVE}", self.next, place(self.next)));
            self.next += 1;
        }
    }

    /// Waits for the completion of a receive, and reposts the receive.
    pub(crate) fn taken(&mut self) -> Taken {
        let completion = self.ask("poll s");
        let mut words = completion.split(' ');
        let (wr_id, status) = (words.next().unwrap(), words.next().unwrap());
        let word = self.ask(&format!("word {}", place(wr_id.parse().unwrap()))).parse().unwrap();
        self.post(1);
        Taken { status: status.to_owned(), word }
    }

    pub(crate) fn kill(self) {
        self.puppet.kill().unwrap();
    }

    pub(crate) fn stop(&self) {
        self.puppet.process().stop();
    }

    pub(crate) fn go_on(&self) {
        self.puppet.process().signal(Signal::SIGCONT);
    }

    /// Repeats a command until `wanted` returns true for its result.
    pub(crate) fn until(&mut self, command: &str, wanted: impl Fn(&str) -> bool) {
        wait_until(command, BOUND, || wanted(&self.ask(command)).then_some(()));
    }
}

/// Returns the offset of a receive.
fn place(wr_id: u64) -> u64 {
    RECEIVES_AT + wr_id % SLOTS * RECEIVE
}
