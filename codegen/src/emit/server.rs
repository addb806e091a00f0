//! Emits the server stub.

use super::{coding, constant, failing, krate, put, quiet, service_name};
use crate::model::{Argument, ErrorType, Items, Method, Payload, Runs, Service, StreamItem};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::Ident;
use syn::ext::IdentExt as _;

/// Emits `KvServer`, with one handler for all pollers or one per poller.
pub(super) fn emit(service: &Service) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let server = format_ident!("{ident}Server");
    let krate = krate(service, Span::call_site());
    let names = service_name(service);
    let limits = methods.iter().map(|method| limit(service, method));
    let entries = methods.iter().map(|method| entry(service, method));
    let quiet = quiet();
    let summary = format!(" A server of [`{ident}`]. Pass it to `NodeBuilder::serve`.");
    let pooled = service.is_pooled().then(|| quote!(.pooled()));
    let refusal = service.is_pooled().then(|| refusal(service));
    let (per_poller, register) = (per_poller(service), register(service));
    quote! {
        #refusal

        #[doc = #summary]
        #quiet
        #[derive(::core::fmt::Debug)]
        #visibility struct #server(#krate::stub::Service);

        #quiet
        impl #server {
            /// Creates a server whose handler is shared by all pollers of the node.
            #[must_use]
            #visibility fn new<__Handler: #ident + ::core::marker::Send + ::core::marker::Sync>(handler: __Handler) -> Self {
                Self::shared(::std::sync::Arc::new(handler))
            }

            /// Creates a server from a handler that is already in an `Arc`.
            #[must_use]
            #visibility fn shared<__Handler: #ident + ::core::marker::Send + ::core::marker::Sync>(
                handler: ::std::sync::Arc<__Handler>,
            ) -> Self {
                Self(#krate::stub::Service::new(&#names, move |_, methods| {
                    Self::__register(::std::rc::Rc::new(::std::sync::Arc::clone(&handler)), methods);
                    ::core::result::Result::Ok(())
                }) #pooled)
            }

            #per_poller

            #register
            {
                #(#entries)*
                // Avoid warnings about unused variables if the service has no methods.
                let _ = (handler, methods);
            }

            /// Limits how many calls of the service run concurrently, across all pollers of the node.
            ///
            /// A call beyond the limit is refused with `ResourceExhausted` and the reason `Overloaded`. It has not run
            /// and may be repeated after a pause, or on another server. If this limit is not set, the
            /// limits of the methods and the node's `handler_limit` still apply.
            ///
            /// A limit of 0 is refused when the node starts.
            #[must_use]
            #visibility fn limit(self, most: ::core::primitive::u32) -> Self {
                Self(self.0.limit(most))
            }

            /// Passes each call of the service to `interceptor` before its arguments are decoded. Interceptors run in
            /// the order in which they are added.
            #[must_use]
            #visibility fn interceptor(self, interceptor: impl #krate::ServerInterceptor) -> Self {
                Self(self.0.interceptor(interceptor))
            }

            #(#limits)*
        }

        impl ::core::convert::From<#server> for #krate::stub::Service {
            fn from(server: #server) -> Self {
                server.0
            }
        }
    }
}

