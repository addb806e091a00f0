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
//! The crate root has the API for service authors. Devices are in [`device`], reports in [`report`], and codecs in
//! [`codec`]. Nodes log through `tracing`.

#![forbid(unsafe_code)]

// The macro names this crate by its name.
extern crate self as trunkline;

mod call;
mod client;
pub mod codec;
mod executor;
#[doc(hidden)]
pub mod fuzz;
#[cfg(feature = "identity")]
pub mod identity;
mod node;
mod observe;
#[cfg(feature = "policy")]
pub mod policy {
    //! Authorization by rules in a file: which peers may make which calls.
    //!
    //! [`NodeBuilder::policy_file`](crate::NodeBuilder::policy_file) puts a file in force at a node, which reads it again when
    //! it changes. `trunkctl policy check` finds the faults of a file, and decides about a call. A policy has `[[allow]]` and
    //! `[[deny]]` rules, each with patterns of peers and of calls:
    //!
    //! ```toml
    //! [[allow]]
    //! peers = ["spiffe://prod/shop/*", "*.internal.example", "10.1.0.7"]
    //! calls = ["/shop.Orders/*", "/shop.Stock/get"]
    //!
    //! [[deny]]
    //! peers = ["old.internal.example"]
    //! calls = ["*"]
    //! ```
    //!
    //! A call is allowed if an `[[allow]]` rule matches it and no `[[deny]]` rule does. All others are denied.
    //!
    //! | peer | matches |
    //! |---|---|
    //! | `spiffe://prod/shop` | the SPIFFE URI |
    //! | `spiffe://prod/shop/*` | all SPIFFE URIs below this one |
    //! | `a.example` | the DNS name |
    //! | `*.example` | all names with one label before `example` |
    //! | `10.1.0.7` | the proven IP address |
    //! | `local`, `local:1000` | users of this host, or one by its UID; by default all processes of the node's own user |
    //! | `unproven` | peers without a proven name |
    //!
    //! A call is `/service/method`, `/service/*`, or `*` for all. Each of a peer's proven names counts.

    pub use crate::server::policy::{
        AccessPolicy, CallPattern, DenialCause, Effect, PeerPattern, PolicyDecision, PolicyError, PolicyFile,
        PolicyFileError, PolicyPeer, Rule,
    };
}
mod poller;
mod server;
mod status;
pub mod stream;
#[doc(hidden)]
pub mod stub;
mod wire;

pub mod device {
    //! Options for the device of a node, for [`NodeBuilder`](crate::NodeBuilder).

    #[cfg(feature = "clap")]
    pub use crate::node::flags::DeviceFlags;
    pub use trunkline_transport::{Connections, NicOptions, NoNic, Pinning, ProviderChoice};
    pub use trunkline_verbs::PathChoice;
}

pub mod report {
    //! The report of a node, from [`Node::report`](crate::Node::report), and its last events, from
    //! [`Node::record`](crate::Node::record).

    pub use trunkline_transport::{
        BudgetReport, EventCounter, EventKind, FailedCalls, Histogram, LaneReport, LimitReport, MethodReport,
        NodeReport, PathReport, PeerKey, RecordedEvent, ServerReport,
    };
}

pub use bytes::Bytes;
pub use call::Admission;
pub use call::context::{Cancelled, Context, Draining, Peer, PollerContext, Scoped};
pub use client::routes::{
    AddressWatcher, Balance, Dns, Policy, Ready, Resolve, ResolveError, Resolving, ServerList, Target,
};
pub use client::{CallOptions, Channel, ClientCall, ClientInterceptor, LocalChannel};
pub use executor::{Elapsed, Sleep, Spawned, Yielded, block_on, sleep, spawn, timeout, yield_now};
pub use futures_core::Stream;
#[cfg(feature = "clap")]
#[doc(hidden)]
pub use node::flags::DeviceFlags;
pub use node::start_error::{StartCause, StartError};
pub use node::{Node, NodeBuilder, RunOn};
pub use observe::health;
#[cfg(feature = "opentelemetry")]
pub use observe::otel::OpenTelemetry;
pub use server::{Authorize, IncomingCall, ServerCall, ServerInterceptor};
pub use status::call_error::CallError;
pub use status::details::Details;
pub use status::nested_status;
pub use status::reason::{Origin, Reason};
pub use status::{Code, Status};
pub use stream::Streaming;
pub use trunkline_macros::service;
pub use trunkline_transport::{
    Connect, InProcessNetwork, Limit, PollerIndex, ProviderChoice, RegisteredBuffer,
};
pub use wire::metadata::{Metadata, MetadataError, ResponseMetadata, TraceContext};

// Documented in `device` and `report`. These paths exist for programs that already use them.
#[doc(hidden)]
pub use device::{Connections, NicOptions, NoNic, Pinning};
#[doc(hidden)]
pub use report::{BudgetReport, EventCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey};
