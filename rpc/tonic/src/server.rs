//! The server, a Trunkline service that passes exchanges to tonic's routes.

use crate::client::PATH;
use crate::exchange::{Exchange, ExchangeServer, MAX_PIECE, next_piece};
use crate::limits::{Limits, Permits};
use crate::messages::Messages;
use crate::paths::{CountedCall, Paths, PollerPaths, ResponseStatus};
use crate::peer_share::{Share, Shares, Taken};
use crate::spawner::{Spawned, Spawner};
use crate::{grpc_status, headers, timeout};
use bytes::Bytes;
use http::{HeaderValue, StatusCode};
use http_body::{Body, Frame};
use std::convert::Infallible;
use std::fmt;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::codegen::StdError;
use tonic::service::{AxumBody, Routes};
use tonic::transport::server::TcpConnectInfo;
use tower_layer::Layer;
use tower_service::Service;
use trunkline::stream::Watch;
use trunkline::stub::{PeerMemory, most_in_reply};
use trunkline::{Code, Context, ServerCall, ServerInterceptor, Status, Stream, Streaming};

/// Maximum total size of the response pieces of one exchange that wait for their poller, in bytes. A larger piece waits alone.
/// With less, the runtime and the poller would wait for each other's thread after a fraction of a scheduler time slice.
const WAITING_BYTES: u32 = 1 << 20;
/// Minimum size that is counted for a waiting piece, in bytes. It limits the number of waiting pieces to 32.
const MIN_WAITING_BYTES: u32 = WAITING_BYTES / 32;

/// Adds a layer to routes.
type AddLayer = Box<dyn FnOnce(Routes) -> Routes + Send>;

/// gRPC services, for [`NodeBuilder::serve`](trunkline::NodeBuilder::serve).
#[must_use]
pub struct Server {
    routes: Routes,
    /// Layers, with the outermost first.
    layers: Vec<AddLayer>,
    timeout: Option<Duration>,
    limits: Limits,
    interceptors: Vec<Box<dyn ServerInterceptor>>,
}

impl Server {
    /// Creates a server that serves these services.
    pub fn new(routes: impl Into<Routes>) -> Self {
        let (routes, limits) = (routes.into(), Limits::default());
        Self { routes, layers: Vec::new(), timeout: None, limits, interceptors: Vec::new() }
    }

    /// Adds a tower layer around all services, like `tonic::transport::Server::builder().layer(layer)`. The first added
    /// layer is the outermost.
    ///
    /// All pollers and peers share the layered service. [`tonic::Status::from_error`] converts errors of the layers to
    /// statuses: a layer that sheds load ends calls with `RESOURCE_EXHAUSTED`, and unknown errors become `UNKNOWN`. tonic's
    /// own server resets the call's stream if an error is unknown.
    ///
    /// [`Self::runtime`] adds the layers inside its runtime, so that they can spawn tasks there. [`Self::on_pollers`] adds
    /// them in the runtime of its caller.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn example(routes: tonic::service::Routes, runtime: tokio::runtime::Handle) {
    /// let layer = tower::ServiceBuilder::new().load_shed().concurrency_limit(100);
    /// let server = trunkline_tonic::Server::new(routes).layer(layer).timeout(Duration::from_secs(5));
    /// # let _ = server.runtime(runtime);
    /// # }
    /// ```
    pub fn layer<L, B>(mut self, layer: L) -> Self
    where
        L: Layer<Routes> + Send + 'static,
        L::Service: Service<http::Request<tonic::body::Body>, Response = http::Response<B>>
            + Clone
            + Send
            + Sync
            + 'static,
        <L::Service as Service<http::Request<tonic::body::Body>>>::Future: Send,
        <L::Service as Service<http::Request<tonic::body::Body>>>::Error: Into<StdError>,
        B: Body<Data = Bytes> + Send + 'static,
        B::Error: Into<StdError>,
    {
        self.layers.push(Box::new(move |routes| routes_to(layer.layer(routes))));
        self
    }

