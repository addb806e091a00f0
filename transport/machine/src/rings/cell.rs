//! A one-shot cell that carries the outcome of one call from a poller to the waiter.
//!
//! The client queues of the RPC layer use it; for a blocking wait, its waker unparks a thread. The cell never blocks, and
//! allocates only when it is created. A cell can be reused when both halves are done with it.
//!
//! ```text
//!   bits of the word     set by                        then
//!   DONE                 setter, with or without value the getter owns the value; the setter writes nothing more,
//!                                                      but owns the waker if WAKER was set at that moment
//!   WAKER                getter, waker stored          neither half may use it until DONE, ABANDONED or until cleared
//!   ABANDONED            getter, when dropped          the setter keeps the value, the getter owns the waker
//!   SUPERSEDED           getter, with ABANDONED        the setter sees why the getter was dropped
//! ```

use core::fmt;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use crate::rings::panics::catch;
use crate::rings::sync::{Arc, AtomicU32, Ordering, UnsafeCell};

const DONE: u32 = 1;
const WAKER: u32 = 2;
const ABANDONED: u32 = 4;
const SUPERSEDED: u32 = 8;

/// Error returned if the setter was dropped without setting a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl fmt::Display for Closed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the setter was dropped without a value")
    }
}

impl core::error::Error for Closed {}

struct OneShot<T> {
    word: AtomicU32,
    value: UnsafeCell<Option<T>>,
    waker: UnsafeCell<Option<Waker>>,
}

// SAFETY: the value is moved between threads and never shared, so T: Send suffices; a Waker is Send and Sync.
// The table of bits above defines which half may access which field, and each transfer is an acquire-release
// operation on the word.
unsafe impl<T: Send> Sync for OneShot<T> {}
// SAFETY: dropping or moving the cell on another thread moves a T and a Waker, which are Send.
unsafe impl<T: Send> Send for OneShot<T> {}

impl<T> OneShot<T> {
    /// # Safety
    /// The caller owns the value according to the table of bits, so no other access to it happens during the call.
    unsafe fn replace_value(&self, value: Option<T>) -> Option<T> {
        // SAFETY: the pointer comes from a live cell, and the caller guarantees exclusive access.
        self.value.with_mut(|slot| unsafe { slot.replace(value) })
    }

    /// # Safety
    /// The caller owns the waker according to the table of bits, so no other access to it happens during the call.
    unsafe fn replace_waker(&self, waker: Option<Waker>) -> Option<Waker> {
        // SAFETY: the pointer comes from a live cell, and the caller guarantees exclusive access.
        self.waker.with_mut(|slot| unsafe { slot.replace(waker) })
    }
}

/// Creates a new cell. [`Getter::rest`] allows it to be reused.
#[must_use]
pub fn pair<T>() -> (Setter<T>, Getter<T>) {
    let word = AtomicU32::new(0);
    halves(Arc::new(OneShot { word, value: UnsafeCell::new(None), waker: UnsafeCell::new(None) }))
}

fn halves<T>(shared: Arc<OneShot<T>>) -> (Setter<T>, Getter<T>) {
    let setter = Setter { shared: Arc::clone(&shared), finished: false };
    (setter, Getter { shared: Some(shared), taken: false })
}

/// The half that provides the value.
pub struct Setter<T> {
    shared: Arc<OneShot<T>>,
    finished: bool,
}

impl<T> Setter<T> {
    /// Completes the cell with `value` and wakes the getter.
    ///
    /// # Errors
    /// Returns `value` if the getter was dropped.
    pub fn set(self, value: T) -> Result<(), T> {
        // The waker is the program's code. The getter gets the value even if waking panics.
        self.set_and(value, |waker| {
            let _ended = catch(|| waker.wake());
        })
    }

    /// Completes the cell with `value`, and calls `wake` to wake the getter.
    ///
    /// # Errors
    /// Returns `value` if the getter was dropped.
    pub fn set_and(mut self, value: T, wake: impl FnOnce(Waker)) -> Result<(), T> {
        self.finish(Some(value), wake).map_or(Ok(()), Err)
    }

    /// Returns true if the getter was dropped, so that the value is no longer needed.
    #[must_use]
    pub fn is_abandoned(&self) -> bool {
        // SYNC: cell-word
        self.shared.word.load(Ordering::Acquire) & ABANDONED != 0
    }

    /// Returns true if the getter was dropped by [`Getter::supersede`].
    #[must_use]
    pub fn is_superseded(&self) -> bool {
        // SYNC: cell-word
        self.shared.word.load(Ordering::Acquire) & SUPERSEDED != 0
    }

    /// Completes the cell; returns the value if the getter was dropped.
    fn finish(&mut self, value: Option<T>, wake: impl FnOnce(Waker)) -> Option<T> {
        self.finished = true;
        // SAFETY: until DONE is set, the setter owns the value.
        unsafe { self.shared.replace_value(value) };
        // SYNC: cell-word
        let before = self.shared.word.fetch_or(DONE, Ordering::AcqRel);
        if before & ABANDONED != 0 {
            // SAFETY: ABANDONED was set before DONE, so the getter no longer accesses the value and the
            // setter still owns it.
            return unsafe { self.shared.replace_value(None) };
        }
        if before & WAKER != 0 {
            // SAFETY: WAKER was set when DONE was set, so the waker belongs to the setter.
            if let Some(waker) = unsafe { self.shared.replace_waker(None) } {
                wake(waker);
            }
        }
        None
    }
}

