//! Removes the parts of an item that are not its interface: bodies, private fields, docs.

use syn::{
    Attribute, Block, Field, Fields, FnArg, ImplItem, Item, ItemImpl, TraitItem, Type, Visibility,
    parse_quote,
};

/// Returns the item as its users see it.
pub(crate) fn stripped(mut item: Item) -> Item {
    match &mut item {
        Item::Const(item) => {
            keep_visible(&mut item.attrs);
            *item.expr = parse_quote!(..);
        }
        Item::Static(item) => {
            keep_visible(&mut item.attrs);
            *item.expr = parse_quote!(..);
        }
        Item::Enum(item) => {
            keep_visible(&mut item.attrs);
            for variant in &mut item.variants {
                keep_visible(&mut variant.attrs);
                for field in &mut variant.fields {
                    keep_visible(&mut field.attrs);
                }
            }
        }
        Item::Fn(item) => {
            keep_visible(&mut item.attrs);
            *item.block = empty();
        }
        Item::Struct(item) => {
            keep_visible(&mut item.attrs);
            strip_fields(&mut item.fields);
        }
        Item::Trait(item) => {
            keep_visible(&mut item.attrs);
            for member in &mut item.items {
                strip_member(member);
            }
        }
        Item::Type(item) => keep_visible(&mut item.attrs),
        _ => {}
    }
    item
}

/// Returns the public part of an inherent `impl`, or the head of a trait's; `None` if no part is public.
pub(crate) fn stripped_impl(mut item: ItemImpl) -> Option<ItemImpl> {
    keep_visible(&mut item.attrs);
    if item.trait_.is_some() {
        item.items.retain(|member| matches!(member, ImplItem::Type(_)));
        return Some(item);
    }
    item.items.retain(|member| match member {
        ImplItem::Const(member) => is_public(&member.vis),
        ImplItem::Fn(member) => is_public(&member.vis),
        _ => false,
    });
    for member in &mut item.items {
        match member {
            ImplItem::Const(member) => {
                keep_visible(&mut member.attrs);
                member.expr = parse_quote!(..);
            }
            ImplItem::Fn(member) => {
                keep_visible(&mut member.attrs);
                if let Some(FnArg::Receiver(receiver)) = member.sig.inputs.first_mut() {
                    // `mut self` affects only the body.
                    receiver.mutability = None;
                }
                member.block = empty();
            }
            _ => {}
        }
    }
    (!item.items.is_empty()).then_some(item)
}

pub(crate) fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn empty() -> Block {
    parse_quote!({})
}

fn strip_member(member: &mut TraitItem) {
    match member {
        TraitItem::Const(member) => keep_visible(&mut member.attrs),
        TraitItem::Fn(member) => {
            keep_visible(&mut member.attrs);
            // The existence of a default is part of the interface; its body is not.
            if let Some(body) = &mut member.default {
                *body = empty();
            }
        }
        TraitItem::Type(member) => keep_visible(&mut member.attrs),
        _ => {}
    }
}

/// Replaces private fields by one `_`, since their presence decides who may construct and match a value.
fn strip_fields(fields: &mut Fields) {
    let hidden: Type = parse_quote!(_);
    match fields {
        Fields::Named(named) => {
            let count = named.named.len();
            let public = named.named.iter().filter(|field| is_public(&field.vis)).cloned();
            let mut kept: Vec<Field> = public.collect();
            for field in &mut kept {
                keep_visible(&mut field.attrs);
            }
            if kept.len() < count {
                let private: syn::FieldsNamed = parse_quote!({ _private: #hidden });
                kept.extend(private.named);
            }
            named.named = kept.into_iter().collect();
        }
        Fields::Unnamed(unnamed) => {
            for field in &mut unnamed.unnamed {
                keep_visible(&mut field.attrs);
                if !is_public(&field.vis) {
                    field.vis = Visibility::Inherited;
                    field.ty = hidden.clone();
                }
            }
        }
        Fields::Unit => {}
    }
}

/// Keeps the attributes that a user of the item depends on.
fn keep_visible(attributes: &mut Vec<Attribute>) {
    const VISIBLE: [&str; 6] = ["cfg", "derive", "non_exhaustive", "must_use", "deprecated", "repr"];
    attributes.retain(|attribute| VISIBLE.iter().any(|name| attribute.path().is_ident(name)));
}
