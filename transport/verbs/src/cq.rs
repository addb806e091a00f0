//! Completion queues.

use crate::{Completion, CompletionChannel, VerbsError};
use std::any::Any;
use std::fmt::Debug;
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
    /// Group of CQs that one thread polls, and that this one belongs to. A software device may give each
    /// group a separate part, so that threads which poll different groups do not wait for each other. Any
    /// thread may still poll any CQ. Programs that do not divide their CQs use group 0.
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

    /// Destroys the CQ.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while an SRQ or a QP completes into it (contract D2, I3).
    fn destroy(&self) -> Result<(), VerbsError>;
}
