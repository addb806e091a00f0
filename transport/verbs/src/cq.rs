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
    /// The caller's value that [`CompletionChannel::next_event`] returns for this CQ.
    pub context: u64,
    /// Group of CQs that one thread polls. A software device may give each group a separate part, so that
    /// threads that poll different groups do not wait for each other. Any thread may still poll any CQ.
    /// Programs that do not divide their CQs use group 0.
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

    /// Arms the CQ for one event on its channel. Poll once more after this and before sleeping.
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

    /// Lets the thread that polls this CQ also sleep for the device: `wake` wakes that thread if it sleeps, from
    /// any thread. Returns `None` if the device has no work for threads of the program, or if another thread
    /// sleeps for the CQ's group. The thread then sleeps on the channel alone.
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

/// The wait of a thread that does a software device's work itself and sleeps in between, so that packets
/// need not pass through a second thread of the device.
///
/// To sleep: announce the sleep to all callers of `wake`, call [`DeviceWait::prepare`], then wait on the
/// [`DeviceWait::descriptors`] and on the CQ's channel, which completions of other threads make readable.
/// After waking, call [`DeviceWait::awake`] and poll the CQ. Dropping the wait ends it.
pub trait DeviceWait: Send + Sync + Debug {
    /// Arms the CQ and does the device's pending work. From then on the calling thread must wake for the
    /// device. Unless `awaits_acknowledgement`, it need not wake for acknowledgements, which are then
    /// handled later.
    fn prepare(&self, awaits_acknowledgement: bool) -> Prepared;

    /// Returns the descriptors to wait on, edge-triggered. They belong to the device.
    fn descriptors(&self) -> Vec<RawFd>;

    /// Returns a further descriptor, which never changes.
    fn bell(&self) -> Option<RawFd>;

    /// Records that the thread is awake. `by_device` is false if it waited and none of the `descriptors` was
    /// readable.
    fn awake(&self, by_device: bool);

    /// Returns true if a packet has arrived. A simulation calls this where a thread would sleep on the descriptors.
    fn has_arrivals(&self) -> bool;

    /// Returns true if the device has work for which it does not wake the thread. Called by a simulation,
    /// like [`DeviceWait::has_arrivals`].
    fn is_due(&self) -> bool;
}

/// Result of [`DeviceWait::prepare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// Work is ready: poll the CQ instead of sleeping.
    Ready,
    /// The thread may sleep.
    Sleep {
        /// Time of the device's next timer.
        until: Option<Time>,
        /// Number that changes with [`DeviceWait::descriptors`].
        version: u64,
    },
}
