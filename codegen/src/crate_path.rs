//! The path of the crate `trunkline` in emitted code.
//!
//! A program that has renamed the crate, or uses it through a re-export, passes the path in the option `crate = path`.
//! Stubs import that path once, under a private name.

use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Ident, Path};

/// Returns the path in the stubs of a trait, for errors at `span`. `given` is the value of the option.
pub(crate) fn crate_path(of_trait: &Ident, given: Option<&Path>, span: Span) -> TokenStream {
    if given.is_none() {
        return quote_spanned!(span=> ::trunkline);
    }
    let mut alias = format_ident!("__{}Crate", of_trait.unraw());
    alias.set_span(span.resolved_at(Span::call_site()));
    quote!(#alias)
}
