//! Generated RPC over XRC trunks.
//!
//! Mark a trait with [`service`]: next to the trait `Kv` stand `KvServer`, `KvClient` and
//! `KvLocal`. Start a [`Node`], give it servers, connect clients.
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
//! A handler runs on a poller's thread, and its first poll inside the poller's loop: it should not
//! block. Calls end with a [`Status`] when the deadline passes or the server is gone; none hangs.

#![forbid(unsafe_code)]

mod client;
mod codec;
mod executor;
mod fake;
#[cfg(feature = "clap")]
mod flags;
mod frame;
pub mod fuzz;
mod inbox;
mod name;
mod node;
mod server;
mod status;
pub mod stub;
mod upper;

pub use bytes::Bytes;
pub use client::{Channel, LocalChannel};
pub use executor::PollerContext;
#[cfg(feature = "clap")]
pub use flags::DeviceFlags;
pub use futures_lite::future::block_on;
pub use node::{Node, NodeBuilder, RunOn, StartError};
pub use status::{Code, Status};
pub use trunkline_macros::service;
pub use trunkline_transport::{
    Connections, LaneReport, NicOptions, NoNic, NodeReport, Pinning, PollerIndex, ProviderChoice,
};
