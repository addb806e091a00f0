//! Completion queues.

use crate::{Completion, CompletionChannel, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;

/// What a CQ is made with.
#[derive(Debug, Clone, Default)]
pub struct CqInit {
    /// Entries it must be able to hold, at least 1.
    pub capacity_cqe: u32,
    /// Where notifications go; `None` for a CQ that is only polled.
    pub channel: Option<Arc<dyn CompletionChannel>>,
    /// Returned by [`CompletionChannel::next_event`].
    pub context: u64,
}

/// Which completions wake the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// The next completion of any kind.
    Any,
    /// The next receive whose sender asked for a solicited event, or the next failed one.
    Solicited,
}

/// A completion queue.
pub trait CompletionQueue: Any + Send + Sync + Debug {
    /// Takes completions into `completions` from its start, in order; returns how many. On a software device
    /// the calling thread does the device's pending work first.
    fn poll(&self, completions: &mut [Completion]) -> usize;

    /// Asks for one event on the channel. Poll once more after this and before sleeping.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when the CQ has no channel.
    fn request_notify(&self, notify: Notify) -> Result<(), VerbsError>;

    /// Entries it can hold.
    fn capacity_cqe(&self) -> u32;

    /// Makes it hold at least `capacity_cqe` entries, or fewer than before (`ibv_resize_cq`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a capacity of 0, above the device's, or below what waits in it.
    fn resize(&self, capacity_cqe: u32) -> Result<(), VerbsError>;

    /// Destroys it now.
    ///
    /// # Errors
    /// [`VerbsError::Busy`] while an SRQ or a QP completes into it (contract D2, I3).
    fn destroy(&self) -> Result<(), VerbsError>;
}
