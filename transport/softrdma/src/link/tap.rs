//! A tap on a link, which injects faults into sent datagrams, and records the traffic on the wire.
//!
//! Owns the link, its faults, its recorder and its observer. Sent datagrams pass through the faults first, so that the
//! recorder and the observer get the traffic on the wire, including the faults. Received datagrams are not changed.
#![forbid(unsafe_code)]

use super::capture::{Recorder, RecordingJudge};
use super::faults::Faults;
use super::{Datagram, Judge, Link, ReceiveBatch, SendBatch};
use std::fmt::Debug;
use std::sync::Arc;
use trunkline_verbs::{Counter, Time};

/// Observer of a link's traffic, for example to count datagrams.
pub trait LinkObserver: Send + Sync + Debug {
    /// Called for each datagram that is passed to the link.
    fn sent(&self, datagram: Datagram<'_>);

    /// Called with the number of datagrams of each received batch.
    fn received(&self, count: usize);
}

/// A link, with its faults, recorder and observer.
#[derive(Debug)]
pub(crate) struct Tap {
    pub(crate) faults: Option<Faults>,
    pub(crate) wire: Wire,
}

/// A link, with its recorder and observer.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) link: Box<dyn Link>,
    pub(crate) recorder: Option<Recorder>,
    pub(crate) observer: Option<Arc<dyn LinkObserver>>,
    /// Number of datagrams at the front of the next batch that were already recorded. They remained because the link
    /// lacked room for them.
    seen: usize,
}

impl Wire {
    fn send(&mut self, batch: &mut SendBatch, now: Time) {
        if self.observer.is_some() || self.recorder.is_some() {
            self.link.segment(batch);
        }
        if let Some(observer) = &self.observer {
            batch.iter().skip(self.seen).for_each(|datagram| observer.sent(datagram));
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_sent(batch.iter_with_identification().skip(self.seen));
        }
        self.link.send(batch, now);
        self.seen = batch.len();
    }

    fn note_received(&mut self, batch: &ReceiveBatch, count: usize) -> usize {
        if let Some(recorder) = &mut self.recorder {
            recorder.record_batch(batch);
        }
        if let Some(observer) = &self.observer {
            observer.received(count);
        }
        count
    }
}

impl Tap {
    /// Creates a tap without faults, recorder or observer.
    pub(crate) fn new(link: Box<dyn Link>) -> Self {
        Self { faults: None, wire: Wire { link, recorder: None, observer: None, seen: 0 } }
    }

    /// Sends a batch through the faults. See [`Link::send`].
    pub(crate) fn send(&mut self, batch: &mut SendBatch, now: Time) {
        let Self { faults, wire } = self;
        match faults {
            Some(faults) => faults.send(batch, now, |batch| wire.send(batch, now)),
            None => wire.send(batch, now),
        }
    }

    /// Receives a batch. See [`Link::receive`].
    pub(crate) fn receive(&mut self, batch: &mut ReceiveBatch) -> usize {
        let count = self.wire.link.receive(batch);
        self.wire.note_received(batch, count)
    }

    /// Receives a batch with a judge. See [`Link::receive_judged`].
    pub(crate) fn receive_judged(&mut self, batch: &mut ReceiveBatch, judge: &mut dyn Judge) -> usize {
        let Wire { link, recorder, .. } = &mut self.wire;
        let count = match recorder {
            Some(recorder) => link.receive_judged(batch, &mut RecordingJudge { judge, recorder }),
            None => link.receive_judged(batch, judge),
        };
        self.wire.note_received(batch, count)
    }

    /// Returns the next timeout of the link or of the faults. See [`Link::next_timeout`].
    pub(crate) fn next_timeout(&self) -> Option<Time> {
        let faults = self.faults.as_ref().and_then(Faults::next_timeout);
        faults.into_iter().chain(self.wire.link.next_timeout()).min()
    }

    /// Performs the timed work of the link and of the faults. See [`Link::poll`].
    pub(crate) fn poll(&mut self, now: Time) {
        let Self { faults, wire } = self;
        if let Some(faults) = faults {
            faults.poll(now, |batch| wire.send(batch, now));
        }
        wire.link.poll(now);
    }

    /// Appends the counters of the link and of the tap. See [`Link::counters`].
    pub(crate) fn counters(&self, into: &mut Vec<Counter>) {
        if let Some(faults) = &self.faults {
            faults.counters(into);
        }
        if let Some(recorder) = &self.wire.recorder {
            recorder.counters(into);
        }
        self.wire.link.counters(into);
    }
}
