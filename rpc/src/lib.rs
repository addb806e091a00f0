//! RPC over RDMA, for services that call each other across many nodes and cores, with or without RDMA cards. A service is a
//! Rust trait, from which [`service`] generates a server and clients. Without a card, a software RDMA device carries calls
//! over UDP, or through shared memory between processes on one host.
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
//! let node = Node::builder().start()?;
//! let client = GreeterClient::new(node.channel(server.local_address()));
//! println!("{}", trunkline::block_on(client.greet("trunk".into()))?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | see |
//! |---|---|
//! | declare a service | [`service`] |
//! | start and end a node | [`Node`], [`NodeBuilder`] |
//! | choose a server and call options | [`Channel`], [`Target`], [`Policy`], [`CallOptions`] |
//! | write a handler | [`Context`], [`spawn`], [`sleep`], [`timeout`] |
//! | handle errors | [`Status`], [`CallError`] |
//! | stream items | [`Streaming`], [`stream::channel`] |
//! | intercept and authorize calls | [`ClientInterceptor`], [`ServerInterceptor`], [`Authorize`] |
//! | test | [`Node::in_process`] |
//! | operate | [`health`], [`report`], [`device`]; nodes log through `tracing` |
//!
//! A handler runs on a poller's thread by default and must not block, because other calls on that thread would wait. The
//! handler is dropped at an `await` when its call's time limit passes. Unless the call is one-way, the handler is also
//! dropped when the caller drops the future or the session ends. [`spawn`] work that must run to completion.
//!
//! A call starts when the client's method is called, is cancelled when its future is dropped, and times out after 10 s by
//! default. Streaming calls have no time limit by default.
//!
//! # Cargo features
//!
//! | feature | default | adds | needs |
//! |---|---|---|---|
//! | `tokio` | yes | `NodeBuilder::tokio`, which allows tokio in handlers | |
//! | `identity` | yes | `identity`, with certificates, encryption and `NodeBuilder::policy_file`; enables `policy` | a C compiler |
//! | `policy` | with `identity` | `policy`, which authorizes calls by rules in a file | |
//! | `rdma-core` | no | support for NICs | libibverbs, librdmacm, their headers, libclang |
//! | `message-pack` | no | `codec::MessagePack`, which allows adding fields and variants | |
//! | `anyhow`, `eyre` | no | the crate's `Result` as a return type of methods, and conversion of its error to [`Status`] | |
//! | `opentelemetry` | no | `OpenTelemetry`, which links spans across nodes | a layer of `tracing-opentelemetry` |
//! | `metrics` | no | call metrics through the `metrics` facade | a recorder |
//! | `clap` | no | `device::DeviceFlags`, command-line flags that choose a device | |
//!
//! # Book
//!
//! The repository contains the book. `docs/book/src/start/first-service.md` is a tutorial. `docs/book/src/guide` contains a
//! page on each part of this API, such as `calls.md` and `streams.md`. The pages for operators start with
//! `docs/book/src/operate/deploying.md`. `README.md` lists measurements and limits.

#![forbid(unsafe_code)]

// The macro refers to this crate as `trunkline`.
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
    //! Authorization by rules in a file. The rules state which peers may make which calls.
    //!
    //! [`NodeBuilder::policy_file`](crate::NodeBuilder::policy_file) sets a node's policy file. The node reloads the file
    //! when it changes. `trunkctl policy check` reports errors in a file and the decision on a given call. A policy consists
    //! of `[[allow]]` and `[[deny]]` rules, each with patterns for peers and calls:
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
    //! A call is allowed if an `[[allow]]` rule matches it and no `[[deny]]` rule does. All other calls are denied.
    //!
    //! | peer | matches |
    //! |---|---|
    //! | `spiffe://prod/shop` | this SPIFFE URI |
    //! | `spiffe://prod/shop/*` | all SPIFFE URIs below this one |
    //! | `a.example` | this DNS name |
    //! | `*.example` | DNS names with exactly one label before `example` |
    //! | `10.1.0.7` | peers that have proved this IP address |
    //! | `local`, `local:1000` | users of this host, or the user with UID 1000; processes of the node's own user are `local` by default |
    //! | `unproven` | peers without a proven name |
    //!
    //! A call pattern is `/service/method`, `/service/*`, or `*` for all calls. A peer pattern may match any of the peer's
    //! proven names. The guide is `docs/book/src/guide/authorization.md`.

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
    //! Options for the device of a node, set through [`NodeBuilder`](crate::NodeBuilder).
    //!
    //! ```
    //! use trunkline::device::{PathChoice, ProviderChoice};
    //! use trunkline::Node;
    //!
    //! // Uses the software device over UDP, even between processes on one host.
    //! let builder = Node::builder().provider(ProviderChoice::Soft).link(PathChoice::Udp);
    //! ```
    //!
    //! The defaults are described in `docs/book/src/guide/servers.md`.

    #[cfg(feature = "clap")]
    pub use crate::node::flags::DeviceFlags;
    pub use trunkline_transport::{Connections, NicOptions, NoNic, Pinning, ProviderChoice};
    pub use trunkline_verbs::PathChoice;
}

