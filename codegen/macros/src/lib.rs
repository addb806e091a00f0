//! The attribute macro `#[trunkline::service]`; the crate `trunkline` re-exports it.

use proc_macro::TokenStream;

/// Turns a trait into a service: for a trait `Kv` it also emits `KvServer`, `KvClient` and `KvLocal`, what `with`
/// returns, `KvClientWith` and `KvLocalWith`, and the traits of callers, `KvCalls` and `LocalKvCalls`.
///
/// | emitted | what it is for |
/// |---|---|
/// | `KvServer::new(handler)` | pass it to `NodeBuilder::serve`; all pollers use this handler, so it is `Send + Sync` |
/// | `KvServer::shared(arc)` | the same, with an `Arc` that the program keeps a clone of |
/// | `KvServer::per_poller(make)` | a handler for each poller, which need not be `Send`: `make` is passed the `PollerContext` and returns a `Result` |
/// | `KvClient::connect(&node, address)` | a client for any thread, with the trait's methods |
/// | `KvLocal::connect(&context, address)` | a client for handlers, on the poller of the context |
/// | `client.with_timeout(duration)` | the client with another time limit for each call; 10 s by default |
/// | `client.ordered()` | a client whose calls start at the server in the order in which its methods were called |
/// | `KvCalls` | the methods of `KvClient` as a trait, for code that works with a mock too |
/// | `LocalKvCalls` | the same for a single thread: `KvLocal`, and whatever is a `KvCalls` |
/// | `client.with(&options)` | its methods with other `CallOptions`, such as waiting for a server that is not there yet |
///
/// The clients' methods are plain functions that return futures. A call is made when its method is called: the arguments are
/// encoded and handed to a poller before the method returns, its time limit counts from then, and the handler may run although
/// the future is never polled. The future brings the outcome, also for a call that could not be made, and borrows the
/// client. Dropping it cancels the call, polled or not: one that has not left never does, and one that has may have run.
///
/// A method may take `cx: &Context` before its other arguments: the call's deadline, peer and end. It is not sent, and the
/// clients' methods do not have it.
///
/// A method runs on the poller that has received the request, where it must not block. Others say so:
///
/// | attribute | where the handler runs |
/// |---|---|
/// | `#[offload]` | in the node's worker pool (`NodeBuilder::workers`): its future is `Send`, and any worker polls it |
/// | `#[blocking]` | on one worker of the pool, to its end: it may block, and need not be `Send` |
///
/// In both, `Context::current` is the call's. When the caller gives up or the time limit passes, a call that no worker has begun
/// never runs, an `#[offload]` future is dropped at its next poll, and a `#[blocking]` method goes on and can ask
/// `cx.is_cancelled()`. A service with such methods has one handler for all threads, not one for each poller.
///
/// Calls may stream items, in one direction or both. The items of the server are a result `Result<impl Stream<Item =
/// Result<T, Status>>, E>`, those of the client a last argument `Streaming<T>`:
///
/// ```ignore
/// #[trunkline::service]
/// pub trait Feed {
///     async fn watch(&self, prefix: String) -> Result<impl Stream<Item = Result<Event, Status>>, Status>;
///     async fn upload(&self, name: String, chunks: Streaming<Bytes>) -> Result<Summary, Status>;
///     async fn chat(&self, messages: Streaming<Say>) -> Result<impl Stream<Item = Result<Said, Status>>, Status>;
/// }
/// ```
///
/// A client gets a `Streaming<Event>` from `watch(..).await?`, and passes any `Stream` that is `Send` to `upload` and `chat`. A
/// call that streams has no time limit by default.
///
/// Arguments, all optional:
///
/// | option | what it is for |
/// |---|---|
/// | `name = "..."` | the name on the wire; the trait's own by default |
/// | `version = N` | the version of the schema; 1 by default |
/// | `accepts = M..=N` | versions up to this one that a side can do with: a client and a server need one in common |
/// | `crate = path` | where the crate `trunkline` is, if it has another name or another crate re-exports it; `::trunkline` by default |
/// | `codec = Type` | how values become bytes, `trunkline::codec::Bincode` by default; `MessagePack` lets fields and variants be added |
///
/// Methods are `async fn`, take `&self`
/// and up to 12 arguments that own their data, and return `Result<T, Status>` or `T`. In place of `Status` a method may
/// have a separate error `E` with serde's derives, which is sent as it is: the client's method then fails with
/// `CallError<E>`, which is the handler's error or the `Status` of a call that a node ended. A method marked
/// `#[oneway]` returns nothing and sends no reply: the client's method returns `Result<(), Status>`, and `Ok` says that the
/// request is in the server's memory, not that it has run, nor that the server has such a method; a server logs the one-way calls that
/// it refuses. No method can be named `clone`, `connect`, `into`, `ordered`,
/// `try_into`, `with` or `with_timeout`, which the clients have for themselves; `#[name = "connect"]` at a method gives it that name on the wire. The last argument of type `Bytes`, and results of type
/// `Bytes` and `Option<Bytes>`, are sent as raw bytes; serde encodes everything else.
///
/// Arguments may be added at the end of a method while clients and servers without them are in use: those that a client does
/// not send are `None` if their type is an `Option`, and refused by name otherwise; those that a server does not know are
/// skipped. `docs/book/src/guide/evolution.md` lists the other allowed changes; all else needs a new `version`. Raw bytes are part of a method's identity: one that
/// begins or ceases to send an argument or its result as raw bytes is another method. So a type that is named `Bytes` has to be `trunkline::Bytes`, and that must not have another name there; the compiler refuses both.
///
/// A method may also return `anyhow::Result<T>` or `eyre::Result<T>`, written so, with the feature of that name: its errors are sent as
/// a `Status`.
#[proc_macro_attribute]
pub fn service(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let expand = if has_trunkline(std::env::args()) {
        trunkline_codegen::expand
    } else {
        trunkline_codegen::expand_renamed
    };
    expand(arguments.into(), item.into()).into()
}

/// Returns true if the command line of the compiler that runs this macro names a crate `trunkline`, or does not list any
/// crates. Without the crate each path in the stubs would be an error.
fn has_trunkline(command_line: impl Iterator<Item = String>) -> bool {
    let words = &command_line.collect::<Vec<_>>();
    let values = |option: &'static str| {
        words.iter().enumerate().filter_map(move |(at, word)| match word.strip_prefix(option)? {
            "" => words.get(at + 1).map(String::as_str),
            rest => rest.strip_prefix('='),
        })
    };
    let is_itself = values("--crate-name").any(|name| name == "trunkline");
    // `name`, `name=path` or `options:name=path`
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
    fn command_line_tells_if_crate_has_another_name() {
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
