//! Emits Rust from the model.
//!
//! The output for a trait `Kv` contains the trait, `KvServer`, `KvClient` and `KvLocal`, the clients with options
//! `KvClientWith` and `KvLocalWith`, and the caller traits `KvCalls` and `LocalKvCalls`. Private statics hold the wire
//! names of the service and its methods, and assertions check the types.

mod callers;
mod client;
mod fallback;
mod proofs;
mod server;

pub(crate) use fallback::fallback;

use crate::model::{Argument, ErrorType, Items, Method, Payload, Runs, Service, StreamItem};
use crate::options::crate_path;
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::ext::IdentExt as _;
use syn::{Attribute, File, Ident, Type};

/// Emits the trait and all its stubs.
pub(crate) fn service(service: &Service) -> TokenStream {
    let declaration = declaration(service);
    let stubs = conditional(service, stubs(service));
    quote! { #declaration #stubs }
}

/// Repeats the `cfg` attributes of a trait on each item of its stubs. The compiler removes only the `cfg` attributes above
/// the attribute macro. It does not remove the ones below the macro or in a file.
fn conditional(service: &Service, stubs: TokenStream) -> TokenStream {
    let is_condition = |attribute: &&Attribute| attribute.path().is_ident("cfg");
    let conditions = service.attributes.iter().filter(is_condition).collect::<Vec<_>>();
    if conditions.is_empty() {
        return stubs;
    }
    match syn::parse2::<File>(stubs.clone()) {
        Ok(File { items, .. }) => items.iter().map(|item| quote!(#(#conditions)* #item)).collect(),
        // The compiler reports the error.
        Err(_) => stubs,
    }
}

/// Emits the stubs without the trait.
fn stubs(service: &Service) -> TokenStream {
    let names = names(service);
    let proofs = proofs::emit(service);
    let server = server::emit(service);
    let client = client::emit(service, client::StubKind::Shared);
    let local = client::emit(service, client::StubKind::Local);
    let callers = callers::emit(service);
    quote! { #names #server #client #local #callers #proofs }
}

/// Returns the attribute for the lints that stubs allow. A program may leave stubs unused, and deprecations concern only
/// callers.
fn quiet() -> TokenStream {
    quote!(#[allow(dead_code, deprecated, clippy::let_unit_value)])
}

/// Emits the trait, with methods as functions that return futures. `impl` blocks may write the methods as `async fn`. Only
/// futures of `#[offload]` methods must be `Send`.
fn declaration(service: &Service) -> TokenStream {
    let Service { visibility, ident, attributes, methods, .. } = service;
    let functions = methods.iter().map(|method| {
        let Method { ident, attributes, runs, context, arguments, items, output, .. } = method;
        let context = context.as_ref().map(|Argument { ident, ty, .. }| quote!(#ident: &#ty,));
        let names = arguments.iter().map(|argument| &argument.ident);
        let types = arguments.iter().map(|argument| &argument.ty);
        let items = items.as_ref().map(|Items { ident, ty, .. }| quote!(#ident: #ty));
        let result = &output.whole;
        let send = (*runs == Runs::Pool).then(|| quote_spanned!(ident.span()=> + ::core::marker::Send));
        quote! {
            #(#attributes)*
            fn #ident(&self, #context #(#names: #types,)* #items) -> impl ::core::future::Future<Output = #result> #send;
        }
    });
    quote! {
        #(#attributes)*
        #[allow(dead_code)]
        #visibility trait #ident: 'static {
            #(#functions)*
        }
    }
}

/// Emits the codec alias and the statics with the wire names of the service and its methods. These items are not in a
/// module, so that a service can be declared in a function.
fn names(service: &Service) -> TokenStream {
    let (service_name, codec) = (service_name(service), codec_alias(service));
    let krate = krate(service, Span::call_site());
    let Service { name, version, oldest, .. } = service;
    let (hash, codec_type) = (service.hash(), codec_type(service));
    let methods = service.methods.iter().map(|method| {
        let constant = constant(service, method);
        let (text, hash, one_way) = (&method.name, service.method_hash(method), method.one_way);
        let idempotent = method.idempotent;
        let streams = match (&method.items, &method.output.items) {
            (None, None) => quote!(Neither),
            (None, Some(_)) => quote!(FromServer),
            (Some(_), None) => quote!(FromClient),
            (Some(_), Some(_)) => quote!(Both),
        };
        let shapes = shapes(service, method);
        quote! {
            #[allow(dead_code, non_upper_case_globals)]
            static #constant: #krate::stub::MethodName = #krate::stub::MethodName {
                service: &#service_name,
                name: #text,
                hash: #hash,
                one_way: #one_way,
                idempotent: #idempotent,
                streams: #krate::stub::Streams::#streams,
                shapes: #shapes,
            };
        }
    });
    // The compiler reports an invalid path once, at this import, and not at each use of the alias.
    let import = service.krate.as_ref().map(|path| {
        let alias = crate_path(&service.ident, Some(path), Span::call_site());
        quote!(#[allow(unused_imports)] use #path as #alias;)
    });
    quote! {
        #import

        const _: () = #krate::stub::require_version::<#krate::stub::StubVersion<1>>();

        #[allow(dead_code)]
        type #codec = #codec_type;

        #[allow(dead_code, non_upper_case_globals)]
        static #service_name: #krate::stub::ServiceName = #krate::stub::ServiceName {
            name: #name,
            version: #version,
            oldest: #oldest,
            codec: <#codec as #krate::codec::Codec>::ID,
            codec_name: <#codec as #krate::codec::Codec>::NAME,
            hash: #hash,
        };

        #(#methods)*

        #[allow(unused_imports)]
        use #krate::stub::{NoCoding as _, NotFailing as _, NotNamed as _};
    }
}

/// Emits the shapes of the types that a method sends.
fn shapes(service: &Service, method: &Method) -> TokenStream {
    let krate = krate(service, Span::call_site());
    let Method { arguments, items, output, one_way, .. } = method;
    let shape = quote!(shape());
    let coded = arguments.iter().filter(|argument| !argument.raw).map(|Argument { ident, ty, .. }| {
        let (name, shape) = (ident.unraw().to_string(), coding(service, ty, &shape));
        quote!(__shapes.argument(#name, #shape);)
    });
    let items = items.iter().map(|items| &items.item).filter(|item| !item.raw).map(|item| {
        let shape = coding(service, &item.ty, &shape);
        quote!(__shapes.items(#shape);)
    });
    let result = match &output.items {
        _ if *one_way => None,
        Some(item) => (!item.raw).then_some(&item.ty),
        None => (output.payload == Payload::Coded).then_some(&output.ty),
    };
    let result = result.map(|ty| {
        let shape = coding(service, ty, &shape);
        quote!(__shapes.result(#shape);)
    });
    let error = match &output.error {
        Some(ErrorType::Other(ty)) => {
            let shape = failing(service, ty, &shape);
            Some(quote!(__shapes.error(#shape);))
        }
        _ => None,
    };
    let all = coded.chain(items).chain(result).chain(error).collect::<TokenStream>();
    if all.is_empty() {
        return quote!(::core::option::Option::None);
    }
    quote! {
        ::core::option::Option::Some({
            static SHAPES: #krate::stub::MethodShapes = #krate::stub::MethodShapes::new(|__shapes| { #all });
            &SHAPES
        })
    }
}

fn codec_type(service: &Service) -> TokenStream {
    service.codec.as_ref().map_or_else(
        || {
            let krate = krate(service, Span::call_site());
            quote!(#krate::codec::Bincode)
        },
        |codec| quote!(#codec),
    )
}

/// Returns the name of the service's static. The statics of methods have an underscore after the trait's name, so their
/// names never equal this one.
fn service_name(service: &Service) -> Ident {
    format_ident!("__{}Service", service.ident.unraw())
}

/// Returns the name of the codec alias that the stubs use.
fn codec_alias(service: &Service) -> Ident {
    format_ident!("__{}Codec", service.ident.unraw())
}

/// Returns the path of the crate `trunkline` for generated code, with errors at `span`.
fn krate(service: &Service, span: Span) -> TokenStream {
    crate_path(&service.ident, service.krate.as_ref(), span)
}

/// Emits the closure that encodes an item of a stream.
fn put(service: &Service, StreamItem { ty, raw }: &StreamItem) -> TokenStream {
    let krate = krate(service, Span::call_site());
    let put = if *raw {
        quote!(bytes(#krate::stub::Named::<#ty>::body(__item)))
    } else {
        let item = coding(service, ty, &quote!(of(&__item)));
        quote!(value(&#item))
    };
    quote!(|__item: #ty, __buffer: &mut #krate::stub::ItemBuffer| __buffer.#put)
}

/// Emits a use of a type with the codec, which is a constant or a function call.
fn coding(service: &Service, ty: &Type, used: &TokenStream) -> TokenStream {
    of_codec(service, ty, "Coding", used)
}

/// Emits a use of a method's error type with the codec.
fn failing(service: &Service, ty: &Type, used: &TokenStream) -> TokenStream {
    of_codec(service, ty, "Failing", used)
}

fn of_codec(service: &Service, ty: &Type, name: &str, used: &TokenStream) -> TokenStream {
    // The compiler reports a reference within a tuple or a struct at each use. With a single span it reports the reference
    // once.
    let span = Span::call_site();
    let (krate, codec, name) = (krate(service, span), codec_alias(service), Ident::new(name, span));
    quote!(#krate::stub::coded!(#name, #codec, #ty, #used))
}

fn constant(service: &Service, method: &Method) -> Ident {
    format_ident!("__{}_{}", service.ident.unraw(), method.ident.unraw())
}
