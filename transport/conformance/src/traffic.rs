//! Posts work requests and waits for their completions.

use crate::allowed::Posted;
use crate::check::{Deviation, Verdict, check, equal};
use crate::{Lab, Side};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_verbs::{
    AsyncEvent, CmChannel, CmEvent, Completion, CompletionOpcode, CompletionQueue, CompletionStatus, QpState,
    QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest, Sge, SharedReceiveQueue,
    SrqNumber,
};

/// Time limit of a wait that must succeed.
const WAIT_AT_MOST: Duration = Duration::from_secs(60);
/// Time limit of a wait for a CM event. A lost CM message is sent again after 4 to 6 s (contract rocev2 12.1), and a lossy
/// link may lose two or three in a row.
const CM_WAIT_AT_MOST: Duration = Duration::from_secs(45);
/// Time to wait for an event that must not happen, if no later event can prove its absence.
const QUIET: Duration = Duration::from_millis(40);

impl Lab {
    /// Waits until `probe` returns a value, while both devices make progress.
    pub(crate) fn wait<T>(&self, what: &str, probe: impl FnMut() -> Option<T>) -> Verdict<T> {
        self.wait_at_most(WAIT_AT_MOST, what, probe)
    }

    fn wait_at_most<T>(
        &self,
        limit: Duration,
        what: &str,
        mut probe: impl FnMut() -> Option<T>,
    ) -> Verdict<T> {
        let end = Instant::now() + limit;
        let mut empty = 0u32;
        loop {
            if let Some(found) = probe() {
                return Ok(found);
            }
            if Instant::now() > end {
                return Err(Deviation::Failed(format!("{what} did not arrive within {limit:?}")));
            }
            self.work();
            empty += 1;
            if empty > 20 {
                // The devices' own threads may need this processor.
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Waits for the next completion.
    pub(crate) fn next(&self, what: &str, cq: &Arc<dyn CompletionQueue>) -> Verdict<Completion> {
        self.wait(&format!("the completion of {what}"), || poll_one(cq))
    }

    /// Waits for the next completion, which must be successful and have the given `wr_id`.
    pub(crate) fn succeeds(
        &self,
        what: &str,
        cq: &Arc<dyn CompletionQueue>,
        wr_id: u64,
        opcode: CompletionOpcode,
    ) -> Verdict<Completion> {
        let completion = self.ends(what, cq, wr_id, CompletionStatus::Success)?;
        equal(&format!("{what}: opcode"), completion.opcode, opcode)?;
        Ok(completion)
    }

    /// Waits for the next completion, which must have the given `wr_id` and status.
    pub(crate) fn ends(
        &self,
        what: &str,
        cq: &Arc<dyn CompletionQueue>,
        wr_id: u64,
        status: CompletionStatus,
    ) -> Verdict<Completion> {
        let completion = self.next(what, cq)?;
        equal(&format!("{what}: (wr_id, status)"), (completion.wr_id, completion.status), (wr_id, status))?;
        Ok(completion)
    }

    /// Returns an error if a completion arrives within a short time.
    pub(crate) fn stays_quiet(&self, what: &str, cq: &Arc<dyn CompletionQueue>) -> Verdict {
        let end = Instant::now() + QUIET;
        while Instant::now() < end {
            let found = poll_one(cq);
            check(found.is_none(), || format!("{what}: an unexpected completion: {found:?}"))?;
            self.work();
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }

    /// Posts a request that may be refused, and waits briefly for its completion in `cq`.
    pub(crate) fn what_becomes_of(
        &self,
        qp: &Arc<dyn QueuePair>,
        request: SendRequest<'_>,
        cq: &Arc<dyn CompletionQueue>,
    ) -> Posted {
        if let Err(error) = qp.post_send(&[request]) {
            return Posted::Refused(error);
        }
        let end = Instant::now() + QUIET;
        while Instant::now() < end {
            if let Some(done) = poll_one(cq) {
                return Posted::Ended(done.status);
            }
            self.work();
            std::thread::sleep(Duration::from_micros(100));
        }
        Posted::Waiting
    }

    /// Waits until a QP has moved to a state by itself.
    pub(crate) fn reaches(&self, what: &str, qp: &Arc<dyn QueuePair>, state: QpState) -> Verdict {
        self.wait(&format!("{what} in {state:?}"), || (qp.query().ok()?.state == state).then_some(()))
    }

    /// Lets both devices make progress. Some devices do so only during calls.
    fn work(&self) {
        for side in self.sides() {
            side.idle.poll(&mut [Completion::default()]);
        }
    }

    /// Waits for the next asynchronous event on a side.
    pub(crate) fn next_async(&self, what: &str, side: &Side) -> Verdict<AsyncEvent> {
        self.wait(&format!("the asynchronous event of {what}"), || side.device.next_async_event())
    }

    /// Waits for the next event on a CM channel.
    pub(crate) fn next_cm(&self, what: &str, channel: &Arc<dyn CmChannel>) -> Verdict<CmEvent> {
        let what = format!("the CM event of {what}");
        self.wait_at_most(CM_WAIT_AT_MOST, &what, || channel.next_event())
    }

    /// Waits until a device has received more than `before` RNR NAKs, which proves that a send found no receive. On devices
    /// without this counter, waits for a fixed time.
    pub(crate) fn wait_for_rnr(&self, side: &Side, before: Option<u64>) -> Verdict {
        let Some(before) = before else {
            std::thread::sleep(QUIET);
            return Ok(());
        };
        self.wait("an RNR NAK", || (rnr_received(side)? > before).then_some(()))
    }
}

/// Returns the number of RNR NAKs that a device has received, if the device counts them.
pub(crate) fn rnr_received(side: &Side) -> Option<u64> {
    side.device
        .counters()
        .iter()
        .find(|counter| counter.name == "rnr_nak_received")
        .map(|counter| counter.value)
}

/// Returns the next completion, if there is one.
pub(crate) fn poll_one(cq: &Arc<dyn CompletionQueue>) -> Option<Completion> {
    let mut one = [Completion::default()];
    (cq.poll(&mut one) == 1).then_some(one[0])
}

/// Returns a signalled work request.
pub(crate) fn request<'a>(
    wr_id: u64,
    operation: SendOperation,
    data: &'a [Sge],
    remote_srq: SrqNumber,
) -> SendRequest<'a> {
    SendRequest { wr_id, operation, data: SendData::Gather(data), flags: SendFlags::SIGNALED, remote_srq }
}

/// Posts one receive.
pub(crate) fn receive(srq: &Arc<dyn SharedReceiveQueue>, wr_id: u64, scatter: &[Sge]) -> Verdict {
    Ok(srq.post_receive(&[ReceiveRequest { wr_id, scatter }])?)
}
