//! Delivers asynchronous events from a context's single descriptor to each opening of the device.
//!
//! A table of live objects maps each event to an opening, and each opening has a queue. An event names its object by
//! address. If the address is not in the table, the object belongs to another library, and the event is neither delivered
//! nor acknowledged. Other events are acknowledged as soon as they are read. Objects are created and destroyed with the
//! table locked, so an object is not destroyed between the reading and the acknowledgement of its event. The destruction
//! would otherwise block.

use crate::error::last_errno;
use crate::handle::Live;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use rdma_sys::{ibv_ack_async_event, ibv_async_event, ibv_context, ibv_get_async_event};
use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{AsyncEvent, AsyncEventKind, AsyncSubject, QpNumber, VerbsError};

/// Capacity of an opening's queue, in events. Further events are dropped, so that a program that never takes events does
/// not exhaust memory.
const QUEUE_DEPTH: usize = 4096;

/// `ibv_async_event` with the type as a number, because a kernel may use types that the bindings do not define.
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

/// The events for one opening of a device.
#[derive(Debug)]
pub(crate) struct EventQueue {
    waiting: Mutex<VecDeque<AsyncEvent>>,
    /// Readable while the queue is not empty.
    wake: EventFd,
    /// Readable while `wake` is readable or the context has unread events.
    either: Epoll,
}

impl EventQueue {
    fn new(context: BorrowedFd<'_>) -> Result<Self, VerbsError> {
        let os = |errno: nix::Error| VerbsError::Os(errno as i32);
        let _held = HeldStdio::take()?;
        let wake =
            EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC).map_err(os)?;
        let either = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(os)?;
        either.add(&wake, EpollEvent::new(EpollFlags::EPOLLIN, 0)).map_err(os)?;
        either.add(context, EpollEvent::new(EpollFlags::EPOLLIN, 1)).map_err(os)?;
        Ok(Self { waiting: Mutex::default(), wake, either })
    }

    fn push(&self, event: AsyncEvent) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < QUEUE_DEPTH {
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

/// The subject in a live object's events, and the queue of the opening that created the object.
#[derive(Debug)]
struct Known {
    subject: AsyncSubject,
    queue: Weak<EventQueue>,
}

#[derive(Debug, Default)]
struct Table {
    /// The objects, by the address of the C structure. The address is compared but never dereferenced.
    live: HashMap<usize, Known>,
    queues: Vec<Weak<EventQueue>>,
    /// True if the descriptor has failed because the device was removed.
    is_dead: bool,
}

/// The events of one context.
#[derive(Debug, Default)]
pub(crate) struct AsyncEvents(Mutex<Table>);

impl AsyncEvents {
    /// Creates the queue for another opening of the device.
    pub(crate) fn open_queue(&self, context: BorrowedFd<'_>) -> Result<Arc<EventQueue>, VerbsError> {
        let queue = Arc::new(EventQueue::new(context)?);
        let mut table = lock(&self.0);
        table.queues.retain(|queue| queue.strong_count() > 0);
        table.queues.push(Arc::downgrade(&queue));
        Ok(queue)
    }

    /// Creates an object with `make`, and delivers its events to `queue`.
    pub(crate) fn enter<T>(
        &self,
        queue: &Arc<EventQueue>,
        make: impl FnOnce() -> Result<(NonNull<T>, AsyncSubject), VerbsError>,
    ) -> Result<NonNull<T>, VerbsError> {
        let mut table = lock(&self.0);
        let (object, subject) = make()?;
        table.live.insert(object.addr().get(), Known { subject, queue: Arc::downgrade(queue) });
        Ok(object)
    }

    /// Destroys an object with `destroy`, which returns 0 on success.
    pub(crate) fn leave<T>(&self, object: *mut T, destroy: impl FnOnce(*mut T) -> c_int) -> c_int {
        let mut table = lock(&self.0);
        let status = destroy(object);
        if status == 0 {
            table.live.remove(&object.addr());
        }
        status
    }

    /// Reads the context's events, delivers them, and takes the next event from `queue`. Does not block if the context's
    /// descriptor is non-blocking, as [`crate::context::Context::open`] makes it.
    pub(crate) fn next(&self, context: Live<'_, ibv_context>, queue: &EventQueue) -> Option<AsyncEvent> {
        let mut table = lock(&self.0);
        // Limit the number of events per call, so that a flood of events does not keep the table locked.
        for _ in 0..QUEUE_DEPTH {
            if table.is_dead {
                break;
            }
            let mut event = RawEvent { element: 0, event_type: -1 };
            let place = (&raw mut event).cast::<ibv_async_event>();
            // SAFETY: the context is `Live`, and `event` has the size and layout of the C structure.
            if unsafe { ibv_get_async_event(context.raw(), place) } == 0 {
                if table.deliver(event) {
                    // SAFETY: `event` is unchanged since it was read. Its object is in the table, and objects are
                    // destroyed only under the lock that is held here.
                    unsafe { ibv_ack_async_event(place) };
                }
            } else if !matches!(last_errno(), libc::EAGAIN | libc::EINTR) {
                table.fail(context);
            } else {
                break;
            }
        }
        drop(table);
        queue.pop()
    }
}

impl Table {
    /// Delivers an event to the openings that it concerns. Returns true if this provider must acknowledge it.
    fn deliver(&self, event: RawEvent) -> bool {
        let Some((kind, about)) = classify(event.event_type) else { return false };
        let subject = match about {
            About::Object => {
                let address = usize::try_from(event.element).unwrap_or(0);
                let Some(live) = self.live.get(&address) else { return false };
                if let Some(queue) = live.queue.upgrade() {
                    queue.push(AsyncEvent { kind, subject: live.subject });
                }
                return true;
            }
            // The port number is the union's `int`. The other bytes are undefined.
            About::Port => AsyncSubject::Port(event.element.to_ne_bytes()[0]),
            About::Device => AsyncSubject::Device,
        };
        self.deliver_to_all(AsyncEvent { kind, subject });
        true
    }

    fn deliver_to_all(&self, event: AsyncEvent) {
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            queue.push(event);
        }
    }

    /// Reports once that the descriptor has failed permanently, and stops waiting for it.
    fn fail(&mut self, context: Live<'_, ibv_context>) {
        self.is_dead = true;
        // SAFETY: the context is `Live`, and its descriptor is open as long as the context.
        let events = unsafe { BorrowedFd::borrow_raw((*context.raw()).async_fd) };
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            let _was_not_there = queue.either.delete(events);
        }
        self.deliver_to_all(AsyncEvent { kind: AsyncEventKind::DeviceFatal, subject: AsyncSubject::Device });
    }
}

