//! Generates the stubs for a service from a Rust trait.
//!
//! All front ends share one model, parsed from the trait, and one emitter, so they generate the same stubs. The
//! attribute macro `#[trunkline::service]` calls [`expand`], a `build.rs` calls [`build`], and the command
//! `trunkline-codegen` calls [`generate_file`].
//!
//! Generated code refers only to the crate `trunkline`. The option `crate` sets its path.

#![forbid(unsafe_code)]

mod build;
mod emit;
mod errors;
mod hash;
mod model;
mod options;
mod parse;
mod types;

pub use build::{BuildError, build, build_into, generate_file, generate_to};

use errors::Errors;
use options::Options;
use proc_macro2::TokenStream;
use quote::quote;
use syn::{AttrStyle, Attribute, Item, ItemMod, ItemTrait};

/// Expands the trait `item` to the trait itself, a server, a client and a poller-local client. `arguments` are the
/// arguments of the attribute.
///
/// If `item` is not a valid service, the result contains all compile errors and the stubs that can still be generated.
#[must_use]
pub fn expand(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand_options(Options::parse, arguments, item)
}

/// Like [`expand`], but requires the option `crate`. This is for programs in which no external crate is named `trunkline`.
#[must_use]
pub fn expand_renamed(arguments: TokenStream, item: TokenStream) -> TokenStream {
    expand_options(Options::parse_renamed, arguments, item)
}

fn expand_options(
    parse: fn(TokenStream, &mut Errors) -> Options,
    arguments: TokenStream,
    item: TokenStream,
) -> TokenStream {
    let mut errors = Errors::default();
    let options = parse(arguments, &mut errors);
    let is_known = !options.is_lost();
    let parsed =
        syn::parse2::<ItemTrait>(item.clone()).map_err(|error| match syn::parse2::<Item>(item.clone()) {
            Ok(other) => syn::Error::new_spanned(other, "a service must be a trait"),
            Err(_) => error,
        });
    let Some(parsed) = errors.take(parsed) else {
        let errors = errors.finish().map_err(syn::Error::into_compile_error).err();
        return quote!(#errors #item);
    };
    let service = parse::service(options, parsed.clone(), &mut errors);
    // Stubs refer to the crate, so they are generated only if its path is known.
    let service = service.filter(|_| is_known);
    match (errors.finish(), service) {
        (Ok(()), Some(service)) => emit::service(&service),
        (checked, service) => {
            let errors = checked.map_err(syn::Error::into_compile_error).err();
            let rest = emit::fallback(parsed, service.as_ref());
            quote!(#errors #rest)
        }
    }
}

/// Generates formatted stubs for every trait marked `#[trunkline::service]` in a source text, at its top level and in
/// its modules.
///
/// Other items are copied unchanged. Attributes of the file itself (`#![...]`, `//!`) are omitted, because a file with such
/// attributes cannot be included in another file.
///
/// # Errors
/// Returns an error if the text does not parse. If marked traits are not valid services, the error lists all their errors.
pub fn generate(source: &str) -> syn::Result<String> {
    generate_counted(source).map(|(stubs, _)| stubs)
}

/// Like [`generate`], but also returns the number of services.
fn generate_counted(source: &str) -> syn::Result<(String, usize)> {
    let (mut errors, mut count) = (Errors::default(), 0);
    let tokens = of_items(syn::parse_file(source)?.items, &mut count, &mut errors);
    errors.finish()?;
    Ok((prettyplease::unparse(&syn::parse2(tokens)?), count))
}

fn of_items(items: Vec<Item>, count: &mut usize, errors: &mut Errors) -> TokenStream {
    let mut tokens = TokenStream::new();
    for item in items {
        tokens.extend(match item {
            Item::Trait(item) => of_trait(item, count, errors),
            Item::Mod(ItemMod { attrs, vis, unsafety, ident, content: Some((_, items)), .. }) => {
                let (outer, inner) = attrs.iter().partition::<Vec<_>, _>(|attribute| is_outer(attribute));
                let items = of_items(items, count, errors);
                quote!(#(#outer)* #vis #unsafety mod #ident { #(#inner)* #items })
            }
            other => quote!(#other),
        });
    }
    tokens
}

fn is_outer(attribute: &Attribute) -> bool {
    matches!(attribute.style, AttrStyle::Outer)
}

/// Returns the stubs for a marked trait, or an unmarked trait unchanged.
fn of_trait(mut item: ItemTrait, count: &mut usize, errors: &mut Errors) -> TokenStream {
    let Some(attribute) = parse::take_attribute(&mut item.attrs) else { return quote!(#item) };
    *count += 1;
    let options = Options::parse(options::of(&attribute), errors);
    let service = parse::service(options, item, errors);
    service.as_ref().map(emit::service).unwrap_or_default()
}
