//! Emits a fallback for a trait with errors, so that the compiler reports only these errors.

use super::{quiet, stubs};
use crate::model::{Runs, Service};
use crate::parse::{OURS, visible_method};
use proc_macro2::TokenStream;
use quote::quote;
use std::collections::HashSet;
use syn::ext::IdentExt as _;
use syn::{FnArg, ItemTrait, Pat, TraitItem, parse_quote};

/// Emits the trait as written. If stubs are possible, also emits the stubs of the valid methods.
pub(crate) fn fallback(mut item: ItemTrait, service: Option<&Service>) -> TokenStream {
    let mut names = HashSet::new();
    item.items.retain_mut(|member| {
        if let Some((_, function)) = visible_method(member) {
            *member = TraitItem::Fn(function);
        }
        let TraitItem::Fn(function) = member else { return true };
        function.sig.constness = None;
        function.attrs.retain(|attribute| !OURS.iter().any(|ours| attribute.path().is_ident(ours)));
        let mut arguments = HashSet::new();
        for input in &mut function.sig.inputs {
            if let FnArg::Typed(typed) = input {
                typed.attrs.clear();
                let is_plain = matches!(&*typed.pat, Pat::Ident(pattern)
                    if pattern.mutability.is_none() && arguments.insert(pattern.ident.unraw().to_string()));
                if !is_plain {
                    // Functions without a body must not have patterns.
                    *typed.pat = parse_quote!(_);
                }
            }
        }
        names.insert(function.sig.ident.unraw().to_string())
    });
    // `Self` in an argument has already been reported.
    item.supertraits.push(parse_quote!(::core::marker::Sized));
    item.colon_token.get_or_insert_with(Default::default);
    let stubs = service.map(|service| {
        // A service's trait has the same bound.
        item.supertraits.push(parse_quote!('static));
        // The trait as written does not require its futures to be `Send`.
        let mut service = service.clone();
        service.methods.iter_mut().for_each(|method| method.runs = Runs::Poller);
        stubs(&service)
    });
    let quiet = quiet();
    quote! {
        #quiet
        #[allow(async_fn_in_trait)]
        #item
        #stubs
    }
}
