//! Reads the items of a stream.

use super::StreamHost;
use super::Window;
use super::buffer::ReceivedItems;
use super::channel::Watch;
use super::state::{CallStream, Read};
use crate::call::response::Most;
use crate::codec::{DecodeError, DecodeValue, Limits};
use crate::executor::on_poller;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::{Metadata, ReplyMetadata};
use bytes::Bytes;
use std::cell::Cell;
use std::convert::identity;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use trunkline_transport::PeerKey;

/// A stream of received items. A client receives the items of the response, and a handler the items that the caller sends.
///
/// ```
/// use trunkline::{Status, Stream};
///
/// #[trunkline::service]
/// trait Numbers {
///     async fn count(&self, to: u32) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
/// }
///
/// async fn print(client: &NumbersClient) -> Result<(), Status> {
///     let mut numbers = client.count(3).await?;
///     while let Some(number) = numbers.message().await? {
///         println!("{number}");
///     }
///     Ok(()) // the server has finished
/// }
/// # fn main() {}
/// ```
///
/// Items can be read through [`Stream`](futures_core::Stream) or with [`Streaming::message`], on any thread and executor.
///
/// The stream ends with `None` only if its writer has finished. A lost session, a deadline, a cancellation, a panic, or a
/// [`Sender`](super::Sender) that was dropped before it finished results in one `Err` followed by `None`. The `Err` contains
/// the number of delivered items. A server drops the handler of such a call, so only other tasks and threads get the `Err`.
/// If the writer's items come from any other stream, a `None` from that stream ends this one.
///
/// The writer waits while the reader does not take items. The window starts at 16 KiB and 64 items, and grows to at most
/// 1 MiB and 4096 items. If items are larger, the window grows to four items, up to 4 MiB. Dropping the stream in a client
/// cancels the call. Dropping it in a handler stops the client's stream.
pub struct Streaming<T>(Kind<T>);

enum Kind<T> {
    Received(Reader<T>),
    Local(Pin<Box<dyn futures_core::Stream<Item = Result<T, Status>> + Send>>, Watch),
}

struct Reader<T> {
    stream: Arc<CallStream>,
    /// Received items that can be read without a lock.
    batch: ReceivedItems,
    /// Consumed part of the window that has not been returned to the peer.
    consumed: Window,
    delivered: u64,
    decode: Decode<T>,
    is_over: bool,
}

/// Decodes items.
enum Decode<T> {
    /// A decoder and its memory limit, in bytes.
    Coded(fn(&[u8], usize) -> Result<T, Status>, usize),
    Raw(fn(Bytes) -> T),
}

impl<T> Streaming<T> {
    /// Creates a stream from another stream, for mocks.
    ///
    /// ```
    /// # use trunkline::{Status, Streaming, block_on};
    /// # use std::pin::Pin;
    /// # use std::task::{Context, Poll};
    /// let (sender, receiver) = trunkline::stream::channel::<Result<u32, Status>>(4);
    /// sender.try_send(Ok(7)).unwrap();
    /// sender.finish();
    /// let mut items = Streaming::from_stream(receiver);
    /// assert_eq!(block_on(items.message()), Ok(Some(7)));
    /// assert_eq!(block_on(items.message()), Ok(None));
    /// ```
    pub fn from_stream(items: impl futures_core::Stream<Item = Result<T, Status>> + Send + 'static) -> Self {
        Self(Kind::Local(Box::pin(items), Watch::default()))
    }

    pub(crate) fn coded<D: DecodeValue<Value = T>>(stream: Arc<CallStream>) -> Self {
        let most = stream.most_decoded();
        Self::new(stream, Decode::Coded(decode::<D>, most))
    }

    pub(crate) fn raw(stream: Arc<CallStream>, value: fn(Bytes) -> T) -> Self {
        Self::new(stream, Decode::Raw(value))
    }

    fn new(stream: Arc<CallStream>, decode: Decode<T>) -> Self {
        let batch = ReceivedItems::default();
        let reader = Reader { stream, batch, consumed: Window::NONE, delivered: 0, decode, is_over: false };
        Self(Kind::Received(reader))
    }

    /// Returns the next item, or `None` if the writer has finished.
    ///
    /// # Errors
    /// Returns an error once if the stream ends before the writer has finished.
    pub async fn message(&mut self) -> Result<Option<T>, Status> {
        poll_fn(|task| self.poll(task)).await.transpose()
    }

    /// Returns, in a client, the metadata that the handler set for the start of its response.
    #[must_use]
    pub fn initial_metadata(&self) -> Metadata {
        self.metadata().initial
    }

