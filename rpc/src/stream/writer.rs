//! Sends the items of the program's stream while the reader's window has room.
//!
//! The program's stream may panic. Items before a panic or an error are sent before the call ends.

use super::buffer::ItemBuffer;
use super::channel::watched;
use super::state::{CallStream, Room};
use crate::call::context::Context as CallContext;
use crate::executor::runtime_guard;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::Metadata;
use crate::wire::name::MethodName;
use futures_core::Stream as Source;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use trunkline_machine::rings::panics::{catch, catch_or};

/// The error of sending items.
#[derive(Debug)]
pub(crate) enum SendItemsError {
    /// The stream of items ended with this status.
    Source(Status),
    /// An item could not be encoded or sent.
    Item(Status),
}

/// Sends the metadata and the items of a handler's stream, encoded with `put`. Completes when all items have been sent. If
/// the first poll of `source` returns its only item and its end, the reply contains the item and the metadata.
pub(crate) async fn send_from_handler<S, T, P>(
    stream: Arc<CallStream>,
    context: Option<CallContext>,
    initial: Metadata,
    source: S,
    put: P,
) -> Result<(), SendItemsError>
where
    S: Source<Item = Result<T, Status>>,
    P: Fn(T, &mut ItemBuffer) -> Result<(), Status>,
{
    let mut put = |item: Result<T, Status>, buffer: &mut ItemBuffer| match item {
        Ok(item) => put(item, buffer).map_err(SendItemsError::Item),
        Err(status) => Err(SendItemsError::Source(status)),
    };
    let source = pin!(source);
    let (items, panicked) = (ItemBuffer::default(), runtime_guard::panicked);
    let accepts = Some((context, initial));
    Pump { stream: &stream, source, put: &mut put, panicked, items, accepts, next: None, ended: None }.await
}

/// Sends the items of a caller's stream until the stream or the call ends.
pub(crate) async fn send_all<S, P>(stream: Arc<CallStream>, method: &'static MethodName, source: S, put: P)
where
    S: Source,
    P: Fn(S::Item, &mut ItemBuffer) -> Result<(), Status>,
{
    let mut put = |item: S::Item, buffer: &mut ItemBuffer| put(item, buffer).map_err(SendItemsError::Item);
    let mut slot = pin!(Some(source));
    let Some(source) = slot.as_mut().as_pin_mut() else { return };
    let (items, panicked) = (ItemBuffer::default(), items_panicked);
    let sent = Pump {
        stream: &stream,
        source,
        put: &mut put,
        panicked,
        items,
        accepts: None,
        next: None,
        ended: None,
    }
    .await;
    if let Err(SendItemsError::Item(status) | SendItemsError::Source(status)) = sent {
        abort(&stream, method, status);
    }
    if catch(|| slot.set(None)).is_err() {
        log_panic(&stream, method);
    }
}

/// Returns the status of a call whose caller's stream panicked.
#[cold]
fn items_panicked(_message: Option<&str>) -> Status {
    let text = "the stream of items that the client sends panicked";
    Status::ran(Code::Internal, text).because(Reason::Panicked)
}

/// Ends a call because the caller's stream failed. Adds the name of the method to the status.
#[cold]
fn abort(stream: &CallStream, method: &MethodName, status: Status) {
    if status.reason() == Some(Reason::Panicked) {
        log_panic(stream, method);
    }
    stream.abort(match stream.peer() {
        Some((_, peer)) => status.of_call(format_args!("{method} at {peer}")),
        None => status.of_call(format_args!("{method}")),
    });
}

#[cold]
fn log_panic(stream: &CallStream, method: &MethodName) {
    let peer = stream.peer().map(|(_, peer)| tracing::field::display(peer));
    tracing::error!(peer, %method, "request stream panicked");
}

/// A future that sends the items of `source`.
struct Pump<'p, S: Source, P> {
    stream: &'p Arc<CallStream>,
    source: Pin<&'p mut S>,
    put: &'p mut P,
    /// Returns the status for a panic with this message.
    panicked: fn(Option<&str>) -> Status,
    items: ItemBuffer,
    /// Metadata for the start of the response, and its context. `None` after the first poll of `source`.
    accepts: Option<(Option<CallContext>, Metadata)>,
    /// An item that does not fit into the window.
    next: Option<S::Item>,
    /// Outcome of `source`, after it has ended.
    ended: Option<Result<(), SendItemsError>>,
}

impl<S: Source, P> Unpin for Pump<'_, S, P> {}

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
            // The items before the error have been sent.
            return Poll::Ready(ended);
        }
        let code = || {
            // Poll for a second item even if the first one uses up the window, because a single item is sent in the reply.
            while this.ended.is_none()
                && (window.is_open()
                    || this.accepts.is_some()
                        && this.next.is_none()
                        && this.items.fits_reply(this.stream.most_in_reply()))
            {
                let next = match this.next.take() {
                    Some(next) => Poll::Ready(Some(next)),
                    None => this.source.as_mut().poll_next(task),
                };
                match next {
                    Poll::Ready(Some(item)) if !window.is_open() => this.next = Some(item),
                    Poll::Ready(Some(item)) => match (this.put)(item, &mut this.items) {
                        Ok(()) => window.spend(this.items.take_added()),
                        Err(failure) => this.ended = Some(Err(failure)),
                    },
                    Poll::Ready(None) => this.ended = Some(Ok(())),
                    Poll::Pending => break,
                }
            }
        };
        let (polled, dropped) = watched(|| catch_or(code, this.panicked));
        if let Err(status) = polled {
            this.ended = Some(Err(SendItemsError::Item(status)));
        }
        if let Some(status) = dropped.filter(|_| !matches!(this.ended, Some(Err(_)))) {
            this.ended = Some(Err(SendItemsError::Item(status)));
        }
        let is_finished = matches!(this.ended, Some(Ok(())));
        if let Some((context, initial)) = this.accepts.take() {
            if is_finished && this.items.fits_reply(this.stream.most_in_reply()) {
                this.stream.answer(&mut this.items);
                if let Some(context) = context {
                    context.restore_initial_metadata(initial);
                }
                return Poll::Ready(Ok(()));
            }
            this.stream.accept(initial);
        }
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
