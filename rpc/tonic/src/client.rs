//! The client, a tower service that sends each request over a stream.

use crate::exchange::{ExchangeClient, MAX_PIECE, MAX_WHOLE, next_piece};
use crate::messages::Messages;
use crate::paths::now;
use crate::{grpc_status, headers, named_status, timeout};
use bytes::Bytes;
use http::Uri;
use http_body::{Body, Frame};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use tokio::runtime::Handle;
use tonic::Status;
use tower_service::Service;
use trunkline::stream::{Receiver, Sender, Watch};
use trunkline::stub::PeerMemory;
use trunkline::{CallOptions, Connect, Metadata, Node, Reason, Stream, Streaming, Target};

/// Metadata key for the path of a request. The first value is the path, which the server's interceptors can read. Further
/// values are metadata of the caller.
pub(crate) const PATH: &str = "grpc-path";

/// A connection to gRPC services, for clients that tonic generates. Clones share the connection.
#[derive(Clone)]
pub struct Channel {
    client: ExchangeClient,
    /// Maximum size of a body that is sent as an argument, in bytes. It is lowered when a node's `max_message_bytes`
    /// refuses a body.
    most_whole: Arc<AtomicUsize>,
    connect: Connect,
}

impl Channel {
    /// Creates a channel to a server. `node` makes the calls.
    pub fn new(node: &Node, to: impl Into<Target>) -> Self {
        Self::from(node.channel(to))
    }

    /// Sets whether calls wait or fail when the server cannot be reached or shuts down. See [`CallOptions::connect`].
    ///
    /// ```
    /// use trunkline::{Connect, Node};
    /// use trunkline_tonic::Channel;
    ///
    /// fn patient(node: &Node) -> Channel {
    ///     Channel::new(node, "10.0.0.1:7000").with_connect(Connect::Wait)
    /// }
    /// ```
    #[must_use]
    pub fn with_connect(self, connect: Connect) -> Self {
        Self { connect, ..self }
    }
}

