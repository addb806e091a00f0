//! Emits assertions about the types of a service, because the macro sees only the names of types.
//!
//! Each assertion names its method and argument, and fails at the type as written. The other stubs still compile.

use super::{coding, failing, krate};
use crate::model::{ErrorType, Method, Payload, Service, StreamItem};
use crate::types::{is_bytes, report_feature};
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;

/// Emits the assertions about all methods.
pub(super) fn emit(service: &Service) -> TokenStream {
    service.methods.iter().map(|method| of_method(service, method)).collect()
}

fn of_method(service: &Service, method: &Method) -> TokenStream {
    let paths = |ty: &Type| krate(service, ty.span());
    let krate = krate(service, Span::call_site());
    let (name, is_possible) = (method.ident.unraw(), quote!(IS_POSSIBLE));
    let mut all = TokenStream::new();
    let mut holds = |ty: &Type, what: TokenStream, text: String| {
        let krate = paths(ty);
        all.extend(quote_spanned!(ty.span()=> const _: () = #krate::stub::require(#what, #text);));
    };
    let bytes = |what: &str| {
        format!(
            "{what}: a type named `Bytes` is sent as raw bytes and must be `trunkline::Bytes`; rename your own type, \
             for example by `use ... as Blob`"
        )
    };
    let coded = |what: &str| {
        format!(
            "{what} cannot be sent: the service's codec does not accept its type; if the type is your own, add \
             `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of its fields"
        )
    };
    let borrowed = |what: &str| {
        format!(
            "{what} cannot be sent: it holds references, by another name; take a type that owns its data, such as `String` \
             or `Vec<T>`"
        )
    };
    let hidden = |what: &str| {
        format!(
            "{what} is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes"
        )
    };
    for argument in &method.arguments {
        let ty = &argument.ty;
        let what = format!("argument `{}` of `{name}`", argument.ident.unraw());
        if argument.raw {
            holds(ty, quote!(#krate::stub::Named::<#ty>::IS_BYTES), bytes(&what));
            continue;
        }
        let named = quote!(#krate::stub::Named::<#ty>);
        let text = format!(
            "{what} is a `trunkline::Context`; take it as `cx: &Context`, the first argument after `&self`"
        );
        holds(ty, quote!(!#named::IS_CONTEXT), text);
        holds(ty, quote!(!#named::IS_BORROWED), borrowed(&what));
        let is_possible = coding(service, ty, &is_possible);
        holds(ty, quote!(#named::IS_CONTEXT || #named::IS_BORROWED || #is_possible), coded(&what));
        if !is_bytes(ty) {
            holds(ty, quote!(!#named::IS_BYTES), hidden(&what));
        }
    }
    let items =
        method.items.iter().map(|items| (format!("an item of `{}` of `{name}`", items.ident), &items.item));
    let of_server =
        method.output.items.iter().map(|item| (format!("an item of the stream of `{name}`"), item));
    for (what, StreamItem { ty, raw }) in items.chain(of_server) {
        let named = quote!(#krate::stub::Named::<#ty>);
        if *raw {
            holds(ty, quote!(#named::IS_BYTES), bytes(&what));
        } else {
            holds(ty, quote!(!#named::IS_BORROWED), borrowed(&what));
            let is_possible = coding(service, ty, &is_possible);
            holds(ty, quote!(#named::IS_BORROWED || #is_possible), coded(&what));
            holds(ty, quote!(!#named::IS_BYTES), hidden(&what));
        }
    }
    let (ty, what) = (&method.output.ty, format!("the result of `{name}`"));
    match &method.output.raw {
        Some(raw) => {
            let is_bytes = quote!(#krate::stub::Named::<#raw>::IS_BYTES);
            holds(raw, is_bytes.clone(), bytes(&what));
            if method.output.payload == Payload::OptionalBytes {
                let text = format!("{what}: {}", standard("Option"));
                holds(ty, quote!(!#is_bytes || #krate::stub::Named::<#ty>::IS_OPTIONAL_BYTES), text);
            }
        }
        None if method.output.items.is_some() => {}
        None => {
            let named = quote!(#krate::stub::Named::<#ty>);
            let is_result =
                if method.output.error.is_none() { quote!(#named::IS_RESULT) } else { quote!(false) };
            let text = format!(
                "{what} is a `Result` by another name, which the macro does not see; write `Result<T, E>`, or give the alias the \
                 name `Result`"
            );
            holds(ty, quote!(!#is_result), text);
            holds(ty, quote!(#is_result || !#named::IS_BORROWED), borrowed(&what));
            let is_possible = coding(service, ty, &is_possible);
            holds(ty, quote!(#is_result || #named::IS_BORROWED || #is_possible), coded(&what));
            holds(ty, quote!(!(#named::IS_BYTES || #named::IS_OPTIONAL_BYTES)), hidden(&what));
        }
    }
    if let Some(context) = &method.context {
        let ty = &context.ty;
        let text = format!(
            "the context of `{name}` must be `&trunkline::Context`; all other arguments are sent, and must own their data"
        );
        holds(ty, quote!(#krate::stub::Named::<#ty>::IS_CONTEXT), text);
    }
    if let Some(ErrorType::Status(ty)) = &method.output.error {
        let text = format!(
            "the error of `{name}`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own \
             type, for example by `use ... as Refusal`"
        );
        holds(ty, quote!(#krate::stub::Named::<#ty>::IS_STATUS), text);
    }
    if let Some(ErrorType::Report(ty)) = &method.output.error {
        let feature = report_feature(&method.output.whole).or_else(|| report_feature(ty)).unwrap_or("anyhow");
        let text = format!(
            "the error of `{name}` cannot be sent: use trunkline's feature `{feature}`, which makes a `Status` of it, or return \
             `trunkline::Status`"
        );
        holds(ty, quote!(#krate::stub::Named::<#ty>::IS_REPORT), text);
    }
    if let Some(ErrorType::Other(ty)) = &method.output.error {
        let named = quote!(#krate::stub::Named::<#ty>);
        let is_possible = failing(service, ty, &is_possible);
        holds(ty, quote!(!#named::IS_BORROWED), borrowed(&format!("the error of `{name}`")));
        let text = format!(
            "the error of `{name}` cannot be sent: add `#[derive(serde::Serialize, serde::Deserialize)]` to it and to the types of \
             its fields, or return `trunkline::Status`; for an error of anyhow or eyre write `anyhow::Result<T>` or \
             `eyre::Result<T>`, and use the feature of that name"
        );
        holds(ty, quote!(#named::IS_BORROWED || #is_possible), text);
    }
    // The type of a stream cannot be named.
    if method.output.error.is_some() && method.output.items.is_none() {
        let whole = &method.output.whole;
        let text = format!("{what}: {}", standard("Result"));
        holds(whole, quote!(#krate::stub::Named::<#whole>::IS_RESULT), text);
    }
    all
}

/// Returns the remedy for a type that has the same name as a standard library type.
fn standard(name: &str) -> String {
    format!(
        "a type named `{name}` must be the standard library's; rename your own type, for example by `use ... as Own{name}`"
    )
}
