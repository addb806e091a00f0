//! Delivery of asynchronous events from the device to the contexts of a program.
//!
//! This module contains each context's queue and the table of the C objects to which events refer. For an event of a TGT,
//! each handle of the TGT gets it (contract H1, H2). The device calls [`Router::deliver`] with its own lock held, so this
//! module must not call the device.

use crate::border::Errno;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use trunkline_verbs::descriptors::above_stdio;
use trunkline_verbs::{AsyncEvent, AsyncEventKind, AsyncSubject, VerbsError};

/// Locks a mutex even if a thread has panicked while holding it. The guarded data is consistent after every statement.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Number of events of an object that the program has taken but not acknowledged. The destruction of the object waits until
/// it is 0 (contract H6).
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    unacknowledged: Mutex<i64>,
    changed: Condvar,
}

impl EventCount {
    pub(crate) fn report(&self) {
        *lock(&self.unacknowledged) += 1;
    }

    pub(crate) fn acknowledge(&self, count: u32) {
        *lock(&self.unacknowledged) -= i64::from(count);
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut unacknowledged = lock(&self.unacknowledged);
        while *unacknowledged > 0 {
            unacknowledged = self.changed.wait(unacknowledged).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// The port, device or C object to which an event refers.
#[derive(Debug, Clone)]
pub(crate) enum Element {
    Qp(Target),
    Srq(Target),
    Cq(Target),
    Port(u8),
    Device,
}

/// Address of an object's C structure, and the count of the object's events.
#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub(crate) address: usize,
    pub(crate) count: Arc<EventCount>,
}

impl Element {
    fn target(&self) -> Option<&Target> {
        match self {
            Self::Qp(target) | Self::Srq(target) | Self::Cq(target) => Some(target),
            Self::Port(_) | Self::Device => None,
        }
    }
}

/// An event in the queue of a context.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) kind: AsyncEventKind,
    pub(crate) element: Element,
}

/// Capacity of a context's queue, in events. Further events are dropped, so that a program that never takes events does not
/// exhaust memory.
const QUEUE_DEPTH: usize = 4096;

/// The events of one context. The context's `async_fd` signals them.
#[derive(Debug)]
pub(crate) struct ContextEvents {
    queue: Mutex<VecDeque<Waiting>>,
    /// The descriptor is blocking, as programs expect. The library writes it when the first event enters the queue, and
    /// reads it when the queue becomes empty. Neither call blocks.
    fd: EventFd,
}

impl ContextEvents {
    fn new() -> Result<Arc<Self>, Errno> {
        let make = || Ok(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
        let fd = above_stdio(make).map_err(VerbsError::from)?;
        Ok(Arc::new(Self { queue: Mutex::default(), fd }))
    }

    fn push(&self, waiting: Waiting) {
        let mut queue = lock(&self.queue);
        if queue.len() >= QUEUE_DEPTH {
            return;
        }
        queue.push_back(waiting);
        if queue.len() == 1 {
            let _full = self.fd.write(1);
        }
    }

    /// Takes the oldest event, and counts it before its object can be destroyed.
    pub(crate) fn take(&self) -> Option<Waiting> {
        let mut queue = lock(&self.queue);
        let waiting = queue.pop_front()?;
        if let Some(target) = waiting.element.target() {
            target.count.report();
        }
        if queue.is_empty() {
            let _empty = self.fd.read();
        }
        Some(waiting)
    }

    /// Removes the events of an object that is being destroyed.
    fn forget(&self, address: usize) {
        let mut queue = lock(&self.queue);
        let had = !queue.is_empty();
        queue.retain(|waiting| waiting.element.target().is_none_or(|target| target.address != address));
        if had && queue.is_empty() {
            let _empty = self.fd.read();
        }
    }
}

impl AsFd for ContextEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

type Listeners = Vec<(Arc<ContextEvents>, Element)>;

#[derive(Debug, Default)]
struct Tables {
    contexts: Vec<Arc<ContextEvents>>,
    by_subject: HashMap<AsyncSubject, Listeners>,
}

/// Subscriptions of contexts and objects to events.
#[derive(Debug, Default)]
pub(crate) struct Router {
    tables: Mutex<Tables>,
}

impl Router {
    /// Creates the queue for a new context.
    pub(crate) fn open(&self) -> Result<Arc<ContextEvents>, Errno> {
        let events = ContextEvents::new()?;
        lock(&self.tables).contexts.push(Arc::clone(&events));
        Ok(events)
    }

