//! Asynchronous events: from the one descriptor of a context to the devices that were opened on it.
//!
//! Owns the table of live objects, which says whose an event is, and the queue of each opened
//! device. An event names its object by the address that libibverbs gave it; one that is not in
//! the table belongs to somebody else's object and is neither followed nor acknowledged. Events are
//! acknowledged as soon as they are read. Objects are made and destroyed under the table's lock, so
//! none is destroyed while an event of it was read but not yet acknowledged, which would block.

use crate::error::last_errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_context, ibv_get_async_event};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline_verbs::{AsyncEvent, AsyncEventKind, AsyncSubject, QpNumber, VerbsError};

/// Most events that wait for a device whose program never looks.
const MAX_WAITING: usize = 4096;

/// `ibv_async_event` with the type as a number: a kernel may know more types than the bindings.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct RawEvent {
    element: u64,
    event_type: c_int,
}

const _: () = assert!(size_of::<RawEvent>() == size_of::<ibv_async_event>());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the events of one opened device wait in.
#[derive(Debug)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<AsyncEvent>>,
    /// Readable while something waits.
    wake: EventFd,
    /// Readable when `wake` is, or when the context has events that nobody has read yet.
    either: Epoll,
}

impl EventQueue {
    fn new(context: BorrowedFd<'_>) -> Result<Self, VerbsError> {
        let os = |errno: nix::Error| VerbsError::Os(errno as i32);
        let wake =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(os)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os)?;
        either.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(os)?;
        either.add(context, EpollEvent::new(EpollFlags::EPOLLIN, 1)).map_err(os)?;
        Ok(Self { waiting: Mutex::default(), wake, either })
    }

    fn push(&self, event: AsyncEvent) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < MAX_WAITING {
            waiting.push_back(event);
            let _full_counter_is_readable_too = self.wake.write(1);
        }
    }

    fn pop(&self) -> Option<AsyncEvent> {
        let mut waiting = lock(&self.waiting);
        let event = waiting.pop_front();
        if waiting.is_empty() {
            let _nothing_to_clear = self.wake.read();
        }
        event
    }
}

impl AsFd for EventQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.either.0.as_fd()
    }
}

#[derive(Debug)]
struct Live {
    subject: AsyncSubject,
    queue: Weak<EventQueue>,
}

#[derive(Debug, Default)]
struct Table {
    /// By the address of the C object, which is compared and never followed.
    live: HashMap<usize, Live>,
    queues: Vec<Weak<EventQueue>>,
    /// The descriptor has failed: the device was taken away.
    is_dead: bool,
}

/// The events of one context.
#[derive(Debug, Default)]
pub(crate) struct AsyncEvents(Mutex<Table>);

impl AsyncEvents {
    /// A queue for one more opened device.
    pub(crate) fn open_queue(&self, context: BorrowedFd<'_>) -> Result<Arc<EventQueue>, VerbsError> {
        let queue = Arc::new(EventQueue::new(context)?);
        let mut table = lock(&self.0);
        table.queues.retain(|queue| queue.strong_count() > 0);
        table.queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Makes an object by `make`; its events go to `queue`.
    pub(crate) fn enter<T>(
        &self,
        queue: &Arc<EventQueue>,
        make: impl FnOnce() -> Result<(NonNull<T>, AsyncSubject), VerbsError>,
    ) -> Result<NonNull<T>, VerbsError> {
        let mut table = lock(&self.0);
        let (object, subject) = make()?;
        table.live.insert(object.addr().get(), Live { subject, queue: Arc::downgrade(queue) });
        Ok(object)
    }

    /// Destroys an object by `destroy`, which answers 0 when that has happened.
    pub(crate) fn leave<T>(&self, object: *mut T, destroy: impl FnOnce(*mut T) -> c_int) -> c_int {
        let mut table = lock(&self.0);
        let answer = destroy(object);
        if answer == 0 {
            table.live.remove(&object.addr());
        }
        answer
    }

    /// Reads what the context has, gives each event to its device, and takes the next of `queue`.
    ///
    /// # Safety
    /// `context` is open, and its asynchronous descriptor does not block.
    pub(crate) unsafe fn next(&self, context: *mut ibv_context, queue: &EventQueue) -> Option<AsyncEvent> {
        let mut table = lock(&self.0);
        // What one call may read is bounded, so that a flood cannot hold the lock for ever.
        for _ in 0..MAX_WAITING {
            if table.is_dead {
                break;
            }
            let mut event = RawEvent { element: 0, event_type: -1 };
            let place = (&raw mut event).cast::<ibv_async_event>();
            // SAFETY: the caller's promise; the place has the size and layout of the C structure.
            if unsafe { ibv_get_async_event(context, place) } == 0 {
                if table.deliver(event) {
                    // SAFETY: the event is as it was read, and its object is in the table: it lives,
                    // because objects leave under the same lock.
                    unsafe { ibv_ack_async_event(place) };
                }
            } else if !matches!(last_errno(), libc::EAGAIN | libc::EINTR) {
                table.die(context);
            } else {
                break;
            }
        }
        drop(table);
        queue.pop()
    }
}

impl Table {
    /// Gives an event to whom it concerns; answers whether it is ours to acknowledge.
    fn deliver(&self, event: RawEvent) -> bool {
        let Some((kind, concerns)) = classify(event.event_type) else { return false };
        let subject = match concerns {
            Concerns::Object => {
                let address = usize::try_from(event.element).unwrap_or(0);
                let Some(live) = self.live.get(&address) else { return false };
                if let Some(queue) = live.queue.upgrade() {
                    queue.push(AsyncEvent { kind, subject: live.subject });
                }
                return true;
            }
            // The union's `int`; the bytes above it mean nothing.
            Concerns::Port => AsyncSubject::Port(event.element.to_ne_bytes()[0]),
            Concerns::Device => AsyncSubject::Device,
        };
        self.tell_all(AsyncEvent { kind, subject });
        true
    }