    /// Limits the time from the arrival of a request to the start of its response, like
    /// `tonic::transport::Server::builder().timeout(limit)`. The time includes the layers. When it has passed, the handler
    /// is dropped and the call ends with `DEADLINE_EXCEEDED`; with tonic's own transport it ends with `CANCELLED`.
    /// `grpc-timeout` applies as well.
    ///
    /// With [`Self::on_pollers`], the node needs a runtime with timers, set with
    /// [`NodeBuilder::tokio`](trunkline::NodeBuilder::tokio).
    pub fn timeout(mut self, limit: Duration) -> Self {
        self.timeout = Some(limit);
        self
    }

    /// Limits how many calls to a service or a method run concurrently. `path` is the gRPC path, `/package.Service` or
    /// `/package.Service/Method`.
    ///
    /// A call beyond the limit is refused with `RESOURCE_EXHAUSTED` before interceptors run and before its handler starts.
    /// Interceptors may have run if two pollers start the last permitted call at the same time. The refused call has not
    /// run, and can be repeated later or on another server. A cancelled call counts until its handler is dropped. The node
    /// does not start if a limit is 0 or a path is malformed.
    ///
    /// ```no_run
    /// # fn example(routes: tonic::service::Routes, runtime: tokio::runtime::Handle) {
    /// let server = trunkline_tonic::Server::new(routes)
    ///     .limit("/trunkline.example.RouteGuide", 1000)
    ///     .limit("/trunkline.example.RouteGuide/Within", 8)
    ///     .message_limit("/trunkline.example.Greeter", 4096);
    /// # let _ = server.runtime(runtime);
    /// # }
    /// ```
    pub fn limit(mut self, path: &str, most: u32) -> Self {
        self.limits.set_calls(path, most);
        self
    }

    /// Limits the size of each message in a request, in bytes on the wire. `path` is the path of a service or a method. If
    /// both have a limit, the smaller one applies.
    ///
    /// A call with a larger message ends with `RESOURCE_EXHAUSTED`, unless its handler maps the error to another status.
    /// The message is not buffered. The limits of the servers that tonic generates, by default 4 MiB, apply as well.
    pub fn message_limit(mut self, path: &str, bytes: usize) -> Self {
        self.limits.set_message_bytes(path, bytes);
        self
    }

    /// Adds a Trunkline interceptor. All exchanges are calls to one Trunkline method; [`ServerCall::path`] distinguishes
    /// them.
    pub fn interceptor(mut self, interceptor: impl ServerInterceptor) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Runs the services in a tokio runtime, with one task per exchange.
    #[must_use]
    pub fn runtime(self, runtime: Handle) -> trunkline::stub::Service {
        self.service(Some(runtime))
    }

    /// Runs the services on the threads of the node's pollers. A call stays on one thread, which is faster than
    /// [`Self::runtime`].
    ///
    /// The handlers must not block, like all Trunkline handlers on pollers. They can use tokio if the node is built with
    /// [`NodeBuilder::tokio`](trunkline::NodeBuilder::tokio).
    #[must_use]
    pub fn on_pollers(self) -> trunkline::stub::Service {
        self.service(None)
    }

    fn service(self, runtime: Option<Handle>) -> trunkline::stub::Service {
        let Self { mut routes, layers, timeout, limits, interceptors } = self;
        {
            let _entered = runtime.as_ref().map(Handle::enter);
            for layer in layers.into_iter().rev() {
                routes = layer(routes);
            }
        }
        let (routes, limits) = (routes.prepare(), Arc::new(limits));
        let paths = Arc::<Paths>::default();
        let (counted, reported) = (Arc::clone(&limits), Arc::clone(&paths));
        let mut server = ExchangeServer::per_poller(move |_| {
            limits.check()?;
            let (routes, limits) = (routes.clone(), Arc::clone(&limits));
            let spawner = runtime.as_ref().map(Spawner::new);
            Ok::<_, String>(Handler { routes, timeout, spawner, limits, paths: paths.poller() })
        });
        let of_report = Arc::clone(&counted);
        if counted.counts_calls() {
            server = server.interceptor(move |call: &mut ServerCall| counted.check_room(&call.path()));
        }
        for interceptor in interceptors {
            server = server.interceptor(move |call: &mut ServerCall| interceptor.intercept(call));
        }
        trunkline::stub::Service::from(server).reports(move |report| {
            report.limits.extend(of_report.report());
            reported.report(report);
        })
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("interceptors", &self.interceptors.len()).finish_non_exhaustive()
    }
}

