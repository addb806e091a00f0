//! Parses a trait into the model, and reports an error at each invalid place.

use crate::errors::Errors;
use crate::model::{Argument, ErrorType, Items, Method, Output, Payload, Runs, Service, StreamItem};
use crate::options::{self, Options, crate_path};
use crate::types::{
    bare, generic_arguments, is_bytes, is_named, is_report, is_unit, stream_item, unsendable,
};
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use std::collections::HashSet;
use syn::ext::IdentExt as _;
use syn::parse::{ParseStream, Parser as _};
use syn::spanned::Spanned as _;
use syn::{
    Attribute, Expr, ExprLit, FnArg, Ident, ItemTrait, Lit, Meta, Pat, ReceiverKind, ReturnType, Signature,
    TraitItem, TraitItemFn, Type, Visibility, parse_quote,
};

/// Maximum number of methods of a service.
const MOST_METHODS: usize = 1024;
/// Maximum number of arguments of a method.
const MOST_ARGUMENTS: usize = 12;
/// Attributes of methods that the macro consumes.
pub(crate) const OURS: [&str; 5] = ["oneway", "idempotent", "name", "offload", "blocking"];

/// Checks a trait and reports all errors together. The returned service contains the valid methods. Returns `None` if stubs
/// cannot be generated for the trait.
pub(crate) fn service(options: Options, item: ItemTrait, errors: &mut Errors) -> Option<Service> {
    let before = errors.len();
    errors
        .refuse(&item.generics.params, "a service cannot be generic: its types must be known on both sides");
    errors.refuse(&item.generics.where_clause, "a service cannot have a where clause");
    errors.refuse(
        &item.supertraits,
        "a service cannot have supertraits; bound the type of the handler instead",
    );
    errors.refuse(&item.unsafety, "a service cannot be an unsafe trait");
    let is_possible = errors.len() == before;
    // The methods of a generic trait may use its parameters. Only the trait is reported, not each use.
    let mut in_generic = (!item.generics.params.is_empty()).then(Errors::default);
    let name = match &options.name {
        Some(name) if name.value().is_empty() => {
            errors.add(name, "the name of a service cannot be empty");
            String::new()
        }
        Some(name) => name.value(),
        None => item.ident.unraw().to_string(),
    };
    let version = options.version.unwrap_or(1);
    if let Some(accepts) = &options.accepts {
        accepts.check(version, errors);
    }
    let krate = |span| crate_path(&item.ident, options.krate.as_ref(), span);
    let (mut idents, mut names) = (HashSet::new(), HashSet::new());
    let mut methods = Vec::new();
    for member in item.items {
        let function = match (visible_method(&member), member) {
            (Some((visibility, function)), _) => {
                errors.add(&visibility, "a method has the visibility of its trait; remove this one");
                function
            }
            (None, TraitItem::Fn(function)) => function,
            (None, other) => {
                errors.add(&other, "a service can have only methods; put types and constants next to it");
                continue;
            }
        };
        let ident = function.sig.ident.clone();
        if !idents.insert(ident.unraw().to_string()) {
            errors.add(&ident, format!("another method is named `{ident}`"));
            continue;
        }
        let in_method = in_generic.as_mut().unwrap_or(&mut *errors);
        let Some(method) = method(function, &krate, in_method) else { continue };
        if !names.insert(method.name.clone()) {
            let text =
                format!("another method is named `{}` on the wire; give `{ident}` another name", method.name);
            errors.add(&ident, text);
            continue;
        }
        methods.push(method);
    }
    if methods.len() > MOST_METHODS {
        errors.add(&item.ident, format!("a service has at most {MOST_METHODS} methods; split it"));
    }
    is_possible.then(|| Service {
        visibility: item.vis,
        ident: item.ident,
        name,
        version,
        oldest: options.accepts.as_ref().map_or(version, |accepts| accepts.oldest),
        codec: options.codec.clone(),
        krate: options.krate.clone(),
        attributes: item.attrs,
        methods,
    })
}

/// Returns a method that is declared with a visibility, together with the visibility. syn does not parse such methods.
pub(crate) fn visible_method(member: &TraitItem) -> Option<(Visibility, TraitItemFn)> {
    let TraitItem::Verbatim(tokens) = member else { return None };
    let parse = |input: ParseStream<'_>| {
        let attributes = Attribute::parse_outer(input)?;
        let visibility = input.parse::<Visibility>()?;
        let function = input.parse::<TraitItemFn>()?;
        Ok((visibility, TraitItemFn { attrs: attributes, ..function }))
    };
    parse.parse2(tokens.clone()).ok()
}

