//! The test service, implemented according to its public description.

use crate::generated::test_service_server::{TestService, TestServiceServer};
use crate::messages::{
    EchoStatus, Empty, InputRequest, InputResponse, OutputRequest, OutputResponse, SimpleRequest,
    SimpleResponse, size_of, zeros,
};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use http_body::Frame;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio_stream::Stream;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::service::interceptor::InterceptedService;
use tonic::{Code, Request, Response, Status, Streaming};
use tower_service::Service;

/// Request header that makes a tower layer respond instead of the service. Its value is the HTTP status. `headers` or
/// `trailers` after the status adds a gRPC status there, and `page` adds a body.
pub const HTTP_STATUS: &str = "http-status";
/// Header that is echoed in the initial metadata of a response.
pub const ECHO_INITIAL: &str = "x-grpc-test-echo-initial";
/// Header that is echoed in the trailers.
pub const ECHO_TRAILING: &str = "x-grpc-test-echo-trailing-bin";

/// Response header with the compression of the request.
pub const REQUEST_ENCODING: &str = "request-encoding";
/// Request header that makes the interceptor refuse the request.
pub const REFUSED: &str = "refused";

/// The service. Clones share the number of running handlers.
#[derive(Debug, Clone, Default)]
pub struct Interop {
    running: Arc<AtomicUsize>,
    uploads: Arc<Mutex<Vec<Result<usize, Code>>>>,
}

impl Interop {
    /// Returns the number of request streams held by handlers.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    /// Returns the outcome of each `streaming_input_call` so far: the number of received bytes, or the code of the error.
    #[must_use]
    pub fn uploads(&self) -> Vec<Result<usize, Code>> {
        self.uploads.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn enter(&self) -> Running {
        self.running.fetch_add(1, Ordering::SeqCst);
        Running(Arc::clone(&self.running))
    }
}

/// Counts a handler as running until this value is dropped.
struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns the routes of the service.
#[must_use]
pub fn routes(service: Interop) -> Routes {
    let (gzip, service) = (CompressionEncoding::Gzip, TestServiceServer::new(service));
    let service = Echo(service.accept_compressed(gzip).send_compressed(gzip));
    Routes::new(InterceptedService::new(service, refuse))
}

/// Refuses requests that contain [`REFUSED`].
#[allow(clippy::result_large_err, reason = "the signature is that of tonic's trait")]
fn refuse(request: Request<()>) -> Result<Request<()>, Status> {
    match request.metadata().contains_key(REFUSED) {
        true => Err(Status::permission_denied("the interceptor refuses it")),
        false => Ok(request),
    }
}

/// Returns the requested status, with the message repeated as the details.
fn echo(status: Option<EchoStatus>) -> Result<(), Status> {
    status.map_or(Ok(()), |EchoStatus { code, message }| {
        let details = Bytes::from(message.clone());
        Err(Status::with_details(Code::from(code), message, details))
    })
}

type Responses = Pin<Box<dyn Stream<Item = Result<OutputResponse, Status>> + Send>>;

#[tonic::async_trait]
impl TestService for Interop {
    async fn empty_call(&self, request: Request<Empty>) -> Result<Response<Empty>, Status> {
        let mut response = Response::new(Empty {});
        let has_peer = if request.remote_addr().is_some() { "yes" } else { "no" };
        response.metadata_mut().insert("has-peer", has_peer.parse().map_err(|_| Status::internal("peer"))?);
        for tag in request.metadata().get_all("tag") {
            response.metadata_mut().append("tag", tag.clone());
        }
        for tag in request.metadata().get_all_bin("tag-bin") {
            response.metadata_mut().append_bin("tag-bin", tag.clone());
        }
        Ok(response)
    }

    async fn unary_call(&self, request: Request<SimpleRequest>) -> Result<Response<SimpleResponse>, Status> {
        let request = request.into_inner();
        echo(request.response_status)?;
        assert!(request.response_size >= 0, "a handler that panics");
        Ok(Response::new(SimpleResponse { payload: zeros(request.response_size) }))
    }

    type StreamingOutputCallStream = Responses;

    async fn streaming_output_call(
        &self,
        request: Request<OutputRequest>,
    ) -> Result<Response<Responses>, Status> {
        Ok(Response::new(responses(self.enter(), tokio_stream::once(Ok(request.into_inner())))))
    }

