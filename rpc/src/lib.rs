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
//! let server = Node::builder().listen("127.0.0.1:0").serve(GreeterServer::new(Polite)).start()?;
//! let node = Node::builder().listen("127.0.0.1:0").start()?;
//! let client = GreeterClient::new(node.channel(server.local_address()));
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
//! What service authors need is here; which device a node runs on is in [`device`], what a node reports in [`report`], codecs are in [`codec`],
//! and what generated code uses is in [`stub`].
//!
//! Nodes log through `tracing`; a program sees that when it has installed a subscriber.

#![forbid(unsafe_code)]

mod admission;
mod block_on;
mod budgets;
mod call;
mod call_error;
mod client;
pub mod codec;
mod context;
mod conversions;
mod details;
pub mod device;
mod executor;
mod fake;
#[cfg(feature = "clap")]
mod flags;
mod foreign;
mod frame;
#[doc(hidden)]
pub mod fuzz;
mod inbox;
mod inboxes;
mod lifecycle;
mod name;
mod named;
pub mod nested_status;
mod node;
mod not_made;
mod occupant;
mod on_poller;
mod pool;
mod reason;
pub mod report;
mod resolved;
mod route_id;
mod routes;
mod schema;
mod server;
mod start_error;
mod status;
pub mod stub;
mod timers;
mod upper;
mod wait;
mod watchdog;

pub use admission::Admission;
pub use block_on::block_on;
pub use bytes::Bytes;
pub use call_error::CallError;
pub use client::{CallOptions, Channel, LocalChannel};
pub use context::{Cancelled, Context, Peer, PollerContext, Scoped};
pub use details::Details;
pub use executor::{Elapsed, Sleep, Spawned, Yielded, sleep, spawn, timeout, yield_now};
#[cfg(feature = "clap")]
#[doc(hidden)]
pub use flags::DeviceFlags;
pub use node::{Node, NodeBuilder, RunOn};
pub use reason::{Origin, Reason};
pub use routes::{Dns, Ready, Resolve, ResolveError, Resolving, Target};
pub use start_error::{StartCause, StartError};
pub use status::{Code, Status};
pub use trunkline_macros::service;
pub use trunkline_transport::{
    Connect, InProcessNetwork, Limit, PollerIndex, ProviderChoice, RegisteredBuffer,
};

// Their place is in `device` and `report`; programs that name them here go on to compile.
#[doc(hidden)]
pub use device::{Connections, NicOptions, NoNic, Pinning};
#[doc(hidden)]
pub use report::{BudgetReport, DeviceCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey};
