//! Emits the client stubs: one for any thread, one for tasks of a poller.

use super::{constant, names_module};
use crate::model::{Method, Payload, Service};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// Which of the two client stubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `KvClient`: `Clone + Send + Sync`.
    Shared,
    /// `KvLocal`: for tasks of one poller.
    Local,
}

/// The struct of a client stub and its methods.
pub(super) fn emit(service: &Service, kind: Kind) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let (client, channel, from, summary) = match kind {
        Kind::Shared => (
            format_ident!("{ident}Client"),
            quote!(::trunkline::Channel),
            quote!(::trunkline::Node),
            format!(" A client of [`{ident}`] for any thread and any executor. Cloning it is cheap."),
        ),
        Kind::Local => (
            format_ident!("{ident}Local"),
            quote!(::trunkline::LocalChannel),
            quote!(::trunkline::PollerContext),
            format!(" A client of [`{ident}`] for tasks on one poller; its calls stay on that thread."),
        ),
    };
    let functions = methods.iter().map(|method| function(service, method));
    quote! {
        #[doc = #summary]
        #[derive(Debug, Clone)]
        #visibility struct #client {
            channel: #channel,
        }

        impl #client {
            /// A client of the node that listens at `server`. The first call connects.
            ///
            /// # Errors
            /// `InvalidArgument` when `server` is neither an address nor a name that resolves to one.
            #visibility fn connect(
                from: &#from,
                server: impl ::std::net::ToSocketAddrs,
            ) -> ::core::result::Result<Self, ::trunkline::Status> {
                ::core::result::Result::Ok(Self { channel: <#channel>::connect(from, server)? })
            }

            /// The same client with this time limit for each call, in place of 10 s.
            #[must_use]
            #visibility fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
                self.channel.set_timeout(timeout);
                self
            }

            #(#functions)*
        }
    }
}

fn function(service: &Service, method: &Method) -> TokenStream {
    let Method { ident, attributes, arguments, output, one_way, .. } = method;
    let visibility = &service.visibility;
    let (names, constant) = (names_module(service), constant(method));
    let argument_names = arguments.iter().map(|argument| &argument.ident);
    let argument_types = arguments.iter().map(|argument| &argument.ty);
    let coded = arguments.iter().filter(|argument| !argument.raw).map(|argument| &argument.ident);
    let raw = arguments.iter().find(|argument| argument.raw).map_or_else(
        || quote!(::trunkline::Bytes::new()),
        |argument| {
            let name = &argument.ident;
            quote!(#name)
        },
    );
    let (ty, whole) = (&output.ty, &output.whole);
    let result = if output.fallible {
        quote!(#whole)
    } else {
        quote!(::core::result::Result<#ty, ::trunkline::Status>)
    };
    // Two steps, so that a method may have an error type of its own: `?` converts the status to it.
    let (call, finish) = match (one_way, output.payload) {
        (true, _) => (quote!(send), quote!(__call.await?; ::core::result::Result::Ok(()))),
        (false, payload) => {
            let take = match payload {
                Payload::Coded => quote!(value),
                Payload::Bytes => quote!(bytes),
                Payload::OptionalBytes => quote!(optional_bytes),
            };
            let steps = quote! {
                let __value = __call.await?.#take()?;
                ::core::result::Result::Ok(__value)
            };
            (quote!(call), steps)
        }
    };
    quote! {
        #(#attributes)*
        #visibility async fn #ident(
            &self,
            #(#argument_names: #argument_types),*
        ) -> #result {
            let __call = self.channel.#call(&#names::#constant, &(#(#coded,)*), #raw);
            #finish
        }
    }
}