/// Removes and returns the attribute that marks a service.
pub(crate) fn take_attribute(attributes: &mut Vec<Attribute>) -> Option<Attribute> {
    let at = attributes.iter().position(marks_service)?;
    Some(attributes.remove(at))
}

/// Returns true if an attribute is `#[trunkline::service]` or has the path that its option `crate` names.
fn marks_service(attribute: &Attribute) -> bool {
    let written =
        attribute.path().segments.iter().map(|segment| segment.ident.to_string()).collect::<Vec<_>>();
    let Some((last, prefix)) = written.split_last() else { return false };
    if last != "service" || prefix.iter().any(|name| name == "trunkline") {
        return last == "service";
    }
    let given = Options::parse(options::of(attribute), &mut Errors::default()).krate;
    given.is_some_and(|path| {
        prefix.is_empty()
            || path.segments.iter().map(|segment| segment.ident.to_string()).eq(prefix.iter().cloned())
    })
}

/// Function names that every generated client uses. A generated function that takes `self` by value would hide a method
/// with its name.
const TAKEN: [&str; 7] = ["connect", "ordered", "with", "with_timeout", "clone", "into", "try_into"];

/// Parses a method. Returns `None` if it has an error.
fn method(function: TraitItemFn, krate: &dyn Fn(Span) -> TokenStream, errors: &mut Errors) -> Option<Method> {
    let TraitItemFn { mut attrs, sig, default, .. } = function;
    let (ident, before) = (sig.ident.clone(), errors.len());
    check_signature(&sig, errors);
    errors.refuse(&default, format!("`{ident}` has a body; implement it in the handler"));
    let name = take_name(&mut attrs, &ident, errors);
    if TAKEN.iter().any(|taken| ident == taken) {
        let text = format!(
            "`{ident}` is a function of the generated clients; rename the method, and add `#[name = \"{ident}\"]` to \
             keep its name on the wire"
        );
        errors.add(&ident, text);
    }
    let one_way = take_marker(&mut attrs, "oneway", errors).is_some();
    let idempotent = take_marker(&mut attrs, "idempotent", errors);
    let runs = take_runs(&mut attrs, &ident, errors);
    for condition in
        attrs.iter().filter(|attribute| ["cfg", "cfg_attr"].iter().any(|cfg| attribute.path().is_ident(cfg)))
    {
        errors.add(condition, format!("`{ident}` cannot be conditional: both sides must agree on it"));
    }
    let (context, arguments, items) = arguments(&sig, errors);
    let output = output(&sig, krate, errors);
    if let Some(output) = &output
        && one_way
        && !(is_unit(&output.ty) && output.error.is_none())
    {
        errors
            .add(&output.whole, format!("`{ident}` is one-way and returns nothing; remove the return type"));
    }
    if let Some(items) = items.as_ref().filter(|_| one_way) {
        errors.add(&items.ty, format!("`{ident}` is one-way, and a one-way method takes no stream"));
    }
    if let Some(output) = output.as_ref().filter(|output| output.items.is_some() && runs != Runs::Poller) {
        let text = format!(
            "`{ident}` returns a stream, which its poller polls; remove `#[offload]` or `#[blocking]`, and feed a \
             `trunkline::stream::channel` from elsewhere"
        );
        errors.add(&output.whole, text);
    }
    if let Some(attribute) = &idempotent
        && (items.is_some() || output.as_ref().is_some_and(|output| output.items.is_some()))
    {
        errors.add(
            attribute,
            format!("`{ident}` streams items, and calls that do are never repeated; remove `#[idempotent]`"),
        );
    }
    let idempotent = idempotent.is_some();
    let output = output.filter(|_| errors.len() == before)?;
    Some(Method {
        ident,
        name,
        attributes: attrs,
        one_way,
        idempotent,
        runs,
        context,
        arguments,
        items,
        output,
    })
}

/// Removes and returns an attribute that takes no arguments.
fn take_marker(attributes: &mut Vec<Attribute>, name: &str, errors: &mut Errors) -> Option<Attribute> {
    let at = attributes.iter().position(|attribute| attribute.path().is_ident(name))?;
    let attribute = attributes.remove(at);
    if !matches!(attribute.meta, Meta::Path(_)) {
        errors.add(&attribute, format!("`#[{name}]` takes no arguments"));
    }
    Some(attribute)
}

/// Removes the attributes that choose where a method's handler runs, and returns the choice.
fn take_runs(attributes: &mut Vec<Attribute>, ident: &Ident, errors: &mut Errors) -> Runs {
    let [offload, blocking] = ["offload", "blocking"].map(|name| take_marker(attributes, name, errors));
    match (offload, blocking) {
        (Some(_), Some(blocking)) => {
            let text = format!(
                "`{ident}` is either `#[offload]`, if its future is `Send` and does not block, or `#[blocking]`"
            );
            errors.add(&blocking, text);
            Runs::Worker
        }
        (Some(_), None) => Runs::Pool,
        (None, Some(_)) => Runs::Worker,
        (None, None) => Runs::Poller,
    }
}

