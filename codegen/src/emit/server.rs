//! Emits the server stub.

use super::{constant, names_module};
use crate::model::{ErrorType, Method, Service};
use crate::payload::Payload;
use proc_macro2::TokenStream;
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;

/// `KvServer`: creates one handler for each poller.
pub(super) fn emit(service: &Service) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let server = format_ident!("{ident}Server");
    let names = names_module(service);
    let limits = methods.iter().map(|method| limit(service, method));
    let entries = methods.iter().map(|method| entry(service, method));
    let summary = format!(" A server of [`{ident}`], to pass to `NodeBuilder::serve`.");
    quote! {
        #[doc = #summary]
        #[derive(Debug)]
        #visibility struct #server(::trunkline::stub::Service);

        impl #server {
            /// A server with one handler per poller. `make` runs on each poller's thread, so a handler
            /// need not be `Send`.
            #[must_use]
            #visibility fn new<T: #ident>(
                make: impl Fn() -> T + ::core::marker::Send + ::core::marker::Sync + 'static,
            ) -> Self {
                Self::with_context(move |_| make())
            }

            /// Like `new`; `make` also receives the poller's context, with which handlers create local clients.
            #[must_use]
            #visibility fn with_context<T: #ident>(
                make: impl Fn(&::trunkline::PollerContext) -> T
                    + ::core::marker::Send
                    + ::core::marker::Sync
                    + 'static,
            ) -> Self {
                Self(::trunkline::stub::Service::new(&#names::SERVICE, move |context, methods| {
                    let handler = ::std::rc::Rc::new(make(context));
                    #(#entries)*
                    // A service may have no methods.
                    let _ = (handler, methods);
                }))
            }

            /// At most so many calls of the service run at once, on all pollers of the node; without this, what one
            /// peer and all together may run limits them (`handler_limit`). Further calls are refused at once,
            /// as `ResourceExhausted` with the reason `Overloaded`: they have not run, and may be repeated after a
            /// pause, or at another server.
            ///
            /// A limit of 0 is refused when the node starts.
            #[must_use]
            #visibility fn limit(self, most: u32) -> Self {
                Self(self.0.limit(most))
            }

            #(#limits)*
        }

        impl ::core::convert::From<#server> for ::trunkline::stub::Service {
            fn from(server: #server) -> Self {
                server.0
            }
        }
    }
}

/// The limit of one method.
fn limit(service: &Service, method: &Method) -> TokenStream {
    let (visibility, ident) = (&service.visibility, method.ident.unraw());
    let (names, constant) = (names_module(service), constant(method));
    let name = format_ident!("limit_{ident}");
    let summary = format!(
        " At most so many calls of `{ident}` run at once, as [`Self::limit`] has it for all methods."
    );
    quote! {
        #[doc = #summary]
        #[must_use]
        #visibility fn #name(self, most: u32) -> Self {
            Self(self.0.limit_method(&#names::#constant, most))
        }
    }
}

/// Registers one method: decode the arguments, call the handler, encode the result.
fn entry(service: &Service, method: &Method) -> TokenStream {
    let (trait_ident, ident) = (&service.ident, &method.ident);
    let (names, constant) = (names_module(service), constant(method));
    let coded = method.arguments.iter().filter(|argument| !argument.raw).collect::<Vec<_>>();
    let coded_names = coded.iter().map(|argument| &argument.ident);
    let coded_types = coded.iter().map(|argument| &argument.ty);
    let texts = coded.iter().map(|argument| argument.ident.unraw().to_string());
    let raw = method.arguments.iter().find(|argument| argument.raw).map(|argument| {
        let name = &argument.ident;
        quote! { let #name = __request.into_body(); }
    });
    let all = method.arguments.iter().map(|argument| &argument.ident);
    let question = method.output.error.as_ref().map(|error| {
        let (ErrorType::Status(ty) | ErrorType::Other(ty)) = error;
        quote_spanned! {ty.span()=>
            .map_err(|__error| ::trunkline::stub::HandlerError::into_failure(__error, &__replier))?
        }
    });
    let reply = match method.output.payload {
        Payload::Coded => quote!(value(&__value)),
        Payload::Bytes => quote!(bytes(__value)),
        Payload::OptionalBytes => quote!(optional_bytes(__value)),
    };
    quote! {
        methods.add(&#names::#constant, {
            let handler = ::std::rc::Rc::clone(&handler);
            move |__request: ::trunkline::stub::Request| {
                let __handler = ::std::rc::Rc::clone(&handler);
                async move {
                    let (#(#coded_names,)*): (#(#coded_types,)*) = __request.arguments(&[#(#texts),*])?;
                    let __replier = __request.replier();
                    #raw
                    let __value = #trait_ident::#ident(&*__handler, #(#all),*).await #question;
                    __replier.#reply
                }
            }
        });
    }
}
