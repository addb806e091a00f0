//! gRPC over Trunkline, without HTTP/2, for clients and servers that tonic generates.
//!
//! A gRPC exchange is one stream. The metadata of its call contains the path and the request headers, and the call's
//! deadline is the time limit. The response headers and trailers are metadata too. The stream's items are pieces of the
//! bodies, which tonic splits into messages. [`Channel`] replaces `tonic::transport::Channel`, and [`Server`] replaces
//! `tonic::transport::Server`:
//!
//! ```no_run
//! # fn example(routes: tonic::service::Routes) -> Result<(), Box<dyn std::error::Error>> {
//! use trunkline::Node;
//!
//! let runtime = tokio::runtime::Handle::current();
//! let service = trunkline_tonic::Server::new(routes).runtime(runtime);
//! let server = Node::builder().listen("127.0.0.1:0").serve(service).start()?;
//! let node = Node::builder().listen("127.0.0.1:0").start()?;
//! let channel = trunkline_tonic::Channel::new(&node, server.local_address());
//! // let client = GreeterClient::new(channel);
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

#[cfg(feature = "transport")]
mod bridge;
mod client;
mod exchange;
mod headers;
mod limits;
mod messages;
mod paths;
mod peer_share;
mod server;
mod spawner;
mod timeout;

pub use client::Channel;
pub use server::Server;

/// Returns the certificate chain of a request's caller, starting with the caller's own certificate. This corresponds to
/// tonic's `Request::peer_certs` over TLS. Returns `None` if the caller has not proved its name with a certificate.
///
/// The [`Peer`](trunkline::Peer) in the request's extensions contains the name. Tower layers can also read it there:
///
/// ```
/// use trunkline::identity::Name;
///
/// fn caller<T>(request: &tonic::Request<T>) -> Option<&Name> {
///     request.extensions().get::<trunkline::Peer>()?.name()
/// }
/// ```
#[cfg(feature = "identity")]
pub fn peer_certs<T>(
    request: &tonic::Request<T>,
) -> Option<std::sync::Arc<Vec<trunkline::identity::CertificateDer<'static>>>> {
    match request.extensions().get::<trunkline::Peer>()?.identity() {
        trunkline::identity::PeerIdentity::Proven(proven) => Some(proven.certificates().clone()),
        _ => None,
    }
}

/// Converts a Trunkline status to gRPC. The code number, details and metadata are kept, and the message includes the
/// causes. `status` is the source of the result.
fn grpc_status(status: &trunkline::Status) -> tonic::Status {
    named_status(status, None)
}

/// Converts the status of a client's call. If a node wrote the message, `path` replaces the method name at its beginning,
/// which is the same for all exchanges.
fn named_status(status: &trunkline::Status, path: Option<&str>) -> tonic::Status {
    let code = tonic::Code::from(i32::from(status.code().number()));
    // A status must not be lost because its metadata is invalid in headers.
    let metadata = headers::from_metadata(status.metadata()).unwrap_or_default();
    let metadata = tonic::metadata::MetadataMap::from_headers(metadata);
    let shared = if status.origin() == trunkline::Origin::Handler {
        None
    } else {
        exchange::unnamed(status.message())
    };
    let mut message = match path.zip(shared) {
        Some((path, text)) => format!("{path}{text}"),
        None => status.message().to_owned(),
    };
    for cause in status.causes() {
        message.push_str(": ");
        message.push_str(cause);
    }
    let mut own = tonic::Status::with_details_and_metadata(code, message, status.details().clone(), metadata);
    own.set_source(std::sync::Arc::new(status.clone()));
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_keeps_its_details_and_metadata() {
        let mut metadata = trunkline::Metadata::new();
        metadata.insert("tag", "blue").unwrap();
        metadata.insert_bin("sum-bin", &[0, 255]).unwrap();
        let status = trunkline::Status::new(trunkline::Code::NotFound, "no such row")
            .with_details(&b"row 7"[..])
            .with_metadata(metadata)
            .with_cause("the table is empty");
        let status = grpc_status(&status);
        let message = "no such row: the table is empty";
        assert_eq!((status.code(), status.message()), (tonic::Code::NotFound, message));
        let source = std::error::Error::source(&status).and_then(|error| error.downcast_ref());
        assert_eq!(source.map(trunkline::Status::message), Some("no such row"));
        assert_eq!(status.details(), b"row 7");
        assert_eq!(status.metadata().get("tag").unwrap(), "blue");
        assert_eq!(status.metadata().get_bin("sum-bin").unwrap().to_bytes().unwrap(), &[0, 255][..]);
    }
}
