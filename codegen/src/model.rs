//! The model of a service whose trait has been checked.

use crate::hash::{method_hash, service_hash, with_raw_items};
use crate::payload::Payload;
use syn::{Attribute, Ident, Path, Type, Visibility};

/// A service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Visibility of the trait and of the stubs.
    pub visibility: Visibility,
    /// Name of the trait; the stubs append `Server`, `Client` and `Local`.
    pub ident: Ident,
    /// Name on the wire.
    pub name: String,
    /// Version of the schema on the wire.
    pub version: u32,
    /// The oldest version that the stubs accept; client and server need one in common.
    pub oldest: u32,
    /// The type of the codec; bincode if `None`.
    pub codec: Option<Type>,
    /// Path of the crate `trunkline` where the trait is; `::trunkline` if `None`.
    pub krate: Option<Path>,
    /// Documentation and other attributes of the trait.
    pub attributes: Vec<Attribute>,
    /// Methods, in the order of the trait.
    pub methods: Vec<Method>,
}

/// A method.
#[derive(Debug, Clone)]
pub struct Method {
    /// Name of the method in Rust.
    pub ident: Ident,
    /// Name of the method on the wire.
    pub name: String,
    /// Documentation and other attributes.
    pub attributes: Vec<Attribute>,
    /// True if the method is one-way: no reply is sent.
    pub one_way: bool,
    /// True if a balanced channel may repeat its calls although they may have run.
    pub idempotent: bool,
    /// Place where the handler runs.
    pub runs: Runs,
    /// The first argument if that is a reference to a type named `Context`, which is not sent.
    pub context: Option<Argument>,
    /// The other arguments after `&self`, at most 12.
    pub arguments: Vec<Argument>,
    /// The last argument if that is a `Streaming<T>`: the items that the client streams.
    pub items: Option<Items>,
    /// Return type.
    pub output: Output,
}

impl Method {
    /// Returns true if its calls stream items.
    #[must_use]
    pub const fn streams(&self) -> bool {
        self.items.is_some() || self.output.items.is_some()
    }
}

/// The items that a client streams.
#[derive(Debug, Clone)]
pub struct Items {
    /// Name of the argument.
    pub ident: Ident,
    /// Type of the argument, as written.
    pub ty: Type,
    /// The items.
    pub item: StreamItem,
}

/// An item of a stream.
#[derive(Debug, Clone)]
pub struct StreamItem {
    /// Type of the items.
    pub ty: Type,
    /// True if it is sent as raw bytes: the type is named `Bytes`.
    pub raw: bool,
}

/// Place where the handler of a method runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// The poller that has received the request.
    Poller,
    /// The worker pool: the future is `Send`, and any worker polls it.
    Pool,
    /// One worker, to the end; the method may block it.
    Worker,
}

impl Runs {
    /// Returns the attribute that selects this place in a trait.
    #[must_use]
    pub const fn attribute(self) -> Option<&'static str> {
        match self {
            Self::Poller => None,
            Self::Pool => Some("offload"),
            Self::Worker => Some("blocking"),
        }
    }
}

/// An argument.
#[derive(Debug, Clone)]
pub struct Argument {
    /// Name of the argument.
    pub ident: Ident,
    /// Type of the argument.
    pub ty: Type,
    /// True if the type is named `Bytes`.
    pub is_named_bytes: bool,
    /// True if it is sent as raw bytes after the encoded arguments: the last argument with a type named `Bytes`.
    pub raw: bool,
}

/// The return type of a method.
#[derive(Debug, Clone)]
pub struct Output {
    /// The whole return type, as written.
    pub whole: Type,
    /// The type of a success.
    pub ty: Type,
    /// Encoding of a success.
    pub payload: Payload,
    /// The type named `Bytes` in it, if it is sent as raw bytes.
    pub raw: Option<Type>,
    /// The items that the handler streams, if the type of a success is an `impl Stream`; `ty` is then the client's type.
    pub items: Option<StreamItem>,
    /// The error type, if the trait's method returns a `Result`; the clients' methods always do.
    pub error: Option<ErrorType>,
}

/// The error of a method.
#[derive(Debug, Clone)]
pub enum ErrorType {
    /// A type named `Status`.
    Status(Type),
    /// One of `anyhow` or `eyre`, which is sent as a status.
    Report(Type),
    /// Another type. It is sent unchanged, unless it is an alias of `Status`.
    Other(Type),
}

impl ErrorType {
    /// Returns the type as written.
    #[must_use]
    pub const fn ty(&self) -> &Type {
        match self {
            Self::Status(ty) | Self::Report(ty) | Self::Other(ty) => ty,
        }
    }
}

impl Service {
    /// Iterates over the methods that run in the worker pool.
    pub fn pooled(&self) -> impl Iterator<Item = &Method> {
        self.methods.iter().filter(|method| method.runs != Runs::Poller)
    }

    /// Returns the hash that identifies the service on the wire.
    #[must_use]
    pub fn hash(&self) -> u64 {
        service_hash(&self.name)
    }

    /// Returns the hash that identifies one of its methods on the wire, including its raw payloads.
    #[must_use]
    pub fn method_hash(&self, method: &Method) -> u64 {
        let raw_argument = method.arguments.iter().position(|argument| argument.raw);
        let is_raw = |item: Option<&StreamItem>| item.is_some_and(|item| item.raw);
        let items =
            [method.items.as_ref().map(|items| &items.item), method.output.items.as_ref()].map(is_raw);
        with_raw_items(method_hash(&self.name, &method.name, raw_argument, method.output.payload), items)
    }
}
