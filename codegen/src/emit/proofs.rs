//! Emits assertions about the types of a service, because the macro sees only their names.
//!
//! Each assertion names its method and argument, and fails at the type as written. No other part of the stubs fails to
//! compile for the same reason.

use super::codec_alias;
use crate::model::{ErrorType, Method, Service};
use crate::types::is_bytes;
use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::Type;
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;

/// Emits the assertions about all methods.
pub(super) fn emit(service: &Service) -> TokenStream {
    service.methods.iter().map(|method| of_method(service, method)).collect()
}

fn of_method(service: &Service, method: &Method) -> TokenStream {
    let codec = codec_alias(service);
    let name = method.ident.unraw();
    let mut all = TokenStream::new();
    let mut holds = |ty: &Type, what: TokenStream, text: String| {
        all.extend(quote_spanned!(ty.span()=> const _: () = ::trunkline::stub::require(#what, #text);));
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
    let hidden = |what: &str| {
        format!(
            "{what} is `trunkline::Bytes` by another name; write `Bytes`, so that both sides send it as raw bytes"
        )
    };
    for argument in &method.arguments {
        let ty = &argument.ty;
        let what = format!("argument `{}` of `{name}`", argument.ident.unraw());
        if argument.raw {
            holds(ty, quote!(::trunkline::stub::Named::<#ty>::IS_BYTES), bytes(&what));
            continue;
        }
        holds(ty, quote!(::trunkline::stub::Coding::<#codec, #ty>::IS_POSSIBLE), coded(&what));
        if !is_bytes(ty) {
            holds(ty, quote!(!::trunkline::stub::Named::<#ty>::IS_BYTES), hidden(&what));
        }
    }
    let (ty, what) = (&method.output.ty, format!("the result of `{name}`"));
    match &method.output.raw {
        Some(raw) => holds(raw, quote!(::trunkline::stub::Named::<#raw>::IS_BYTES), bytes(&what)),
        None => {
            holds(ty, quote!(::trunkline::stub::Coding::<#codec, #ty>::IS_POSSIBLE), coded(&what));
            let named = quote!(::trunkline::stub::Named::<#ty>);
            holds(ty, quote!(!(#named::IS_BYTES || #named::IS_OPTIONAL_BYTES)), hidden(&what));
        }
    }
    if let Some(context) = &method.context {
        let ty = &context.ty;
        let text = format!(
            "the context of `{name}` must be `&trunkline::Context`; all other arguments are sent, and must own their data"
        );
        holds(ty, quote!(::trunkline::stub::Named::<#ty>::IS_CONTEXT), text);
    }
    if let Some(ErrorType::Status(ty)) = &method.output.error {
        let text = format!(
            "the error of `{name}`: a type named `Status` is sent as one and must be `trunkline::Status`; rename your own \
             type, for example by `use ... as Refusal`"
        );
        holds(ty, quote!(::trunkline::stub::Named::<#ty>::IS_STATUS), text);
    }
    all
}
