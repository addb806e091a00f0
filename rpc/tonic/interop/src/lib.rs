//! The gRPC interoperability service, and a transport that is either Trunkline or tonic's own.

#![forbid(unsafe_code)]

pub mod messages;
mod service;
mod transport;

#[allow(missing_docs, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/grpc.testing.TestService.rs"));
}

pub use generated::test_service_client::TestServiceClient;
pub use service::{ECHO_INITIAL, ECHO_TRAILING, HTTP_STATUS, Interop, REFUSED, REQUEST_ENCODING, routes};
pub use transport::Transport;
