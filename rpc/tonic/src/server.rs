//! The server's side: a Trunkline service that passes exchanges to tonic's routes.

use crate::client::PATH;
use crate::exchange::{Exchange, ExchangeServer, next_piece};
use crate::{grpc_status, headers, timeout};
use bytes::Bytes;
use http::HeaderValue;
use http_body::{Body, Frame};
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Poll, ready};
use tokio::runtime::Handle;
use tokio::task::{JoinError, JoinHandle};
use tonic::service::Routes;
use tonic::transport::server::TcpConnectInfo;
use tower_service::Service;
use trunkline::stream::{Receiver, Sender, channel};
use trunkline::{Context, ServerCall, ServerInterceptor, Status, Stream, Streaming};

/// Pieces of a response that wait for their poller.
const WAITING_PIECES: usize = 4;

/// gRPC services, for [`NodeBuilder::serve`](trunkline::NodeBuilder::serve).
#[must_use]
pub struct Server {
    routes: Routes,
    interceptors: Vec<Box<dyn ServerInterceptor>>,
}

impl Server {
    /// Takes the services, with their layers.
    pub fn new(routes: impl Into<Routes>) -> Self {
        Self { routes: routes.into().prepare(), interceptors: Vec::new() }
    }

    /// Adds an interceptor of Trunkline. It sees all exchanges as calls of one method, and tells them apart by
    /// [`ServerCall::path`].
    pub fn interceptor(mut self, interceptor: impl ServerInterceptor) -> Self {
        self.interceptors.push(Box::new(interceptor));
        self
    }

    /// Runs the services in a tokio runtime, as a task for each exchange.
    #[must_use]
    pub fn runtime(self, runtime: Handle) -> trunkline::stub::Service {
        let mut server = ExchangeServer::new(Handler { routes: self.routes, runtime });
        for interceptor in self.interceptors {
            server = server.interceptor(move |call: &mut ServerCall| interceptor.intercept(call));
        }
        server.into()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("interceptors", &self.interceptors.len()).finish_non_exhaustive()
    }
}

struct Handler {
    routes: Routes,
    runtime: Handle,
}

impl Exchange for Handler {
    async fn call(
        &self,
        cx: &Context,
        body: Streaming<Bytes>,
    ) -> Result<impl Stream<Item = Result<Bytes, Status>>, Status> {
        let request = request_of(cx, body)?;
        let (sender, pieces) = channel(WAITING_PIECES);
        let exchange = respond(self.routes.clone(), request, cx.clone(), sender);
        let task = self.runtime.spawn(cx.scope(exchange));
        let mut response = Response { pieces, task: Some(Task(task)) };
        // The first piece is empty: the headers are set.
        poll_fn(|task| Pin::new(&mut response).poll_next(task)).await.transpose()?;
        Ok(response)
    }
}

/// Returns the request of a call.
fn request_of(cx: &Context, body: Streaming<Bytes>) -> Result<http::Request<RequestBody>, Status> {
    let malformed = || Status::invalid_argument("expected the path of a gRPC method in grpc-path");
    let mut metadata = cx.metadata().clone();
    let path = metadata.get(PATH).ok_or_else(malformed)?;
    let uri = http::Uri::try_from(path).map_err(|_| malformed())?;
    // Routes see no more and no less than interceptors do.
    if uri.path() != path {
        return Err(malformed());
    }
    metadata.remove(PATH);
    let mut request = http::Request::new(RequestBody(body));
    *request.method_mut() = http::Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers::from_metadata(&metadata).map_err(|status| not_grpc(&status))?;
    if let Some(left) = cx.time_left() {
        // Digits and a letter.
        if let Ok(value) = HeaderValue::try_from(timeout::format(left)) {
            request.headers_mut().insert(timeout::GRPC_TIMEOUT, value);
        }
    }
    if let Some(peer) = cx.peer() {
        let connection = TcpConnectInfo { local_addr: None, remote_addr: Some(peer.address()) };
        request.extensions_mut().insert(connection);
    }
    Ok(request)
}

