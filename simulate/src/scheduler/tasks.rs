//! Clients, which are futures that the scheduler polls after a wake-up.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

type Client = Pin<Box<dyn Future<Output = ()>>>;

/// Numbers of woken clients.
#[derive(Debug, Default)]
struct Woken(Mutex<VecDeque<u64>>);

struct ClientWaker {
    number: u64,
    queued: AtomicBool,
    woken: Arc<Woken>,
}

impl Wake for ClientWaker {
    fn wake(self: Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            self.woken.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(self.number);
        }
    }
}

struct Slot {
    /// Future of the client; `None` while it is being polled.
    client: Option<Client>,
    waker: Arc<ClientWaker>,
    /// Process of the client, which ends with it.
    process: u64,
}

#[derive(Default)]
pub(crate) struct Tasks {
    slots: RefCell<BTreeMap<u64, Slot>>,
    woken: Arc<Woken>,
    last: RefCell<u64>,
}

impl Tasks {
    /// Adds a client to a process. It is polled in a later step.
    pub(crate) fn add(&self, process: u64, client: impl Future<Output = ()> + 'static) {
        let mut last = self.last.borrow_mut();
        *last += 1;
        let woken = Arc::clone(&self.woken);
        let waker = Arc::new(ClientWaker { number: *last, queued: AtomicBool::new(false), woken });
        Arc::clone(&waker).wake();
        self.slots.borrow_mut().insert(*last, Slot { client: Some(Box::pin(client)), waker, process });
    }

    /// Returns the number of woken clients, which wait to be polled.
    pub(crate) fn woken(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of clients that have not ended.
    pub(crate) fn len(&self) -> usize {
        self.slots.borrow().len()
    }

    /// Polls the woken client at this position in the queue. Returns the client's process.
    pub(crate) fn poll(&self, position: usize) -> Option<u64> {
        let number = self.lock().remove(position)?;
        let taken = self.slots.borrow_mut().get_mut(&number).and_then(|slot| {
            slot.waker.queued.store(false, Ordering::Relaxed);
            let client = slot.client.take()?;
            Some((slot.process, client, Waker::from(Arc::clone(&slot.waker))))
        });
        let (process, mut client, waker) = taken?;
        let polled = client.as_mut().poll(&mut Context::from_waker(&waker));
        match polled {
            Poll::Ready(()) => drop(self.slots.borrow_mut().remove(&number)),
            Poll::Pending => {
                if let Some(slot) = self.slots.borrow_mut().get_mut(&number) {
                    slot.client = Some(client);
                }
            }
        }
        Some(process)
    }

    pub(crate) fn kill(&self, process: u64) {
        let mut slots = self.slots.borrow_mut();
        let all = std::mem::take(&mut *slots).into_iter();
        let (dropped, kept): (Vec<_>, Vec<_>) = all.partition(|(_, slot)| slot.process == process);
        *slots = kept.into_iter().collect();
        drop(slots);
        // Dropping a client may wake other tasks, so the lock is released first.
        drop(dropped);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<u64>> {
        self.woken.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