    fn tell_all(&self, event: AsyncEvent) {
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            queue.push(event);
        }
    }

    /// The descriptor answers errors only: says so once, and makes nobody look at it again.
    fn die(&mut self, context: *mut ibv_context) {
        self.is_dead = true;
        // SAFETY: the context is open by the promise of `next`, and with it the descriptor.
        let events = unsafe { BorrowedFd::borrow_raw((*context).async_fd) };
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            let _was_not_there = queue.either.delete(events);
        }
        self.tell_all(AsyncEvent { kind: AsyncEventKind::DeviceFatal, subject: AsyncSubject::Device });
    }
}

enum Concerns {
    Object,
    Port,
    Device,
}

/// What a type of `ibv_event_type` means; `None` for those that this crate has no objects for.
fn classify(event_type: c_int) -> Option<(AsyncEventKind, Concerns)> {
    use AsyncEventKind as K;
    use Concerns::{Device, Object, Port};
    Some(match event_type {
        0 => (K::CqError, Object),
        1 => (K::QpFatal, Object),
        2 => (K::QpRequestError, Object),
        3 => (K::QpAccessError, Object),
        4 => (K::CommunicationEstablished, Object),
        5 => (K::SqDrained, Object),
        6 => (K::PathMigrated, Object),
        7 => (K::PathMigrationError, Object),
        8 => (K::DeviceFatal, Device),
        9 => (K::PortActive, Port),
        10 => (K::PortError, Port),
        11 => (K::LidChange, Port),
        12 => (K::PkeyChange, Port),
        13 => (K::SmChange, Port),
        14 => (K::SrqError, Object),
        15 => (K::SrqLimitReached, Object),
        16 => (K::QpLastWqeReached, Object),
        17 => (K::ClientReregister, Port),
        18 => (K::GidChange, Port),
        _ => return None,
    })
}

/// The subject of a QP's events.
pub(crate) fn of_qp(number: u32) -> AsyncSubject {
    AsyncSubject::Qp(QpNumber::new(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scene {
        table: Table,
        queues: [Arc<EventQueue>; 2],
        _context: EventFd,
    }

    /// Two openings, and an object of the first.
    fn scene() -> Scene {
        let context = EventFd::new().unwrap();
        let queues = [(); 2].map(|()| Arc::new(EventQueue::new(context.as_fd()).unwrap()));
        let mut table = Table { queues: queues.iter().map(Arc::downgrade).collect(), ..Table::default() };
        table.live.insert(0x1000, Live { subject: of_qp(17), queue: Arc::downgrade(&queues[0]) });
        Scene { table, queues, _context: context }
    }

    #[test]
    fn what_is_not_in_the_table_is_neither_followed_nor_acknowledged() {
        let scene = scene();
        for event_type in 0..=20 {
            let is_about_an_object =
                classify(event_type).is_some_and(|(_, what)| matches!(what, Concerns::Object));
            let ours = scene.table.deliver(RawEvent { element: 0xdead_beef, event_type });
            assert_eq!(ours, event_type < 19 && !is_about_an_object, "type {event_type}");
        }
        for event_type in [-1, 19, 20, c_int::MAX, c_int::MIN] {
            assert!(!scene.table.deliver(RawEvent { element: 0x1000, event_type }), "type {event_type}");
        }
    }

    #[test]
    fn an_object_tells_its_opening_and_a_port_tells_all() {
        let scene = scene();
        assert!(scene.table.deliver(RawEvent { element: 0x1000, event_type: 1 }));
        // Of the port's number only the union's `int` counts, on this machine its first bytes.
        assert!(scene.table.deliver(RawEvent { element: 0xffff_ffff_0000_0002, event_type: 10 }));
        let qp = AsyncEvent { kind: AsyncEventKind::QpFatal, subject: of_qp(17) };
        let port = AsyncEvent { kind: AsyncEventKind::PortError, subject: AsyncSubject::Port(2) };
        let [first, second] = &scene.queues;
        assert_eq!([first.pop(), first.pop(), first.pop()], [Some(qp), Some(port), None]);
        assert_eq!([second.pop(), second.pop()], [Some(port), None]);
    }

    #[test]
    fn a_queue_that_nobody_reads_is_bounded() {
        let scene = scene();
        for _ in 0..2 * MAX_WAITING {
            scene.table.deliver(RawEvent { element: 1, event_type: 9 });
        }
        assert_eq!(lock(&scene.queues[0].waiting).len(), MAX_WAITING);
    }
}