fn not_grpc(status: &tonic::Status) -> Status {
    Status::internal(status.message())
}

/// Passes a request to the routes, and the response to its call: an empty piece once the headers are set, and the pieces of
/// the body.
async fn respond(
    mut routes: Routes,
    request: http::Request<RequestBody>,
    cx: Context,
    pieces: Sender<Bytes>,
) -> Result<(), Status> {
    // Routes are always ready.
    let response = match routes.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    let (parts, mut body) = response.into_parts();
    if parts.status != http::StatusCode::OK {
        return Err(Status::unknown(format!("the service answered with the HTTP status {}", parts.status)));
    }
    // What an interceptor has set stays.
    let mut initial = cx.initial_metadata();
    initial.extend(&headers::to_metadata(&parts.headers).map_err(|status| not_grpc(&status))?);
    cx.set_initial_metadata(initial);
    send(&pieces, Bytes::new()).await?;
    while let Some(frame) = poll_fn(|task| Pin::new(&mut body).poll_frame(task)).await {
        let frame = frame.map_err(|status| not_grpc(&status))?;
        match frame.into_data() {
            Ok(mut data) => {
                while let Some(piece) = next_piece(&mut data) {
                    send(&pieces, piece).await?;
                }
            }
            Err(frame) => {
                let Ok(trailers) = frame.into_trailers() else { continue };
                let mut trailing = cx.trailing_metadata();
                trailing.extend(&headers::to_metadata(&trailers).map_err(|status| not_grpc(&status))?);
                cx.set_trailing_metadata(trailing);
                break;
            }
        }
    }
    Ok(())
}

async fn send(pieces: &Sender<Bytes>, piece: Bytes) -> Result<(), Status> {
    pieces.send(piece).await.map_err(|_| Status::cancelled("the call is over"))
}

/// The task of an exchange. Dropping it aborts the task.
struct Task(JoinHandle<Result<(), Status>>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The body of a response, and the task that makes it.
struct Response {
    pieces: Receiver<Bytes>,
    /// `None` after its end.
    task: Option<Task>,
}

impl Stream for Response {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut std::task::Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some(piece) = ready!(Pin::new(&mut self.pieces).poll_next(context)) {
            return Poll::Ready(Some(Ok(piece)));
        }
        let Some(task) = &mut self.task else { return Poll::Ready(None) };
        let outcome = ready!(Pin::new(&mut task.0).poll(context));
        self.task = None;
        Poll::Ready(match outcome {
            Ok(outcome) => outcome.err().map(Err),
            Err(error) => Some(Err(aborted(&error))),
        })
    }
}

fn aborted(error: &JoinError) -> Status {
    if error.is_panic() {
        Status::internal("the handler panicked")
    } else {
        Status::unavailable("the runtime of the service has ended")
    }
}

/// The body of a request.
struct RequestBody(Streaming<Bytes>);

impl Body for RequestBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.0)
            .poll_next(context)
            .map(|item| item.map(|item| item.map(Frame::data).map_err(|status| grpc_status(&status))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_see_the_path_that_interceptors_see() {
        for (path, is_accepted) in [
            ("/greeter.Greeter/Greet", true),
            ("http://host/greeter.Greeter/Greet", false),
            ("/greeter.Greeter/Greet?loud", false),
            ("greeter.Greeter", false),
            ("", false),
        ] {
            let mut metadata = trunkline::Metadata::new();
            metadata.append_reserved(PATH, path.as_bytes()).unwrap();
            let (_, body) = channel::<Result<Bytes, Status>>(1);
            let request = request_of(&Context::detached_with(metadata), Streaming::from_stream(body));
            assert_eq!(request.is_ok(), is_accepted, "{path}");
        }
    }
}
