//! The attribute macro `#[trunkline::service]`. The crate `trunkline` re-exports and documents it.

use proc_macro::TokenStream;

/// Options of `#[trunkline::service]`, which turns a trait into a service:
///
/// | option | default | effect |
/// |---|---|---|
/// | `name = "..."` | the trait's name | name of the service on the wire |
/// | `version = N` | 1 | version of the schema |
/// | `accepts = M..=N` | the version only | compatible versions, up to `version`; a client and a server need one in common |
/// | `codec = Type` | `trunkline::codec::Bincode` | encoding of values; `MessagePack` allows adding fields and variants |
/// | `crate = path` | `::trunkline` | path of the crate `trunkline` |
///
/// Attributes of its methods, all off by default:
///
/// | attribute | effect |
/// |---|---|
/// | `#[idempotent]` | balanced channels may repeat or hedge a call that may have run; not with streams |
/// | `#[offload]` | the handler runs in the worker pool (`NodeBuilder::workers`), on any worker; its future is `Send` |
/// | `#[blocking]` | the handler runs on one worker of the pool and may block; its future need not be `Send` |
/// | `#[oneway]` | the method returns nothing and sends no reply |
/// | `#[name = "..."]` | name of the method on the wire |
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let expand = if has_trunkline(std::env::args()) {
        trunkline_codegen::expand
    } else {
        trunkline_codegen::expand_renamed
    };
    expand(arguments.into(), item.into()).into()
}

/// Returns true if the compiler's command line names a crate `trunkline`, or lists no crates at all. The compiler is the
/// process that runs this macro. Without the crate, no path in the stubs would resolve.
fn has_trunkline(command_line: impl Iterator<Item = String>) -> bool {
    let words = &command_line.collect::<Vec<_>>();
    let values = |option: &'static str| {
        words.iter().enumerate().filter_map(move |(at, word)| match word.strip_prefix(option)? {
            "" => words.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    };
    let is_itself = values("--crate-name").any(|name| name == "trunkline");
    // Each value is `name`, `name=path` or `options:name=path`.
    let mut names = values("--extern")
        .map(|value| value.split('=').next().unwrap_or(value))
        .map(|name| name.rsplit(':').next().unwrap_or(name))
        .peekable();
    is_itself || names.peek().is_none() || names.any(|name| name == "trunkline")
}

#[cfg(test)]
mod tests {
    use super::has_trunkline;

    #[test]
    fn renamed_crate_is_detected_from_command_line() {
        let has = |line: &str| has_trunkline(line.split(' ').map(str::to_owned));
        assert!(has(
            "rustc --crate-name shop --extern serde=/lib/libserde.rlib --extern trunkline=/lib/libtrunkline-1.rlib"
        ));
        assert!(has("rustc --extern=priv:trunkline=/lib/libtrunkline-1.rlib"));
        assert!(has("rustc --crate-name trunkline --extern serde=/lib/libserde.rlib"));
        assert!(has("rustc @arguments"), "it does not tell");
        assert!(!has("rustc --crate-name shop --extern rpc=/lib/libtrunkline-1.rlib"));
    }
}
