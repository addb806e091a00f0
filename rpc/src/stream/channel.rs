//! A bounded channel whose receiver is a stream, for handlers and callers that feed a stream from other code.
//!
//! A sender that panics, returns early or is aborted must be distinguishable from a sender that has sent all its items.
//! Therefore only [`Sender::finish`] ends the stream, and dropping a sender is an error. The items of a stream can have any
//! type, so `poll_next` cannot return that error. It returns `None` and reports the error to the [`Watch`] that polls the
//! stream, through any number of adapters. A reader without a `Watch` never gets this `None`.

use crate::status::reason::Reason;
use crate::status::{Code, Status};
use async_channel::{Receiver as Source, Sender as Sink};
use futures_core::Stream;
use std::cell::Cell;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

/// Creates a channel that holds at most `items` items. 0 is treated as 1.
///
/// Both ends can be used on any thread and any executor. A handler can return the receiver as its stream and feed it from
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
///             // Fails after the caller has dropped the stream.
///             if trunkline::block_on(sender.send(Ok(number))).is_err() {
///                 return;
///             }
///         }
///         // Without this, the caller gets an error after the last item.
///         sender.finish();
///     });
///     Ok(receiver)
/// }
/// # }
/// ```
#[must_use]
pub fn channel<T>(items: usize) -> (Sender<T>, Receiver<T>) {
    let (sink, source) = async_channel::bounded(items.max(1));
    let is_cut = Arc::new(AtomicBool::new(false));
    let sender = Sender { sink, is_cut: Arc::clone(&is_cut), is_finished: false };
    (sender, Receiver { source: Box::pin(source), is_cut })
}

/// The sending end of a [`channel`]. The stream ends after each clone has called [`Sender::finish`].
///
/// Dropping a clone that has not finished closes the channel. The reader gets the items already sent, and then an `Internal`
/// error with [`Reason::SenderDropped`]. The reader therefore gets an error after a panic, an aborted task or an early
/// return.
///
/// ```
/// use trunkline::{Reason, block_on, stream};
///
/// let (sender, mut receiver) = stream::channel(4);
/// let unfinished = sender.clone();
/// block_on(sender.send(1))?;
/// sender.finish();
/// drop(unfinished);
/// assert_eq!(block_on(receiver.recv())?, Some(1));
/// assert_eq!(block_on(receiver.recv()).unwrap_err().reason(), Some(Reason::SenderDropped));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Sender<T> {
    sink: Sink<T>,
    /// True if a clone was dropped before it finished.
    is_cut: Arc<AtomicBool>,
    is_finished: bool,
}

impl<T> Sender<T> {
    /// Sends an item. Waits until the channel has room.
    ///
    /// # Errors
    /// Returns the item if the receiver was dropped, or if a clone was dropped before it finished.
    pub async fn send(&self, item: T) -> Result<(), Closed<T>> {
        self.sink.send(item).await.map_err(|error| Closed(error.0))
    }

    /// Sends an item if there is room.
    ///
    /// # Errors
    /// Returns the item if the channel is full, if the receiver was dropped, or if a clone was dropped before it finished.
    pub fn try_send(&self, item: T) -> Result<(), TrySendError<T>> {
        self.sink.try_send(item).map_err(|error| match error {
            async_channel::TrySendError::Full(item) => TrySendError::Full(item),
            async_channel::TrySendError::Closed(item) => TrySendError::Closed(item),
        })
    }

    /// Returns true if the receiver was dropped, or if a clone was dropped before it finished.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }

    /// Marks this sender as finished. The stream ends after every clone has finished.
    pub fn finish(mut self) {
        self.is_finished = true;
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if !self.is_finished {
            // SYNC: cut
            self.is_cut.store(true, Ordering::Release);
            self.sink.close();
        }
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { sink: self.sink.clone(), is_cut: Arc::clone(&self.is_cut), is_finished: false }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("is_closed", &self.is_closed()).finish()
    }
}

