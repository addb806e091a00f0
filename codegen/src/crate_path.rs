//! The path of the crate `trunkline` in emitted code.
//!
//! A program may have renamed the crate, or have it from a crate that re-exports it; then it gives the path as the option
//! `crate = path`. Stubs import that path once, under a name of their own.

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
