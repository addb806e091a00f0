//! Completion queues.

use crate::{Completion, CompletionChannel, Time, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::os::fd::RawFd;
use std::sync::Arc;

/// The parameters for creating a CQ.
#[derive(Debug, Clone, Default)]
pub struct CqInit {
    /// Minimum number of entries, at least 1.
    pub capacity_cqe: u32,
    /// The channel for notifications; `None` for a CQ that is only polled.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Value, chosen by the caller, that [`CompletionChannel::next_event`] returns for this CQ.
    pub context: u64,
    /// Group of CQs that one thread polls. A software device may process each group separately, so that threads that poll
    /// different groups do not wait for each other. Any thread may still poll any CQ. Programs that do not divide their CQs
    /// use group 0.
    pub group: u32,
}

/// Completions that raise an event on the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The next completion of any kind.
    Any,
    /// The next receive whose sender requested a solicited event, or the next failed completion.
    Solicited,
}

/// A completion queue.
pub trait CompletionQueue: Any + Send + Sync + Debug {
    /// Moves completions to the start of `completions`, oldest first, and returns their number. On a
    /// software device the calling thread first does the device's pending work.
    fn poll(&self, completions: &mut [Completion]) -> usize;

    /// Arms the CQ for one event on its channel. Before sleeping, poll the CQ once more.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if the CQ has no channel.
    fn request_notify(&self, notify: Notify) -> Result<(), VerbsError>;

    /// Returns the capacity of the CQ, in entries.
    fn capacity_cqe(&self) -> u32;

    /// Changes the capacity to at least `capacity_cqe` entries, more or fewer than before (`ibv_resize_cq`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a capacity of 0, above the device's limit, or below the number of waiting
    /// entries.
    fn resize(&self, capacity_cqe: u32) -> Result<(), VerbsError>;

    /// Lets the thread that polls this CQ also wait for the device. The device calls `wake`, on any thread, to wake the
    /// waiting thread. Returns `None` if the device leaves no work to the program's threads, or if another thread waits for
    /// the CQ's group. The caller then sleeps on the channel alone.
    fn device_wait(&self, wake: Arc<dyn Fn() + Send + Sync>) -> Option<Arc<dyn DeviceWait>> {
        let _ = wake;
        None
    }

    /// Destroys the CQ.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while an SRQ or a QP completes into it (contract D2, I3).
    fn destroy(&self) -> Result<(), VerbsError>;
}

/// Wait handle for a thread that does a software device's work itself and sleeps in between. Packets then need not pass
/// through a thread of the device.
///
/// To sleep, announce the sleep to all callers of `wake`, call [`DeviceWait::prepare`], then wait on the
/// [`DeviceWait::descriptors`] and on the CQ's channel, which becomes readable when another thread completes work. After
/// waking, call [`DeviceWait::awake`] and poll the CQ. Dropping the handle ends the wait.
pub trait DeviceWait: Send + Sync + Debug {
    /// Arms the CQ and does the device's pending work. From then on the calling thread must wake for the device. Unless
    /// `awaits_acknowledgement` is true, acknowledgements need not wake the thread, and are handled later.
    fn prepare(&self, awaits_acknowledgement: bool) -> Prepared;

    /// Returns the descriptors to wait on, in edge-triggered mode. The device owns them.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Returns an additional descriptor to wait on, which never changes.
    fn bell(&self) -> Option<RawFd>;

    /// Records that the thread is awake. `by_device` is false if the thread waited and none of the `descriptors` was
    /// readable.
    fn awake(&self, by_device: bool);

    /// Returns true if a packet has arrived. Simulations call this instead of sleeping on the descriptors.
    fn has_arrivals(&self) -> bool;

    /// Returns true if the device has work for which it does not wake the thread. Simulations call this, like
    /// [`DeviceWait::has_arrivals`].
    fn is_due(&self) -> bool;
}

/// Result of [`DeviceWait::prepare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// Work is ready. Poll the CQ instead of sleeping.
    Ready,
    /// The thread may sleep.
    Sleep {
        /// Time of the device's next timer.
        until: Option<Time>,
        /// Number that changes whenever [`DeviceWait::descriptors`] change.
        version: u64,
    },
}
