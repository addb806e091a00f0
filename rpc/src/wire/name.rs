//! Names of services and methods, and the hashes that identify them on the wire.

use crate::wire::metadata::Metadata;
use crate::wire::method_shapes::{MethodShapes, Traced};
use std::borrow::Cow;

/// Service for gRPC exchanges, whose path is in the metadata.
const GRPC: &str = "trunkline.grpc";
/// Metadata key for the path of a gRPC exchange.
const GRPC_PATH: &str = "grpc-path";

/// A service, as described by generated stubs.
#[derive(Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Name on the wire.
    pub name: &'static str,
    /// Version of the schema from which the stubs were generated.
    pub version: u32,
    /// Oldest compatible version. A client and a server must have at least one version in common.
    pub oldest: u32,
    /// Number of the codec. Both sides must use the same codec.
    pub codec: u8,
    /// Name of the codec.
    pub codec_name: &'static str,
    /// 64-bit FNV-1a hash of the name.
    pub hash: u64,
}

impl ServiceName {
    /// Returns the schema that a client of the service requests.
    pub(crate) fn schema(&self) -> Schema {
        let older = u8::try_from(self.version.saturating_sub(self.oldest)).unwrap_or(u8::MAX);
        Schema { version: self.version, older, codec: self.codec }
    }

    /// Returns true if the service and `schema` have a version in common.
    pub(crate) fn has_version_of(&self, schema: Schema) -> bool {
        let oldest = schema.version.saturating_sub(schema.older.into()).max(self.oldest);
        oldest <= schema.version.min(self.version)
    }

    /// Returns the versions of the service in a human-readable form.
    pub(crate) fn versions(&self) -> String {
        match self.oldest {
            oldest if oldest < self.version => format!("{oldest} to {}", self.version),
            _ => self.version.to_string(),
        }
    }

    /// Returns the codec of the service in a human-readable form.
    pub(crate) fn codec(&self) -> String {
        format!("{} ({})", self.codec_name, self.codec)
    }
}

/// The directions in which the calls to a method stream items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Streams {
    /// Neither side streams items, so the calls are unary or one-way.
    #[default]
    Neither,
    /// The server streams items to the client.
    FromServer,
    /// The client streams items to the server.
    FromClient,
    /// Both sides stream items.
    Both,
}

impl Streams {
    /// Returns true if a call streams items in any direction.
    #[inline]
    pub(crate) fn any(self) -> bool {
        self != Self::Neither
    }

    /// Returns true if the client streams items.
    pub(crate) fn has_client_items(self) -> bool {
        matches!(self, Self::FromClient | Self::Both)
    }

    /// Returns true if the server streams items.
    pub(crate) fn has_server_items(self) -> bool {
        matches!(self, Self::FromServer | Self::Both)
    }
}

/// A method of a service, as described by generated stubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MethodName {
    /// The service to which the method belongs.
    pub service: &'static ServiceName,
    /// Name on the wire.
    pub name: &'static str,
    /// 64-bit FNV-1a hash of the service's name, a zero byte, the method's name, and the payloads that are sent as raw
    /// bytes.
    pub hash: u64,
    /// True if calls to the method have no reply.
    pub one_way: bool,
    /// True if running a call twice has the same effect as running it once. A balanced channel may then repeat the call.
    pub idempotent: bool,
    /// Directions in which calls to the method stream items.
    pub streams: Streams,
    /// The shapes of the types that the method sends; `None` if they are not compared.
    pub shapes: Option<&'static MethodShapes>,
}

/// Traces the shapes of a client's methods before its first call.
pub fn trace(methods: &[&'static MethodName]) {
    methods.iter().filter_map(|method| method.shapes).for_each(|shapes| _ = shapes.trace());
}

impl MethodName {
    /// Returns a number that distinguishes the method's shapes from other shapes of the same method.
    pub(crate) fn shape_digest(&self) -> u64 {
        self.shapes.and_then(MethodShapes::traced).map_or(0, Traced::digest)
    }

    /// Describes the difference from a server that refused a call because of its shape. `theirs` is the text of the refusal.
    pub(crate) fn shape_difference(&self, theirs: &str) -> String {
        let traced = self.shapes.and_then(MethodShapes::traced);
        let difference = traced.and_then(|traced| traced.difference(theirs));
        difference.unwrap_or_else(|| "its types differ from the server's".to_owned())
    }

    /// Returns true if the method belongs to the tonic adapter, which serves it on behalf of other services.
    pub(crate) fn is_of_grpc(&self) -> bool {
        self.service.name == GRPC
    }

    /// Returns the path of a call with this metadata, in the form `/service/method`.
    pub(crate) fn path<'m>(&self, metadata: &'m Metadata) -> Cow<'m, str> {
        // Callers of other services must not be able to choose the path.
        let of_grpc = if self.is_of_grpc() { metadata.get(GRPC_PATH) } else { None };
        of_grpc.map_or_else(|| format!("/{}/{}", self.service.name, self.name).into(), Cow::Borrowed)
    }
}

impl std::fmt::Display for MethodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.service.name, self.name)
    }
}

/// The schema from which a service's stubs were generated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Schema {
    /// Version of the schema.
    pub(crate) version: u32,
    /// Number of earlier versions that are also compatible.
    pub(crate) older: u8,
    pub(crate) codec: u8,
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn service(oldest: u32, version: u32) -> ServiceName {
        named("x", oldest, version)
    }

    const fn named(name: &'static str, oldest: u32, version: u32) -> ServiceName {
        ServiceName { name, version, oldest, codec: 0, codec_name: "bincode", hash: 1 }
    }

    #[test]
    fn path_metadata_applies_only_to_grpc_calls() {
        static NATIVE: ServiceName = named("kv.Kv", 0, 0);
        static ADAPTED: ServiceName = named(GRPC, 0, 0);
        let mut metadata = Metadata::new();
        metadata.append_reserved(GRPC_PATH, b"/greeter.Greeter/Greet").unwrap();
        let path = |service, metadata| {
            let streams = Streams::Both;
            let method = MethodName {
                service,
                name: "call",
                hash: 1,
                one_way: false,
                idempotent: false,
                streams,
                shapes: None,
            };
            method.path(metadata).into_owned()
        };
        assert_eq!(path(&ADAPTED, &metadata), "/greeter.Greeter/Greet");
        assert_eq!(path(&NATIVE, &metadata), "/kv.Kv/call");
        assert_eq!(path(&ADAPTED, &Metadata::new()), "/trunkline.grpc/call");
    }

    #[test]
    fn version_ranges_match_only_if_overlapping() {
        let fits = |client: (u32, u32), server: (u32, u32)| {
            service(server.0, server.1).has_version_of(service(client.0, client.1).schema())
        };
        for (client, server, expected) in [
            ((2, 2), (2, 2), true),
            ((2, 2), (3, 3), false),
            ((2, 2), (2, 3), true),
            ((2, 3), (2, 2), true),
            ((3, 3), (2, 2), false),
            ((1, 3), (3, 5), true),
            ((1, 2), (3, 5), false),
            ((0, u32::MAX), (0, 0), false),
        ] {
            assert_eq!(fits(client, server), expected, "{client:?} {server:?}");
        }
        assert_eq!((service(2, 3).versions(), service(3, 3).versions()), ("2 to 3".into(), "3".into()));
    }
}