/// The kind of subject that an event has.
enum About {
    Object,
    Port,
    Device,
}

/// Classifies a value of `ibv_event_type`. Returns `None` for events of objects that this crate does not create.
fn classify(event_type: c_int) -> Option<(AsyncEventKind, About)> {
    use About::{Device, Object, Port};
    use AsyncEventKind as K;
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

/// Returns the subject for the events of a QP.
pub(crate) fn of_qp(number: u32) -> AsyncSubject {
    AsyncSubject::Qp(QpNumber::new(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    struct TwoOpenings {
        table: Table,
        queues: [Arc<EventQueue>; 2],
        _context: EventFd,
    }

    /// Creates two openings of one device, and an object of the first opening.
    fn two_openings() -> TwoOpenings {
        let context = EventFd::new().unwrap();
        let queues = [(); 2].map(|()| Arc::new(EventQueue::new(context.as_fd()).unwrap()));
        let mut table = Table { queues: queues.iter().map(Arc::downgrade).collect(), ..Table::default() };
        table.live.insert(0x1000, Known { subject: of_qp(17), queue: Arc::downgrade(&queues[0]) });
        TwoOpenings { table, queues, _context: context }
    }

    #[test]
    fn events_of_unknown_objects_are_not_acknowledged() {
        let device = two_openings();
        for event_type in 0..=20 {
            let of_an_object = classify(event_type).is_some_and(|(_, about)| matches!(about, About::Object));
            let ours = device.table.deliver(RawEvent { element: 0xdead_beef, event_type });
            assert_eq!(ours, event_type < 19 && !of_an_object, "type {event_type}");
        }
        for event_type in [-1, 19, 20, c_int::MAX, c_int::MIN] {
            assert!(!device.table.deliver(RawEvent { element: 0x1000, event_type }), "type {event_type}");
        }
    }

    #[test]
    fn object_event_reaches_its_opening_and_port_event_all_openings() {
        let device = two_openings();
        assert!(device.table.deliver(RawEvent { element: 0x1000, event_type: 1 }));
        // The port number is the union's `int`. The other bytes have no meaning.
        assert!(device.table.deliver(RawEvent { element: 0xffff_ffff_0000_0002, event_type: 10 }));
        let qp = AsyncEvent { kind: AsyncEventKind::QpFatal, subject: of_qp(17) };
        let port = AsyncEvent { kind: AsyncEventKind::PortError, subject: AsyncSubject::Port(2) };
        let [first, second] = &device.queues;
        assert_eq!([first.pop(), first.pop(), first.pop()], [Some(qp), Some(port), None]);
        assert_eq!([second.pop(), second.pop()], [Some(port), None]);
    }

    #[test]
    fn unread_queue_is_bounded() {
        let device = two_openings();
        for _ in 0..2 * QUEUE_DEPTH {
            device.table.deliver(RawEvent { element: 1, event_type: 9 });
        }
        assert_eq!(lock(&device.queues[0].waiting).len(), QUEUE_DEPTH);
    }

    /// Closing the streams affects the whole process, so the test runs itself in another process.
    #[test]
    fn no_descriptor_takes_number_of_closed_stream() {
        const NAME: &str = "async_events::tests::no_descriptor_takes_number_of_closed_stream";
        const CLOSED: &str = "TRUNKLINE_TEST_CLOSED";
        if std::env::var_os(CLOSED).is_none() {
            let mut test = std::process::Command::new(std::env::current_exe().unwrap());
            let ended = test.args(["--exact", NAME, "--test-threads=1"]).env(CLOSED, "all").status().unwrap();
            assert!(ended.success(), "{ended}");
            return;
        }
        let context = EventFd::new().unwrap();
        (0..3).for_each(|stream| nix::unistd::close(stream).unwrap());
        let queue = EventQueue::new(context.as_fd()).unwrap();
        let made = [queue.wake.as_fd().as_raw_fd(), queue.as_fd().as_raw_fd()];
        let closed = EventFd::new().unwrap();
        assert!(made.iter().all(|descriptor| *descriptor > 2), "{made:?}");
        assert_eq!(closed.as_fd().as_raw_fd(), 0, "the streams stay closed");
    }
}
