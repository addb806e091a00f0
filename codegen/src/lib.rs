//! The model of a service, and the emitter of its stubs.
//!
//! One model ([`Service`]), parsed from a Rust trait, and one emitter serve both front ends: the
//! attribute macro `#[trunkline::service]` calls [`expand`], and programs that want the stubs as text
//! call [`generate`]. Of other crates, emitted code names only `trunkline`.

#![forbid(unsafe_code)]

mod emit;
mod hash;
mod model;
mod options;
mod parse;
mod payload;

pub use hash::{method_hash, service_hash};
pub use model::{Argument, ErrorType, Method, Output, Service};
pub use payload::Payload;

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Item, ItemTrait};

/// The stubs of the trait `item`: the trait itself, a server, a client and a poller-local client. If
/// `item` is not a valid service, the result is all compile errors at once. `arguments` are the
/// attribute's.
#[must_use]
pub fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let service = syn::parse2(arguments)
        .and_then(|options| syn::parse2::<ItemTrait>(item).and_then(|item| parse::service(options, item)));
    match service {
        Ok(service) => emit::service(&service),
        Err(error) => error.into_compile_error(),
    }
}

/// The formatted stubs of every trait marked `#[trunkline::service]` at the top level of a source text;
/// all other items are passed through. Attributes of the file itself (`#![...]`, `//!`) are omitted,
/// because a file that has them cannot be included in another.
///
/// # Errors
/// The text does not parse, or a marked trait is not a valid service.
pub fn generate(source: &str) -> syn::Result<String> {
    let mut tokens = TokenStream::new();
    for item in syn::parse_file(source)?.items {
        tokens.extend(match item {
            Item::Trait(item) => of_trait(item)?,
            other => quote!(#other),
        });
    }
    Ok(prettyplease::unparse(&syn::parse2(tokens)?))
}

/// The stubs of a marked trait; the trait itself if it is not marked.
fn of_trait(mut item: ItemTrait) -> syn::Result<TokenStream> {
    let Some(attribute) = parse::take_attribute(&mut item.attrs) else { return Ok(quote!(#item)) };
    Ok(emit::service(&parse::service(options::of(&attribute)?, item)?))
}
