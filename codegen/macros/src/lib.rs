//! The attribute macro `#[trunkline::service]`; the crate `trunkline` re-exports it.

use proc_macro::TokenStream;

/// Turns a trait into a service: for a trait `Kv` it also emits `KvServer`, `KvClient` and `KvLocal`, and what `with`
/// returns, `KvClientWith` and `KvLocalWith`.
///
/// | emitted | what it is for |
/// |---|---|
/// | `KvServer::new(make)` | pass it to `NodeBuilder::serve`; `make` is called once per poller |
/// | `KvServer::with_context(make)` | the same; `make` is passed the `PollerContext` |
/// | `KvClient::connect(&node, address)` | a client for any thread, with the trait's methods |
/// | `KvLocal::connect(&context, address)` | a client for handlers, on the poller of the context |
/// | `client.with_timeout(duration)` | the client with another time limit for each call; 10 s by default |
/// | `client.ordered()` | a client whose calls start at the server in the order in which its methods were called |
/// | `client.with(&options)` | its methods with other `CallOptions`, such as waiting for a server that is not there yet |
///
/// The clients' methods are plain functions that return futures. A call is made when its method is called: the arguments are
/// encoded and handed to a poller before the method returns, its time limit counts from then, and the handler may run although
/// the future is never polled. The future brings the outcome, also that of a call that could not be made, and borrows the
/// client. Dropping it cancels the call, polled or not: one that has not left never does, and one that has may have run.
///
/// Arguments, all optional: `name = "..."`, the name on the wire (the trait's own by default), and
/// `version = N`, the version of the schema (1 by default, a `u32`). Methods are `async fn`, take `&self`
/// and up to 12 arguments that own their data, and return `Result<T, Status>` or `T`. In place of `Status` a method may
/// have an error `E` of its own that serde encodes, which is sent as it is: the client's method then fails with
/// `CallError<E>`, which is the handler's error or the `Status` of a call that a node ended. A method marked
/// `#[oneway]` returns nothing and sends no reply: the client's method returns `Result<(), Status>`, and `Ok` says that the
/// request is in the server's memory, not that it has run, nor that the server has such a method; a server logs the one-way calls that
/// it refuses. No method can be named `clone`, `connect`, `ordered`, `service`,
/// `with` or `with_timeout`. The last argument of type `Bytes`, and results of type
/// `Bytes` and `Option<Bytes>`, are sent as raw bytes; serde encodes everything else.
///
/// Arguments may be added at the end of a method while clients and servers without them are in use: those that a client does
/// not send are `None` if their type is an `Option`, and refused by name otherwise; those that a server does not know are
/// skipped. All other changes of a method's types need a new `version`. Raw bytes are part of a method's identity: one that
/// begins or ceases to send an argument or its result as raw bytes is another method.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    trunkline_codegen::expand(arguments.into(), item.into()).into()
}