/// Returns routes that pass all requests to a service.
pub(crate) fn routes_to<S, B>(service: S) -> Routes
where
    S: Service<http::Request<tonic::body::Body>, Response = http::Response<B>>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
    S::Error: Into<StdError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    Routes::default().into_axum_router().fallback_service(Infallibly(service)).into()
}

/// A service that never fails, because it converts errors to responses with a status.
#[derive(Clone)]
struct Infallibly<S>(S);

impl<S, B> Service<http::Request<AxumBody>> for Infallibly<S>
where
    S: Service<http::Request<tonic::body::Body>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<StdError>,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<StdError>,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        // The readiness of the inner service applies to one call and may be an error, so `call` polls it.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<AxumBody>) -> Self::Future {
        let mut service = self.0.clone();
        Box::pin(async move {
            let response = async {
                poll_fn(|task| service.poll_ready(task)).await?;
                service.call(request.map(tonic::body::Body::new)).await
            };
            Ok(match response.await {
                Ok(response) => response.map(tonic::body::Body::new),
                Err(error) => tonic::Status::from_error(error.into()).into_http(),
            })
        })
    }
}

struct Handler {
    routes: Routes,
    /// Time limit for the start of a response.
    timeout: Option<Duration>,
    /// `None` if exchanges run on the poller.
    spawner: Option<Spawner>,
    limits: Arc<Limits>,
    paths: PollerPaths,
}

impl Exchange for Handler {
    async fn call(
        &self,
        cx: &Context,
        body: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        self.run(cx, Pieces::Stream(body)).await
    }

    async fn call_whole(
        &self,
        cx: &Context,
        body: Bytes,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        self.run(cx, Pieces::Whole(body)).await
    }
}

impl Handler {
    async fn run(&self, cx: &Context, body: Pieces) -> Result<Response, Status> {
        let request = request_of(cx, body, &self.limits)?;
        let permits = self.limits.take(request.uri().path())?;
        let mut call = self.paths.began(request.uri(), cx);
        match self.begin(cx, request, permits, call.status()).await {
            Ok(pieces) => Ok(Response { pieces, call }),
            Err(status) => {
                call.failed(status.code());
                Err(status)
            }
        }
    }

    /// Starts the response to a request.
    async fn begin(
        &self,
        cx: &Context,
        request: http::Request<RequestBody>,
        permits: Permits,
        status: ResponseStatus,
    ) -> Result<ResponsePieces, Status> {
        let most = most_in_reply();
        let exchange = respond(self.routes.clone(), self.timeout, request, cx.clone(), status, most);
        let Some(spawner) = &self.spawner else {
            return Ok(ResponsePieces::Here { body: exchange.await?, _permits: permits });
        };
        let (sender, parts) = unbounded_channel();
        let peer = cx.peer().map(|peer| peer.address());
        let waiting = Arc::clone(spawner.waiting());
        let room = move || Room::new(peer.map(|peer| peer.ip()), waiting);
        let task = async move {
            // The task holds the permits, because it may outlive the call.
            let _permits = permits;
            forward(exchange, sender, room).await
        };
        let task = spawner.spawn(peer, cx.scope(task))?;
        let mut response = TaskResponse { parts, task: Some(task), whole: Bytes::new() };
        // The task sends the first part after it has set the headers.
        poll_fn(|task| Pin::new(&mut response).poll_part(task)).await.transpose()?;
        Ok(ResponsePieces::OfTask(response))
    }
}