    async fn streaming_input_call(
        &self,
        request: Request<Streaming<InputRequest>>,
    ) -> Result<Response<InputResponse>, Status> {
        let (running, uploads) = (self.enter(), Arc::clone(&self.uploads));
        let mut requests = request.into_inner();
        let read = async move {
            let mut size = 0;
            while let Some(request) = requests.message().await? {
                size += size_of(request.payload.as_ref());
            }
            Ok::<_, Status>(size)
        };
        // The task outlives a call that ends early.
        let task = tokio::spawn(async move {
            let size = read.await;
            let ended = size.as_ref().map(|size| *size).map_err(Status::code);
            uploads.lock().unwrap_or_else(PoisonError::into_inner).push(ended);
            drop(running);
            size
        });
        let size = task.await.map_err(|error| Status::internal(error.to_string()))??;
        let size = i32::try_from(size).map_err(|_| Status::out_of_range("too much"))?;
        Ok(Response::new(InputResponse { aggregated_payload_size: size }))
    }

    type FullDuplexCallStream = Responses;

    async fn full_duplex_call(
        &self,
        request: Request<Streaming<OutputRequest>>,
    ) -> Result<Response<Responses>, Status> {
        Ok(Response::new(responses(self.enter(), request.into_inner())))
    }
}

/// Returns the responses requested by a stream of requests.
fn responses(
    running: Running,
    requests: impl Stream<Item = Result<OutputRequest, Status>> + Send + 'static,
) -> Responses {
    use tokio_stream::StreamExt as _;
    let (sender, receiver) = trunkline::stream::channel(1);
    let task = tokio::spawn(async move {
        let _running = running;
        let mut requests = Box::pin(requests);
        let answer = async {
            while let Some(request) = requests.next().await {
                let request = request?;
                for parameters in request.response_parameters {
                    assert!(parameters.size >= 0, "a feeder that panics");
                    let interval = u64::try_from(parameters.interval_us).unwrap_or_default();
                    if interval > 0 {
                        tokio::time::sleep(Duration::from_micros(interval)).await;
                    }
                    let response = OutputResponse { payload: zeros(parameters.size) };
                    sender.send(Ok(response)).await.map_err(|_| Status::cancelled("no reader"))?;
                }
                echo(request.response_status)?;
            }
            Ok(())
        };
        if let Err(status) = answer.await {
            let _ = sender.send(Err(status)).await;
        }
        sender.finish();
    });
    Box::pin(Answers { receiver, task })
}

/// Responses sent by a task. Dropping this value aborts the task, even while the task sleeps.
struct Answers {
    receiver: trunkline::stream::Receiver<Result<OutputResponse, Status>>,
    task: tokio::task::JoinHandle<()>,
}

impl Stream for Answers {
    type Item = Result<OutputResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Pin::new(&mut self.receiver).poll_next(task)
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Adds the echoed headers to responses. In tonic, only layers can set the trailers of a successful response.
#[derive(Clone)]
struct Echo<S>(S);

impl<S: NamedService> NamedService for Echo<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Echo<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(task)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if let Some(value) = request.headers().get(HTTP_STATUS) {
            let response = of_http(value.to_str().unwrap_or_default());
            return Box::pin(async move { Ok(response) });
        }
        let initial = request.headers().get(ECHO_INITIAL).cloned();
        let trailing = request.headers().get(ECHO_TRAILING).cloned();
        let encoding = request.headers().get("grpc-encoding").cloned();
        let response = self.0.call(request);
        Box::pin(async move {
            let mut response = response.await?;
            if let Some(value) = initial {
                response.headers_mut().insert(ECHO_INITIAL, value);
            }
            if let Some(value) = encoding {
                response.headers_mut().insert(REQUEST_ENCODING, value);
            }
            Ok(match trailing {
                Some(trailing) => response.map(|body| Body::new(EchoBody { body, trailing })),
                None => response,
            })
        })
    }
}

struct EchoBody {
    body: Body,
    trailing: HeaderValue,
}

impl http_body::Body for EchoBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let mut frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(task));
        if let Some(trailers) = frame.as_mut().and_then(|frame| frame.as_mut().ok()?.trailers_mut()) {
            trailers.insert(ECHO_TRAILING, self.trailing.clone());
        }
        Poll::Ready(frame)
    }
}

/// Returns the response described by a value of [`HTTP_STATUS`], without calling a handler.
fn of_http(text: &str) -> http::Response<Body> {
    let (status, parts) = text.split_once(' ').unwrap_or((text, ""));
    let not_found =
        HeaderMap::from_iter([(HeaderName::from_static("grpc-status"), HeaderValue::from_static("5"))]);
    let page = parts.contains("page").then(|| Frame::data(Bytes::from("<html>")));
    let trailers = parts.contains("trailers").then(|| Frame::trailers(not_found.clone()));
    let mut response = http::Response::new(Body::new(Page([page, trailers])));
    *response.status_mut() = status.parse().unwrap_or_default();
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    if parts.contains("headers") {
        response.headers_mut().extend(not_found);
    }
    response
}

/// A body that consists of these frames.
struct Page([Option<Frame<Bytes>>; 2]);

impl http_body::Body for Page {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Poll::Ready(self.0.iter_mut().find_map(Option::take).map(Ok))
    }
}
