//! The model of a service whose trait has been checked.

use crate::hash::{method_hash, service_hash};
use crate::payload::Payload;
use syn::ext::IdentExt as _;
use syn::{Attribute, Ident, Type, Visibility};

/// A service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Visibility of the trait and of the stubs.
    pub visibility: Visibility,
    /// Name of the trait; the stubs append `Server`, `Client` and `Local`.
    pub ident: Ident,
    /// Name on the wire.
    pub name: String,
    /// Version of the schema on the wire; both sides need the same.
    pub version: u32,
    /// Documentation and other attributes of the trait.
    pub attributes: Vec<Attribute>,
    /// Its methods, in the order of the trait.
    pub methods: Vec<Method>,
}

/// A method.
#[derive(Debug, Clone)]
pub struct Method {
    /// Its name, also on the wire.
    pub ident: Ident,
    /// Documentation and other attributes.
    pub attributes: Vec<Attribute>,
    /// Whether the method is one-way: no reply is sent.
    pub one_way: bool,
    /// Its arguments after `&self`, at most 12.
    pub arguments: Vec<Argument>,
    /// What it returns.
    pub output: Output,
}

/// An argument.
#[derive(Debug, Clone)]
pub struct Argument {
    /// Its name.
    pub ident: Ident,
    /// Its type.
    pub ty: Type,
    /// Whether it is sent as raw bytes after the encoded arguments: the last argument of type `Bytes`.
    pub raw: bool,
}

/// What a method returns.
#[derive(Debug, Clone)]
pub struct Output {
    /// The whole return type, as written.
    pub whole: Type,
    /// The type of a success.
    pub ty: Type,
    /// How a success is sent.
    pub payload: Payload,
    /// The type named `Bytes` in it, if it is sent as raw bytes.
    pub raw: Option<Type>,
    /// Its error, if the trait's method returns a `Result`; the clients' methods always do.
    pub error: Option<ErrorType>,
}

/// The error of a method.
#[derive(Debug, Clone)]
pub enum ErrorType {
    /// A type named `Status`.
    Status(Type),
    /// Another one. It is sent as it is, unless it is `Status` by another name.
    Other(Type),
}

impl Service {
    /// The hash that identifies it on the wire.
    #[must_use]
    pub fn hash(&self) -> u64 {
        service_hash(&self.name)
    }

    /// The hash that identifies one of its methods on the wire, with what it sends as raw bytes.
    #[must_use]
    pub fn method_hash(&self, method: &Method) -> u64 {
        let raw_argument = method.arguments.iter().position(|argument| argument.raw);
        method_hash(&self.name, &method.name(), raw_argument, method.output.payload)
    }
}

impl Method {
    /// Its name on the wire.
    #[must_use]
    pub fn name(&self) -> String {
        self.ident.unraw().to_string()
    }
}
