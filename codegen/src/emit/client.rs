//! The client stubs: one for any thread, one for tasks of a poller.

use super::{constant, names_module};
use crate::model::{Method, Payload, Service};
use proc_macro2::TokenStream;
use quote::{format_ident, quote};

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `KvClient`: `Clone + Send + Sync`.
    Shared,
    /// `KvLocal`: for tasks of one poller.
    Local,
}

/// The struct and its methods.
pub(super) fn emit(service: &Service, kind: Kind) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let (client, channel, from, summary) = match kind {
        Kind::Shared => (
            format_ident!("{ident}Client"),
            quote!(::trunkline::Channel),
            quote!(::trunkline::Node),
            format!(" Calls [`{ident}`] from any thread and any executor. Clones are cheap."),
        ),
        Kind::Local => (
            format_ident!("{ident}Local"),
            quote!(::trunkline::LocalChannel),
            quote!(::trunkline::PollerContext),
            format!(" Calls [`{ident}`] from tasks that run on a poller, without atomics."),
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
            /// A client of the node that listens at `server`. Connects when the first call is made.
            ///
            /// # Errors
            /// `InvalidArgument` when `server` is no address and no name of one.
            #visibility fn connect(
                from: &#from,
                server: impl ::std::net::ToSocketAddrs,
            ) -> ::core::result::Result<Self, ::trunkline::Status> {
                ::core::result::Result::Ok(Self { channel: <#channel>::connect(from, server)? })
            }

            /// The same client with another time limit for its calls.
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
    let answer = if output.fallible {
        quote!(#whole)
    } else {
        quote!(::core::result::Result<#ty, ::trunkline::Status>)
    };
    // In two steps, so that a method may have an error type of its own: `?` turns the status into it.
    let (call, finish) = match (one_way, output.payload) {
        (true, _) => (quote!(send), quote!(__call.await?; ::core::result::Result::Ok(()))),
        (false, payload) => {
            let take = match payload {
                Payload::Coded => quote!(value),
                Payload::Bytes => quote!(bytes),
                Payload::OptionalBytes => quote!(optional_bytes),
            };
            let steps = quote! {
                let __answer = __call.await?.#take()?;
                ::core::result::Result::Ok(__answer)
            };
            (quote!(call), steps)
        }
    };
    quote! {
        #(#attributes)*
        #visibility async fn #ident(
            &self,
            #(#argument_names: #argument_types),*
        ) -> #answer {
            let __call = self.channel.#call(&#names::#constant, &(#(#coded,)*), #raw);
            #finish
        }
    }
}
