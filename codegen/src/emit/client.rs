//! Emits the two client stubs, one for any thread and one for tasks on a poller.

use super::{coding, constant, failing, krate, put, quiet};
use crate::model::{ErrorType, Items, Method, Payload, Service, StreamItem};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::spanned::Spanned as _;

/// A kind of client stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StubKind {
    /// `KvClient`, which is `Clone + Send + Sync`.
    Shared,
    /// `KvLocal`, for tasks on one poller.
    Local,
}

impl StubKind {
    /// Returns the bound on the stub's futures, in addition to `Future`.
    pub(super) fn bound(self, span: Span) -> TokenStream {
        match self {
            Self::Shared => quote_spanned!(span=> + ::core::marker::Send),
            Self::Local => quote!(),
        }
    }
}

/// The receiver of a stub's methods.
#[derive(Debug, Clone, Copy)]
enum Through {
    /// The client. Its methods call `with` with the default options.
    Client,
    /// The return value of the client's `with`, which contains the options.
    With,
}

/// Documentation of the methods of both stubs.
const METHODS: &str = " Calling a method starts the call: the arguments are encoded and handed to a poller before the method \
    returns, and the time limit counts from then. The future resolves to the outcome, even if the call could not be \
    made. It borrows the client but not the arguments. Dropping it cancels the call, whether or not it has been \
    polled. The handler may have run by then.";

/// Emits the struct and methods of a client stub, and its variant with options.
pub(super) fn emit(service: &Service, kind: StubKind) -> TokenStream {
    let Service { visibility, ident, methods, .. } = service;
    let krate = krate(service, Span::call_site());
    let (client, channel, from, summary) = match kind {
        StubKind::Shared => (
            format_ident!("{ident}Client"),
            quote!(#krate::Channel),
            quote!(#krate::Node),
            format!(" A client of [`{ident}`] for any thread and any executor. Cloning it is cheap."),
        ),
        StubKind::Local => (
            format_ident!("{ident}Local"),
            quote!(#krate::LocalChannel),
            quote!(#krate::PollerContext),
            format!(" A client of [`{ident}`] for tasks on one poller. Its calls stay on that thread."),
        ),
    };
    let with = format_ident!("{client}With");
    let summary_with = format!(" A [`{client}`] with other call options, from [`{client}::with`].");
    let functions = methods.iter().map(|method| function(service, method, kind, Through::Client));
    let functions_with = methods.iter().map(|method| function(service, method, kind, Through::With));
    let quiet = quiet();
    let constants = methods.iter().map(|method| constant(service, method));
    // If a method is named `new`, only `from` creates a client.
    let new = methods.iter().all(|method| method.ident != "new").then(|| {
        quote! {
            /// Creates a client that calls through `channel`.
            #[must_use]
            #visibility fn new(channel: #channel) -> Self {
                ::core::convert::From::from(channel)
            }
        }
    });
    quote! {
        #[doc = #summary]
        #[doc = ""]
        #[doc = #METHODS]
        #quiet
        #[derive(::core::fmt::Debug, ::core::clone::Clone)]
        #visibility struct #client {
            channel: #channel,
        }

        #quiet
        impl #client {
            #new
            /// Creates a client of `server`, which is for example `"10.0.0.1:7000"` or a `SocketAddr`. The first call
            /// connects.
            ///
            /// # Errors
            /// `InvalidArgument` if `server` cannot be the address of a server.
            #visibility fn connect(
                from: &#from,
                server: impl ::core::convert::Into<#krate::Target>,
            ) -> ::core::result::Result<Self, #krate::Status> {
                <#channel>::connect(from, server).map(::core::convert::From::from)
            }

            /// Sets the time limit of each call. The default is the deadline of the calling handler, or 10 s elsewhere.
            #[must_use]
            #visibility fn with_timeout(mut self, timeout: ::core::time::Duration) -> Self {
                self.channel.set_timeout(timeout);
                self
            }

            /// Returns a view of this client that makes each call with `options`, such as a time limit or metadata.
            /// Its futures borrow only the client.
            #[inline]
            #[must_use]
            #visibility fn with<'c, 'o>(&'c self, options: &'o #krate::CallOptions) -> #with<'c, 'o> {
                #with { channel: &self.channel, options }
            }

            /// Returns a client of the same server. Its calls start on the server in the order in which its methods
            /// were called.
            ///
            /// The order does not depend on the sizes of the calls or on when their futures are polled. Clones of the
            /// returned client share its order. Other calls are not ordered, including those of `self`.
            ///
            /// A call that fails, is refused or is cancelled is skipped. When the session with the server ends, calls
            /// that have not been sent fail with `Aborted`, in order, because the outcome of earlier calls is unknown.
            /// Later calls use the next session.
            #[must_use]
            #visibility fn ordered(&self) -> Self {
                Self { channel: self.channel.ordered() }
            }

            #(#functions)*
        }

        #quiet
        impl ::core::convert::From<#channel> for #client {
            /// Creates a client that calls through `channel`.
            fn from(channel: #channel) -> Self {
                #krate::stub::trace(&[#(&#constants),*]);
                Self { channel }
            }
        }

        #[doc = #summary_with]
        #quiet
        #[derive(::core::fmt::Debug, ::core::clone::Clone, ::core::marker::Copy)]
        #visibility struct #with<'c, 'o> {
            channel: &'c #channel,
            options: &'o #krate::CallOptions,
        }

        #quiet
        impl<'c> #with<'c, '_> {
            #(#functions_with)*
        }
    }
}

