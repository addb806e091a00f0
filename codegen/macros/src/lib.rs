//! The attribute macro `#[trunkline::service]`; the crate `trunkline` re-exports it.

use proc_macro::TokenStream;

/// Turns a trait into a service: for a trait `Kv` it also emits `KvServer`, `KvClient` and `KvLocal`.
///
/// | emitted | what it is for |
/// |---|---|
/// | `KvServer::new(make)` | pass it to `NodeBuilder::serve`; `make` is called once per poller |
/// | `KvServer::with_context(make)` | the same; `make` is passed the `PollerContext` |
/// | `KvClient::connect(&node, address)` | a client for any thread, with the trait's methods |
/// | `KvLocal::connect(&context, address)` | a client for handlers, on the poller of the context |
/// | `client.with_timeout(duration)` | the client with another time limit for each call; 10 s by default |
///
/// Arguments, all optional: `name = "..."`, the name on the wire (the trait's own by default), and
/// `version = N`, the version of the schema (1 by default, a `u32`). Methods are `async fn`, take `&self`
/// and up to 12 arguments that own their data, and return `Result<T, Status>` or `T`. A method marked
/// `#[oneway]` returns nothing and sends no reply. The last argument of type `Bytes`, and results of type
/// `Bytes` and `Option<Bytes>`, are sent as raw bytes; serde encodes everything else.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    trunkline_codegen::expand(arguments.into(), item.into()).into()
}
