//! Parses a trait into the model, and reports an error at each place that a service cannot have.

use crate::model::{Argument, ErrorType, Method, Output, Service};
use crate::options::Options;
use crate::payload::Payload;
use quote::quote_spanned;
use std::collections::HashSet;
use syn::ext::IdentExt as _;
use syn::spanned::Spanned as _;
use syn::{
    Attribute, FnArg, GenericArgument, ItemTrait, Pat, PathArguments, ReceiverKind, ReturnType, Signature,
    TraitItem, TraitItemFn, Type, parse_quote,
};

/// Most methods of a service.
const MOST_METHODS: usize = 1024;

/// Checks a trait and reports all errors at once.
pub(crate) fn service(options: Options, item: ItemTrait) -> syn::Result<Service> {
    let mut errors = Errors::default();
    errors.refuse(&item.generics.params, "a service cannot be generic");
    errors.refuse(&item.generics.where_clause, "a service cannot have a where clause");
    errors.refuse(&item.supertraits, "a service cannot have supertraits");
    errors.refuse(&item.unsafety, "a service cannot be an unsafe trait");
    let name = match &options.name {
        Some(name) if name.value().is_empty() => {
            errors.add(name, "the name of a service cannot be empty");
            String::new()
        }
        Some(name) => name.value(),
        None => item.ident.unraw().to_string(),
    };
    let version = options.version.as_ref().map_or(Ok(1), |version| version.base10_parse::<u32>());
    let version = errors.take(version).unwrap_or_default();
    let mut names = HashSet::new();
    let mut methods = Vec::new();
    for member in item.items {
        let TraitItem::Fn(function) = member else {
            errors.add(&member, "a service can have only methods");
            continue;
        };
        // The stubs name their constants in upper case.
        if !names.insert(function.sig.ident.unraw().to_string().to_uppercase()) {
            errors.add(&function.sig.ident, "another method has this name already, perhaps in another case");
        }
        methods.extend(method(function, &mut errors));
    }
    if methods.len() > MOST_METHODS {
        errors.add(&item.ident, &format!("a service has at most {MOST_METHODS} methods"));
    }
    errors.finish()?;
    Ok(Service { visibility: item.vis, ident: item.ident, name, version, attributes: item.attrs, methods })
}

/// Removes the attribute that marks a service from a list.
pub(crate) fn take_attribute(attributes: &mut Vec<Attribute>) -> Option<Attribute> {
    let at = attributes.iter().position(|attribute| {
        attribute.path().segments.last().is_some_and(|segment| segment.ident == "service")
            && attribute.path().segments.iter().any(|segment| segment.ident == "trunkline")
    })?;
    Some(attributes.remove(at))
}

/// Names of functions that the stubs define.
const TAKEN: [&str; 6] = ["connect", "ordered", "with", "with_timeout", "clone", "service"];

fn method(function: TraitItemFn, errors: &mut Errors) -> Option<Method> {
    let TraitItemFn { mut attrs, sig, default, .. } = function;
    check_signature(&sig, errors);
    errors.refuse(&default, "a method of a service has no default body; implement it in the handler");
    if TAKEN.iter().any(|taken| sig.ident == taken) {
        errors.add(&sig.ident, "the generated stubs define a function of this name");
    }
    let one_way = attrs.iter().position(|attribute| attribute.path().is_ident("oneway"));
    if let Some(at) = one_way {
        attrs.remove(at);
    }
    if let Some(conditional) = attrs.iter().find(|attribute| attribute.path().is_ident("cfg")) {
        errors.add(conditional, "a method of a service cannot be conditional: both sides must agree on it");
    }
    let arguments = arguments(&sig, errors);
    let output = output(&sig.output);
    if one_way.is_some() && !matches!(&output, Some(output) if is_unit(&output.ty) && output.error.is_none())
    {
        errors.add(&sig.output, "a one-way method returns nothing; remove the return type");
    }
    let Some(output) = output else {
        errors.add(&sig.output, "this return type cannot be sent: it must own its data");
        return None;
    };
    Some(Method { ident: sig.ident, attributes: attrs, one_way: one_way.is_some(), arguments, output })
}

fn check_signature(sig: &Signature, errors: &mut Errors) {
    if sig.asyncness.is_none() {
        errors.add(&sig.fn_token, "a method of a service must be an `async fn`");
    }
    errors.refuse(&sig.constness, "a method of a service cannot be const");
    errors.refuse(&sig.safety, "a method of a service cannot be unsafe");
    errors.refuse(&sig.abi, "a method of a service cannot have an ABI");
    errors.refuse(
        &sig.generics.params,
        "a method of a service cannot be generic: its types must be known on both sides",
    );
    errors.refuse(&sig.generics.where_clause, "a method of a service cannot have a where clause");
    errors.refuse(&sig.variadic, "a method of a service cannot be variadic");
    let by_reference = matches!(sig.inputs.first(), Some(FnArg::Receiver(receiver))
        if matches!(receiver.kind, ReceiverKind::Reference(_, None, None)));
    if !by_reference {
        errors.add(&sig.ident, "a method of a service must take `&self` first");
    }
}

