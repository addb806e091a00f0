//! What a service is, once its trait has been checked.

use crate::method_hash;
use syn::ext::IdentExt as _;
use syn::{Attribute, Ident, Type, Visibility};

/// A service.
#[derive(Debug, Clone)]
pub struct Service {
    /// Who may use the stubs.
    pub visibility: Visibility,
    /// Name of the trait; the stubs append `Server`, `Client`, `Local`.
    pub ident: Ident,
    /// Name on the wire.
    pub name: String,
    /// Schema version on the wire.
    pub version: u32,
    /// Documentation and other attributes of the trait.
    pub attributes: Vec<Attribute>,
    /// Its methods, in order.
    pub methods: Vec<Method>,
}

/// A method.
#[derive(Debug, Clone)]
pub struct Method {
    /// Its name, also on the wire.
    pub ident: Ident,
    /// Documentation and other attributes.
    pub attributes: Vec<Attribute>,
    /// Whether no answer is sent.
    pub one_way: bool,
    /// What it is given.
    pub arguments: Vec<Argument>,
    /// What it answers.
    pub output: Output,
}

/// An argument.
#[derive(Debug, Clone)]
pub struct Argument {
    /// Its name.
    pub ident: Ident,
    /// Its type.
    pub ty: Type,
    /// Whether it travels beside the encoded ones: the last argument of type `Bytes`.
    pub raw: bool,
}

/// What a method answers.
#[derive(Debug, Clone)]
pub struct Output {
    /// The whole type, as it was written.
    pub whole: Type,
    /// The success type.
    pub ty: Type,
    /// How it travels.
    pub payload: Payload,
    /// Whether the trait's method answers a `Result`; the clients' methods always do.
    pub fallible: bool,
}

/// How an answer travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Payload {
    /// By the codec.
    Coded,
    /// As it is: `Bytes`.
    Bytes,
    /// As it is, with a flag before it: `Option<Bytes>`.
    OptionalBytes,
}

impl Service {
    /// Its hash on the wire.
    #[must_use]
    pub fn hash(&self) -> u64 {
        method_hash(&self.name, "")
    }

    /// The hash of one of its methods.
    #[must_use]
    pub fn method_hash(&self, method: &Method) -> u64 {
        method_hash(&self.name, &method.name())
    }
}

impl Method {
    /// Its name on the wire.
    #[must_use]
    pub fn name(&self) -> String {
        self.ident.unraw().to_string()
    }
}