impl<T> Drop for Setter<T> {
    fn drop(&mut self) {
        if !self.finished {
            self.finish(None, |waker| {
                let _ended = catch(|| waker.wake());
            });
        }
    }
}

impl<T> fmt::Debug for Setter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Setter").field("abandoned", &self.is_abandoned()).finish()
    }
}

/// The half that waits. It is a future that returns the value, or [`Closed`] if the setter was dropped.
pub struct Getter<T> {
    /// `None` only while the getter is being turned into a resting cell.
    shared: Option<Arc<OneShot<T>>>,
    /// True after the outcome was returned, or the cell was abandoned.
    taken: bool,
}

impl<T> Getter<T> {
    /// Returns the outcome if it is available. After the outcome was returned, this method and the future return [`Closed`].
    pub fn try_take(&mut self) -> Option<Result<T, Closed>> {
        if self.taken {
            return Some(Err(Closed));
        }
        // SYNC: cell-word
        let word = self.shared().word.load(Ordering::Acquire);
        (word & DONE != 0).then(|| self.take())
    }

    /// Returns the cell for reuse. An outcome that was not taken is dropped.
    #[must_use]
    pub fn rest(mut self) -> Option<Resting<T>> {
        self.leave(ABANDONED);
        self.shared.take().map(Resting)
    }

    /// Drops the getter because another cell provided the outcome.
    pub fn supersede(mut self) {
        self.leave(ABANDONED | SUPERSEDED);
    }

    fn shared(&self) -> &Arc<OneShot<T>> {
        self.shared.as_ref().expect("a getter has its cell until it is dropped or rests")
    }

    /// Takes the outcome. The caller has read DONE with acquire ordering.
    fn take(&mut self) -> Result<T, Closed> {
        self.taken = true;
        // SAFETY: after DONE, the getter owns the value.
        unsafe { self.shared().replace_value(None) }.ok_or(Closed)
    }

    /// Abandons the cell and sets these bits. The cell then contains neither value nor waker.
    fn leave(&mut self, bits: u32) {
        let Some(shared) = self.shared.as_ref().filter(|_| !self.taken) else { return };
        // SYNC: cell-word
        let before = shared.word.fetch_or(bits, Ordering::AcqRel);
        // Dropping a waker or a value may panic, and the getter is dropped after that. That drop must not run
        // this code again, since the setter may take the value from now on.
        self.taken = true;
        if before & DONE == 0 {
            // SAFETY: ABANDONED was set before DONE, so the setter does not access the waker.
            drop(unsafe { shared.replace_waker(None) });
        } else {
            // SAFETY: after DONE, the getter owns the value.
            drop(unsafe { shared.replace_value(None) });
        }
    }
}

impl<T> Future for Getter<T> {
    type Output = Result<T, Closed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(outcome) = self.try_take() {
            return Poll::Ready(outcome);
        }
        let shared = self.shared();
        // If an earlier poll stored a waker, take it back before it is replaced, unless the setter has taken it.
        // SYNC: cell-word
        if shared.word.load(Ordering::Relaxed) & WAKER != 0
            && shared.word.fetch_and(!WAKER, Ordering::AcqRel) & DONE != 0
        {
            return Poll::Ready(self.take());
        }
        // SAFETY: WAKER is clear and only the getter sets it, so the getter owns the waker.
        drop(unsafe { shared.replace_waker(Some(context.waker().clone())) });
        // SYNC: cell-word
        if shared.word.fetch_or(WAKER, Ordering::AcqRel) & DONE != 0 {
            // SAFETY: DONE was set while WAKER was clear, so the setter does not access the waker.
            drop(unsafe { shared.replace_waker(None) });
            return Poll::Ready(self.take());
        }
        Poll::Pending
    }
}

impl<T> Drop for Getter<T> {
    fn drop(&mut self) {
        self.leave(ABANDONED);
    }
}

impl<T> fmt::Debug for Getter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Getter").field("taken", &self.taken).finish()
    }
}

/// A cell without a getter, for reuse. Pools of resting cells can be shared between threads.
pub struct Resting<T>(Arc<OneShot<T>>);

impl<T> Resting<T> {
    /// Returns both halves of the cell, in the state of a new cell.
    ///
    /// # Errors
    /// Returns the resting cell while its setter exists.
    pub fn pair(mut self) -> Result<(Setter<T>, Getter<T>), Self> {
        if Arc::get_mut(&mut self.0).is_none() {
            return Err(self);
        }
        // This is the only reference, so no other thread sees the word change. The setter took the waker if it owned it, and
        // the getter removed everything else when it left.
        // SYNC: cell-word
        self.0.word.store(0, Ordering::Relaxed);
        Ok(halves(self.0))
    }
}

impl<T> fmt::Debug for Resting<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resting").finish_non_exhaustive()
    }
}
