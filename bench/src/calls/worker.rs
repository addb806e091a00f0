//! Worker of a measurement. It makes one call after another and records each of them, until the measurement is over.

use crate::calls::echo::{Calls, Request, digest};
use crate::calls::payload::{Buffer, Payloads};
use crate::meter::recorder::{Recorder, Sample};
use crate::meter::stopwatch::{Stopwatch, nanoseconds};
use crate::sizes::written;
use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::thread;
use std::time::Duration;
use trunkline::Bytes;
use trunkline_machine::rings::cell;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exchange {
    /// The reply is the payload.
    Echo,
    /// The reply is 8 bytes long.
    Absorb,
    /// The call is one-way and has no reply.
    OneWay,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) exchange: Exchange,
    pub(crate) size: usize,
    pub(crate) outstanding: usize,
    pub(crate) pause: Option<Duration>,
    /// Total call rate of all workers, per second; `None` for a closed loop.
    pub(crate) arrivals: Option<f64>,
    pub(crate) buffer: Buffer,
    /// True if workers check the contents of replies.
    pub(crate) verify: bool,
    pub(crate) measured: Duration,
    /// True if the rate is a mean rather than a median over slices.
    pub(crate) is_mean: bool,
}

impl Plan {
    /// Creates a plan for a closed loop that sends the same payload and does not check replies.
    pub(crate) const fn closed_loop(
        exchange: Exchange,
        size: usize,
        outstanding: usize,
        measured: Duration,
    ) -> Self {
        let buffer = Buffer::Reused;
        Self {
            exchange,
            size,
            outstanding,
            pause: None,
            arrivals: None,
            buffer,
            verify: false,
            measured,
            is_mean: false,
        }
    }
}

/// A kind of call in a mix, as its exchange, size and weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Member {
    pub(crate) exchange: Exchange,
    pub(crate) size: usize,
    pub(crate) weight: u32,
}

/// State shared by the workers of one measurement. Each worker has one call in flight at a time.
#[derive(Debug)]
pub(crate) struct Measurement {
    plan: Plan,
    members: Vec<Member>,
    watch: Stopwatch,
    recorders: Mutex<Recorders>,
    /// Number of the next call. Used in an open loop or with several members, whose order is fixed so that each has its
    /// share of every measurement.
    next: AtomicU64,
}

#[derive(Debug)]
struct Recorders {
    all: Recorder,
    /// Recorder of each member, if there are several members.
    each: Vec<Recorder>,
}

impl Measurement {
    pub(crate) fn begin(plan: Plan) -> Self {
        let Plan { exchange, size, .. } = plan;
        Self::of_members(plan, &[Member { exchange, size, weight: 1 }])
    }

    /// Begins a measurement of several members, which replace the exchange and size in the plan.
    pub(crate) fn of_members(plan: Plan, members: &[Member]) -> Self {
        let recorder = || Recorder::new(nanoseconds(plan.measured)).mean(plan.is_mean);
        let each = members.iter().filter(|_| members.len() > 1).map(|_| recorder()).collect();
        let recorders = Mutex::new(Recorders { all: recorder(), each });
        Self {
            plan,
            members: members.to_vec(),
            watch: Stopwatch::start(),
            recorders,
            next: AtomicU64::new(0),
        }
    }

    /// Makes one call after another until the measurement is over.
    pub(crate) async fn work(&self, calls: &impl Calls) {
        let payloads = self.members.iter().map(|member| Payloads::new(self.plan.buffer, member.size));
        let mut payloads: Vec<_> = payloads.collect();
        loop {
            if let Some(pause) = self.plan.pause {
                sleep(pause).await;
            }
            let (at, due_ns) = match self.members.len() {
                1 => (0, self.due().await),
                _ => (member(&self.members, self.next.fetch_add(1, Ordering::Relaxed)), self.watch.now_ns()),
            };
            let payload = payloads[at].next();
            let ended = self.call(calls, self.members[at].exchange, payload).await;
            let now_ns = self.watch.now_ns();
            let mut recorders = self.recorders();
            if let Err(why) = ended {
                recorders.all.failed(why);
            }
            if let Some(recorder) = recorders.each.get_mut(at) {
                recorder.ended(due_ns, now_ns);
            }
            if !recorders.all.ended(due_ns, now_ns) {
                return;
            }
        }
    }