/// Removes the attribute `#[name = "..."]`. Returns the method's name on the wire, which is the attribute's value or else
/// the method's identifier.
fn take_name(attributes: &mut Vec<Attribute>, ident: &Ident, errors: &mut Errors) -> String {
    let own = ident.unraw().to_string();
    let Some(at) = attributes.iter().position(|attribute| attribute.path().is_ident("name")) else {
        return own;
    };
    let attribute = attributes.remove(at);
    match &attribute.meta {
        Meta::NameValue(meta) => match &meta.value {
            Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) if !name.value().is_empty() => {
                return name.value();
            }
            other => errors.add(other, format!("the wire name of `{ident}` must be a non-empty string")),
        },
        _ => errors.add(&attribute, "invalid `name` attribute: expected `#[name = \"...\"]`"),
    }
    own
}

fn check_signature(sig: &Signature, errors: &mut Errors) {
    let ident = &sig.ident;
    if sig.asyncness.is_none() && sig.constness.is_none() {
        errors.add(&sig.fn_token, format!("`{ident}` has to be an `async fn`"));
    }
    errors.refuse(&sig.constness, format!("`{ident}` cannot be const; write `async fn`"));
    errors.refuse(&sig.safety, format!("`{ident}` cannot be unsafe"));
    errors.refuse(&sig.abi, format!("`{ident}` cannot have an ABI"));
    errors.refuse(
        &sig.generics.params,
        format!("`{ident}` cannot be generic: its types must be known on both sides"),
    );
    errors.refuse(&sig.generics.where_clause, format!("`{ident}` cannot have a where clause"));
    errors.refuse(&sig.variadic, format!("`{ident}` cannot be variadic"));
    let by_reference = matches!(sig.inputs.first(), Some(FnArg::Receiver(receiver))
        if matches!(receiver.kind, ReceiverKind::Reference(_, None, None)));
    // Lifetimes of the receiver have already been reported.
    if !by_reference && sig.generics.params.is_empty() {
        errors.add(ident, format!("`{ident}` has to take `&self` first"));
    }
}

/// Returns the context, the sent arguments, and the items streamed by the client.
fn arguments(sig: &Signature, errors: &mut Errors) -> (Option<Argument>, Vec<Argument>, Option<Items>) {
    let method = &sig.ident;
    let (mut context, mut arguments, mut items) = (None, Vec::new(), None);
    let mut names = HashSet::new();
    for (at, input) in sig.inputs.iter().enumerate() {
        let FnArg::Typed(typed) = input else { continue };
        let plain = match &*typed.pat {
            Pat::Ident(pattern) if pattern.by_ref.is_none() && pattern.mutability.is_none() => {
                Some(pattern).filter(|pattern| pattern.subpat.is_none())
            }
            _ => None,
        };
        let Some(pattern) = plain else {
            errors
                .add(&typed.pat, format!("an argument of `{method}` must be a plain name, such as `value`"));
            continue;
        };
        let ident = pattern.ident.clone();
        if !names.insert(ident.unraw().to_string()) {
            errors.add(&ident, format!("another argument of `{method}` is named `{ident}`"));
            continue;
        }
        if let Some(ty) = context_type(&typed.ty) {
            if at != 1 {
                let text =
                    format!("the context `{ident}` of `{method}` must be the first argument after `&self`");
                errors.add(&typed.ty, text);
            }
            context = Some(Argument { ident, ty, raw: false });
            continue;
        }
        if let Some((place, remedy)) = unsendable(&typed.ty) {
            errors.add(place, format!("argument `{ident}` of `{method}` cannot be sent: {remedy}"));
        }
        if let [item] = generic_arguments(&typed.ty, "Streaming")[..] {
            if at + 1 != sig.inputs.len() {
                errors
                    .add(&typed.ty, format!("the stream `{ident}` of `{method}` must be the last argument"));
            }
            let item = StreamItem { ty: item.clone(), raw: is_bytes(item) };
            items = Some(Items { ident, ty: (*typed.ty).clone(), item });
            continue;
        }
        if let Some(attribute) = typed.attrs.first() {
            errors.add(attribute, format!("argument `{ident}` of `{method}` cannot have attributes"));
        }
        arguments.push(Argument { ident, ty: (*typed.ty).clone(), raw: false });
    }
    if let Some(argument) = arguments.get(MOST_ARGUMENTS) {
        let text = format!("`{method}` has more than {MOST_ARGUMENTS} arguments; put some into a struct");
        errors.add(&argument.ident, text);
    }
    if let Some(last) = arguments.iter_mut().rev().find(|argument| is_bytes(&argument.ty)) {
        last.raw = true;
    }
    (context, arguments, items)
}

