//! A cache line that two cores write in turn.

use super::with_server;
use crate::meter::pin::Cores;
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::nanoseconds;
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Number of round trips between two clock readings. Reading the clock would take a large part of each round trip.
const TRIPS: u64 = 64;

/// A word on a separate pair of cache lines, because processors prefetch the adjacent line.
#[repr(align(128))]
struct Line(AtomicU64);

/// Measures a round trip. The client writes odd numbers, and the server adds one to each of them.
pub(crate) fn line(cores: Option<Cores>, measured: Duration) -> Result<Sample, String> {
    let line = Line(AtomicU64::new(0));
    let serve = |stop: &AtomicBool| {
        let mut next = 1;
        while await_value(&line.0, next, stop) {
            line.0.store(next + 1, Ordering::Release);
            next += 2;
        }
        Ok(())
    };
    with_server(cores.map(|cores| cores.server), serve, |watch| {
        let never = AtomicBool::new(false);
        let mut recorder = Recorder::new(nanoseconds(measured));
        let mut next = 1;
        loop {
            let began = watch.now_ns();
            for _ in 0..TRIPS {
                line.0.store(next, Ordering::Release);
                await_value(&line.0, next + 1, &never);
                next += 2;
            }
            let now = watch.now_ns();
            if !recorder.ended_many(now - (now - began) / TRIPS, now, TRIPS) {
                return recorder.finish();
            }
        }
    })
}

/// Spins until the word has this value, and returns true. Returns false if a stop was requested.
fn await_value(word: &AtomicU64, value: u64, stop: &AtomicBool) -> bool {
    // The flag is on another cache line, so it is read rarely.
    loop {
        for _ in 0..1024 {
            if word.load(Ordering::Acquire) == value {
                return true;
            }
            spin_loop();
        }
        if stop.load(Ordering::Relaxed) {
            return false;
        }
    }
}
