//! The running calls of one method on one poller.
//!
//! Futures of calls live in reusable slots. A call allocates memory for its future only when more calls to the method run at
//! once than ever before. The dispatcher stores the tables of all methods as `dyn Method`, because each table has its own
//! future type.

use super::{Failure, Reply, Request};
use crate::executor::runtime_guard;
use crate::executor::{Ready, TaskId, TaskWaker};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use trunkline_machine::rings::panics::{catch, catch_or};

/// The outcome of a call on this node.
pub(super) type Outcome = Result<Reply, Failure>;

/// A call after its first poll.
pub(crate) enum Started {
    /// The call runs in this slot.
    Running(u32),
    /// The call ended in its first poll, and has no slot.
    Ended(Outcome),
}

/// A method's table of running calls.
pub(crate) trait Method {
    /// Starts a call in a free slot and polls it once.
    fn start(&mut self, table: u32, request: Request, ready: &Arc<Ready>) -> Started;

    /// Polls the call in a slot. Returns `Some` when it has ended.
    fn poll(&mut self, slot: u32) -> Option<Outcome>;

    /// Drops the call in a slot.
    fn cancel(&mut self, slot: u32);

    /// Returns the number of occupied slots.
    fn len(&self) -> usize;
}

struct Slot<F> {
    future: Pin<Box<Option<F>>>,
    waker: Arc<TaskWaker>,
    std_waker: Waker,
}

pub(super) struct MethodTable<F, R> {
    run: R,
    slots: Vec<Slot<F>>,
    free: Vec<u32>,
}

impl<F, R> MethodTable<F, R> {
    pub(super) fn new(run: R) -> Self {
        Self { run, slots: Vec::new(), free: Vec::new() }
    }
}

impl<F, R> MethodTable<F, R>
where
    F: Future<Output = Outcome>,
{
    #[inline]
    fn free_slot(&mut self, table: u32, ready: &Arc<Ready>) -> Option<u32> {
        self.free.pop().or_else(|| self.new_slot(table, ready))
    }

    #[cold]
    fn new_slot(&mut self, table: u32, ready: &Arc<Ready>) -> Option<u32> {
        let slot = u32::try_from(self.slots.len()).ok()?;
        let (waker, std_waker) = TaskWaker::new(ready, TaskId { table, slot });
        self.slots.push(Slot { future: Box::pin(None), waker, std_waker });
        Some(slot)
    }

    fn slot(&mut self, slot: u32) -> Option<&mut Slot<F>> {
        self.slots.get_mut(usize::try_from(slot).ok()?)
    }

    /// Empties a slot, even if dropping its future panics.
    #[inline]
    fn clear(&mut self, slot: u32) {
        let Some(entry) = self.slot(slot) else { return };
        if catch(|| entry.future.set(None)).is_err() {
            // The future was not dropped completely, so the slot gets new storage and the old storage is never used again.
            entry.future = Box::pin(None);
        }
        self.free.push(slot);
    }
}

impl<F, R> Method for MethodTable<F, R>
where
    F: Future<Output = Outcome>,
    R: Fn(Request) -> F,
{
    fn start(&mut self, table: u32, request: Request, ready: &Arc<Ready>) -> Started {
        let Some(slot) = self.free_slot(table, ready) else {
            let status = Status::not_run(
                Code::ResourceExhausted,
                "the server runs as many calls of this method as it can count",
            );
            return Started::Ended(Err(Failure::Node(status.because(Reason::Overloaded))));
        };
        let Self { run, slots, .. } = self;
        let Some(entry) = slots.get_mut(slot as usize) else { return Started::Ended(panicked(None)) };
        entry.waker.polled();
        let future = &mut entry.future;
        let mut context = Context::from_waker(&entry.std_waker);
        // The future is created and polled within one unwinding scope, because each scope is costly.
        let code = || {
            future.set(Some(run(request)));
            future.as_mut().as_pin_mut().map(|future| future.poll(&mut context))
        };
        let polled = catch_or(code, panicked);
        let outcome = match polled {
            Ok(Some(Poll::Pending)) => return Started::Running(slot),
            Ok(Some(Poll::Ready(outcome))) => outcome,
            Ok(None) => panicked(None),
            Err(outcome) => outcome,
        };
        self.clear(slot);
        Started::Ended(outcome)
    }

    fn poll(&mut self, slot: u32) -> Option<Outcome> {
        let entry = self.slot(slot)?;
        entry.waker.polled();
        // The slot can be empty after a wake-up for an earlier call.
        let future = entry.future.as_mut().as_pin_mut()?;
        let mut context = Context::from_waker(&entry.std_waker);
        let outcome = match catch_or(|| future.poll(&mut context), panicked) {
            Ok(Poll::Pending) => return None,
            Ok(Poll::Ready(outcome)) | Err(outcome) => outcome,
        };
        self.clear(slot);
        Some(outcome)
    }

    fn cancel(&mut self, slot: u32) {
        if self.slot(slot).is_some_and(|entry| entry.future.is_some()) {
            self.clear(slot);
        }
    }

    fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

/// Returns the outcome of a handler that panicked with this message.
#[cold]
fn panicked(message: Option<&str>) -> Outcome {
    Err(Failure::Node(runtime_guard::panicked(message)))
}
