//! The writer of a stream: sends the items of the program's stream while the reader's window has room.

use super::buffer::ItemBuffer;
use super::channel::watched;
use super::state::{CallStream, Room};
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::Metadata;
use futures_core::Stream as Source;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

/// The error of sending items.
#[derive(Debug)]
pub(crate) enum SendItemsError {
    /// The stream of items has ended with this status.
    Source(Status),
    /// An item could not be encoded or sent.
    Item(Status),
}

/// Sends the metadata and the items of a handler's stream, which `put` encodes. Completes when all items have left.
pub(crate) async fn send_from_handler<S, T, P>(
    stream: Arc<CallStream>,
    initial: Metadata,
    source: S,
    put: P,
) -> Result<(), SendItemsError>
where
    S: Source<Item = Result<T, Status>>,
    P: Fn(T, &mut ItemBuffer) -> Result<(), Status>,
{
    stream.accept(initial);
    let mut put = |item: Result<T, Status>, buffer: &mut ItemBuffer| match item {
        Ok(item) => put(item, buffer).map_err(SendItemsError::Item),
        Err(status) => Err(SendItemsError::Source(status)),
    };
    let source = pin!(source);
    Pump { stream: &stream, source, put: &mut put, items: ItemBuffer::default(), ended: None }.await
}

/// Sends the items of a caller's stream, until it or the call ends.
pub(crate) async fn send_all<S, P>(stream: Arc<CallStream>, source: S, put: P)
where
    S: Source,
    P: Fn(S::Item, &mut ItemBuffer) -> Result<(), Status>,
{
    let guard = Unfinished(Some(Arc::clone(&stream)));
    let mut put = |item: S::Item, buffer: &mut ItemBuffer| put(item, buffer).map_err(SendItemsError::Item);
    let source = pin!(source);
    let sent =
        Pump { stream: &stream, source, put: &mut put, items: ItemBuffer::default(), ended: None }.await;
    guard.finish(sent);
}

/// Ends the call if its stream of items panics, or is dropped before its end.
struct Unfinished(Option<Arc<CallStream>>);

impl Unfinished {
    fn finish(mut self, sent: Result<(), SendItemsError>) {
        if let (Some(stream), Err(SendItemsError::Item(status) | SendItemsError::Source(status))) =
            (self.0.take(), sent)
        {
            stream.abort(status);
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let text = "the stream of items that the client sends has panicked, or its poller has ended";
        if let Some(stream) = self.0.take() {
            stream.abort(Status::ran(Code::Internal, text).because(Reason::Panicked));
        }
    }
}

/// A future that sends the items of `source`.
struct Pump<'p, S, P> {
    stream: &'p Arc<CallStream>,
    source: Pin<&'p mut S>,
    put: &'p mut P,
    items: ItemBuffer,
    /// Outcome of `source`, once it has ended.
    ended: Option<Result<(), SendItemsError>>,
}

impl<S, P> Unpin for Pump<'_, S, P> {}

impl<S, P> Future for Pump<'_, S, P>
where
    S: Source,
    P: FnMut(S::Item, &mut ItemBuffer) -> Result<(), SendItemsError>,
{
    type Output = Result<(), SendItemsError>;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut window = match this.stream.room(task) {
            Room::Window(window) => window,
            Room::Wait => return Poll::Pending,
            Room::Failed(status) => return Poll::Ready(Err(SendItemsError::Item(status))),
            Room::End => return Poll::Ready(this.ended.take().unwrap_or(Ok(()))),
        };
        if let Some(ended) = this.ended.take() {
            // The items before an error have left.
            return Poll::Ready(ended);
        }
        let ((), dropped) = watched(|| {
            while window.is_open() && this.ended.is_none() {
                match this.source.as_mut().poll_next(task) {
                    Poll::Ready(Some(item)) => match (this.put)(item, &mut this.items) {
                        Ok(()) => window.spend(this.items.take_added()),
                        Err(failure) => this.ended = Some(Err(failure)),
                    },
                    Poll::Ready(None) => this.ended = Some(Ok(())),
                    Poll::Pending => break,
                }
            }
        });
        if let Some(status) = dropped.filter(|_| !matches!(this.ended, Some(Err(_)))) {
            this.ended = Some(Err(SendItemsError::Item(status)));
        }
        let is_finished = matches!(this.ended, Some(Ok(())));
        if this.items.is_empty() && matches!(this.ended, Some(Err(_))) {
            return Poll::Ready(this.ended.take().unwrap_or(Ok(())));
        }
        let waits = this.ended.is_some() || !window.is_open();
        if !this.items.is_empty() || is_finished {
            this.stream.hand_over(&mut this.items, is_finished, waits);
        }
        Poll::Pending
    }
}
