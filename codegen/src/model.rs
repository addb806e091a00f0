//! The model of a service, parsed from a valid trait.

use syn::{Attribute, Ident, Path, Type, Visibility};

/// A service.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    /// Visibility of the trait and of the stubs.
    pub(crate) visibility: Visibility,
    /// Name of the trait; the stubs append `Server`, `Client` and `Local`.
    pub(crate) ident: Ident,
    /// Name on the wire.
    pub(crate) name: String,
    /// Version of the schema on the wire.
    pub(crate) version: u32,
    /// Oldest version that the stubs accept. A client and a server must have a version in common.
    pub(crate) oldest: u32,
    /// The type of the codec; bincode if `None`.
    pub(crate) codec: Option<Type>,
    /// Path of the crate `trunkline` as seen from the trait; `::trunkline` if `None`.
    pub(crate) krate: Option<Path>,
    /// Documentation and other attributes of the trait.
    pub(crate) attributes: Vec<Attribute>,
    /// Methods, in the order of their declarations.
    pub(crate) methods: Vec<Method>,
}

/// A method.
#[derive(Debug, Clone)]
pub(crate) struct Method {
    /// Name of the method in Rust.
    pub(crate) ident: Ident,
    /// Name of the method on the wire.
    pub(crate) name: String,
    /// Documentation and other attributes.
    pub(crate) attributes: Vec<Attribute>,
    /// True if the method sends no reply.
    pub(crate) one_way: bool,
    /// True if a balanced channel may repeat calls that may have run.
    pub(crate) idempotent: bool,
    /// Place where the handler runs.
    pub(crate) runs: Runs,
    /// The first argument if it is a reference to a type named `Context`. It is not sent.
    pub(crate) context: Option<Argument>,
    /// The other arguments after `&self`, at most 12.
    pub(crate) arguments: Vec<Argument>,
    /// The items streamed by the client, if the last argument is of type `Streaming<T>`.
    pub(crate) items: Option<Items>,
    /// Return type.
    pub(crate) output: Output,
}

impl Method {
    /// Returns true if calls of the method stream items.
    pub(crate) const fn streams(&self) -> bool {
        self.items.is_some() || self.output.items.is_some()
    }
}

/// The items that a client streams.
#[derive(Debug, Clone)]
pub(crate) struct Items {
    /// Name of the argument.
    pub(crate) ident: Ident,
    /// Type of the argument, as written.
    pub(crate) ty: Type,
    /// The items.
    pub(crate) item: StreamItem,
}

/// An item of a stream.
#[derive(Debug, Clone)]
pub(crate) struct StreamItem {
    /// Type of the items.
    pub(crate) ty: Type,
    /// True if items are sent as raw bytes, because the type is named `Bytes`.
    pub(crate) raw: bool,
}

/// Place where the handler of a method runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Runs {
    /// The poller that received the request.
    Poller,
    /// The worker pool. The future is `Send`, and any worker may poll it.
    Pool,
    /// A single worker. The method may block.
    Worker,
}

impl Runs {
    /// Returns the attribute that selects this place in a trait.
    pub(crate) const fn attribute(self) -> Option<&'static str> {
        match self {
            Self::Poller => None,
            Self::Pool => Some("offload"),
            Self::Worker => Some("blocking"),
        }
    }
}

/// An argument.
#[derive(Debug, Clone)]
pub(crate) struct Argument {
    /// Name of the argument.
    pub(crate) ident: Ident,
    /// Type of the argument.
    pub(crate) ty: Type,
    /// True if the argument is sent as raw bytes after the encoded ones. Only the last argument can be raw, if its type is
    /// named `Bytes`.
    pub(crate) raw: bool,
}

/// The return type of a method.
#[derive(Debug, Clone)]
pub(crate) struct Output {
    /// The whole return type, as written.
    pub(crate) whole: Type,
    /// The type of a success.
    pub(crate) ty: Type,
    /// Encoding of a success.
    pub(crate) payload: Payload,
    /// The type named `Bytes` within `ty`, if the success is sent as raw bytes.
    pub(crate) raw: Option<Type>,
    /// The items streamed by the handler, if the type of a success is an `impl Stream`. `ty` is then the type in the
    /// client.
    pub(crate) items: Option<StreamItem>,
    /// The error type, if the trait's method returns a `Result`. Client methods always return a `Result`.
    pub(crate) error: Option<ErrorType>,
}

/// The encoding of a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payload {
    /// Encoded by the codec.
    Coded,
    /// Raw bytes, for `Bytes`.
    Bytes,
    /// An encoded flag and raw bytes, for `Option<Bytes>`.
    OptionalBytes,
}

/// The error of a method.
#[derive(Debug, Clone)]
pub(crate) enum ErrorType {
    /// A type named `Status`.
    Status(Type),
    /// An error of `anyhow` or `eyre`, sent as a status.
    Report(Type),
    /// Another type, sent unchanged. An alias of `Status` is sent as a status.
    Other(Type),
}

impl ErrorType {
    /// Returns the type as written.
    pub(crate) const fn ty(&self) -> &Type {
        match self {
            Self::Status(ty) | Self::Report(ty) | Self::Other(ty) => ty,
        }
    }
}

impl Service {
    /// Iterates over the methods that run in the worker pool.
    pub(crate) fn pooled(&self) -> impl Iterator<Item = &Method> {
        self.methods.iter().filter(|method| method.runs != Runs::Poller)
    }

    /// Returns true if all pollers and workers share the handler.
    pub(crate) fn is_pooled(&self) -> bool {
        self.pooled().next().is_some()
    }
}
