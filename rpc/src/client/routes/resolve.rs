//! Resolvers for the addresses of servers.

use super::Link;
use crate::node::fork_lock::ForkLock;
use std::fmt;
use std::net::ToSocketAddrs as _;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use trunkline_transport::PeerKey;
use trunkline_verbs::fork::FORKED;

/// The error of a lookup.
pub type ResolveError = Box<dyn std::error::Error + Send + Sync>;

/// A lookup in progress, from [`Resolve::resolve`].
pub type Resolving<'a> = Pin<Box<dyn Future<Output = Result<Vec<PeerKey>, ResolveError>> + Send + 'a>>;

/// A resolver for the addresses of servers, for use with [`Target::resolver`](crate::Target::resolver).
///
/// [`Dns`] resolves host names, and [`ServerList`] holds a list of servers that the program can change. Only
/// [`Resolve::resolve`] is required.
///
/// `resolve` is called before each attempt to connect, so the addresses may change. The returned future is polled on a
/// lookup thread, within the node's tokio runtime if the node uses one. The future may use that runtime, and may block.
/// After 10 s the lookup fails and the future is dropped. A blocked future occupies its thread until it returns. Each lookup
/// in progress has its own thread, so that a slow resolver does not delay other targets. A node uses at most 1,024 lookup
/// threads.
///
/// The first 1,024 different addresses with a port are used. An attempt tries 16 of them in order, and the next attempt
/// continues with the following ones. A [balanced channel](crate::Channel::balanced) uses all of them.
///
/// ```
/// use trunkline::report::PeerKey;
/// use trunkline::{Resolve, Resolving, Target};
///
/// /// Reads the addresses of a service from a file, one per line.
/// #[derive(Debug)]
/// struct Listed(std::path::PathBuf);
///
/// impl Resolve for Listed {
///     fn resolve(&self) -> Resolving<'_> {
///         Box::pin(async {
///             let text = std::fs::read_to_string(&self.0)?;
///             Ok(text.lines().map(str::parse).collect::<Result<Vec<PeerKey>, _>>()?)
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
    /// Looks up the current addresses of the servers, in order of preference.
    fn resolve(&self) -> Resolving<'_>;

    /// Passes the resolver a handle with which it can notify a new channel of address changes. Called on the thread that
    /// creates the channel.
    ///
    /// The default implementation drops `watcher`. A balanced channel then looks up the addresses about every 30 s, and when
    /// a server drains or is lost. If the resolver keeps `watcher`, the channel looks up the addresses only when a server
    /// drains or is lost, and after each [`AddressWatcher::notify`].
    fn watch(&self, watcher: AddressWatcher) {
        drop(watcher);
    }

    /// Returns the name of the target in statuses and logs. The name is read once, and truncated to 256 bytes. The default
    /// is the name of the resolver's type.
    fn name(&self) -> String {
        let name = std::any::type_name::<Self>();
        let path = name.split('<').next().unwrap_or(name);
        path.rsplit("::").next().unwrap_or(path).to_owned()
    }
}

/// A resolver shared with the program.
impl<R: Resolve> Resolve for Arc<R> {
    fn resolve(&self) -> Resolving<'_> {
        (**self).resolve()
    }

    fn watch(&self, watcher: AddressWatcher) {
        (**self).watch(watcher);
    }

    fn name(&self) -> String {
        (**self).name()
    }
}

/// A resolver for host names, which uses the resolver of the operating system.
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
    udp_port: Option<u16>,
}

impl Dns {
    /// Creates a resolver for a host. The port applies to each address.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port, udp_port: None }
    }

    /// Sets the UDP port of the software devices at these addresses. The default, `None`, means the UDP port of this node.
    #[must_use]
    pub fn udp_port(mut self, udp_port: Option<u16>) -> Self {
        self.udp_port = udp_port;
        self
    }
}

impl Resolve for Dns {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async {
            let found = (self.host.as_str(), self.port).to_socket_addrs()?;
            Ok(found.map(|address| PeerKey::new(address).with_udp_port(self.udp_port)).collect())
        })
    }

    fn name(&self) -> String {
        let udp_port = self.udp_port.map(|port| format!("/{port}")).unwrap_or_default();
        format!("{}:{}{udp_port}", self.host, self.port)
    }
}

/// A handle that notifies a channel of address changes, passed to [`Resolve::watch`].
#[derive(Clone)]
pub struct AddressWatcher(Weak<Link>);

impl AddressWatcher {
    pub(super) fn new(link: Weak<Link>) -> Self {
        Self(link)
    }

