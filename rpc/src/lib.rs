//! Generated RPC over XRC trunks.
//!
//! Mark a trait with [`service`]: for a trait `Kv` that generates `KvServer`, `KvClient` and `KvLocal`.
//! Start a [`Node`], pass it servers, and connect clients.
//!
//! ```no_run
//! use trunkline::{Node, Status};
//!
//! #[trunkline::service]
//! pub trait Greeter {
//!     async fn greet(&self, name: String) -> Result<String, Status>;
//! }
//!
//! struct Polite;
//!
//! impl Greeter for Polite {
//!     async fn greet(&self, name: String) -> Result<String, Status> {
//!         Ok(format!("Good day, {name}!"))
//!     }
//! }
//!
//! let server = Node::builder().listen("127.0.0.1:0").serve(GreeterServer::new(|| Polite)).start()?;
//! let node = Node::builder().listen("127.0.0.1:0").start()?;
//! let client = GreeterClient::connect(&node, server.local_address())?;
//! println!("{}", trunkline::block_on(client.greet("trunk".into()))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A handler runs on a poller's thread and must not block, because the poller's other calls wait for it; it awaits
//! the calls that it makes itself ([`block_on`] refuses to wait for them).
//! It is dropped at an `await` when its call's time limit has passed, and in a call with a reply also when the caller has dropped
//! the future or its session has ended: what must not stop half-way does not belong into it.
//!
//! A call is made when the client's method is called, not when its future is first polled, and is cancelled when the future is
//! dropped, polled or not.
//! A call fails with a [`Status`] when its deadline passes or the server is lost, so no call hangs. Whether it waits for
//! a server that is not there yet, and for room when its node's limits are met, is up to its [`CallOptions`].
//!
//! Nodes log through `tracing`; a program sees that when it has installed a subscriber.

#![forbid(unsafe_code)]

mod admission;
mod budgets;
mod call;
mod call_error;
mod client;
mod codec;
mod context;
mod executor;
mod fake;
#[cfg(feature = "clap")]
mod flags;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod inboxes;
mod lifecycle;
mod name;
mod node;
mod occupant;
mod on_poller;
mod proof;
mod reason;
mod server;
mod start_error;
mod status;
pub mod stub;
mod upper;

pub use admission::Admission;
pub use bytes::Bytes;
pub use call_error::CallError;
pub use client::{CallOptions, Channel, LocalChannel};
pub use context::PollerContext;
#[cfg(feature = "clap")]
pub use flags::DeviceFlags;
pub use node::{Node, NodeBuilder, RunOn};
pub use on_poller::block_on;
pub use reason::{Origin, Reason};
pub use start_error::{StartCause, StartError};
pub use status::{Code, Status};
pub use trunkline_macros::service;
pub use trunkline_transport::{
    BudgetReport, Connect, Connections, DeviceCounter, LaneReport, Limit, LimitReport, NicOptions, NoNic,
    NodeReport, PeerKey, Pinning, PollerIndex, ProviderChoice, RegisteredBuffer,
};