fn request_of(cx: &Context, body: Pieces, limits: &Limits) -> Result<http::Request<RequestBody>, Status> {
    let malformed = || Status::invalid_argument("expected the path of a gRPC method in grpc-path");
    let metadata = cx.metadata();
    let path = metadata.get(PATH).ok_or_else(malformed)?;
    let uri = http::Uri::try_from(path).map_err(|_| malformed())?;
    // Routes and interceptors must see the same path.
    if uri.path() != path {
        return Err(malformed());
    }
    let most = limits.message_bytes(path);
    let mut headers = headers::from_metadata(metadata).map_err(|status| not_grpc(&status))?;
    // Only the first value is the path. Further values are metadata of the caller.
    let others = headers.get_all(PATH).iter().skip(1).cloned().collect::<Vec<_>>();
    headers.remove(PATH);
    for value in others {
        headers.append(PATH, value);
    }
    // Remove the peer's `grpc-timeout` from the metadata, because it is not the call's deadline.
    headers.remove(timeout::GRPC_TIMEOUT);
    let messages = Messages::new(&headers, most, PeerMemory::of_caller(cx));
    let mut request = http::Request::new(RequestBody { pieces: body, messages });
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    if let Some(left) = cx.time_left() {
        // The conversion always succeeds, because the value consists of digits and a letter.
        if let Ok(value) = HeaderValue::try_from(timeout::format(left)) {
            request.headers_mut().insert(timeout::GRPC_TIMEOUT, value);
        }
    }
    if let Some(peer) = cx.peer() {
        let connection = TcpConnectInfo { local_addr: None, remote_addr: Some(peer.address()) };
        request.extensions_mut().insert(connection);
        request.extensions_mut().insert(peer.clone());
    }
    Ok(request)
}

fn not_grpc(status: &tonic::Status) -> Status {
    Status::internal(status.message())
}

/// Passes a request to the routes, and sets the headers of the response.
async fn respond(
    mut routes: Routes,
    timeout: Option<Duration>,
    request: http::Request<RequestBody>,
    cx: Context,
    status: ResponseStatus,
    most_first: usize,
) -> Result<BodyPieces, Status> {
    // Routes are always ready.
    let response = routes.call(request);
    let response = match timeout {
        None => response.await,
        Some(limit) => tokio::time::timeout(limit, response).await.map_err(|_| {
            Status::deadline_exceeded(format!("the response did not begin within the server's {limit:?}"))
        })?,
    };
    let response = match response {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (parts, body) = response.into_parts();
    // If there is no body, the headers contain the status.
    let has_status = status.set_from(&parts.headers);
    let of_http = parts.status;
    if has_status || of_http == StatusCode::OK {
        // Keep the metadata that an interceptor has set.
        let mut initial = cx.initial_metadata();
        initial.extend(&headers::to_metadata(&parts.headers).map_err(|status| not_grpc(&status))?);
        cx.set_initial_metadata(initial);
    }
    Ok(BodyPieces {
        body: Some(body),
        watch: Watch::default(),
        frame: Bytes::new(),
        most: most_first,
        cx,
        status,
        has_status,
        of_http,
    })
}

/// Returns the status of a response without `grpc-status` (gRPC: http-grpc-status-mapping.md).
#[cold]
fn inferred(of_http: StatusCode) -> Status {
    let code = match of_http {
        StatusCode::BAD_REQUEST => Code::Internal,
        StatusCode::UNAUTHORIZED => Code::Unauthenticated,
        StatusCode::FORBIDDEN => Code::PermissionDenied,
        StatusCode::NOT_FOUND => Code::Unimplemented,
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => Code::Unavailable,
        _ => Code::Unknown,
    };
    Status::new(code, format!("the service answered with the HTTP status {of_http} and without grpc-status"))
}

/// The pieces of a response body. The trailers are set when the body ends.
struct BodyPieces {
    /// `None` after the body has ended.
    body: Option<tonic::body::Body>,
    watch: Watch,
    /// The part of the last frame that is still to be sent.
    frame: Bytes,
    /// Maximum size of a frame that is sent as one piece, in bytes. The first frame may be the whole body.
    most: usize,
    cx: Context,
    status: ResponseStatus,
    /// True if the headers contain a gRPC status.
    has_status: bool,
    of_http: StatusCode,
}

impl BodyPieces {
    /// Returns the next data frame, or `None` at the end.
    fn poll_data(&mut self, context: &mut std::task::Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let Some(body) = &mut self.body else { return Poll::Ready(None) };
        let trailers = match ready!(self.watch.poll(|| Pin::new(body).poll_frame(context))) {
            None if self.has_status => return Poll::Ready(None),
            None => return Poll::Ready(Some(Err(inferred(self.of_http)))),
            Some(Err(status)) => return Poll::Ready(Some(Err(status))),
            Some(Ok(Err(status))) => return Poll::Ready(Some(Err(not_grpc(&status)))),
            Some(Ok(Ok(frame))) => match frame.into_data() {
                Ok(data) if self.has_status || self.of_http == StatusCode::OK => {
                    return Poll::Ready(Some(Ok(data)));
                }
                Ok(_) => {
                    // Skip the data of an HTTP error page. The status may still follow in the trailers.
                    context.waker().wake_by_ref();
                    return Poll::Pending;
                }
                // tonic ends a body with the trailers of a success in the same poll as its items.
                Err(frame) => match self.watch.dropped() {
                    Some(status) => return Poll::Ready(Some(Err(status))),
                    None => frame.into_trailers().unwrap_or_default(),
                },
            },
        };
        if !self.status.set_from(&trailers) && !self.has_status {
            return Poll::Ready(Some(Err(inferred(self.of_http))));
        }
        Poll::Ready(headers::to_metadata(&trailers).map_or_else(
            |status| Some(Err(not_grpc(&status))),
            |trailers| {
                let mut trailing = self.cx.trailing_metadata();
                trailing.extend(&trailers);
                self.cx.set_trailing_metadata(trailing);
                None
            },
        ))
    }
}

impl Stream for BodyPieces {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let this = &mut *self;
            if let Some(piece) = next_piece(&mut this.frame, this.most) {
                this.most = MAX_PIECE;
                return Poll::Ready(Some(Ok(piece)));
            }
            match ready!(self.poll_data(context)) {
                Some(Ok(data)) => self.frame = data,
                end => {
                    self.body = None;
                    return Poll::Ready(end);
                }
            }
        }
    }
}