    /// Returns, in a client, the metadata that the handler set for the end of its response. Empty until the stream has ended
    /// with `None` or an `Err`.
    #[must_use]
    pub fn trailing_metadata(&self) -> Metadata {
        match &self.0 {
            Kind::Received(reader) if reader.is_over => self.metadata().trailing,
            _ => Metadata::new(),
        }
    }

    /// Returns the stream's poller and the peer that writes the stream.
    pub(crate) fn peer(&self) -> Option<(Arc<dyn StreamHost>, PeerKey)> {
        match &self.0 {
            Kind::Received(reader) => reader.stream.peer(),
            Kind::Local(..) => None,
        }
    }

    fn metadata(&self) -> ReplyMetadata {
        match &self.0 {
            Kind::Received(reader) => reader.stream.metadata(),
            Kind::Local(..) => ReplyMetadata::default(),
        }
    }

    fn poll(&mut self, task: &mut Context<'_>) -> Poll<Option<Result<T, Status>>> {
        match &mut self.0 {
            Kind::Received(reader) => reader.poll(task),
            Kind::Local(items, watch) => watch
                .poll(|| items.as_mut().poll_next(task))
                .map(|item| item.map(|item| item.and_then(identity))),
        }
    }
}

impl<T> futures_core::Stream for Streaming<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(task)
    }
}

impl<T> Reader<T> {
    fn poll(&mut self, task: &Context<'_>) -> Poll<Option<Result<T, Status>>> {
        loop {
            if self.is_over {
                return Poll::Ready(None);
            }
            if let Some(value) = self.next() {
                return Poll::Ready(Some(value));
            }
            match self.stream.read(&mut self.batch, &mut self.consumed, task) {
                Read::Items => {}
                Read::Finished => {
                    self.is_over = true;
                    return Poll::Ready(self.stream.ended(Ok(())).err().map(Err));
                }
                Read::Failed(status) => {
                    self.is_over = true;
                    return Poll::Ready(Some(Err(self.failed(status))));
                }
                Read::Wait => {
                    return match on_poller::interruption() {
                        Some(status) => Poll::Ready(Some(Err(status))),
                        None => Poll::Pending,
                    };
                }
            }
        }
    }

    /// Returns the next item of the batch.
    fn next(&mut self) -> Option<Result<T, Status>> {
        let decode = &self.decode;
        let (bytes, value) = self.batch.take(|item| {
            let bytes = item.as_slice().len();
            let value = match (decode, item) {
                (Decode::Coded(decode, most), item) => decode(item.as_slice(), *most),
                (Decode::Raw(value), item) => Ok(value(item.into_bytes())),
            };
            (bytes, value)
        })?;
        self.consumed.add(Window { bytes: i64::try_from(bytes).unwrap_or(i64::MAX), items: 1 });
        match value {
            Ok(value) => {
                self.delivered += 1;
                Some(Ok(value))
            }
            Err(status) => {
                self.is_over = true;
                let status = self.failed(status);
                self.stream.drop_reader();
                Some(Err(status))
            }
        }
    }

    /// Ends the stream with a status.
    fn failed(&self, status: Status) -> Status {
        let status = self.after(status);
        self.stream.ended(Err(&status)).err().unwrap_or(status)
    }

    /// Adds the number of delivered items to a status from a node. A status from a handler stays unchanged.
    fn after(&self, status: Status) -> Status {
        if status.reason().is_none() {
            return status;
        }
        status.with_cause(format_args!("{} items of the stream were delivered before", self.delivered))
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        if !self.is_over {
            self.stream.drop_reader();
        }
    }
}

impl<T> fmt::Debug for Streaming<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let delivered = if let Kind::Received(reader) = &self.0 { Some(reader.delivered) } else { None };
        f.debug_struct("Streaming").field("delivered", &delivered).finish_non_exhaustive()
    }
}

fn decode<D: DecodeValue>(bytes: &[u8], most: usize) -> Result<D::Value, Status> {
    let allowance = Most { bytes: most, left: Cell::new(most) };
    let limits = Limits::of_message(bytes.len(), &allowance);
    D::decode(bytes, &limits).map_err(|error| {
        let text = format!("an item of the stream cannot be decoded: {error}");
        match error {
            DecodeError::Malformed(_) => Status::ran(Code::Internal, text).because(Reason::BadReply),
            _ => Status::ran(Code::ResourceExhausted, text).because(Reason::TooLarge),
        }
    })
}