fn arguments(sig: &Signature, errors: &mut Errors) -> Vec<Argument> {
    let mut arguments = Vec::new();
    for input in &sig.inputs {
        let FnArg::Typed(typed) = input else { continue };
        let Pat::Ident(pattern) = &*typed.pat else {
            errors.add(&typed.pat, "an argument of a service must be a plain name");
            continue;
        };
        if pattern.by_ref.is_some() || pattern.mutability.is_some() || pattern.subpat.is_some() {
            errors.add(&typed.pat, "an argument of a service must be a plain name");
        }
        if !owns_its_data(&typed.ty) {
            errors.add(&typed.ty, "this type cannot be sent: it must own its data");
        }
        if let Some(attribute) = typed.attrs.first() {
            errors.add(attribute, "an argument of a service cannot have attributes");
        }
        arguments.push(Argument { ident: pattern.ident.clone(), ty: (*typed.ty).clone(), raw: false });
    }
    if arguments.len() > 12 {
        errors.add(&sig.inputs, "a method has at most 12 arguments; put them into a struct");
    }
    if let Some(last) = arguments.iter_mut().rev().find(|argument| is_bytes(&argument.ty)) {
        last.raw = true;
    }
    arguments
}

fn output(output: &ReturnType) -> Option<Output> {
    let whole: Type = match output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, ty) => (**ty).clone(),
    };
    if !owns_its_data(&whole) {
        return None;
    }
    let (ty, error) = match generic_arguments(&whole, "Result").as_slice() {
        [success, error, ..] if is_named(error, "Status") => {
            ((*success).clone(), Some(ErrorType::Status((*error).clone())))
        }
        [success, error, ..] => ((*success).clone(), Some(ErrorType::Other((*error).clone()))),
        // An alias; the compiler finds the error in it.
        [success] => {
            let error = quote_spanned!(whole.span()=> <#whole as ::trunkline::stub::Fallible>::Error);
            ((*success).clone(), Some(ErrorType::Other(Type::Verbatim(error))))
        }
        [] => (whole.clone(), None),
    };
    let optional = generic_arguments(&ty, "Option").first().copied().filter(|ty| is_bytes(ty));
    let (payload, raw) = match optional {
        Some(bytes) => (Payload::OptionalBytes, Some(bytes.clone())),
        None if is_bytes(&ty) => (Payload::Bytes, Some(ty.clone())),
        None => (Payload::Coded, None),
    };
    Some(Output { whole, ty, payload, raw, error })
}

/// References and `impl` types cannot be decoded from received bytes. Nested ones are left to the
/// compiler, which then reports that `DeserializeOwned` is missing.
fn owns_its_data(ty: &Type) -> bool {
    !matches!(ty, Type::Reference(_) | Type::ImplTrait(_) | Type::Ptr(_) | Type::Slice(_) | Type::Never(_))
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
}

fn is_bytes(ty: &Type) -> bool {
    is_named(ty, "Bytes")
}

/// Whether it is a type of this name, without parameters.
fn is_named(ty: &Type, name: &str) -> bool {
    let Type::Path(path) = ty else { return false };
    path.qself.is_none()
        && path.path.segments.last().is_some_and(|last| last.ident == name && last.arguments.is_empty())
}

/// The type arguments if `ty` is `name<...>`.
fn generic_arguments<'a>(ty: &'a Type, name: &str) -> Vec<&'a Type> {
    let Type::Path(path) = ty else { return Vec::new() };
    let Some(last) = path.path.segments.last().filter(|last| last.ident == name) else { return Vec::new() };
    let PathArguments::AngleBracketed(list) = &last.arguments else { return Vec::new() };
    let types = list.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(ty),
        _ => None,
    });
    types.collect()
}

/// Collects errors, so that the user sees all of them at once.
#[derive(Default)]
struct Errors(Option<syn::Error>);

impl Errors {
    fn add(&mut self, place: &impl quote::ToTokens, text: &str) {
        let error = syn::Error::new(place.span(), text);
        self.push(error);
    }

    /// Adds an error if there is anything at this place.
    fn refuse(&mut self, place: &impl quote::ToTokens, text: &str) {
        if !place.to_token_stream().is_empty() {
            self.add(place, text);
        }
    }

    fn take<T>(&mut self, result: syn::Result<T>) -> Option<T> {
        result.map_err(|error| self.push(error)).ok()
    }

    fn push(&mut self, error: syn::Error) {
        match &mut self.0 {
            Some(all) => all.combine(error),
            none => *none = Some(error),
        }
    }

    fn finish(self) -> syn::Result<()> {
        self.0.map_or(Ok(()), Err)
    }
}