/// A part of a response, sent by a task to its call.
enum Part {
    Headers,
    Piece {
        bytes: Bytes,
        _room: Option<Reserved>,
    },
    /// The headers are set, and this is the whole body, which is empty if there is none.
    Whole(Bytes),
}

/// Sends a response to its call. If the body is complete, sends it together with the headers. Otherwise, sends the headers
/// and then the pieces of the body.
async fn forward(
    exchange: impl Future<Output = Result<BodyPieces, Status>>,
    parts: UnboundedSender<Part>,
    room: impl FnOnce() -> Room,
) -> Result<(), Status> {
    let mut body = exchange.await?;
    let mut ready = [poll_once(&mut body).await, Poll::Pending];
    if let Poll::Ready(Some(Ok(_))) = &ready[0] {
        ready[1] = poll_once(&mut body).await;
    }
    let whole = match &ready {
        [Poll::Ready(None), _] => Some(Bytes::new()),
        [Poll::Ready(Some(Ok(piece))), Poll::Ready(None)] => Some(piece.clone()),
        _ => None,
    };
    if let Some(whole) = whole {
        return send(&parts, Part::Whole(whole));
    }
    let (mut ready, mut room) = (ready.into_iter(), room());
    send(&parts, Part::Headers)?;
    loop {
        let next = match ready.next() {
            Some(Poll::Ready(next)) => next,
            Some(Poll::Pending) => continue,
            None => poll_fn(|task| Pin::new(&mut body).poll_next(task)).await,
        };
        let Some(piece) = next else { break };
        let piece = piece?;
        let room = room.reserve(piece.len()).await;
        send(&parts, Part::Piece { bytes: piece, _room: room })?;
    }
    Ok(())
}

