//! The attribute macro `#[trunkline::service]`; the crate `trunkline` re-exports it.

use proc_macro::TokenStream;

/// Turns a trait into a service: for a trait `Kv` it also emits `KvServer`, `KvClient` and `KvLocal`.
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
