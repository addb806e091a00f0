//! A bounded channel whose receiver is a stream, for handlers and callers that feed a stream from other code.

use async_channel::{Receiver as Source, Sender as Sink};
use futures_core::Stream;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

/// Creates a channel for at most `items` items at a time, at least one.
///
/// Both ends work on any thread and any executor. A handler can return the receiver as its stream, and feed it from
/// other code:
///
/// ```
/// use trunkline::Status;
/// use trunkline::stream::{Receiver, channel};
///
/// # #[derive(Debug)]
/// # struct Feed;
/// # impl Feed {
/// async fn count(&self, to: u32) -> Result<Receiver<Result<u32, Status>>, Status> {
///     let (sender, receiver) = channel(16);
///     std::thread::spawn(move || {
///         for number in 0..to {
///             // Fails once the caller has gone.
///             if trunkline::block_on(sender.send(Ok(number))).is_err() {
///                 break;
///             }
///         }
///     });
///     Ok(receiver)
/// }
/// # }
/// ```
#[must_use]
pub fn channel<T>(items: usize) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = async_channel::bounded(items.max(1));
    (Sender(sender), Receiver(Box::pin(receiver)))
}

/// The sending end of a [`channel`]. The stream ends when all clones are dropped.
pub struct Sender<T>(Sink<T>);

impl<T> Sender<T> {
    /// Sends an item. Waits until the channel has room.
    ///
    /// # Errors
    /// Returns the item if the receiver was dropped.
    pub async fn send(&self, item: T) -> Result<(), Closed<T>> {
        self.0.send(item).await.map_err(|error| Closed(error.0))
    }

    /// Sends an item if there is room.
    ///
    /// # Errors
    /// Returns the item if the channel is full, or if the receiver was dropped.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(item).map_err(|error| match error {
            async_channel::TrySendError::Full(item) => TrySendError::Full(item),
            async_channel::TrySendError::Closed(item) => TrySendError::Closed(item),
        })
    }

    /// Returns true if the receiver was dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish()
    }
}

/// The receiving end of a [`channel`].
pub struct Receiver<T>(Pin<Box<Source<T>>>);

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.as_mut().poll_next(task)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("waiting", &self.0.len()).finish()
    }
}

/// The error of [`Sender::send`]: the receiver was dropped. It returns the item.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the receiver of the channel is gone")]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed(..)")
    }
}

/// The error of [`Sender::try_send`]. It returns the item.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The channel is full.
    #[error("the channel has no room")]
    Full(T),
    /// The receiver was dropped.
    #[error("the receiver of the channel is gone")]
    Closed(T),
}

impl<T> fmt::Debug for TrySendError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full(_) => "Full(..)",
            Self::Closed(_) => "Closed(..)",
        })
    }
}
