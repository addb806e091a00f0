//! What all objects of a device share.
//!
//! Owns the lock of the card, and the background thread's life. Each verbs object holds an
//! `Arc` of it, so that objects may be dropped in any order; with the last one the thread ends
//! and the card goes.
#![forbid(unsafe_code)]

use super::async_events::AsyncEvents;
use super::background::Background;
use super::card::Card;
use super::card_lock::CardLock;
use super::domain_table::DomainTable;
use super::keys::PdNumber;
use super::progress::Progress;
use super::signal::lock;
use crate::host::Host;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::Duration;
use trunkline_machine::Runtime;
use trunkline_verbs::{Time, VerbsError};

/// How long a thread that works on the card when the process ends may take to leave it.
const PARTING: Duration = Duration::from_millis(200);

/// Exists until all of a device is released, its descriptors and threads included.
#[derive(Debug)]
pub(super) struct SlotGuard;

/// The device's heart.
#[derive(Debug)]
pub(super) struct Core {
    shared: Arc<CardLock>,
    /// Asynchronous events.
    pub(super) events: Arc<AsyncEvents>,
    /// XRC domains by file.
    pub(super) domains: DomainTable,
    next_pd: AtomicU32,
    /// Dropped first, see `Drop`.
    background: Mutex<Option<Background>>,
    /// In its slot, if it has one. The last field, so that it goes last.
    slot_guard: OnceLock<Arc<SlotGuard>>,
}

impl Core {
    /// Starts the background thread.
    pub(super) fn start(
        card: Card,
        events: Arc<AsyncEvents>,
        host: Option<Arc<Host>>,
        runtime: Runtime,
    ) -> std::io::Result<Arc<Self>> {
        let (progress, sleeper) = Progress::new(&runtime)?;
        let shared = Arc::new(CardLock { card: Mutex::new(card), progress, runtime });
        let background = Background::start(Arc::clone(&shared), sleeper)?;
        Ok(Arc::new(Self {
            shared,
            events,
            domains: DomainTable::new(host),
            // 0 is the PD of TGTs, which no region belongs to.
            next_pd: AtomicU32::new(1),
            background: Mutex::new(Some(background)),
            slot_guard: OnceLock::new(),
        }))
    }

    /// What runs the device's machine.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.shared.runtime
    }

    /// In the child of a fork: the background thread did not come along.
    pub(super) fn forked(&self) -> BorrowedFd<'_> {
        self.shared.progress.forked()
    }

    /// Starts the background thread again, in a child that uses the device.
    #[cold]
    fn revive(&self) {
        let mut background = lock(&self.background);
        if !self.shared.progress.is_orphan() {
            return;
        }
        // Its join handle is of the parent's thread.
        std::mem::forget(background.take());
        self.shared.progress.adopt();
        // Only threads are lost by a fork, and they make what they sleep on themselves.
        match Background::start(Arc::clone(&self.shared), None) {
            Ok(started) => *background = Some(started),
            Err(error) => tracing::error!(%error, "the card's background thread cannot start again"),
        }
    }

    fn ensure_background(&self) {
        if self.shared.progress.is_orphan() {
            self.revive();
        }
    }

    /// Whether a simulation runs the device: then no caller may wait.
    pub(super) fn is_simulated(&self) -> bool {
        self.shared.runtime.is_simulated()
    }

    /// The card, for what neither sends nor sets a timer.
    pub(super) fn card(&self) -> MutexGuard<'_, Card> {
        lock(&self.shared.card)
    }

    /// Does something to the card that neither sends nor sets a timer.
    pub(super) fn with<R>(&self, action: impl FnOnce(&mut Card) -> R) -> R {
        action(&mut self.card())
    }

    /// Does something that may send or set timers: afterwards the background thread is woken if
    /// it sleeps longer than the card now wants.
    pub(super) fn act<R>(&self, action: impl FnOnce(&mut Card, Time) -> R) -> R {
        self.ensure_background();
        let mut card = self.card();
        let now = self.shared.now();
        let result = action(&mut card, now);
        self.shared.progress.card_changed(&card, now);
        drop(card);
        result
    }

    /// Disconnects all peers because the process ends, perhaps in the middle of an operation. Does so
    /// only if the card's lock is free soon and the card is not a forked copy of one that another
    /// process uses. The wait is bounded, since the lock's holder may never run again.
    pub(super) fn disconnect_all(&self) {
        let began = self.shared.now();
        while !self.shared.progress.is_orphan() {
            match self.shared.card.try_lock() {
                Ok(mut card) => {
                    let card = &mut *card;
                    return card.control.disconnect_all(&mut card.shard, self.shared.now());
                }
                Err(TryLockError::WouldBlock) if self.shared.now() - began < PARTING => {
                    #[expect(clippy::disallowed_methods, reason = "waits for another real thread")]
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(_) => return,
            }
        }
    }

    /// The guard by which a slot knows that the device, removed or not, still exists.
    pub(super) fn slot_guard(&self) -> &Arc<SlotGuard> {
        self.slot_guard.get_or_init(|| Arc::new(SlotGuard))
    }

    /// The device is taken out of its slot.
    pub(super) fn remove(&self) {
        self.act(|card, now| card.control.remove(&mut card.shard, now));
    }

    /// Does the card's pending work, unless another thread is at it.
    pub(super) fn work(&self) {
        let mut card = match self.shared.card.try_lock() {
            Ok(card) => card,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let now = self.shared.now();
        card.work(now);
        self.shared.progress.worked(&mut card, now);
    }

    /// Notes that the program polls, so that the background thread leaves the work to it.
    pub(super) fn note_poll(&self) {
        self.ensure_background();
        self.shared.progress.note_poll();
    }

    /// The program is about to sleep: the background thread takes over now.
    pub(super) fn hand_over(&self) {
        self.ensure_background();
        self.shared.progress.hand_over();
    }

    /// A number for a protection domain.
    pub(super) fn new_pd(&self) -> Result<PdNumber, VerbsError> {
        self.card().control.present()?;
        let number = self.next_pd.fetch_add(1, Ordering::Relaxed);
        // Far below the wrap, so that racing callers cannot pass it either.
        if number > u32::MAX / 2 {
            return Err(VerbsError::OutOfResources("all protection domain numbers were used"));
        }
        Ok(PdNumber(number))
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let background = lock(&self.background).take();
        if self.shared.progress.is_orphan() {
            std::mem::forget(background);
        } else if let Some(background) = background {
            background.stop(&self.shared.progress);
        }
    }
}
