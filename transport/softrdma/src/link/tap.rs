//! The tap on a link: injects faults into what is sent, and captures what is on the wire.
//!
//! Owns the link, its faults and its recorder. Sent datagrams pass the faults first, so a capture shows the
//! traffic on the wire, faults included. Received datagrams pass untouched.
#![forbid(unsafe_code)]

use super::capture::{Recorder, RecordingJudge};
use super::faults::Faults;
use super::{Judge, Link, LinkError, ReceiveBatch, SendBatch};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use trunkline_verbs::{Counter, Time};

/// A link with faults, a recorder or both.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) faults: Option<Faults>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) link: Box<dyn Link>,
}

/// Records the datagrams of a batch and sends them.
fn send_recorded(
    recorder: &mut Option<Recorder>,
    link: &mut Box<dyn Link>,
    batch: &mut SendBatch,
    now: Time,
) {
    if let Some(recorder) = recorder {
        recorder.record_sending(batch);
    }
    link.send(batch, now);
    if let Some(recorder) = recorder {
        recorder.note_unsent(batch.len());
    }
}

impl Link for Tap {
    fn name(&self) -> &'static str {
        self.link.name()
    }

    fn open(&mut self, address: IpAddr) -> Result<(), LinkError> {
        self.link.open(address)
    }

    fn close(&mut self, address: IpAddr) {
        self.link.close(address);
    }

    fn mtu(&self, address: IpAddr) -> Result<u32, LinkError> {
        self.link.mtu(address)
    }

    fn source(&self, address: IpAddr) -> SocketAddr {
        self.link.source(address)
    }

    fn changes(&self) -> u64 {
        self.link.changes()
    }

    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        let Self { faults, recorder, link } = self;
        let mut send = |batch: &mut SendBatch| send_recorded(recorder, link, batch, now);
        match faults {
            Some(faults) => faults.send(batch, now, send),
            None => send(batch),
        }
    }

    fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        let count = self.link.receive(batch);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_batch(batch);
        }
        count
    }

    fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let Some(recorder) = &mut self.recorder else { return self.link.receive_judged(batch, judge) };
        let count = self.link.receive_judged(batch, &mut RecordingJudge { judge, recorder });
        recorder.record_batch(batch);
        count
    }

    fn arm(&mut self) -> bool {
        self.link.arm()
    }

    fn stays_armed(&self) -> bool {
        self.link.stays_armed()
    }

    fn is_drained(&self) -> bool {
        self.link.is_drained()
    }

    fn has_arrivals(&self) -> bool {
        self.link.has_arrivals()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.link.fds()
    }

    fn next_timeout(&self) -> Option<Time> {
        let faults = self.faults.as_ref().and_then(Faults::next_timeout);
        faults.into_iter().chain(self.link.next_timeout()).min()
    }

    fn poll(&mut self, now: Time) {
        let Self { faults, recorder, link } = self;
        if let Some(faults) = faults {
            faults.poll(now, |batch| send_recorded(recorder, link, batch, now));
        }
        self.link.poll(now);
    }

    fn counters(&self, into: &mut Vec<Counter>) {
        if let Some(faults) = &self.faults {
            faults.counters(into);
        }
        if let Some(recorder) = &self.recorder {
            recorder.counters(into);
        }
        self.link.counters(into);
    }
}