impl From<trunkline::Channel> for Channel {
    fn from(channel: trunkline::Channel) -> Self {
        Self {
            client: ExchangeClient::new(channel),
            most_whole: Arc::new(AtomicUsize::new(MAX_WHOLE)),
            connect: Connect::FailFast,
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Service<http::Request<tonic::body::Body>> for Channel {
    type Response = http::Response<tonic::body::Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let channel = self.clone();
        Box::pin(async move { exchange(&channel, request).await })
    }
}

/// Opens a stream for a request, and waits for the response headers.
async fn exchange(
    channel: &Channel,
    request: http::Request<tonic::body::Body>,
) -> Result<http::Response<tonic::body::Body>, Status> {
    let Channel { client, most_whole, connect } = channel;
    let (mut parts, mut body) = request.into_parts();
    let mut options = CallOptions::new().connect(*connect);
    let mut limit = None;
    if let Some(value) = parts.headers.remove(timeout::GRPC_TIMEOUT) {
        let left = timeout::parse(&value).ok_or_else(|| Status::internal("malformed grpc-timeout"))?;
        options = options.timeout(left);
        limit = Some(left);
    }
    let mut metadata = Metadata::new();
    let added = metadata.append_reserved(PATH, parts.uri.path().as_bytes());
    added.map_err(|error| Status::internal(error.to_string()))?;
    metadata.extend(&headers::to_metadata(&parts.headers)?);
    let mut options = options.metadata(metadata);

    let most = most_whole.load(Ordering::Relaxed);
    let mut refused = None;
    let mut watch = Watch::default();
    let taken =
        std::future::poll_fn(|task| Poll::Ready(take_ready(&mut body, &mut watch, most, task))).await?;
    let frames = match taken {
        Ready::Whole(whole) => {
            let started = limit.filter(|_| whole.len() > MAX_PIECE).map(|limit| (now(), limit));
            match client.with(&options).call_whole(whole.clone()).await {
                Ok(pieces) => return response(parts.uri, pieces, None),
                Err(status) if whole.len() > MAX_PIECE && is_too_large(&status) => {
                    refused = Some(whole.len());
                    if let Some((started, limit)) = started {
                        options = options.timeout(limit.saturating_sub(now().duration_since(started)));
                    }
                    [whole, Bytes::new()]
                }
                Err(status) => return Err(named_status(&status, Some(parts.uri.path()))),
            }
        }
        Ready::Begun(frames) => frames,
    };
    let calls = client.with(&options);
    let (errors, mut failed) = trunkline::stream::channel(1);
    let runtime = Handle::try_current().ok();
    let body = RequestBody { body, watch, runtime, frames, errors, has_failed: false };
    let mut opening = std::pin::pin!(calls.call(body));
    let pieces = std::future::poll_fn(|task| match poll_failed(&mut failed, task) {
        Some(status) => Poll::Ready(Err(status)),
        None => opening.as_mut().poll(task).map_err(|status| named_status(&status, Some(parts.uri.path()))),
    });
    let pieces = pieces.await?;
    if let Some(bytes) = refused {
        // The retry in pieces succeeded, so the cause of the failure was the body's size, not the metadata.
        most_whole.fetch_min(bytes - 1, Ordering::Relaxed);
    }
    response(parts.uri, pieces, Some(failed))
}

/// Returns true if a call was refused because of a limit on message sizes, and has not run.
fn is_too_large(status: &trunkline::Status) -> bool {
    status.reason() == Some(Reason::TooLarge) && !status.may_have_run()
}

/// Returns the HTTP response of a call that has been opened.
fn response(
    path: Uri,
    pieces: Streaming<Bytes>,
    failed: Option<Receiver<Status>>,
) -> Result<http::Response<tonic::body::Body>, Status> {
    let headers = headers::from_metadata(&pieces.initial_metadata())?;
    let messages = Messages::new(&headers, None, PeerMemory::of_writer(&pieces));
    let body = ResponseBody { path, pieces: Some(pieces), messages, failed };
    let mut response = http::Response::new(tonic::body::Body::new(body));
    *response.headers_mut() = headers;
    Ok(response)
}

/// The available part of a request's body.
enum Ready {
    /// The whole body.
    Whole(Bytes),
    /// The first frames, which more frames may follow.
    Begun([Bytes; 2]),
}

/// Takes the available part of a body. If the body is a single frame of at most `most` bytes, this is the whole body.
fn take_ready(
    body: &mut tonic::body::Body,
    watch: &mut Watch,
    most: usize,
    task: &mut Context<'_>,
) -> Result<Ready, Status> {
    let mut frames = [Bytes::new(), Bytes::new()];
    for at in 0..frames.len() {
        match poll_body(body, watch, task) {
            Poll::Ready(None) => {
                // A body must not be polled after it has ended.
                *body = tonic::body::Body::empty();
                if frames[0].len() <= most {
                    let [whole, _] = frames;
                    return Ok(Ready::Whole(whole));
                }
                break;
            }
            Poll::Pending => break,
            // gRPC requests have no trailers.
            Poll::Ready(Some(next)) => frames[at] = next?.into_data().unwrap_or_default(),
        }
    }
    Ok(Ready::Begun(frames))
}

/// Polls the next frame of a request's body. Fails if a sender of its items was dropped before the stream was finished.
fn poll_body(
    body: &mut tonic::body::Body,
    watch: &mut Watch,
    task: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
    let frame = watch.poll(|| Pin::new(body).poll_frame(task));
    frame.map(|frame| frame.map(|frame| frame.map_err(|status| grpc_status(&status)).and_then(|frame| frame)))
}

/// Returns the error of the request's body, if it has failed.
fn poll_failed(failed: &mut Receiver<Status>, task: &mut Context<'_>) -> Option<Status> {
    match failed.poll_recv(task) {
        // The body drops its sender when it ends, even without an error.
        Poll::Ready(sent) => sent.ok().flatten(),
        Poll::Pending => None,
    }
}

/// The items of a request. Trunkline's threads poll them in the context of the caller's runtime.
struct RequestBody {
    body: tonic::body::Body,
    watch: Watch,
    runtime: Option<Handle>,
    /// The parts of the last frames that are still to be sent.
    frames: [Bytes; 2],
    errors: Sender<Status>,
    has_failed: bool,
}

impl Stream for RequestBody {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Bytes>> {
        let this = &mut *self;
        let _entered = this.runtime.as_ref().map(Handle::enter);
        loop {
            if let Some(piece) = this.frames.iter_mut().find_map(|frame| next_piece(frame, MAX_PIECE)) {
                return Poll::Ready(Some(piece));
            }
            if this.has_failed {
                // An end of the items would be a half-close. The caller cancels the call instead.
                return Poll::Pending;
            }
            match ready!(poll_body(&mut this.body, &mut this.watch, task)) {
                None => return Poll::Ready(None),
                // gRPC requests have no trailers.
                Some(Ok(frame)) => this.frames[0] = frame.into_data().unwrap_or_default(),
                Some(Err(status)) => {
                    let _ = this.errors.try_send(status);
                    this.has_failed = true;
                }
            }
        }
    }
}

/// The body and the trailers of a response.
struct ResponseBody {
    path: Uri,
    /// `None` after the response has ended.
    pieces: Option<Streaming<Bytes>>,
    messages: Messages,
    /// `None` if the request's body was sent whole.
    failed: Option<Receiver<Status>>,
}

impl ResponseBody {
    fn poll_piece(&mut self, task: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if let Some(status) = self.failed.as_mut().and_then(|failed| poll_failed(failed, task)) {
            return Poll::Ready(Some(Err(status)));
        }
        let Some(pieces) = &mut self.pieces else { return Poll::Ready(None) };
        let next = |task: &mut Context<'_>| {
            let piece = Pin::new(&mut *pieces).poll_next(task);
            piece.map_err(|status| named_status(&status, Some(self.path.path())))
        };
        Poll::Ready(match ready!(self.messages.poll_frame(task, next)) {
            Some(Ok(frame)) => Some(Ok(Frame::data(frame))),
            Some(Err(status)) => Some(Err(status)),
            None => {
                let trailers = pieces.trailing_metadata();
                // If there is no body, the headers contain the status.
                (!trailers.is_empty()).then(|| headers::from_metadata(&trailers).map(Frame::trailers))
            }
        })
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(self.poll_piece(task));
        if !matches!(&frame, Some(Ok(frame)) if frame.is_data()) {
            // Trailers and errors are final.
            self.pieces = None;
        }
        Poll::Ready(frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::task::Waker;

    /// A body with frames of these sizes. `None` is a frame that is not available yet.
    struct Frames(VecDeque<Option<usize>>);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Status;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
            match self.0.pop_front() {
                None => Poll::Ready(None),
                Some(None) => Poll::Pending,
                Some(Some(size)) => Poll::Ready(Some(Ok(Frame::data(vec![1; size].into())))),
            }
        }
    }

    #[test]
    fn single_frame_bodies_are_sent_whole_and_others_by_frame() {
        let task = &mut Context::from_waker(Waker::noop());
        for (frames, whole, sizes) in [
            (vec![], Some(0), vec![]),
            (vec![Some(7)], Some(7), vec![]),
            (vec![Some(MAX_WHOLE)], Some(MAX_WHOLE), vec![]),
            (vec![Some(MAX_WHOLE + 1)], None, vec![MAX_WHOLE + 1]),
            (vec![Some(7), Some(8)], None, vec![7, 8]),
            (vec![Some(7), None, Some(8)], None, vec![7, 8]),
            (vec![None, Some(7)], None, vec![7]),
            (vec![Some(1), Some(2), Some(3)], None, vec![1, 2, 3]),
        ] {
            let mut body = tonic::body::Body::new(Frames(frames.clone().into()));
            match take_ready(&mut body, &mut Watch::default(), MAX_WHOLE, task).unwrap() {
                Ready::Whole(taken) => assert_eq!(Some(taken.len()), whole, "{frames:?}"),
                Ready::Begun(taken) => {
                    assert_eq!(whole, None, "{frames:?}");
                    let mut found = taken.map(|frame| frame.len()).to_vec();
                    while let Poll::Ready(Some(frame)) = Pin::new(&mut body).poll_frame(task) {
                        found.push(frame.unwrap().into_data().unwrap().len());
                    }
                    found.retain(|size| *size > 0);
                    assert_eq!(found, sizes, "{frames:?}");
                }
            }
        }
    }
}