/// Returns the type of a client method's outcome.
pub(super) fn result(service: &Service, method: &Method) -> TokenStream {
    let (ty, error) = (&method.output.ty, error(service, method));
    quote_spanned!(span_of(method)=> ::core::result::Result<#ty, #error>)
}

/// Returns the type of a client method's error. It exists for every error type of a handler, so that an error type that
/// cannot be sent causes only the assertion to fail.
fn error(service: &Service, method: &Method) -> TokenStream {
    let span = span_of(method);
    let krate = krate(service, span);
    match &method.output.error {
        // Another type named `Status` is reported once, by the check of the declaration.
        None | Some(ErrorType::Status(_) | ErrorType::Report(_)) => quote_spanned!(span=> #krate::Status),
        Some(ErrorType::Other(error)) => quote_spanned! {span=>
            <#error as #krate::stub::MethodError<{ #krate::stub::Named::<#error>::IS_STATUS }>>::Call
        },
    }
}

/// Returns the span of the return type as written. The compiler reports errors of the method's future there.
pub(super) fn span_of(method: &Method) -> Span {
    let written = match &method.output.error {
        Some(ErrorType::Status(ty) | ErrorType::Report(ty) | ErrorType::Other(ty)) => ty.span(),
        None => method.output.whole.span(),
    };
    // Resolve at the call site, so that variables in the output are the stubs' own, even if a `macro_rules!` macro passed
    // the type.
    written.resolved_at(Span::call_site())
}

/// Returns the generics and the last argument of a client method that takes a stream.
pub(super) fn items_of(service: &Service, method: &Method) -> (TokenStream, TokenStream) {
    let Some(Items { ident, item: StreamItem { ty, .. }, .. }) = &method.items else {
        return (TokenStream::new(), TokenStream::new());
    };
    let krate = krate(service, Span::call_site());
    let bound = quote!(#krate::stub::Stream<Item = #ty> + ::core::marker::Send + 'static);
    (quote!(<__Items: #bound>), quote!(#ident: __Items))
}

/// Emits the call of a method that streams items.
fn open(
    service: &Service,
    method: &Method,
    call: &TokenStream,
    check: Option<&TokenStream>,
    take: &TokenStream,
) -> TokenStream {
    let krate = krate(service, Span::call_site());
    let items = method.items.as_ref().map_or_else(
        || quote!(#krate::stub::no_items()),
        |Items { ident, item, .. }| {
            let put = put(service, item);
            quote!(#krate::stub::outgoing(#ident, #put))
        },
    );
    let response = if check.is_some() { quote!(__response?) } else { quote!(__response) };
    let Some(StreamItem { ty, raw }) = &method.output.items else {
        return quote! {
            let (__call, _) = self.channel.open(#call, #items);
            __call.decoded(|__response| {
                #check
                let __value = #response.#take?;
                ::core::result::Result::Ok(__value)
            })
        };
    };
    let received = if *raw {
        quote!(bytes(#krate::stub::Named::<#ty>::value))
    } else {
        let decoder = coding(service, ty, &quote!(decoder()));
        quote!(items(#decoder))
    };
    quote! {
        let (__call, __opened) = self.channel.open(#call, #items);
        __call.decoded(move |__response| {
            #check
            let _ = #response.bytes()?;
            ::core::result::Result::Ok(__opened.#received)
        })
    }
}

/// Emits a method of a stub.
fn function(service: &Service, method: &Method, kind: StubKind, through: Through) -> TokenStream {
    let Method { ident, attributes, arguments, .. } = method;
    let visibility = &service.visibility;
    let argument_names = arguments.iter().map(|argument| &argument.ident).collect::<Vec<_>>();
    let argument_types = arguments.iter().map(|argument| &argument.ty);
    let (inline, receiver, lifetime, body) = match through {
        Through::Client => {
            let krate = krate(service, Span::call_site());
            let options = quote!(&#krate::stub::DEFAULT_OPTIONS);
            let items = method.items.as_ref().map(|items| &items.ident);
            let body = quote!(self.with(#options).#ident(#(#argument_names,)* #items));
            (Some(quote!(#[inline])), quote!(&self), quote!('_), body)
        }
        Through::With => (None, quote!(self), quote!('c), call(service, method)),
    };
    let (generics, items) = items_of(service, method);
    let captured = method.items.as_ref().map(|_| quote!(, __Items));
    // With this span, the compiler reports errors of the future at the type as written.
    let (span, bound, result) = (span_of(method), kind.bound(span_of(method)), result(service, method));
    let future = quote_spanned! {span=>
        impl ::core::future::Future<Output = #result> #bound + use<#lifetime #captured>
    };
    quote! {
        #(#attributes)*
        #inline
        #[must_use = "the call is made, but dropping its future cancels it"]
        #visibility fn #ident #generics(
            #receiver,
            #(#argument_names: #argument_types,)*
            #items
        ) -> #future {
            #body
        }
    }
}

/// Emits the call of a method. The call uses the options of `self`.
fn call(service: &Service, method: &Method) -> TokenStream {
    let Method { arguments, output, one_way, .. } = method;
    let krate = krate(service, Span::call_site());
    let constant = constant(service, method);
    let coded = arguments.iter().filter(|argument| !argument.raw).map(|argument| {
        let name = &argument.ident;
        coding(service, &argument.ty, &quote!(of(&#name)))
    });
    let raw = arguments.iter().find(|argument| argument.raw).map_or_else(
        || quote!(#krate::Bytes::new()),
        |argument| {
            let (name, ty) = (&argument.ident, &argument.ty);
            quote!(#krate::stub::Named::<#ty>::body(#name))
        },
    );
    let ty = &output.ty;
    let span = span_of(method);
    let check = match &output.error {
        Some(ErrorType::Other(own)) => {
            let (error, krate) = (error(service, method), super::krate(service, span));
            let checked = failing(service, own, &quote_spanned!(span=> check(__response)));
            Some(quote_spanned! {span=>
                let __response: ::core::result::Result<#krate::stub::Response, #error> =
                    #checked;
            })
        }
        _ => None,
    };
    let raw_type = &output.raw;
    let take = match output.payload {
        Payload::Coded => {
            let decoder = coding(service, ty, &quote!(decoder()));
            quote!(value(#decoder))
        }
        Payload::Bytes => quote!(bytes().map(#krate::stub::Named::<#raw_type>::value)),
        Payload::OptionalBytes => {
            quote!(optional_bytes().map(#krate::stub::Named::<#ty>::optional_value))
        }
    };
    let given = quote!(self.options, &#constant, &(#(#coded,)*), #raw);
    let (call, decode) = match (one_way, check) {
        (_, check) if method.streams() => (open(service, method, &given, check.as_ref(), &take), None),
        (true, _) => (quote!(send), Some(quote!(|_| ::core::result::Result::Ok(())))),
        (false, None) => (quote!(call), Some(quote!(|__response| __response.#take))),
        // `?` converts a status to the method's error type.
        (false, Some(check)) => {
            let steps = quote!(let __value = __response?.#take?; ::core::result::Result::Ok(__value));
            (quote!(call), Some(quote!(|__response| { #check #steps })))
        }
    };
    match decode {
        Some(decode) => quote!(self.channel.#call(#given).decoded(#decode)),
        None => call,
    }
}