/// Room for the response pieces of an exchange that wait for their poller.
struct Room {
    own: Arc<Semaphore>,
    peer: Option<IpAddr>,
    shares: Arc<Shares>,
    /// `None` until a second piece waits.
    share: Option<Arc<Share>>,
}

impl Room {
    fn new(peer: Option<IpAddr>, shares: Arc<Shares>) -> Self {
        let own = Arc::new(Semaphore::new(WAITING_BYTES as usize));
        Self { own, peer, shares, share: None }
    }

    /// Waits for room for a piece. If the share of the peer is used up, waits until the poller has taken all earlier pieces.
    async fn reserve(&mut self, length: usize) -> Option<Reserved> {
        let length = u32::try_from(length).unwrap_or(WAITING_BYTES).clamp(MIN_WAITING_BYTES, WAITING_BYTES);
        let own = match Arc::clone(&self.own).try_acquire_many_owned(length) {
            Ok(own) => own,
            // Continuing when half of the pieces have been taken costs one change of thread for many pieces.
            Err(_) => self.wait_for(length.max(WAITING_BYTES / 2), length).await?,
        };
        let bytes = length as usize;
        if self.own.available_permits() + bytes == WAITING_BYTES as usize {
            return Some(Reserved { _own: own, _shared: None });
        }
        let share = self.share.get_or_insert_with(|| self.shares.of(self.peer));
        if share.has_room(bytes) {
            return Some(Reserved { _own: own, _shared: Some(share.take(bytes)) });
        }
        drop(own);
        let own = self.wait_for(WAITING_BYTES, length).await?;
        Some(Reserved { _own: own, _shared: None })
    }

    /// Waits until `free` bytes are free. Returns the permit for `length` of them.
    async fn wait_for(&self, free: u32, length: u32) -> Option<OwnedSemaphorePermit> {
        let mut free = Arc::clone(&self.own).acquire_many_owned(free).await.ok()?;
        free.split(length as usize)
    }
}

/// Covers the size of a piece until the poller has taken it.
struct Reserved {
    _own: OwnedSemaphorePermit,
    /// `None` for a piece that waits alone.
    _shared: Option<Taken>,
}

/// Polls once for the next piece, without waiting for it.
async fn poll_once(body: &mut BodyPieces) -> Poll<Option<Result<Bytes, Status>>> {
    poll_fn(|task| Poll::Ready(Pin::new(&mut *body).poll_next(task))).await
}

fn send(parts: &UnboundedSender<Part>, part: Part) -> Result<(), Status> {
    parts.send(part).map_err(|_| Status::cancelled("the call is over"))
}

/// The body of a response, with the count of its call.
struct Response {
    pieces: ResponsePieces,
    call: CountedCall,
}

enum ResponsePieces {
    Here { body: BodyPieces, _permits: Permits },
    OfTask(TaskResponse),
}

impl Stream for Response {
    type Item = Result<Bytes, Status>;

    fn poll_next(self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        let piece = ready!(match &mut this.pieces {
            ResponsePieces::Here { body, .. } => Pin::new(body).poll_next(context),
            ResponsePieces::OfTask(response) => Pin::new(response).poll_next(context),
        });
        match &piece {
            Some(Ok(_)) => {}
            Some(Err(status)) => this.call.failed(status.code()),
            None => this.call.ended(),
        }
        Poll::Ready(piece)
    }
}

/// The body of a response, received from the task that produces it.
struct TaskResponse {
    parts: UnboundedReceiver<Part>,
    /// `None` after the response has ended.
    task: Option<Spawned>,
    /// The whole body, if it arrived with the headers.
    whole: Bytes,
}

impl TaskResponse {
    /// Returns the next piece. The piece is empty if the part consists of headers.
    fn poll_part(&mut self, context: &mut std::task::Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        match ready!(self.parts.poll_recv(context)) {
            Some(Part::Headers) => Poll::Ready(Some(Ok(Bytes::new()))),
            Some(Part::Piece { bytes, .. }) => Poll::Ready(Some(Ok(bytes))),
            Some(Part::Whole(piece)) => {
                (self.whole, self.task) = (piece, None);
                Poll::Ready(Some(Ok(Bytes::new())))
            }
            // The task has dropped its sender. Its outcome contains the reason.
            None => {
                let outcome = ready!(task.poll(context));
                self.task = None;
                Poll::Ready(outcome.err().map(Err))
            }
        }
    }
}

