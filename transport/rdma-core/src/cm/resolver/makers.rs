//! Maker threads, which call `rdma_create_ep` for peers whose addresses have been resolved.

use super::super::endpoint;
use super::{Inner, Job, MAKERS, Work};
use std::sync::{Arc, PoisonError};
use trunkline_verbs::{VerbsError, internal_thread};

impl Inner {
    /// Starts as many makers as are needed. Fails only if no maker is running.
    pub(super) fn start_makers(self: &Arc<Self>, work: &mut Work) -> Result<(), VerbsError> {
        let missing = work.ready.len().saturating_sub(work.idle_makers).min(MAKERS - work.makers.len());
        for _ in 0..missing {
            let inner = Arc::clone(self);
            match internal_thread::spawn("trunkline-maker", move || inner.make()) {
                Ok(thread) => work.makers.push(thread),
                Err(error) if work.makers.is_empty() => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(%error, "thread that creates endpoints not started");
                    break;
                }
            }
        }
        self.for_makers.notify_all();
        Ok(())
    }

    /// Creates endpoints until the manager is dropped. Runs on a maker's thread.
    fn make(self: Arc<Self>) {
        let mut work = self.work();
        while !work.has_ended {
            let next = work.ready.iter().position(|job| !work.busy.contains(&job.way.0.ip()));
            let Some(job) = next.and_then(|at| work.ready.remove(at)) else {
                work.idle_makers += 1;
                work = self.for_makers.wait(work).unwrap_or_else(PoisonError::into_inner);
                work.idle_makers -= 1;
                continue;
            };
            let peer = job.way.0.ip();
            work.busy.insert(peer);
            drop(work);
            let Job { request, channel, done, .. } = job;
            let made = endpoint::create(&request).and_then(|raw| self.shared.adopt(raw, &request, channel));
            {
                let mut work = self.work();
                work.busy.remove(&peer);
                work.requested -= 1;
            }
            // Makers may have skipped another request for this peer.
            self.for_makers.notify_all();
            done(made);
            work = self.work();
        }
    }
}