    fn recorders(&self) -> MutexGuard<'_, Recorders> {
        self.recorders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the cause of a failed measurement.
    pub(crate) fn failed(&self, why: String) {
        self.recorders().all.failed(why);
    }

    /// Returns the result of the measurement.
    ///
    /// # Errors
    /// Returns an error if a call failed, or if too few calls completed.
    pub(crate) fn finish(&self) -> Result<Sample, String> {
        std::mem::replace(&mut self.recorders().all, Recorder::new(0)).finish()
    }

    /// Returns the result of each member.
    ///
    /// # Errors
    /// Returns an error if a call failed, or if too few calls of a member completed.
    pub(crate) fn finish_members(&self) -> Result<Vec<Sample>, String> {
        let all = self.finish()?;
        if self.members.len() == 1 {
            return Ok(vec![all]);
        }
        let each = std::mem::take(&mut self.recorders().each);
        let finish = |(recorder, member): (Recorder, &Member)| {
            recorder.finish().map_err(|why| format!("{}: {why}, or a larger weight", written(member.size)))
        };
        each.into_iter().zip(&self.members).map(finish).collect()
    }

    /// Returns the mean call rate over the measured time so far.
    pub(crate) fn mean_per_s(&self) -> f64 {
        self.recorders().all.mean_per_s()
    }

    /// Returns the results up to the end or to a failure, and the reason for the failure.
    pub(crate) fn finish_partly(&self) -> (Option<Sample>, Option<String>) {
        std::mem::replace(&mut self.recorders().all, Recorder::new(0)).finish_partly()
    }

    /// Waits until the scheduled start of the next call, and returns this time. In an open loop, it is in the past if all
    /// workers were waiting for replies. Latency is measured from the scheduled start.
    async fn due(&self) -> u64 {
        let Some(per_s) = self.plan.arrivals else { return self.watch.now_ns() };
        let due_ns = due_ns(self.next.fetch_add(1, Ordering::Relaxed), per_s);
        while self.watch.now_ns() < due_ns {
            yield_now().await;
        }
        due_ns
    }

    async fn call(&self, calls: &impl Calls, exchange: Exchange, payload: Bytes) -> Result<(), String> {
        let verify = self.plan.verify;
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

/// Returns the scheduled start of a call in an open loop.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates are positive, and numbers of calls far below 2^52"
)]
fn due_ns(call: u64, per_s: f64) -> u64 {
    (call as f64 * 1e9 / per_s) as u64
}

/// Step between members in the order of calls. It is a prime that exceeds every sum of weights, and therefore coprime to
/// it.
const STEP: u64 = 982_451_653;

/// Returns the member that makes the call with this number. The length of a cycle is the sum of the weights. In each
/// cycle, the number of a member's calls is its weight, and its calls are spread out.
fn member(members: &[Member], call: u64) -> usize {
    let sum = members.iter().map(|member| u64::from(member.weight)).sum::<u64>().max(1);
    let mut place = call % sum * STEP % sum;
    let holds = |member: &Member| {
        let holds = place < u64::from(member.weight);
        place = place.saturating_sub(u64::from(member.weight));
        holds
    };
    members.iter().position(holds).unwrap_or_default()
}

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

/// Sleeps on a separate thread. This works for all kinds of callers: the tokio runtime has no timers, and the executor
/// can sleep in the meantime.
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
    fn calls_of_mix_members_are_interleaved_by_weight() {
        let mix = [90, 9, 1].map(|weight| Member { exchange: Exchange::Echo, size: 64, weight });
        let calls = (0..200).map(|call| member(&mix, call)).collect::<Vec<_>>();
        for half in calls.chunks(100) {
            let of = |member| half.iter().filter(|at| **at == member).count();
            assert_eq!([of(0), of(1), of(2)], [90, 9, 1]);
        }
        let pairs = calls.windows(4).filter(|four| four.iter().all(|at| *at == 1)).count();
        assert_eq!(pairs, 0, "{calls:?}");
    }

    #[test]
    fn open_loop_calls_are_scheduled_at_equal_intervals() {
        assert_eq!([0, 1, 1000].map(|call| due_ns(call, 1000.0)), [0, 1_000_000, 1_000_000_000]);
    }
}
