//! Opening of streams by a client.

use super::completion::{Outcome, StreamCompletion};
use super::future::{After, Wait};
use super::submission::Submission;
use crate::call::response::Response;
use crate::codec::DecodeValue;
use crate::status::Status;
use crate::stream::{CallStream, ItemBuffer, Misuse, StreamHost, Streaming, send_all};
use crate::wire::name::MethodName;
use bytes::Bytes;
use futures_core::Stream as Source;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

/// A task that sends items.
pub(crate) type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The items sent by a call, created with [`outgoing`] or [`no_items`].
pub struct Outgoing(Option<Box<MakeSending>>);

type MakeSending = dyn FnOnce(Arc<CallStream>, &'static MethodName) -> Sending + Send;

/// Returns the items of a stream, encoded with `put`.
pub fn outgoing<S, P>(items: S, put: P) -> Outgoing
where
    S: Source + Send + 'static,
    S::Item: Send,
    P: Fn(S::Item, &mut ItemBuffer) -> Result<(), Status> + Send + Sync + 'static,
{
    Outgoing(Some(Box::new(move |stream, method| Box::pin(send_all(stream, method, items, put)))))
}

/// Returns the value for a call that sends no items.
#[must_use]
pub fn no_items() -> Outgoing {
    Outgoing(None)
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Outgoing").field(&self.0.is_some()).finish()
    }
}

/// A call that opens a stream, submitted to a poller.
pub(crate) struct Opening {
    pub(crate) submission: Submission<StreamCompletion>,
    pub(crate) sending: Option<Sending>,
}

/// The parts of a call that opens a stream.
pub(crate) struct NewStream {
    pub(crate) completion: StreamCompletion,
    pub(crate) wait: StreamWait,
    pub(crate) opened: Opened,
    pub(crate) sending: Option<Sending>,
}

impl NewStream {
    /// Creates the stream of an outgoing call on the poller of `owner`.
    pub(crate) fn new(
        owner: Arc<dyn StreamHost>,
        method: &'static MethodName,
        idle_limit: Option<Duration>,
        outgoing: Outgoing,
    ) -> Self {
        let stream = CallStream::of_client(owner, method.streams, idle_limit);
        Self {
            completion: StreamCompletion::new(Arc::clone(&stream)),
            wait: StreamWait { stream: Some(Arc::clone(&stream)), opened: None },
            opened: Opened(Arc::clone(&stream)),
            sending: outgoing.0.map(|make| make(stream, method)),
        }
    }
}

/// A future that completes when the handler's stream opens, or with the reply if the handler returns no stream.
#[derive(Debug)]
pub struct StreamWait {
    /// `None` once the outcome has been returned.
    stream: Option<Arc<CallStream>>,
    /// The stream that continues after the outcome.
    opened: Option<Arc<CallStream>>,
}

impl Wait for StreamWait {
    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Outcome> {
        let Some(stream) = &self.stream else { return Poll::Pending };
        let outcome = std::task::ready!(stream.poll_opened(task));
        let reads = stream.reads();
        let stream = self.stream.take();
        Poll::Ready(match outcome {
            None => {
                self.opened = stream;
                Ok(Response::empty())
            }
            Some(Ok(response)) if reads && !response.is_error() => {
                Err(Misuse("the reply came before the stream").status())
            }
            Some(outcome) => outcome,
        })
    }

    fn defer(&mut self, after: Box<After>) -> Option<Box<After>> {
        let Some(stream) = self.opened.take() else { return Some(after) };
        stream.defer(after);
        None
    }
}

impl Drop for StreamWait {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.drop_reader();
        }
    }
}

/// An opened stream, for the reader of its items.
#[derive(Debug)]
pub struct Opened(Arc<CallStream>);

impl Opened {
    /// Returns the decoded items.
    pub fn items<D: DecodeValue>(&self, _decoder: D) -> Streaming<D::Value> {
        Streaming::coded::<D>(Arc::clone(&self.0))
    }

    /// Returns the items as raw bytes.
    #[must_use]
    pub fn bytes<T>(&self, value: fn(Bytes) -> T) -> Streaming<T> {
        Streaming::raw(Arc::clone(&self.0), value)
    }
}
