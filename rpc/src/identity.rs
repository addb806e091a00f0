//! Names of nodes, proved by certificates.
//!
//! The two nodes of a session prove their names before it begins, and encrypt its frames. By default, processes of one user
//! on one host are exempt, as [`NodeBuilder::exempt_local_user`](crate::NodeBuilder::exempt_local_user) describes.
//!
//! A node has an [`Identity`], which is a chain of certificates with the private key. It also has [`Trust`], which contains
//! the roots to which peers' certificates must chain. `trunkctl keys` creates both. [`Peer::name`](crate::Peer::name)
//! returns the name of a caller, for handlers and for authorizers added with
//! [`NodeBuilder::authorize`](crate::NodeBuilder::authorize):
//!
//! ```no_run
//! use std::fs::read;
//! use trunkline::identity::{Identity, Name, Trust};
//! use trunkline::{Context, IncomingCall, Node, Status};
//!
//! #[trunkline::service]
//! trait Orders {
//!     async fn place(&self, cx: &Context, item: String) -> Result<String, Status>;
//! }
//!
//! struct Shop;
//!
//! impl Orders for Shop {
//!     async fn place(&self, cx: &Context, item: String) -> Result<String, Status> {
//!         let name = cx.peer().and_then(|peer| peer.name());
//!         let name = name.ok_or_else(|| Status::unauthenticated("a caller without a name"))?;
//!         Ok(format!("{item} for {name}"))
//!     }
//! }
//!
//! let server = Node::builder()
//!     .listen("127.0.0.1:0")
//!     .identity(Identity::from_pem(&read("shop.pem")?, &read("shop.key")?)?)
//!     .trust(Trust::from_pem(&read("roots.pem")?)?)
//!     .authorize(|call: &IncomingCall<'_>| match call.peer().name() {
//!         Some(Name::Dns(name)) if name.ends_with(".till.example") => Ok(()),
//!         _ => Err(Status::permission_denied("tills only")),
//!     })
//!     .serve(OrdersServer::new(Shop))
//!     .start()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A channel calls only servers that have proved the name that the channel expects. If the target is a host name, the
//! expected name is the host name. If the target is an address or a resolver, it is the IP address of each server.
//! [`Target::named`](crate::Target::named) sets another expected name:
//!
//! ```
//! use trunkline::{Channel, Node, Target};
//!
//! fn shop(node: &Node) -> Channel {
//!     node.channel(Target::from("10.0.0.1:7000").named("spiffe://prod/shop"))
//! }
//! ```
//!
//! Calls to a server with another name fail with [`Code::Unauthenticated`](crate::Code::Unauthenticated) and have not run.
//! With [`Connect::Wait`](crate::Connect::Wait), they wait until a server has the expected name. A channel with the resolver
//! [`Dns`](crate::Dns) also expects IP addresses.
//!
//! If a handshake fails, calls fail with [`Code::Unauthenticated`](crate::Code::Unauthenticated) and the cause, and have not
//! run. If too many handshakes are in progress, or if a handshake times out, the code is `Unavailable`, because a retry can
//! succeed.

use std::io;
use std::path::PathBuf;
use std::time::SystemTime;
pub use trunkline_transport::PeerIdentity;
pub use trunkline_transport::identity::{
    CertificateDer, Expected, HandshakeFailure, Identity, IdentityError, InvalidName, Level, Name, Proven,
    Refused, Trust,
};
use trunkline_transport::utc;

/// An error in the identity or the trust of a node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadIdentity {
    /// The node has an identity but no trust.
    #[error("it has no trust: give the node the roots of its peers' certificates (NodeBuilder::trust)")]
    NoTrust,
    /// The node has trust, or requires names of its peers, but has no identity.
    #[error("there is none: give the node its certificates and private key (NodeBuilder::identity)")]
    NoIdentity,
    /// A certificate of the node's chain has expired.
    #[error("its certificate expired on {}: renew it, or correct the clock of this host", date(*.0))]
    Expired(SystemTime),
    /// A certificate of the node's chain is not valid yet.
    #[error("its certificate is not valid yet: correct the clock of this host, or that of the issuer")]
    NotYetValid,
    /// The identity or the trust cannot be used.
    #[error("{0}; `trunkctl keys show` lists the faults of PEM files")]
    Unusable(IdentityError),
    /// A file cannot be read.
    #[error("{0}: give the path of a regular file that the user of this node can read")]
    Unreadable(io::Error),
    /// The error is in a file of the identity or the trust, or the file cannot be read.
    #[error("{}: {cause}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Cause, with its remedy.
        cause: Box<Self>,
    },
}

/// Returns the UTC date of `time`, which is after 1970, in the form 2027-01-31.
fn date(time: SystemTime) -> String {
    let mut day = utc(time);
    day.truncate("2027-01-31".len());
    day
}
