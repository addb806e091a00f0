//! A worker of a measurement: makes and records one call after another until the measurement is over.

use crate::echo::{Calls, Request, digest};
use crate::payload::{Buffer, Payloads};
use crate::recorder::{Recorder, Sample};
use crate::stopwatch::{Stopwatch, nanoseconds};
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use trunkline::Bytes;
use trunkline_machine::rings::cell;

/// Work of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// The payload comes back.
    Echo,
    /// 8 bytes come back.
    Absorb,
    /// Nothing comes back.
    OneWay,
}

/// Plan of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) exchange: Exchange,
    pub(crate) size: usize,
    pub(crate) outstanding: usize,
    /// Pause before each call.
    pub(crate) pause: Option<Duration>,
    /// Calls due per second, of all workers together. `None` for a closed loop.
    pub(crate) arrivals: Option<f64>,
    pub(crate) buffer: Buffer,
    /// True if contents of replies are checked.
    pub(crate) verify: bool,
    /// Duration of the measurement.
    pub(crate) measured: Duration,
    /// True if the rate is a mean, not a median over slices.
    pub(crate) is_mean: bool,
}

/// State that the workers of one measurement share.
#[derive(Debug)]
pub(crate) struct Measurement {
    plan: Plan,
    watch: Stopwatch,
    recorder: Mutex<Recorder>,
    /// Number of the next call of an open loop.
    next: AtomicU64,
}

impl Measurement {
    /// Begins a measurement now.
    pub(crate) fn begin(plan: Plan) -> Self {
        let recorder = Mutex::new(Recorder::new(nanoseconds(plan.measured)).mean(plan.is_mean));
        Self { plan, watch: Stopwatch::start(), recorder, next: AtomicU64::new(0) }
    }

    /// Makes one call after another until the measurement is over.
    pub(crate) async fn work(&self, calls: &impl Calls) {
        let mut payloads = Payloads::new(self.plan.buffer, self.plan.size);
        loop {
            if let Some(pause) = self.plan.pause {
                sleep(pause).await;
            }
            let due_ns = self.due().await;
            let payload = payloads.next();
            let ended = self.call(calls, payload).await;
            let now_ns = self.watch.now_ns();
            let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(why) = ended {
                recorder.failed(why);
            }
            if !recorder.ended(due_ns, now_ns) {
                return;
            }
        }
    }

    /// Records the reason for which nothing can be measured.
    pub(crate) fn failed(&self, why: String) {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner).failed(why);
    }

    /// Returns the result.
    ///
    /// # Errors
    /// Fails with the reason if a call failed, or if too few calls ended.
    pub(crate) fn finish(&self) -> Result<Sample, String> {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorder, Recorder::new(0)).finish()
    }

    /// Returns the results until the end or a failure, and the failure.
    pub(crate) fn finish_partly(&self) -> (Option<Sample>, Option<String>) {
        let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *recorder, Recorder::new(0)).finish_partly()
    }

    /// Waits until the next call is due, and returns its due time. In an open loop that may be long ago, if every worker was
    /// waiting for a reply. The call's time counts from its due time.
    async fn due(&self) -> u64 {
        let Some(per_s) = self.plan.arrivals else { return self.watch.now_ns() };
        let due_ns = due_ns(self.next.fetch_add(1, Ordering::Relaxed), per_s);
        while self.watch.now_ns() < due_ns {
            yield_now().await;
        }
        due_ns
    }

    async fn call(&self, calls: &impl Calls, payload: Bytes) -> Result<(), String> {
        let Plan { exchange, verify, .. } = self.plan;
        let expected = if verify { payload.clone() } else { Bytes::new() };
        let request = match exchange {
            Exchange::OneWay => Request::Post,
            Exchange::Echo => Request::Echo,
            Exchange::Absorb if verify => Request::Digest,
            Exchange::Absorb => Request::Absorb,
        };
        let reply =
            calls.call(request, payload).await.map_err(|status| format!("a call failed: {status}"))?;
        let is_right = match request {
            Request::Echo => !verify || reply == expected,
            Request::Digest => reply[..] == digest(&expected).to_le_bytes(),
            Request::Absorb | Request::Post => true,
        };
        if is_right { Ok(()) } else { Err("a reply has other contents than were sent".to_owned()) }
    }
}

/// Returns the time at which a call of an open loop is due.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive, and numbers of calls far below 2^52"
)]
fn due_ns(call: u64, per_s: f64) -> u64 {
    (call as f64 * 1e9 / per_s) as u64
}

/// Lets other tasks run.
async fn yield_now() {
    let mut yielded = false;
    poll_fn(|context| {
        if std::mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Sleeps on a separate thread, which works for every kind of caller: the tokio runtime has no timers. The executor can sleep
/// meanwhile.
async fn sleep(time: Duration) {
    let (setter, getter) = cell::pair();
    thread::spawn(move || {
        thread::sleep(time);
        let _ended = setter.set(());
    });
    let _closed = getter.await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_an_open_loop_are_due_at_equal_distances() {
        assert_eq!([0, 1, 1000].map(|call| due_ns(call, 1000.0)), [0, 1_000_000, 1_000_000_000]);
    }
}
