//! Authorization of requests, before their arguments are fetched or decoded.
//!
//! Each request is authorised once, by its header and metadata, before its schema is compared and its memory is charged. A
//! large request is authorised when it is announced, if its metadata fits into the announcement. Any other request is
//! authorised when it has arrived.

use crate::call::Interceptors;
use crate::call::context::Peer;
use crate::status::reason::Reason;
use crate::status::{Code, Status};
use crate::wire::metadata::Metadata;
use crate::wire::name::MethodName;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;
use trunkline_transport::PeerKey;
use trunkline_verbs::Time;

/// Minimum time between two log lines about one peer.
const LOG_EVERY: Duration = Duration::from_secs(1);

/// An authorizer, which decides which calls from peers may run.
///
/// Install it with [`NodeBuilder::authorize`](crate::NodeBuilder::authorize), whose documentation contains an example.
/// Closures with the signature of [`Self::authorize`] implement this trait.
///
/// Authorization runs once for each request to a method that the node serves, including streams and one-way calls, on the
/// poller's thread. It must not block, because all calls on that poller would wait. Fetch the data for decisions on another
/// thread, and keep it in memory.
///
/// A panic ends only the call, with `Internal` and the reason `Panicked`.
pub trait Authorize: Send + Sync + 'static {
    /// Allows or refuses a call.
    ///
    /// # Errors
    /// Returning a status refuses the call. The call ends with this status and has not run, and its arguments are not
    /// decoded.
    fn authorize(&self, call: &IncomingCall<'_>) -> Result<(), Status>;
}

impl<F> Authorize for F
where
    F: Fn(&IncomingCall<'_>) -> Result<(), Status> + Send + Sync + 'static,
{
    fn authorize(&self, call: &IncomingCall<'_>) -> Result<(), Status> {
        self(call)
    }
}

/// A request from a peer, to be allowed or refused by [`Authorize`].
#[derive(Debug)]
pub struct IncomingCall<'c> {
    pub(super) peer: Peer,
    pub(super) method: &'static MethodName,
    pub(super) metadata: &'c Metadata,
    /// Cause of a refusal, for this node's log. It is not sent to the caller.
    pub(super) cause: OnceLock<String>,
}

impl IncomingCall<'_> {
    /// Returns the node that makes the call. Its address is not authenticated.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Returns the name of the service.
    #[must_use]
    pub fn service(&self) -> &'static str {
        self.method.service.name
    }

    /// Returns the name of the method.
    #[must_use]
    pub fn method(&self) -> &'static str {
        self.method.name
    }

    /// Returns the path of the method, in the form `/service/method`. gRPC calls differ only in this path, because
    /// [`Self::service`] and [`Self::method`] are the same for all of them.
    #[must_use]
    pub fn path(&self) -> Cow<'_, str> {
        self.method.path(self.metadata)
    }

    /// Returns true if the call has no reply.
    #[must_use]
    pub fn is_one_way(&self) -> bool {
        self.method.one_way
    }

    /// Returns the metadata of the request.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        self.metadata
    }

    /// Sets the cause of the refusal for this node's log.
    #[cfg(feature = "policy")]
    pub(super) fn set_cause(&self, cause: String) {
        let _first = self.cause.set(cause);
    }
}

/// The authorizers of the program.
pub(crate) type Authorizers = Interceptors<dyn Authorize>;

impl Authorizers {
    /// Runs the authorizers in order until one refuses the call.
    pub(super) fn ask(&self, call: &IncomingCall<'_>) -> Result<(), Status> {
        let panicked = || Status::not_run(Code::Internal, "the authorization of the call panicked");
        self.run(|each| each.authorize(call), || panicked().because(Reason::Panicked))
    }
}

/// Limits the log of refused calls to one line per peer and second.
#[derive(Debug, Default)]
pub(super) struct RefusalLog(BTreeMap<PeerKey, Logged>);

#[derive(Debug)]
struct Logged {
    at: Time,
    suppressed: u64,
}

impl RefusalLog {
    /// Returns the number of lines about the peer that were omitted since the last line, or `None` if this line is to be
    /// omitted.
    pub(super) fn line(&mut self, peer: PeerKey, now: Time) -> Option<u64> {
        let is_recent = |logged: &Logged| now.saturating_duration_since(logged.at) < LOG_EVERY;
        if let Some(logged) = self.0.get_mut(&peer) {
            if is_recent(logged) {
                logged.suppressed += 1;
                return None;
            }
            logged.at = now;
            return Some(std::mem::take(&mut logged.suppressed));
        }
        // Remove the entries of peers without recent refusals.
        self.0.retain(|_, logged| is_recent(logged));
        self.0.insert(peer, Logged { at: now, suppressed: 0 });
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::name::{ServiceName, Streams};
    use std::sync::Arc;
    use trunkline_transport::PeerIdentity;

    #[test]
    fn path_of_grpc_call_is_path_of_its_request() {
        static GRPC: ServiceName = ServiceName {
            name: "trunkline.grpc",
            version: 0,
            oldest: 0,
            codec: 0,
            codec_name: "bincode",
            hash: 1,
        };
        static METHOD: MethodName = MethodName {
            service: &GRPC,
            name: "call",
            hash: 1,
            one_way: false,
            idempotent: false,
            streams: Streams::Both,
            shapes: None,
        };
        let mut metadata = Metadata::new();
        metadata.append_reserved("grpc-path", b"/greeter.Greeter/Greet").unwrap();
        let key = PeerKey::new(([127, 0, 0, 1], 1).into());
        let authorizers = Authorizers::NONE.with(Arc::new(|call: &IncomingCall<'_>| match &*call.path() {
            "/greeter.Greeter/Greet" => Ok(()),
            _ => Err(Status::permission_denied("another path")),
        }));
        let ask = |metadata| {
            let peer = Peer::new(key, PeerIdentity::Unproven);
            authorizers.ask(&IncomingCall { peer, method: &METHOD, metadata, cause: OnceLock::new() })
        };
        assert_eq!(ask(&metadata), Ok(()));
        assert_eq!(ask(&Metadata::new()).unwrap_err().reason(), Some(Reason::Unauthorised));
    }

    #[test]
    fn each_peer_has_one_line_per_second_and_earlier_peers_are_forgotten() {
        let peer = |port: u16| PeerKey::new(([127, 0, 0, 1], port).into());
        let (mut log, start) = (RefusalLog::default(), Time(1_000_000));
        let lines = (0..100).filter(|_| log.line(peer(1), start).is_some()).count();
        assert_eq!((lines, log.line(peer(2), start)), (1, Some(0)), "a peer does not silence another");
        assert_eq!(log.line(peer(1), start + LOG_EVERY / 2), None);
        assert_eq!(log.line(peer(1), start + LOG_EVERY), Some(100));
        assert_eq!(log.line(peer(3), start + 3 * LOG_EVERY), Some(0));
        assert_eq!(log.0.len(), 1);
    }
}
