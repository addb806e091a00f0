//! The attribute macro `#[trunkline::service]`; the crate `trunkline` re-exports it.

use proc_macro::TokenStream;

/// Makes a service of a trait: next to the trait `Kv` stand `KvServer`, `KvClient` and `KvLocal`.
///
/// Arguments, all optional: `name = "..."`, the name on the wire (the trait's own by default), and
/// `version = N`, the version of the schema (1 by default). Methods are `async fn`, take `&self` and
/// arguments that own their data, and answer `Result<T, Status>` or `T`. A method marked `#[oneway]`
/// answers nothing. The last argument of type `Bytes`, and answers of type `Bytes` and
/// `Option<Bytes>`, travel as they are; everything else by serde.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    trunkline_codegen::expand(arguments.into(), item.into()).into()
}