/// Emits `per_poller`. If a service has methods in the pool, the compiler rejects calls of `per_poller`, because all
/// threads share the handler.
fn per_poller(service: &Service) -> TokenStream {
    let Service { visibility, ident, .. } = service;
    let names = service_name(service);
    let krate = krate(service, Span::call_site());
    let (bound, arguments, make) = if service.is_pooled() {
        let refuses = refuses(service);
        (
            quote!(#ident + #refuses),
            quote!(_, _),
            quote!({
                // Handlers never satisfy the bound.
                let _ = make;
                ::core::result::Result::Err(::core::convert::Into::into(
                    "methods of the service run in the worker pool",
                ))
            }),
        )
    } else {
        (
            quote!(#ident),
            quote!(context, methods),
            quote!({
                let handler = make(context).map_err(::core::convert::Into::into)?;
                Self::__register(::std::rc::Rc::new(::std::boxed::Box::new(handler)), methods);
                ::core::result::Result::Ok(())
            }),
        )
    };
    quote! {
        /// Creates a server with one handler per poller. The handlers need not be `Send`.
        ///
        /// `make` runs once on the thread of each poller, with the context of that poller. If it fails or panics, the
        /// node does not start and the error names the cause. Services with `#[offload]` or `#[blocking]` methods
        /// cannot use this function.
        #[must_use]
        #visibility fn per_poller<__Handler: #bound, __Failure>(
            make: impl ::core::ops::Fn(&#krate::PollerContext) -> ::core::result::Result<__Handler, __Failure>
                + ::core::marker::Send
                + ::core::marker::Sync
                + 'static,
        ) -> Self
        where
            __Failure: ::core::convert::Into<#krate::stub::Cause>,
        {
            Self(#krate::stub::Service::new(&#names, move |#arguments| #make))
        }
    }
}

/// Returns the name of the trait that refuses `per_poller`.
fn refuses(service: &Service) -> Ident {
    format_ident!("__{}PerPoller", service.ident.unraw())
}

/// Emits a trait without implementations. The compiler error at a call of `per_poller` then names the methods in the pool.
fn refusal(service: &Service) -> TokenStream {
    let (visibility, refuses) = (&service.visibility, refuses(service));
    let methods = service
        .pooled()
        .map(|method| {
            let attribute = method.runs.attribute().unwrap_or_default();
            format!("`{}` is `#[{attribute}]`", method.ident.unraw())
        })
        .collect::<Vec<_>>()
        .join(", ");
    let message = format!(
        "`{}Server::per_poller` is not for this service: {methods}, so its handler is shared by pollers and workers",
        service.ident.unraw()
    );
    quote! {
        #[doc(hidden)]
        #[allow(dead_code)]
        #[diagnostic::on_unimplemented(
            message = #message,
            label = "use `new` or `shared`",
            note = "or move these methods to a service of their own"
        )]
        #visibility trait #refuses {}
    }
}

/// Emits the signature of the function that registers the methods.
fn register(service: &Service) -> TokenStream {
    let (ident, krate) = (&service.ident, krate(service, Span::call_site()));
    if service.is_pooled() {
        quote! {
            // Each poller has its own `Rc`, whose clones are counted without atomic operations.
            #[allow(clippy::redundant_allocation)]
            fn __register<__Handler: #ident + ::core::marker::Send + ::core::marker::Sync>(
                handler: ::std::rc::Rc<::std::sync::Arc<__Handler>>,
                methods: &mut #krate::stub::Methods,
            )
        }
    } else {
        quote! {
            fn __register<__Shared>(handler: ::std::rc::Rc<__Shared>, methods: &mut #krate::stub::Methods)
            where
                __Shared: ::core::ops::Deref + 'static,
                __Shared::Target: #ident + ::core::marker::Sized,
        }
    }
}

/// Emits the function that limits one method.
fn limit(service: &Service, method: &Method) -> TokenStream {
    let (visibility, ident) = (&service.visibility, method.ident.unraw());
    let constant = constant(service, method);
    let name = format_ident!("limit_{ident}");
    let summary = format!(" Limits how many `{ident}` calls run concurrently. See [`Self::limit`].");
    quote! {
        #[doc = #summary]
        #[must_use]
        #visibility fn #name(self, most: ::core::primitive::u32) -> Self {
            Self(self.0.limit_method(&#constant, most))
        }
    }
}

/// Emits the registration of one method, which decodes the arguments, calls the handler and encodes the result.
fn entry(service: &Service, method: &Method) -> TokenStream {
    let (trait_ident, ident) = (&service.ident, &method.ident);
    let krate = krate(service, Span::call_site());
    let constant = constant(service, method);
    let coded = method.arguments.iter().filter(|argument| !argument.raw).collect::<Vec<_>>();
    let coded_names = coded.iter().map(|argument| &argument.ident);
    let decoder = quote!(decoder());
    let decoders = coded.iter().map(|argument| coding(service, &argument.ty, &decoder));
    let texts = coded.iter().map(|argument| argument.ident.unraw().to_string());
    let raw = method.arguments.iter().find(|argument| argument.raw).map(|argument| {
        let (name, ty) = (&argument.ident, &argument.ty);
        quote! { let #name = #krate::stub::Named::<#ty>::value(__request.into_body()); }
    });
    let all = method.arguments.iter().map(|argument| &argument.ident);
    let all = all.chain(method.items.as_ref().map(|items| &items.ident)).collect::<Vec<_>>();
    let items = method.items.as_ref().map(|Items { ident, item: StreamItem { ty, raw }, .. }| {
        let received = if *raw {
            quote!(raw_items(#krate::stub::Named::<#ty>::value))
        } else {
            let decoder = coding(service, ty, &decoder);
            quote!(items(#decoder))
        };
        quote!(let #ident = __request.#received?;)
    });
    let writer = method.output.items.as_ref().map(|_| quote!(let __writer = __request.writer();));
    let (take_context, context) = match &method.context {
        Some(Argument { ty, .. }) => {
            let context = quote!(#krate::stub::Named::<#ty>::context(__request.context()));
            (quote!(let __context = #context;), quote!(&__context,))
        }
        None if method.runs != Runs::Poller => (quote!(let __context = __request.context();), quote!()),
        None => (quote!(), quote!()),
    };
    let (ty, raw_type) = (&method.output.ty, &method.output.raw);
    let unwrapped = method.output.error.as_ref().map(|error| {
        let (whole, failed) = (&method.output.whole, error.ty());
        let at = super::client::span_of(method);
        let krate = super::krate(service, at);
        let convert = match error {
            ErrorType::Status(ty) => quote_spanned!(at=> #krate::stub::Named::<#ty>::failure),
            ErrorType::Report(ty) => quote_spanned!(at=> #krate::stub::Named::<#ty>::report),
            ErrorType::Other(ty) => {
                let failure = failing(service, ty, &quote_spanned!(at=> into_failure(__error, &__replier)));
                quote_spanned!(at=> |__error| #failure)
            }
        };
        let (named, ty) = match &method.output.items {
            // The type of a stream cannot be named.
            Some(_) => (quote!(__value), quote!(_)),
            None => (quote_spanned!(at=> #krate::stub::Named::<#whole>::result(__value)), quote!(#ty)),
        };
        quote! {
            let __value: ::core::result::Result<#ty, #failed> = #named;
            let __value = __value.map_err(#convert)?;
        }
    });
    let reply = match method.output.payload {
        Payload::Coded if method.output.items.is_some() => quote!(end()),
        Payload::Coded => {
            let value = coding(service, ty, &quote!(of(&__value)));
            quote!(value(&#value))
        }
        Payload::Bytes => quote!(bytes(#krate::stub::Named::<#raw_type>::body(__value))),
        Payload::OptionalBytes => {
            quote!(optional_bytes(#krate::stub::Named::<#ty>::optional_body(__value)))
        }
    };
    let sent = method.output.items.as_ref().map(|item| {
        let put = put(service, item);
        quote!(__writer.send(__value, #put).await?;)
    });
    // With this span, the compiler reports at the method that a call cannot be sent to another thread.
    let at = ident.span();
    let own = quote!(let __handler = ::std::sync::Arc::clone(&*__handler); let __given = ::core::clone::Clone::clone(&__context););
    let called = quote_spanned!(at=> #trait_ident::#ident(&*__handler, #context #(#all),*).await);
    let (take_pool, pool, value) = match method.runs {
        Runs::Poller => {
            (quote!(), quote!(), quote!(#trait_ident::#ident(&**__handler, #context #(#all),*).await))
        }
        Runs::Pool => (
            quote!(let pool = methods.pool();),
            quote!(let __pool = ::core::clone::Clone::clone(&pool);),
            quote_spanned!(at=> { #own __pool.offload(&#constant, __given, async move { #called }).await.map_err(#krate::stub::Failure::Node)? }),
        ),
        Runs::Worker => (
            quote!(let pool = methods.pool();),
            quote!(let __pool = ::core::clone::Clone::clone(&pool);),
            quote_spanned!(at=> { #own __pool.block(&#constant, __given, move || async move { #called }).await.map_err(#krate::stub::Failure::Node)? }),
        ),
    };
    quote! {
        methods.add(&#constant, {
            let handler = ::std::rc::Rc::clone(&handler);
            #take_pool
            move |__request: #krate::stub::Request| {
                let __handler = ::std::rc::Rc::clone(&handler);
                #pool
                async move {
                    let (#(#coded_names,)*) = __request.arguments(&[#(#texts),*], (#(#decoders,)*))?;
                    let __replier = __request.replier();
                    #take_context
                    #items
                    #writer
                    #raw
                    let __value = #value;
                    #unwrapped
                    #sent
                    __replier.#reply
                }
            }
        });
    }
}