/// Returns the type `Context` in `&Context`.
fn context_type(ty: &Type) -> Option<Type> {
    let Type::Reference(reference) = ty else { return None };
    let is_plain = reference.lifetime.is_none() && reference.mutability.is_none();
    (is_plain && is_named(&reference.elem, "Context")).then(|| (*reference.elem).clone())
}

fn output(sig: &Signature, krate: &dyn Fn(Span) -> TokenStream, errors: &mut Errors) -> Option<Output> {
    let whole: Type = match &sig.output {
        ReturnType::Default => parse_quote!(()),
        ReturnType::Type(_, ty) => bare(ty).clone(),
    };
    // The compiler reports errors in aliases.
    let aliased = |whole: &Type| {
        let krate = krate(whole.span());
        let is_result = quote_spanned!(whole.span()=> { #krate::stub::Named::<#whole>::IS_RESULT });
        Type::Verbatim(quote_spanned!(whole.span()=> <#whole as #krate::stub::Fallible<#is_result>>::Error))
    };
    let (ty, error) = match generic_arguments(&whole, "Result").as_slice() {
        [success, error, ..] if is_named(error, "Status") => {
            ((*success).clone(), Some(ErrorType::Status((*error).clone())))
        }
        [success, error, ..] if is_report(error) => {
            ((*success).clone(), Some(ErrorType::Report((*error).clone())))
        }
        [success] if is_report(&whole) => ((*success).clone(), Some(ErrorType::Report(aliased(&whole)))),
        [success, error, ..] => ((*success).clone(), Some(ErrorType::Other((*error).clone()))),
        [success] => ((*success).clone(), Some(ErrorType::Other(aliased(&whole)))),
        [] => (whole.clone(), None),
    };
    if let Some(item) = stream_item(&ty).filter(|_| sig.asyncness.is_some()) {
        return stream_output(sig, &whole, item, error, krate, errors);
    }
    let failed = error.as_ref().map(ErrorType::ty).and_then(unsendable);
    if let Some((place, remedy)) = unsendable(&ty) {
        // Without `async`, an opaque return type is the method's future. The missing `async` has already been reported.
        if sig.asyncness.is_some() || !matches!(ty, Type::ImplTrait(_)) {
            errors.add(place, format!("the result of `{}` cannot be sent: {remedy}", sig.ident));
        }
        return None;
    }
    if let Some((place, remedy)) = failed {
        errors.add(place, format!("the error of `{}` cannot be sent: {remedy}", sig.ident));
        return None;
    }
    let optional = generic_arguments(&ty, "Option").first().copied().filter(|ty| is_bytes(ty));
    let (payload, raw) = match optional {
        Some(bytes) => (Payload::OptionalBytes, Some(bytes.clone())),
        None if is_bytes(&ty) => (Payload::Bytes, Some(ty.clone())),
        None => (Payload::Coded, None),
    };
    Some(Output { whole, ty, payload, raw, items: None, error })
}

/// Returns the output of a method whose handler streams items.
fn stream_output(
    sig: &Signature,
    whole: &Type,
    item: Option<&Type>,
    error: Option<ErrorType>,
    krate: &dyn Fn(Span) -> TokenStream,
    errors: &mut Errors,
) -> Option<Output> {
    let ident = &sig.ident;
    let is_aliased = generic_arguments(whole, "Result").len() < 2;
    if is_aliased || error.is_none() {
        let text = format!(
            "`{ident}` returns a stream; write `Result<impl Stream<Item = Result<T, Status>>, Status>`"
        );
        errors.add(whole, text);
        return None;
    }
    let parts = item.map(|item| generic_arguments(item, "Result")).unwrap_or_default();
    let [item, _] = parts[..] else {
        errors.add(whole, format!("the items of the stream of `{ident}` must be `Result<T, Status>`"));
        return None;
    };
    if !is_named(parts[1], "Status") {
        errors.add(parts[1], format!("the items of the stream of `{ident}` must be `Result<T, Status>`"));
        return None;
    }
    if let Some((place, remedy)) = unsendable(item) {
        errors.add(place, format!("the items of `{ident}` cannot be sent: {remedy}"));
        return None;
    }
    let krate = krate(item.span());
    let ty = Type::Verbatim(quote_spanned!(item.span()=> #krate::Streaming<#item>));
    let items = Some(StreamItem { ty: item.clone(), raw: is_bytes(item) });
    Some(Output { whole: whole.clone(), ty, payload: Payload::Coded, raw: None, items, error })
}
