//! RPC over RDMA XRC, with stubs generated from a Rust trait.
//!
//! Mark a trait with [`service`]. For a trait `Kv` the attribute generates `KvServer`, `KvClient` and `KvLocal`. Start a
//! [`Node`], pass it servers, and connect clients.
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
//! A handler runs on a poller's thread and must not block, because the poller's other calls would wait for it. It
//! awaits the calls that it makes; [`block_on`] refuses to wait for them. A handler is dropped at an `await` when
//! its call's time limit passes. If the call has a reply, the handler is also dropped when the caller drops the
//! future or the session ends. [`spawn`] work that must run to completion.
//!
//! Calling a client's method starts the call, and dropping its future cancels it, polled or not. A call never hangs: it
//! fails with a [`Status`] when its deadline passes or the server is lost. [`CallOptions`] choose whether a call
//! waits for an unreachable server, and for room when its node's limits are reached.
//!
//! The crate root has the API for service authors. Devices are in [`device`], reports in [`report`], codecs in
//! [`codec`], and the API of generated code in [`stub`]. Nodes log through `tracing`.

#![forbid(unsafe_code)]

// The macro names this crate by its name.
extern crate self as trunkline;

mod admission;
mod block_on;
mod budgets;
mod call;
mod call_error;
mod client;
pub mod codec;
mod context;
mod conversions;
mod counted;
mod details;
pub mod device;
mod executor;
mod fake;
#[cfg(feature = "clap")]
mod flags;
mod fnv;
mod foreign;
mod fork_lock;
mod frame;
#[doc(hidden)]
pub mod fuzz;
pub mod health;
mod inbox;
mod inboxes;
mod lifecycle;
mod metadata;
mod method_shapes;
mod name;
mod named;
pub mod nested_status;
mod node;
mod not_made;
mod occupant;
mod on_poller;
#[cfg(feature = "opentelemetry")]
mod otel;
mod peer_memory;
mod pool;
#[cfg(feature = "metrics")]
mod published;
mod reason;
pub mod report;
mod resolved;
mod response;
mod route_id;
mod routes;
mod schema;
mod server;
mod start_error;
mod status;
pub mod stream;
pub mod stub;
mod thread_time;
mod timers;
mod upper;
mod wait;
mod waiters;
mod wakes;
mod watchdog;

pub use admission::Admission;
pub use block_on::block_on;
pub use bytes::Bytes;
pub use call_error::CallError;
pub use client::{CallOptions, Channel, ClientCall, ClientInterceptor, LocalChannel};
pub use context::{Cancelled, Context, Draining, Peer, PollerContext, Scoped};
pub use details::Details;
pub use executor::{Elapsed, Sleep, Spawned, Yielded, sleep, spawn, timeout, yield_now};
#[cfg(feature = "clap")]
#[doc(hidden)]
pub use flags::DeviceFlags;
pub use futures_core::Stream;
pub use metadata::{Metadata, MetadataError, ResponseMetadata, TraceContext};
pub use node::{Node, NodeBuilder, RunOn};
#[cfg(feature = "opentelemetry")]
pub use otel::OpenTelemetry;
pub use reason::{Origin, Reason};
pub use routes::{
    AddressWatcher, Balance, Dns, Policy, Ready, Resolve, ResolveError, Resolving, ServerList, Target,
};
pub use server::{Authorize, IncomingCall, ServerCall, ServerInterceptor};
pub use start_error::{StartCause, StartError};
pub use status::{Code, Status};
pub use stream::Streaming;
pub use trunkline_macros::service;
pub use trunkline_transport::{
    Connect, InProcessNetwork, Limit, PollerIndex, ProviderChoice, RegisteredBuffer,
};

// Documented in `device` and `report`. These paths exist for programs that already use them.
#[doc(hidden)]
pub use device::{Connections, NicOptions, NoNic, Pinning};
#[doc(hidden)]
pub use report::{BudgetReport, DeviceCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey};