    /// Removes a context that is being closed.
    pub(crate) fn close(&self, events: &Arc<ContextEvents>) {
        let mut tables = lock(&self.tables);
        tables.contexts.retain(|known| !Arc::ptr_eq(known, events));
        tables.by_subject.retain(|_, listeners| {
            listeners.retain(|(known, _)| !Arc::ptr_eq(known, events));
            !listeners.is_empty()
        });
    }

    /// Subscribes a context to the events of `subject`, which are reported with `element`.
    pub(crate) fn listen(&self, subject: AsyncSubject, events: &Arc<ContextEvents>, element: Element) {
        lock(&self.tables).by_subject.entry(subject).or_default().push((Arc::clone(events), element));
    }

    /// Ends the subscription of the object at `address` to events of `subject`, and removes its events from the queue.
    pub(crate) fn leave(&self, subject: AsyncSubject, events: &ContextEvents, address: usize) {
        let mut tables = lock(&self.tables);
        if let Some(listeners) = tables.by_subject.get_mut(&subject) {
            listeners.retain(|(_, element)| element.target().is_none_or(|target| target.address != address));
            if listeners.is_empty() {
                tables.by_subject.remove(&subject);
            }
        }
        events.forget(address);
    }

    /// Delivers an event to all contexts that subscribe to its subject. Events of a port or the device are delivered to all
    /// contexts.
    pub(crate) fn deliver(&self, event: AsyncEvent) {
        let tables = lock(&self.tables);
        let to_all = match event.subject {
            AsyncSubject::Port(port) => Some(Element::Port(port)),
            AsyncSubject::Device => Some(Element::Device),
            AsyncSubject::Qp(_) | AsyncSubject::Srq(_) | AsyncSubject::Cq(_) => None,
        };
        if let Some(element) = to_all {
            for events in &tables.contexts {
                events.push(Waiting { kind: event.kind, element: element.clone() });
            }
            return;
        }
        for (events, element) in tables.by_subject.get(&event.subject).into_iter().flatten() {
            events.push(Waiting { kind: event.kind, element: element.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trunkline_verbs::QpNumber;

    fn target(address: usize) -> Target {
        Target { address, count: Arc::default() }
    }

    #[test]
    fn every_handle_of_tgt_gets_event() {
        // contract H1, H2
        let router = Router::default();
        let (first, second) = (router.open().unwrap(), router.open().unwrap());
        let subject = AsyncSubject::Qp(QpNumber::new(7));
        router.listen(subject, &first, Element::Qp(target(1)));
        router.listen(subject, &second, Element::Qp(target(2)));
        router.deliver(AsyncEvent { kind: AsyncEventKind::QpAccessError, subject });
        assert!(first.take().is_some() && second.take().is_some());
        assert!(first.take().is_none());
        router.leave(subject, &first, 1);
        router.deliver(AsyncEvent { kind: AsyncEventKind::QpFatal, subject });
        assert!(first.take().is_none());
        assert!(second.take().is_some());
    }

    #[test]
    fn destroying_object_removes_its_events() {
        let router = Router::default();
        let events = router.open().unwrap();
        let subject = AsyncSubject::Srq(3);
        router.listen(subject, &events, Element::Srq(target(9)));
        router.deliver(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, subject });
        router.leave(subject, &events, 9);
        assert!(events.take().is_none());
        router.deliver(AsyncEvent { kind: AsyncEventKind::PortError, subject: AsyncSubject::Port(1) });
        let waiting = events.take().unwrap();
        assert!(matches!(waiting.element, Element::Port(1)));
    }

    #[test]
    fn object_waits_until_its_events_are_acknowledged() {
        // contract H6
        let count = Arc::new(EventCount::default());
        count.report();
        let waiter = std::thread::spawn({
            let count = Arc::clone(&count);
            move || count.wait()
        });
        assert!(!waiter.is_finished());
        count.acknowledge(1);
        waiter.join().unwrap();
    }
}