pub mod report {
    //! Types for the report of a node, from [`Node::report`](crate::Node::report), and for its latest events, from
    //! [`Node::record`](crate::Node::record).
    //!
    //! ```
    //! # fn print(node: &trunkline::Node) {
    //! let report = node.report();
    //! println!("{} {}: {}", report.provider, report.device, report.why);
    //! for method in &report.served {
    //!     println!("{}: {} calls, p99 {:?}", method.method, method.calls, method.latency.quantile(0.99));
    //! }
    //! # }
    //! ```

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
pub use trunkline_transport::{
    Connect, InProcessNetwork, Limit, PollerIndex, ProviderChoice, RegisteredBuffer,
};
pub use wire::metadata::{Metadata, MetadataError, ResponseMetadata, TraceContext};

/// Generates a server, clients, and traits for mocks from a trait of `async fn`s.
///
/// ```
/// use trunkline::{Node, Status, block_on};
///
/// #[trunkline::service]
/// trait Kv {
///     async fn get(&self, key: String) -> Result<Option<String>, Status>;
/// }
///
/// struct OneKey;
///
/// impl Kv for OneKey {
///     async fn get(&self, key: String) -> Result<Option<String>, Status> {
///         Ok((key == "a").then(|| "1".into()))
///     }
/// }
///
/// let (server, node) = Node::in_process(KvServer::new(OneKey))?;
/// let client = KvClient::new(node.channel(server.local_address()));
/// assert_eq!(block_on(client.get("a".into()))?.as_deref(), Some("1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The macro emits these items for a trait `Kv`:
///
/// | item | purpose |
/// |---|---|
/// | `KvServer::new(handler)` | the argument of [`NodeBuilder::serve`]; all pollers share the handler, which must be `Send + Sync` |
/// | `KvServer::shared(arc)` | like `new`, with an [`Arc`](std::sync::Arc) that the program also keeps |
/// | `KvServer::per_poller(make)` | one handler per poller, which need not be `Send`; `make` takes a [`PollerContext`] and returns a `Result` |
/// | `KvClient` | makes calls from any thread and executor; created with `new(channel)` or `connect(&node, target)` |
/// | `KvLocal` | makes calls on the poller of a handler or task; created with `new(local_channel)` or `connect(&poller_context, target)` |
/// | `KvClientWith`, `KvLocalWith` | clients with given [`CallOptions`], returned by `with(&options)` |
/// | `KvCalls`, `LocalKvCalls` | the clients' methods as traits, for generic code and mocks |
///
/// # Methods
///
/// - A method is an `async fn` with `&self` and up to 12 arguments that own their data. It returns `T`,
///   `Result<T, Status>` or `Result<T, E>`.
/// - Arguments, results and errors implement serde's `Serialize` and `Deserialize`.
/// - A last argument of type [`Bytes`], and results of type `Bytes` or `Option<Bytes>`, are sent as raw bytes. The macro
///   recognizes the type by name, so the name `Bytes` must refer to this type.
/// - A parameter `cx: &Context` may precede the arguments. It is not sent, and client methods omit it. See [`Context`].
/// - With cargo feature `anyhow` or `eyre`, a method may return `anyhow::Result<T>` or `eyre::Result<T>`, spelled with the
///   path. The client gets a [`Status`].
/// - The names `clone`, `connect`, `into`, `ordered`, `try_into`, `with` and `with_timeout` are reserved for functions of
///   clients. A method with the wire name `connect` needs another name in Rust, and the attribute `#[name = "connect"]`.
///
/// # Calls
///
/// A call starts when the client's method is called. The method encodes the arguments and passes them to a poller before it
/// returns. The future resolves to the outcome, or to an error if the call could not be started. It borrows only the client,
/// so calls can run concurrently.
///
/// Dropping the future cancels the call, even before the first poll. A request that is still queued is not sent. If the
/// request was sent, the server drops the handler at its next `await`, unless the call is one-way.
///
/// Calls through `client.ordered()` start at the server in the order in which they were made.
///
/// # Errors
///
/// If a method returns `Result<T, Status>` or a plain `T`, its calls fail with a [`Status`]. If a method returns its own
/// error type, its calls fail with a [`CallError`]. It contains the handler's error, or a status if a node ended the call.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use trunkline::{CallError, Node, block_on};
///
/// #[derive(Debug, Serialize, Deserialize)]
/// enum ShopError {
///     OnlyLeft(u32),
/// }
///
/// #[trunkline::service]
/// trait Shop {
///     async fn order(&self, pieces: u32) -> Result<(), ShopError>;
/// }
///
/// struct Small;
///
/// impl Shop for Small {
///     async fn order(&self, pieces: u32) -> Result<(), ShopError> {
///         if pieces > 3 { Err(ShopError::OnlyLeft(3)) } else { Ok(()) }
///     }
/// }
///
/// let (server, node) = Node::in_process(ShopServer::new(Small))?;
/// let client = ShopClient::new(node.channel(server.local_address()));
/// match block_on(client.order(5)) {
///     Ok(()) => println!("ordered"),
///     Err(CallError::Handler(ShopError::OnlyLeft(pieces))) => println!("{pieces} left"),
///     Err(CallError::Status(status)) if !status.may_have_run() => println!("not run: {status}"),
///     Err(CallError::Status(status)) => println!("may have run: {status}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Deadlines and options
///
/// A call times out after 10 s by default, or at the deadline of the handler that makes it. A streaming call has only the
/// handler's deadline by default. `with_timeout` sets the time limit of a client's calls, and [`CallOptions::timeout`] the
/// time limit of one call. Neither extends a handler's deadline.
///
/// ```no_run
/// # use std::time::Duration;
/// # use trunkline::{CallOptions, Connect, Status};
/// # #[trunkline::service]
/// # trait Kv {
/// #     async fn get(&self, key: String) -> Result<Option<String>, Status>;
/// # }
/// # async fn calls(client: KvClient) -> Result<(), Status> {
/// let quick = client.clone().with_timeout(Duration::from_millis(200));
/// let value = quick.get("a".into()).await?;
///
/// let patient = CallOptions::new().timeout(Duration::from_secs(30)).connect(Connect::Wait);
/// let value = client.with(&patient).get("a".into()).await?;
/// # Ok(())
/// # }
/// ```
///
/// # Streams
///
/// The server streams items if the method returns `Result<impl Stream<Item = Result<T, Status>>, E>`. The client streams
/// items if the last argument is a [`Streaming<T>`](Streaming). A method may do both.
///
/// The client receives the server's items through a `Streaming<T>`, and passes its own items as a
/// `Stream<Item = T> + Send + 'static`. [`stream::channel`] creates such a stream.
///
/// ```
/// use trunkline::{Node, Status, Stream, Streaming, block_on, stream};
///
/// #[trunkline::service]
/// trait Numbers {
///     async fn sum(&self, numbers: Streaming<u32>) -> Result<u32, Status>;
///     async fn echo(&self, numbers: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status>;
/// }
///
/// struct Server;
///
/// impl Numbers for Server {
///     async fn sum(&self, mut numbers: Streaming<u32>) -> Result<u32, Status> {
///         let mut sum = 0;
///         while let Some(number) = numbers.message().await? {
///             sum += number;
///         }
///         Ok(sum)
///     }
///
///     async fn echo(&self, numbers: Streaming<u32>) -> Result<impl Stream<Item = Result<u32, Status>>, Status> {
///         Ok(numbers)
///     }
/// }
///
/// let (server, node) = Node::in_process(NumbersServer::new(Server))?;
/// let client = NumbersClient::new(node.channel(server.local_address()));
///
/// let (sender, numbers) = stream::channel(4);
/// let sum = client.sum(numbers);
/// block_on(sender.send(3))?;
/// block_on(sender.send(4))?;
/// sender.finish(); // a sender dropped without this fails the call
/// assert_eq!(block_on(sum)?, 7);
///
/// let (sender, numbers) = stream::channel(4);
/// let mut echo = block_on(client.echo(numbers))?;
/// block_on(sender.send(5))?;
/// sender.finish();
/// assert_eq!(block_on(echo.message())?, Some(5));
/// assert_eq!(block_on(echo.message())?, None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Attributes of methods
///
/// ```
/// use trunkline::{Bytes, Context, Status};
///
/// #[trunkline::service]
/// trait Images {
///     /// Runs on a poller and must not block. A balanced channel may repeat the call.
///     #[idempotent]
///     async fn size(&self, name: String) -> Result<(u32, u32), Status>;
///
///     /// Runs in the worker pool, because it computes for long.
///     #[offload]
///     async fn thumbnail(&self, name: String) -> Result<Bytes, Status>;
///
///     /// Writes a file, and occupies one worker of the pool until it returns.
///     #[blocking]
///     async fn store(&self, cx: &Context, name: String, image: Bytes) -> Result<(), Status>;
///
///     /// Sends no reply.
///     #[oneway]
///     async fn viewed(&self, name: String);
///
///     /// Has the wire name `connect`, which is reserved in Rust.
///     #[name = "connect"]
///     async fn connect_to(&self, gallery: String) -> Result<(), Status>;
/// }
/// ```
///
/// The client's method for `viewed` returns `Result<(), Status>`. `Ok` means that the request is in the server's memory,
/// even if the server lacks the method. A server logs one-way calls that it refuses.
///
/// In `#[offload]` and `#[blocking]` methods, [`Context::current`] returns the call's context. A call that is cancelled or
/// expires while it is queued does not run. A running `#[blocking]` method is not interrupted, but can check
/// [`Context::is_cancelled`]. `per_poller` is not generated for a service with `#[offload]` or `#[blocking]` methods.
///
/// # Options of the service
///
/// ```
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Order;
/// # use trunkline::Status;
/// use trunkline::codec::Bincode;
///
/// #[trunkline::service(name = "shop.Orders", version = 3, accepts = 2..=3, codec = Bincode)]
/// trait Orders {
///     async fn place(&self, order: Order) -> Result<(), Status>;
/// }
/// ```
///
/// The stubs refer to this crate as `::trunkline`. The `crate` option sets another path, here to a re-export:
///
/// ```
/// mod facade {
///     pub use trunkline as rpc;
/// }
///
/// #[facade::rpc::service(crate = facade::rpc)]
/// trait Greeter {
///     async fn greet(&self, name: String) -> Result<String, facade::rpc::Status>;
/// }
/// # fn main() {}
/// ```
///
/// Clients and servers may use different versions of a trait. A new version can add methods, and arguments at the end of a
/// method. A missing argument is `None` if its type is an `Option`; otherwise the call is refused. Unknown arguments are
/// skipped. `docs/book/src/guide/evolution.md` lists all allowed changes. See also `services.md`, `calls.md`, `errors.md`,
/// `streams.md` and `threads.md` in that folder.
///
/// # Reference
pub use trunkline_macros::service;

// Documented in `device` and `report`. These paths exist for programs that already use them.
#[doc(hidden)]
pub use device::{Connections, NicOptions, NoNic, Pinning};
#[doc(hidden)]
pub use report::{BudgetReport, EventCounter, LaneReport, LimitReport, NodeReport, PathReport, PeerKey};
