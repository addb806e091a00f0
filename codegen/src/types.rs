//! Inspection of types as written, because the macro does not see their definitions.

use syn::{GenericArgument, PathArguments, Type, TypeParamBound};

/// Removes parentheses from a type, and the invisible group that a `macro_rules!` macro adds around it.
pub(crate) fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}

/// Finds a part of a type that cannot be decoded from received bytes. Returns it with the reason and the remedy.
pub(crate) fn unsendable(ty: &Type) -> Option<(&Type, &'static str)> {
    let remedy = match bare(ty) {
        Type::Reference(reference) => match bare(&reference.elem) {
            Type::Path(path) if path.path.is_ident("str") => "it is a reference; take a `String`",
            Type::Slice(_) => "it is a reference; take a `Vec<T>`",
            _ => "it is a reference; take a type that owns its data, such as `String` or `Vec<T>`",
        },
        Type::Path(path) if path.path.is_ident("str") => "its size is unknown; take a `String`",
        Type::Slice(_) => "its size is unknown; take a `Vec<T>`",
        Type::ImplTrait(_) | Type::Infer(_) => "its type must be known on both sides; name it",
        Type::TraitObject(_) => {
            "its type must be known on both sides; take an enum of the types that it may be"
        }
        Type::Ptr(_) | Type::FnPtr(_) => "an address means nothing at the other side",
        Type::Never(_) => "there is no value of this type; a method that returns nothing has no return type",
        Type::Tuple(tuple) => return tuple.elems.iter().find_map(unsendable),
        Type::Array(array) => return unsendable(&array.elem),
        Type::Path(path)
            if path.qself.is_none()
                && path.path.segments.first().is_some_and(|segment| segment.ident == "Self") =>
        {
            "`Self` is the handler, which stays where it is; name the type that is sent"
        }
        Type::Path(path) => {
            return path.path.segments.iter().find_map(|segment| in_arguments(ty, &segment.arguments));
        }
        _ => return None,
    };
    Some((ty, remedy))
}

pub(crate) fn is_unit(ty: &Type) -> bool {
    matches!(bare(ty), Type::Tuple(tuple) if tuple.elems.is_empty())
}

pub(crate) fn is_bytes(ty: &Type) -> bool {
    is_named(ty, "Bytes")
}

/// Like [`unsendable`], for the arguments of a type with parameters.
fn in_arguments<'a>(ty: &'a Type, arguments: &'a PathArguments) -> Option<(&'a Type, &'static str)> {
    let PathArguments::AngleBracketed(list) = arguments else { return None };
    list.args.iter().find_map(|argument| match argument {
        GenericArgument::Lifetime(lifetime) if lifetime.ident != "static" => {
            Some((ty, "it borrows; take a type that owns its data, or one with the lifetime `'static`"))
        }
        // A slice is allowed as a type argument, because the enclosing box owns the content.
        GenericArgument::Type(ty) if !is_slice(ty) => unsendable(ty),
        _ => None,
    })
}

fn is_slice(ty: &Type) -> bool {
    matches!(bare(ty), Type::Slice(_)) || is_named(ty, "str")
}

/// Returns true if the type has this name and no parameters.
pub(crate) fn is_named(ty: &Type, name: &str) -> bool {
    let Type::Path(path) = bare(ty) else { return false };
    path.qself.is_none()
        && path.path.segments.last().is_some_and(|last| last.ident == name && last.arguments.is_empty())
}

/// Returns the item type of an `impl Stream`. Returns `Some(None)` if the stream does not name its item type.
pub(crate) fn stream_item(ty: &Type) -> Option<Option<&Type>> {
    let Type::ImplTrait(stream) = bare(ty) else { return None };
    let last = stream.bounds.iter().find_map(|bound| match bound {
        TypeParamBound::Trait(bound) => bound.path.segments.last().filter(|last| last.ident == "Stream"),
        _ => None,
    })?;
    let PathArguments::AngleBracketed(list) = &last.arguments else { return Some(None) };
    Some(list.args.iter().find_map(|argument| match argument {
        GenericArgument::AssocType(of) if of.ident == "Item" => Some(&of.ty),
        _ => None,
    }))
}

/// Returns true if the type is the error of a crate for type-erased errors.
pub(crate) fn is_report(ty: &Type) -> bool {
    report_feature(ty).is_some()
}

/// Returns the cargo feature for the errors of the type's crate.
pub(crate) fn report_feature(ty: &Type) -> Option<&'static str> {
    let Type::Path(path) = bare(ty) else { return None };
    let first = path.path.segments.first().filter(|_| path.path.segments.len() > 1)?;
    match first.ident.to_string().as_str() {
        "anyhow" => Some("anyhow"),
        "eyre" | "color_eyre" => Some("eyre"),
        _ => None,
    }
}

/// Returns the type arguments if `ty` is `name<...>`.
pub(crate) fn generic_arguments<'a>(ty: &'a Type, name: &str) -> Vec<&'a Type> {
    let Type::Path(path) = bare(ty) else { return Vec::new() };
    let Some(last) = path.path.segments.last().filter(|last| last.ident == name) else { return Vec::new() };
    let PathArguments::AngleBracketed(list) = &last.arguments else { return Vec::new() };
    let types = list.args.iter().filter_map(|argument| match argument {
        GenericArgument::Type(ty) => Some(bare(ty)),
        _ => None,
    });
    types.collect()
}