impl Stream for TaskResponse {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        match std::mem::take(&mut self.whole) {
            whole if whole.is_empty() => self.poll_part(context),
            whole => Poll::Ready(Some(Ok(whole))),
        }
    }
}

struct RequestBody {
    pieces: Pieces,
    messages: Messages,
}

enum Pieces {
    Stream(Streaming<Bytes>),
    /// The whole body; empty after it has been taken.
    Whole(Bytes),
}

impl Pieces {
    fn poll_next(&mut self, context: &mut std::task::Context<'_>) -> Poll<Option<Result<Bytes, Status>>> {
        match self {
            Self::Stream(pieces) => Pin::new(pieces).poll_next(context),
            Self::Whole(body) if body.is_empty() => Poll::Ready(None),
            Self::Whole(body) => Poll::Ready(Some(Ok(std::mem::take(body)))),
        }
    }
}

/// Returns the status for a request that was cut off. tonic treats `CANCELLED` as the end of a request, so a task that
/// still reads would not detect the error. Over HTTP/2, the status after a lost connection is `UNKNOWN` too.
fn cut_off(mut status: tonic::Status) -> tonic::Status {
    if status.code() == tonic::Code::Cancelled {
        status = tonic::Status::unknown(status.message());
    }
    status
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let Self { pieces, messages } = self.get_mut();
        let next = |context: &mut std::task::Context<'_>| {
            pieces.poll_next(context).map_err(|status| cut_off(grpc_status(&status)))
        };
        messages.poll_frame(context, next).map_ok(Frame::data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_plain_method_paths_are_accepted() {
        for (path, is_accepted) in [
            ("/greeter.Greeter/Greet", true),
            ("http://host/greeter.Greeter/Greet", false),
            ("/greeter.Greeter/Greet?loud", false),
            ("greeter.Greeter", false),
            ("", false),
        ] {
            let mut metadata = trunkline::Metadata::new();
            metadata.append_reserved(PATH, path.as_bytes()).unwrap();
            let (_, body) = trunkline::stream::channel::<Result<Bytes, Status>>(1);
            let request = request_of(
                &Context::detached_with(metadata),
                Pieces::Stream(Streaming::from_stream(body)),
                &Limits::default(),
            );
            assert_eq!(request.is_ok(), is_accepted, "{path}");
        }
    }

    #[test]
    fn path_in_metadata_of_caller_stays_metadata() {
        let mut metadata = trunkline::Metadata::new();
        for path in ["/greeter.Greeter/Greet", "/greeter.Greeter/Delete", "other"] {
            metadata.append_reserved(PATH, path.as_bytes()).unwrap();
        }
        let cx = Context::detached_with(metadata);
        let request = request_of(&cx, Pieces::Whole(Bytes::new()), &Limits::default()).unwrap();
        assert_eq!(request.uri().path(), "/greeter.Greeter/Greet");
        let others = request.headers().get_all(PATH).iter().collect::<Vec<_>>();
        assert_eq!(others, ["/greeter.Greeter/Delete", "other"]);
    }

    #[test]
    fn grpc_timeout_without_deadline_is_hidden_from_handler() {
        let mut metadata = trunkline::Metadata::new();
        metadata.append_reserved(PATH, b"/greeter.Greeter/Greet").unwrap();
        metadata.append_reserved(timeout::GRPC_TIMEOUT, b"1S").unwrap();
        let cx = Context::detached_with(metadata);
        assert_eq!(cx.time_left(), None);
        let request = request_of(&cx, Pieces::Whole(Bytes::new()), &Limits::default()).unwrap();
        assert_eq!(request.headers().get(timeout::GRPC_TIMEOUT), None);
    }
}
