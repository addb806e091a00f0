//! The model of a service and the emitter of its stubs.
//!
//! One model ([`Service`]), parsed from a Rust trait, and one emitter serve every front end: the
//! attribute macro `#[trunkline::service]` calls [`expand`]; whoever wants the stubs as text calls
//! [`generate`]. Emitted code names the crate `trunkline` only.

#![forbid(unsafe_code)]

mod emit;
mod hash;
mod model;
mod options;
mod parse;

pub use hash::method_hash;
pub use model::{Argument, Method, Output, Payload, Service};

use proc_macro2::TokenStream;
use quote::quote;
use syn::{Item, ItemTrait};

/// The stubs of the trait `item` under the attribute's arguments: the trait itself, a server, a
/// client and a poller-local client; or compile errors, all of them at once.
#[must_use]
pub fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    let service = syn::parse2(arguments)
        .and_then(|options| syn::parse2::<ItemTrait>(item).and_then(|item| parse::service(options, item)));
    match service {
        Ok(service) => emit::service(&service),
        Err(error) => error.into_compile_error(),
    }
}

/// The stubs of every trait marked `#[trunkline::service]` at the top level of a source text,
/// formatted; all other items are passed through. Attributes of the file itself (`#![...]`, `//!`)
/// are left out, since a text with them cannot be included into another.
///
/// # Errors
/// The text does not parse, or a marked trait is not a service.
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

/// The stubs of a trait that is marked; the trait itself otherwise.
fn of_trait(mut item: ItemTrait) -> syn::Result<TokenStream> {
    let Some(attribute) = parse::take_attribute(&mut item.attrs) else { return Ok(quote!(#item)) };
    Ok(emit::service(&parse::service(options::of(&attribute)?, item)?))
}
