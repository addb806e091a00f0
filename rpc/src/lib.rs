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
//! A handler runs on a poller's thread and must not block, because the poller's other calls wait for it.
//! A call fails with a [`Status`] when its deadline passes or the server is lost, so no call hangs.

#![forbid(unsafe_code)]

mod budgets;
mod call;
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
mod name;
mod node;
mod server;
mod start_error;
mod status;
pub mod stub;
mod upper;

pub use bytes::Bytes;
pub use client::{Channel, LocalChannel};
pub use context::PollerContext;
#[cfg(feature = "clap")]
pub use flags::DeviceFlags;
pub use futures_lite::future::block_on;
pub use node::{Node, NodeBuilder, RunOn};
pub use start_error::{StartCause, StartError};
pub use status::{Code, Status};
pub use trunkline_macros::service;
pub use trunkline_transport::{
    BudgetReport, Connections, DeviceCounter, LaneReport, Limit, NicOptions, NoNic, NodeReport, PeerKey,
    Pinning, PollerIndex, ProviderChoice,
};
