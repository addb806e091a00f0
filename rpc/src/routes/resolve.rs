//! Resolvers, which find the addresses of a server.

use std::fmt;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::pin::Pin;

/// The error of a lookup.
pub type ResolveError = Box<dyn std::error::Error + Send + Sync>;

/// A lookup in progress, from [`Resolve::resolve`].
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Vec<SocketAddr>, ResolveError>> + Send + 'a>>;

/// A resolver of a server's addresses, for [`Target::resolver`](crate::Target::resolver). [`Dns`] is one.
///
/// It is called before each attempt to connect, so the addresses may change. The future is polled on a thread for
/// lookups, in the node's tokio runtime if it has one. It may use that runtime, and it may block. After 10 s the
/// lookup fails and the future is dropped; a blocked future keeps its thread until it returns. A node makes 4
/// lookups at once, one per target, and further ones wait.
///
/// Addresses are tried in their order: the first 16 different ones that have a port.
///
/// ```
/// use std::net::SocketAddr;
/// use trunkline::{Resolve, Resolving, Target};
///
/// /// Reads the addresses of a service from a file, one a line.
/// #[derive(Debug)]
/// struct Listed(std::path::PathBuf);
///
/// impl Resolve for Listed {
///     fn resolve(&self) -> Resolving<'_> {
///         Box::pin(async {
///             let text = std::fs::read_to_string(&self.0)?;
///             Ok(text.lines().map(str::parse).collect::<Result<Vec<SocketAddr>, _>>()?)
///         })
///     }
///
///     fn name(&self) -> String {
///         self.0.display().to_string()
///     }
/// }
///
/// let target = Target::resolver(Listed("/etc/services.d/shop".into()));
/// assert_eq!(target.to_string(), "/etc/services.d/shop");
/// ```
pub trait Resolve: fmt::Debug + Send + Sync + 'static {
    /// Looks up the server's current addresses, the best first.
    fn resolve(&self) -> Resolving<'_>;

    /// Returns the server's name in statuses and logs, next to the addresses that were tried. It is read once, up
    /// to 256 bytes. The default is the name of the resolver's type.
    fn name(&self) -> String {
        let name = std::any::type_name::<Self>();
        let path = name.split('<').next().unwrap_or(name);
        path.rsplit("::").next().unwrap_or(path).to_owned()
    }
}

/// A resolver of host names, through the operating system.
///
/// ```
/// use trunkline::{Dns, Target};
///
/// let target = Target::resolver(Dns::new("shop.example", 7000));
/// assert_eq!(target.to_string(), "shop.example:7000");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dns {
    host: String,
    port: u16,
}

impl Dns {
    /// Creates a resolver for a host. Each address gets this port.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }
}

impl Resolve for Dns {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async { Ok((self.host.as_str(), self.port).to_socket_addrs()?.collect()) })
    }

    fn name(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}