/// The receiving end of a [`channel`].
///
/// It is a stream of the items. Return it from a handler, pass it to a method that takes items, or pass it to
/// [`Streaming::from_stream`](super::Streaming::from_stream). Adapters such as `map` may wrap it. If a sender is dropped
/// before it has finished, the peer that reads the stream gets a status. To read the items locally, use [`Receiver::recv`]:
///
/// ```
/// use trunkline::{Status, stream::Receiver};
///
/// async fn sum(mut numbers: Receiver<u32>) -> Result<u32, Status> {
///     let mut sum = 0;
///     while let Some(number) = numbers.recv().await? {
///         sum += number;
///     }
///     Ok(sum)
/// }
/// ```
///
/// # Panics
/// Polling it as a stream in any other context panics if a sender was dropped before it finished, because `None` would look
/// like the regular end of the stream.
pub struct Receiver<T> {
    source: Pin<Box<Source<T>>>,
    is_cut: Arc<AtomicBool>,
}

impl<T> Receiver<T> {
    /// Returns the next item, or `None` if all senders have finished.
    ///
    /// # Errors
    /// Returns `Internal` with [`Reason::SenderDropped`] if a sender was dropped before it finished.
    pub async fn recv(&mut self) -> Result<Option<T>, Status> {
        poll_fn(|task| self.poll_recv(task)).await
    }

    /// Polls for the next item. See [`Receiver::recv`].
    ///
    /// # Errors
    /// Returns `Internal` with [`Reason::SenderDropped`] if a sender was dropped before it finished.
    pub fn poll_recv(&mut self, task: &mut Context<'_>) -> Poll<Result<Option<T>, Status>> {
        self.source.as_mut().poll_next(task).map(|item| match item {
            // SYNC: cut
            None if self.is_cut.load(Ordering::Acquire) => Err(sender_dropped()),
            item => Ok(item),
        })
    }
}

impl<T> Stream for Receiver<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<T>> {
        self.poll_recv(task).map(|item| {
            item.unwrap_or_else(|status| {
                let is_watched = WATCHED.get().is_some();
                assert!(is_watched, "{}: read it with Receiver::recv", status.message());
                WATCHED.set(Some(true));
                None
            })
        })
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("waiting", &self.source.len()).finish_non_exhaustive()
    }
}

thread_local! {
    /// `None` unless [`watched`] polls a stream; true if a sender for that stream was dropped before it finished.
    static WATCHED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Restores the outer watch, including after a panic.
struct Outer(Option<bool>);

impl Drop for Outer {
    fn drop(&mut self) {
        WATCHED.set(self.0);
    }
}

/// Calls `poll`. Also returns a status if a polled receiver had a sender that was dropped before it finished.
pub(super) fn watched<R>(poll: impl FnOnce() -> R) -> (R, Option<Status>) {
    let _outer = Outer(WATCHED.replace(Some(false)));
    let polled = poll();
    (polled, (WATCHED.get() == Some(true)).then(sender_dropped))
}

/// Polls a stream that may read from a [`Receiver`], and reports a sender that was dropped before it finished. The error
/// follows the items that were already sent.
#[doc(hidden)]
#[derive(Debug, Default)]
pub struct Watch {
    dropped: Option<Status>,
    is_over: bool,
}

impl Watch {
    /// Returns the result of `poll`, or the status for a sender that was dropped before it finished.
    pub fn poll<T>(&mut self, poll: impl FnOnce() -> Poll<Option<T>>) -> Poll<Option<Result<T, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        if self.dropped.is_none() {
            let (polled, dropped) = watched(poll);
            match polled {
                Poll::Ready(Some(item)) => {
                    self.dropped = dropped;
                    return Poll::Ready(Some(Ok(item)));
                }
                polled if dropped.is_none() => return polled.map(|_| None),
                _ => self.dropped = dropped,
            }
        }
        Poll::Ready(self.dropped().map(Err))
    }

    /// Returns the status if a sender was dropped during the last poll. This ends the stream.
    pub fn dropped(&mut self) -> Option<Status> {
        self.is_over |= self.dropped.is_some();
        self.dropped.take()
    }
}

