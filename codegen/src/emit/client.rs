//! Emits the client stubs: one for any thread, one for tasks of a poller.

use super::{constant, names_module};
use crate::model::{ErrorType, Method, Service};
use crate::payload::Payload;
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;

/// Which of the two client stubs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// `KvClient`: `Clone + Send + Sync`.
    Shared,
    /// `KvLocal`: for tasks of one poller.
    Local,
}

/// Through what a method of a stub makes its call.
#[derive(Debug, Clone, Copy)]
enum Through {
    /// A client, with the usual options.
    Client,
    /// What its `with` returns, with other options.
    With,
}

/// The struct of a client stub and its methods, and the same with options.
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
    let with = format_ident!("{client}With");
    let summary_with = format!(" A [`{client}`] with other options, see its `with`.");
    let functions = methods.iter().map(|method| function(service, method, Through::Client));
    let functions_with = methods.iter().map(|method| function(service, method, Through::With));
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

            /// The client's methods with these options for each call; it borrows both.
            #[must_use]
            #visibility fn with<'a>(&'a self, options: &'a ::trunkline::CallOptions) -> #with<'a> {
                #with { channel: &self.channel, options }
            }

            /// A client of the same server whose calls start there in the order in which they are made, whatever their
            /// sizes: one poller of this node sends them to one of the server's. So do the calls of its clones, with its
            /// own; all other calls promise no order, those of `self` included. A call is made when its future is
            /// first polled.
            ///
            /// A call that fails or is refused is left out, and the next ones start. When the session with the server
            /// ends, calls that have not left end as `Aborted`, in their order: they would follow others whose
            /// fate is unknown. Later calls go through the next session.
            #[must_use]
            #visibility fn ordered(&self) -> Self {
                Self { channel: self.channel.ordered() }
            }

            #(#functions)*
        }

        #[doc = #summary_with]
        #[derive(Debug, Clone, Copy)]
        #visibility struct #with<'a> {
            channel: &'a #channel,
            options: &'a ::trunkline::CallOptions,
        }

        impl #with<'_> {
            #(#functions_with)*
        }
    }
}

fn function(service: &Service, method: &Method, through: Through) -> TokenStream {
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
    let (result, check) = match &output.error {
        None => (quote!(::core::result::Result<#ty, ::trunkline::Status>), quote!()),
        Some(ErrorType::Status(_)) => (quote!(#whole), quote!()),
        Some(ErrorType::Other(error)) => {
            let span = error.span();
            let error = quote_spanned!(span=> <#error as ::trunkline::stub::HandlerError>);
            (
                quote_spanned!(span=> ::core::result::Result<#ty, #error::Call>),
                quote_spanned!(span=> let __response = #error::check(__response)?;),
            )
        }
    };
    // `?` converts a status to the error of the method.
    let (call, finish) = match (one_way, output.payload) {
        (true, _) => (quote!(send), quote!(__call.await?; ::core::result::Result::Ok(()))),
        (false, payload) => {
            let take = match payload {
                Payload::Coded => quote!(value),
                Payload::Bytes => quote!(bytes),
                Payload::OptionalBytes => quote!(optional_bytes),
            };
            let steps = quote! {
                let __response = __call.await?;
                #check
                let __value = __response.#take()?;
                ::core::result::Result::Ok(__value)
            };
            (quote!(call), steps)
        }
    };
    let (receiver, options) = match through {
        Through::Client => (quote!(&self), quote!(&::trunkline::CallOptions::new())),
        Through::With => (quote!(self), quote!(self.options)),
    };
    quote! {
        #(#attributes)*
        #visibility async fn #ident(
            #receiver,
            #(#argument_names: #argument_types),*
        ) -> #result {
            let __call = self.channel.#call(#options, &#names::#constant, &(#(#coded,)*), #raw);
            #finish
        }
    }
}
