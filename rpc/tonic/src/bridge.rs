//! Provides tonic's own channel type over a Trunkline channel, for crates that accept no other type.
//!
//! tonic's client uses HTTP/2 over an in-process pipe. A server at the other end of the pipe forwards the requests.

use crate::Channel;
use crate::server::routes_to;
use bytes::Bytes;
use http::{HeaderMap, Uri};
use http_body::Frame;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::transport::{Endpoint, Server};
use tower::ServiceExt as _;

/// Capacity of the pipe in each direction, in bytes.
const PIPE: usize = 64 << 10;

impl Channel {
    /// Converts this channel to tonic's own channel type, for crates that accept no other type.
    ///
    /// Calls pass through HTTP/2 inside this process and through two additional tasks of the runtime. As with tonic's own
    /// transport, calls that exceed their time limit end with `CANCELLED`.
    ///
    /// # Panics
    /// Panics outside a tokio runtime.
    ///
    /// ```no_run
    /// # async fn example(node: &trunkline::Node) {
    /// let channel: tonic::transport::Channel = trunkline_tonic::Channel::new(node, "10.0.0.1:7000").bridge();
    /// # }
    /// ```
    #[must_use]
    pub fn bridge(self) -> tonic::transport::Channel {
        let service = self.map_response(|response| response.map(|body| Body::new(StatusInTrailers(body))));
        let routes = routes_to(service).prepare();
        let connector = tower::service_fn(move |_: Uri| {
            let (client, server) = tokio::io::duplex(PIPE);
            let server = tokio_stream::once(Ok::<_, Infallible>(server));
            // The task ends immediately. The connection ends when the client drops its end of the pipe.
            tokio::spawn(Server::builder().add_routes(routes.clone()).serve_with_incoming(server));
            async { Ok::<_, Infallible>(TokioIo::new(client)) }
        });
        Endpoint::from_static("http://trunkline").connect_with_connector_lazy(connector)
    }
}

/// A response body that converts errors to trailers, because HTTP/2 can transfer a status only in headers or trailers.
struct StatusInTrailers(Body);

impl http_body::Body for StatusInTrailers {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        task: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.0).poll_frame(task).map(|frame| {
            frame.map(|frame| {
                frame.or_else(|status| {
                    let mut trailers = HeaderMap::new();
                    status.add_header(&mut trailers)?;
                    Ok(Frame::trailers(trailers))
                })
            })
        })
    }
}