fn sender_dropped() -> Status {
    let text = "the sender of the stream was dropped before it finished";
    Status::ran(Code::Internal, text).because(Reason::SenderDropped)
}

/// The error of [`Sender::send`] when the channel is closed. It contains the item.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the channel is closed")]
pub struct Closed<T>(pub T);

impl<T> fmt::Debug for Closed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed(..)")
    }
}

/// The error of [`Sender::try_send`]. It contains the item.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TrySendError<T> {
    /// The channel is full.
    #[error("the channel has no room")]
    Full(T),
    /// The receiver was dropped, or a clone of the sender was dropped before it finished.
    #[error("the channel is closed")]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Streaming;
    use std::task::Waker;

    fn poll<T>(receiver: &mut Receiver<T>) -> Poll<Result<Option<T>, Reason>> {
        let polled = receiver.poll_recv(&mut Context::from_waker(Waker::noop()));
        polled.map_err(|status| status.reason().unwrap())
    }

    #[test]
    fn channel_ends_after_all_senders_finish_and_is_closed_by_dropped_sender() {
        let (sender, mut receiver) = channel(4);
        let other = sender.clone();
        sender.try_send(1).unwrap();
        sender.finish();
        other.try_send(2).unwrap();
        assert_eq!(
            [poll(&mut receiver), poll(&mut receiver)],
            [1, 2].map(|item| Poll::Ready(Ok(Some(item))))
        );
        assert_eq!(poll(&mut receiver), Poll::Pending);
        other.finish();
        assert_eq!(poll(&mut receiver), Poll::Ready(Ok(None)));

        let (sender, mut receiver) = channel(4);
        sender.try_send(1).unwrap();
        drop(sender.clone());
        assert_eq!(sender.try_send(2), Err(TrySendError::Closed(2)));
        sender.finish();
        assert_eq!(poll(&mut receiver), Poll::Ready(Ok(Some(1))));
        assert_eq!(poll(&mut receiver), Poll::Ready(Err(Reason::SenderDropped)));
    }

    /// A stream of the first receiver's items, followed by the second receiver's items.
    struct Chain(Receiver<Result<u8, Status>>, Receiver<Result<u8, Status>>);

    impl Stream for Chain {
        type Item = Result<u8, Status>;

        fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            match Pin::new(&mut self.0).poll_next(task) {
                Poll::Ready(None) => Pin::new(&mut self.1).poll_next(task),
                item => item,
            }
        }
    }

    #[test]
    fn dropped_sender_within_adapter_is_error_for_any_adapter_result() {
        for (items, is_finished) in [(0, true), (0, false), (2, true), (2, false)] {
            let (dropped, first) = channel(1);
            drop(dropped);
            let (sender, second) = channel(4);
            (0..items).for_each(|item| sender.try_send(Ok(item)).unwrap());
            let _open = if is_finished {
                sender.finish();
                None
            } else {
                Some(sender)
            };
            let mut stream = Streaming::from_stream(Chain(first, second));
            let mut next = || {
                let mut message = std::pin::pin!(stream.message());
                message.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            };
            if items > 0 {
                assert_eq!(next(), Poll::Ready(Ok(Some(0))));
            }
            let Poll::Ready(Err(status)) = next() else { panic!("{items} items, {is_finished}") };
            assert_eq!(status.reason(), Some(Reason::SenderDropped));
            assert_eq!(next(), Poll::Ready(Ok(None)));
        }
    }

    #[test]
    #[should_panic(
        expected = "the sender of the stream was dropped before it finished: read it with Receiver::recv"
    )]
    fn stream_of_dropped_sender_panics_if_error_would_be_lost() {
        let (sender, mut receiver) = channel::<u8>(1);
        drop(sender);
        let _end = Pin::new(&mut receiver).poll_next(&mut Context::from_waker(Waker::noop()));
    }
}
