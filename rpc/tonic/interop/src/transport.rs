//! A channel for either transport, so that the same client runs over both.

use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::body::Body;
use tower_service::Service;

/// A channel to a server.
#[derive(Debug, Clone)]
pub enum Transport {
    /// HTTP/2 over TCP.
    Tcp(tonic::transport::Channel),
    /// Trunkline.
    Trunkline(trunkline_tonic::Channel),
}

type Error = Box<dyn std::error::Error + Send + Sync>;

impl Service<http::Request<Body>> for Transport {
    type Response = http::Response<Body>;
    type Error = Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), Error>> {
        match self {
            Self::Tcp(channel) => channel.poll_ready(task).map_err(Into::into),
            Self::Trunkline(channel) => channel.poll_ready(task).map_err(Into::into),
        }
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        match self {
            Self::Tcp(channel) => {
                let response = channel.call(request);
                Box::pin(async move { Ok(response.await?) })
            }
            Self::Trunkline(channel) => {
                let response = channel.call(request);
                Box::pin(async move { Ok(response.await?) })
            }
        }
    }
}
