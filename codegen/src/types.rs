//! What the macro knows of a type: how it is written.

use syn::{GenericArgument, PathArguments, Type};

/// A type without the invisible group that a `macro_rules!` macro puts around it, and without parentheses.
pub(crate) fn bare(ty: &Type) -> &Type {
    match ty {
        Type::Group(group) => bare(&group.elem),
        Type::Paren(paren) => bare(&paren.elem),
        other => other,
    }
}

/// Why a type cannot be decoded from received bytes, with the remedy.
pub(crate) fn unsendable(ty: &Type) -> Option<&'static str> {
    match bare(ty) {
        Type::Reference(_) => {
            Some("it is a reference; take a type that owns its data, such as `String` or `Vec<T>`")
        }
        Type::Slice(_) => Some("its size is unknown; take a `Vec<T>`"),
        Type::ImplTrait(_) => Some("its type must be known on both sides; name it"),
        Type::TraitObject(_) => {
            Some("its type must be known on both sides; take an enum of the types that it may be")
        }
        Type::Ptr(_) | Type::FnPtr(_) => Some("an address means nothing at the other side"),
        Type::Never(_) => {
            Some("there is no value of this type; a method that returns nothing has no return type")
        }
        Type::Infer(_) => Some("its type must be known on both sides; name it"),
        other if borrows(other) => Some(
            "it borrows; take a type that owns its data, with `String` in place of `&str`, `Vec<T>` in place of `&[T]`, and `'static` in \
             place of another lifetime",
        ),
        _ => None,
    }
}

/// Whether a type is written with a reference, or with a lifetime that is not `'static`.
fn borrows(ty: &Type) -> bool {
    match bare(ty) {
        Type::Reference(_) => true,
        Type::Tuple(tuple) => tuple.elems.iter().any(borrows),
        Type::Array(array) => borrows(&array.elem),
        Type::Path(path) => path.path.segments.iter().any(|segment| {
            let PathArguments::AngleBracketed(list) = &segment.arguments else { return false };
            list.args.iter().any(|argument| match argument {
                GenericArgument::Lifetime(lifetime) => lifetime.ident != "static",
                GenericArgument::Type(ty) => borrows(ty),
                _ => false,
            })
        }),
        _ => false,
    }
}

pub(crate) fn is_unit(ty: &Type) -> bool {
    matches!(bare(ty), Type::Tuple(tuple) if tuple.elems.is_empty())
}

pub(crate) fn is_bytes(ty: &Type) -> bool {
    is_named(ty, "Bytes")
}

/// Whether it is a type of this name, without parameters.
pub(crate) fn is_named(ty: &Type, name: &str) -> bool {
    let Type::Path(path) = bare(ty) else { return false };
    path.qself.is_none()
        && path.path.segments.last().is_some_and(|last| last.ident == name && last.arguments.is_empty())
}

/// Whether it is a type of a crate whose errors hide their type.
pub(crate) fn is_report(ty: &Type) -> bool {
    let Type::Path(path) = bare(ty) else { return false };
    let first = path.path.segments.first().map(|segment| segment.ident.to_string());
    path.path.segments.len() > 1
        && first.is_some_and(|first| ["anyhow", "eyre", "color_eyre"].contains(&first.as_str()))
}

/// The type arguments if `ty` is `name<...>`.
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
