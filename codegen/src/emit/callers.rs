//! Emits the caller traits, which let code be generic over a client and a mock.
//!
//! The traits contain the methods of the clients. These take no context and return the outcome of a call. Every type that
//! implements `KvCalls` also implements `LocalKvCalls`.

use super::client::{StubKind, items_of, result, span_of};
use super::quiet;
use crate::model::{Method, Service};
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;

/// Emits `KvCalls`, `LocalKvCalls` and their implementations.
pub(super) fn emit(service: &Service) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let (shared, local) = (format_ident!("{ident}Calls"), format_ident!("Local{}Calls", ident.unraw()));
    let (client, on_poller) = (format_ident!("{ident}Client"), format_ident!("{ident}Local"));
    let (client_with, local_with) = (format_ident!("{client}With"), format_ident!("{on_poller}With"));
    let quiet = quiet();
    let quiet = quote!(#quiet #[allow(trivial_bounds)]);
    let about_shared = format!(
        " Calls of [`{ident}`] from any thread, implemented by [`{client}`], and by what its `with` returns. Code that \
         takes an `impl {shared}` also accepts a mock."
    );
    let about_local = format!(
        " Calls of [`{ident}`] from one thread, whose futures need not be `Send`. Implemented by [`{on_poller}`] and by \
         every [`{shared}`]."
    );
    let declared =
        |kind| methods.iter().map(move |method| declaration(service, method, kind)).collect::<TokenStream>();
    let (of_shared, of_local) = (declared(StubKind::Shared), declared(StubKind::Local));
    let forwarded = |kind, to: TokenStream, receiver: TokenStream| {
        methods.iter().map(|method| forward(service, method, kind, &to, &receiver)).collect::<TokenStream>()
    };
    let by_client = forwarded(StubKind::Shared, quote!(Self), quote!(self));
    let by_client_with = forwarded(StubKind::Shared, quote!(Self), quote!(*self));
    let by_local = forwarded(StubKind::Local, quote!(Self), quote!(self));
    let by_local_with = forwarded(StubKind::Local, quote!(Self), quote!(*self));
    let by_shared = forwarded(StubKind::Local, quote!(<__Caller as #shared>), quote!(self));
    quote! {
        #[doc = #about_shared]
        #quiet
        #visibility trait #shared {
            #of_shared
        }

        #[doc = #about_local]
        #quiet
        #visibility trait #local {
            #of_local
        }

        #quiet
        impl #shared for #client {
            #by_client
        }

        #quiet
        impl #shared for #client_with<'_, '_> {
            #by_client_with
        }

        #quiet
        impl #local for #on_poller {
            #by_local
        }

        #quiet
        impl #local for #local_with<'_, '_> {
            #by_local_with
        }

        #quiet
        impl<__Caller: #shared> #local for __Caller {
            #by_shared
        }
    }
}

/// Returns the signature of a trait function, without a body or a semicolon.
fn signature(service: &Service, method: &Method, kind: StubKind) -> TokenStream {
    let Method { ident, arguments, .. } = method;
    let (generics, items) = items_of(service, method);
    let names = arguments.iter().map(|argument| &argument.ident);
    let types = arguments.iter().map(|argument| &argument.ty);
    let result = result(service, method);
    let span = span_of(method);
    let bound = kind.bound(span);
    let future = quote_spanned!(span=> impl ::core::future::Future<Output = #result> #bound);
    quote!(fn #ident #generics(&self, #(#names: #types,)* #items) -> #future)
}

fn declaration(service: &Service, method: &Method, kind: StubKind) -> TokenStream {
    let (attributes, signature) = (&method.attributes, signature(service, method, kind));
    quote! {
        #(#attributes)*
        #signature;
    }
}

/// Emits a trait function that calls the function with the same name in `to`, with `receiver` as `self`.
fn forward(
    service: &Service,
    method: &Method,
    kind: StubKind,
    to: &TokenStream,
    receiver: &TokenStream,
) -> TokenStream {
    let (ident, signature) = (&method.ident, signature(service, method, kind));
    let names = method.arguments.iter().map(|argument| &argument.ident);
    let names = names.chain(method.items.as_ref().map(|items| &items.ident));
    quote! {
        #signature {
            #to::#ident(#receiver, #(#names),*)
        }
    }
}
