//! The handle through which generated code submits jobs.

use super::shared::{Job, Offloaded, SharedPool};
use super::ticket::{Submitted, Ticket};
use super::work::{Blocking, Handler};
use crate::call::context::Context;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::name::MethodName;
use std::sync::Arc;
use trunkline_machine::rings::cell;

/// The worker pool of a node, as generated code uses it.
#[derive(Debug, Clone)]
pub struct Pool(Option<Arc<SharedPool>>);

impl Pool {
    /// Wraps a pool. Services created without [`Service::pooled`](crate::stub::Service::pooled) may have none.
    pub(crate) fn new(pool: Option<Arc<SharedPool>>) -> Self {
        Self(pool)
    }

    /// Submits a handler's future, which the pool polls.
    pub fn offload<F>(&self, method: &'static MethodName, context: Context, future: F) -> Ticket<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        let Some(pool) = &self.0 else { return Ticket::refused(no_pool()) };
        let (waiter, getter) = cell::pair();
        let peer = context.peer_key();
        let offloaded = Offloaded::new(pool, method, Box::new(Handler::new(context, future, waiter)));
        match pool.submit(peer, Job::Offloaded(Arc::clone(&offloaded))) {
            Ok(place) => {
                Ticket::new(getter, Submitted { pool: Arc::clone(pool), place, offloaded: Some(offloaded) })
            }
            Err((why, job)) => {
                job.discard();
                Ticket::refused(why)
            }
        }
    }

    /// Submits a handler's future, which one worker creates and polls to completion.
    pub fn block<F, M>(&self, method: &'static MethodName, context: Context, make: M) -> Ticket<F::Output>
    where
        M: FnOnce() -> F + Send + 'static,
        F: Future + 'static,
        F::Output: Send + 'static,
    {
        let Some(pool) = &self.0 else { return Ticket::refused(no_pool()) };
        let (waiter, getter) = cell::pair();
        let peer = context.peer_key();
        let job = Job::Blocking(method, Box::new(Blocking::<M, F>::new(context, make, waiter)));
        match pool.submit(peer, job) {
            Ok(place) => Ticket::new(getter, Submitted { pool: Arc::clone(pool), place, offloaded: None }),
            Err((why, job)) => {
                job.discard();
                Ticket::refused(why)
            }
        }
    }
}

/// Returns the status of a call through a stub written by hand that lacks a pool.
fn no_pool() -> Status {
    let text = "the node has no worker pool: make the service with Service::pooled";
    Status::not_run(Code::Internal, text).because(Reason::Misuse)
}