    /// Requests another call to [`Resolve::resolve`] on a lookup thread. Never blocks, and may be called on any thread, as
    /// often as the addresses change.
    ///
    /// Lookups requested through one channel's watcher start at least 100 ms apart. Each lookup reports all changes before
    /// its start.
    ///
    /// A balanced channel uses the new addresses after the lookup. Other channels use them after the end of their session.
    /// If the lookup fails or finds no addresses, the previous addresses stay in use.
    pub fn notify(&self) {
        if let Some(link) = self.0.upgrade() {
            link.has_changed();
        }
    }

    /// Returns true if the channel and its clones were dropped. The watcher then has no effect and can be dropped.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for AddressWatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressWatcher").field("is_closed", &self.is_closed()).finish()
    }
}

/// A list of servers that the program can change while channels use it, for [`Target::resolver`](crate::Target::resolver).
///
/// The servers may come from a configuration file, Consul or Kubernetes. Clones share the list.
///
/// ```
/// use trunkline::report::PeerKey;
/// use trunkline::{Channel, Node, Policy, ServerList, Target};
///
/// fn replicas(node: &Node, servers: &ServerList) -> Channel {
///     node.channel(Target::resolver(servers.clone())).balanced(Policy::RoundRobin)
/// }
///
/// let servers = ServerList::new("stock", ["10.0.0.1:7000".parse::<PeerKey>()?]);
/// // Later, when the servers have changed.
/// servers.set(["10.0.0.1:7000".parse::<PeerKey>()?, "10.0.0.2:7000/4792".parse()?]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct ServerList(Arc<Listed>);

#[derive(Debug)]
struct Listed {
    name: String,
    list: ForkLock<List>,
}

#[derive(Debug)]
struct List {
    servers: Vec<PeerKey>,
    channels: Vec<AddressWatcher>,
}

impl ServerList {
    /// Creates a list. `name` appears in statuses and logs.
    pub fn new(name: impl Into<String>, servers: impl IntoIterator<Item: Into<PeerKey>>) -> Self {
        let list = List { servers: servers.into_iter().map(Into::into).collect(), channels: Vec::new() };
        Self(Arc::new(Listed { name: name.into(), list: ForkLock::new(list) }))
    }

    /// Replaces the servers, and notifies the channels that use the list. Servers that remain in the list keep their
    /// sessions. Calls in flight at a removed server still complete there.
    ///
    /// If the new list is empty, channels keep their previous servers.
    ///
    /// In a forked child, logs an error and does nothing if a thread of the parent was using the list during the fork.
    pub fn set(&self, servers: impl IntoIterator<Item: Into<PeerKey>>) {
        let servers = servers.into_iter().map(Into::into).collect::<Vec<_>>();
        let Some(mut list) = self.0.list.lock() else {
            return tracing::error!(list = self.0.name, cause = FORKED, "list of servers not changed");
        };
        if list.servers == servers {
            return;
        }
        list.servers = servers;
        let channels = list.channels.clone();
        drop(list);
        channels.iter().for_each(AddressWatcher::notify);
    }
}

impl Resolve for ServerList {
    fn resolve(&self) -> Resolving<'_> {
        Box::pin(async { Ok(self.0.list.lock().ok_or(FORKED)?.servers.clone()) })
    }

    fn watch(&self, watcher: AddressWatcher) {
        // The channel's lookups report the cause.
        let Some(mut list) = self.0.list.lock() else { return };
        list.channels.retain(|channel| !channel.is_closed());
        list.channels.push(watcher);
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use crate::client::routes::Target;
    use crate::client::routes::opened;
    use trunkline_testkit::{in_forked_child, runs_alone};

    #[test]
    fn channel_of_forked_child_does_not_watch() {
        if !runs_alone(module_path!(), "channel_of_forked_child_does_not_watch") {
            return;
        }
        let (routes, servers) = (opened(), ServerList::new("servers", [] as [PeerKey; 0]));
        // Simulates a lock held by a thread that does not exist in the child.
        let _list = servers.0.list.lock();
        in_forked_child(|| drop(Link::new(&routes, Target::resolver(servers.clone()))));
    }
    #[test]
    fn locked_server_list_fails_in_forked_child() {
        if !runs_alone(module_path!(), "locked_server_list_fails_in_forked_child") {
            return;
        }
        let (at, other) =
            (PeerKey::new(([127, 0, 0, 1], 1).into()), PeerKey::new(([127, 0, 0, 1], 2).into()));
        let servers = ServerList::new("servers", [at]);
        let found = || block_on(servers.resolve()).map_err(|error| error.to_string());
        in_forked_child(|| {
            servers.set([other]);
            assert_eq!(found(), Ok(vec![other]));
        });
        let list = servers.0.list.lock();
        in_forked_child(|| {
            servers.set([other]);
            assert!(found().unwrap_err().contains("fork first"));
        });
        drop(list);
        assert_eq!(found(), Ok(vec![at]));
    }
}
