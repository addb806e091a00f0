//! Emits Rust from the model.
//!
//! For a trait `Kv` that is the trait, `KvServer`, `KvClient`, `KvLocal`, the last two with options as `KvClientWith`
//! and `KvLocalWith`, and a private module of constants that name the service and its methods on the wire.

mod client;
mod server;

use crate::model::{ErrorType, Method, Service};
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::Ident;
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;

/// Everything that is emitted for a service.
pub(crate) fn service(service: &Service) -> TokenStream {
    let declaration = declaration(service);
    let names = names(service);
    let proofs = proofs(service);
    let server = server::emit(service);
    let client = client::emit(service, client::Kind::Shared);
    let local = client::emit(service, client::Kind::Local);
    quote! { #declaration #names #proofs #server #client #local }
}

/// The trait, with its methods as functions that return futures: `impl` blocks may write them as
/// `async fn`, and the futures need not be `Send`.
fn declaration(service: &Service) -> TokenStream {
    let Service { visibility, ident, attributes, methods, .. } = service;
    let functions = methods.iter().map(|method| {
        let Method { ident, attributes, arguments, output, .. } = method;
        let names = arguments.iter().map(|argument| &argument.ident);
        let types = arguments.iter().map(|argument| &argument.ty);
        let result = &output.whole;
        quote! {
            #(#attributes)*
            fn #ident(&self, #(#names: #types),*) -> impl ::core::future::Future<Output = #result>;
        }
    });
    quote! {
        #(#attributes)*
        #visibility trait #ident: 'static {
            #(#functions)*
        }
    }
}

/// Constants that compile only if types are what their names promise; an error points at the type.
fn proofs(service: &Service) -> TokenStream {
    let raw = service.methods.iter().flat_map(|method| {
        let arguments = method.arguments.iter().filter(|argument| argument.raw).map(|argument| &argument.ty);
        arguments.chain(&method.output.raw)
    });
    let raw = raw.map(|ty| quote_spanned!(ty.span()=> const _: () = ::trunkline::stub::is_bytes::<#ty>();));
    let errors = service.methods.iter().filter_map(|method| method.output.error.as_ref());
    let errors = errors.map(|error| match error {
        ErrorType::Status(ty) => {
            quote_spanned!(ty.span()=> const _: () = ::trunkline::stub::is_status::<#ty>();)
        }
        ErrorType::Other(ty) => {
            quote_spanned!(ty.span()=> const _: () = ::trunkline::stub::is_handler_error::<#ty>();)
        }
    });
    raw.chain(errors).collect()
}

/// The constants that name the service and its methods on the wire.
fn names(service: &Service) -> TokenStream {
    let module = names_module(service);
    let (name, version, hash) = (&service.name, service.version, service.hash());
    let methods = service.methods.iter().map(|method| {
        let constant = constant(method);
        let (text, hash, one_way) = (method.name(), service.method_hash(method), method.one_way);
        quote! {
            pub(super) static #constant: ::trunkline::stub::MethodName =
                ::trunkline::stub::MethodName { service: &SERVICE, name: #text, hash: #hash, one_way: #one_way };
        }
    });
    quote! {
        mod #module {
            pub(super) static SERVICE: ::trunkline::stub::ServiceName =
                ::trunkline::stub::ServiceName { name: #name, version: #version, hash: #hash };
            #(#methods)*
        }
    }
}

fn names_module(service: &Service) -> Ident {
    format_ident!("__{}_names", service.ident.unraw().to_string().to_lowercase())
}

fn constant(method: &Method) -> Ident {
    format_ident!("{}", method.name().to_uppercase())
}
