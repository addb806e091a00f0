//! The public items of this crate, compared with the listing `rpc/public-api.txt`. A review therefore shows each change to
//! them.
//!
//! The listing contains `pub` items by name. The lint `unreachable_pub` ensures that other items are not `pub`. An item
//! from another crate of the project is listed if this crate re-exports it by name.
//!
//! `TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface public_api` updates the listing.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use syn::{Attribute, Fields, FnArg, ImplItem, Item, ItemImpl, TraitItem, Type, UseTree, Visibility};
use syn::{File, Meta, parse_quote};

const RENEW: &str = "TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface public_api";

#[test]
fn public_api_matches_listing() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = root.join("public-api.txt");
    let now = listing(root);
    if std::env::var_os("TRUNKLINE_BLESS").is_some() {
        fs::write(&file, &now).expect("the listing can be written");
    }
    let before = fs::read_to_string(&file).unwrap_or_default();
    let lines_of_one = |one: &str, other: &str| {
        let lines = one.lines().filter(|line| !other.lines().any(|its| its == *line));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(
        before == now,
        "the public API has changed; if that is meant, renew rpc/public-api.txt by\n    {RENEW}\n\
         lines that are gone: {:#?}\nlines that are new: {:#?}",
        lines_of_one(&before, &now),
        lines_of_one(&now, &before)
    );
    // Check for some items, because an empty listing would equal itself.
    for line in [
        "pub fn builder() -> NodeBuilder",
        "DeadlineExceeded",
        "pub use bytes::Bytes;",
        "pub struct NodeReport",
        "impl std::error::Error for Status",
        "pub trait ",
    ] {
        assert!(now.contains(line), "{line:?} is not listed");
    }
    assert!(!now.contains("pub(crate)") && !now.contains("///"), "private things or docs are listed");
}

fn listing(root: &Path) -> String {
    let own = modules(&root.join("src"));
    let mut imported = BTreeSet::new();
    for (_, item) in &own {
        if let Item::Use(import) = item
            && is_public(&import.vis)
            && let UseTree::Path(path) = &import.tree
            && path.ident.to_string().starts_with("trunkline_")
        {
            add_names(&path.tree, &mut imported);
        }
    }
    let mut text = format!(
        "// The public items of the crate trunkline, without docs and bodies; `_` is private.\n\
         // Written by: {RENEW}\n"
    );
    for (title, items) in groups(own, |_| true) {
        text += &format!("\n// {title}\n{}", written(items));
    }
    for (name, folder) in
        [("trunkline_transport", "../transport/src"), ("trunkline_verbs", "../transport/verbs/src")]
    {
        for (title, items) in groups(modules(&root.join(folder)), |item| imported.contains(item)) {
            text += &format!("\n// {title}, of {name}\n{}", written(items));
        }
    }
    text
}

fn written(items: Vec<Item>) -> String {
    let mut file: File = parse_quote!();
    file.items = items;
    prettyplease::unparse(&file)
}

/// Returns the items in all files below a folder and in their modules, each with the path of its module.
fn modules(root: &Path) -> Vec<(String, Item)> {
    fn add(place: &str, items: Vec<Item>, all: &mut Vec<(String, Item)>) {
        for mut item in items {
            if let Item::Mod(module) = &mut item {
                if is_test_only(&module.attrs) {
                    continue;
                }
                if let Some((_, items)) = module.content.take() {
                    add(&format!("{place}::{}", module.ident), items, all);
                }
                module.semi = Some(parse_quote!(;));
            }
            all.push((place.to_owned(), item));
        }
    }
    let (mut all, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = syn::parse_file(&fs::read_to_string(&path).unwrap()).unwrap();
                add(&path.strip_prefix(root).unwrap().display().to_string(), file.items, &mut all);
            }
        }
    }
    all
}

/// Returns the public items by name, with their methods and traits, and the exports by module.
fn groups(mut all: Vec<(String, Item)>, is_listed: impl Fn(&str) -> bool) -> BTreeMap<String, Vec<Item>> {
    // The order does not depend on the order of the folders. `impl` blocks follow their type.
    all.sort_by_key(|(place, item)| (matches!(item, Item::Impl(_)), place.clone()));
    let is_private_trait = |item: &(String, Item)| match &item.1 {
        Item::Trait(item) if !is_public(&item.vis) => Some(item.ident.to_string()),
        _ => None,
    };
    let private_traits = all.iter().filter_map(is_private_trait).collect::<BTreeSet<_>>();
    let mut groups = BTreeMap::<String, Vec<Item>>::new();
    for (place, mut item) in all {
        if let Item::Impl(item) = item {
            let Type::Path(of) = &*item.self_ty else { continue };
            let name = of.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default();
            let is_hidden = item.trait_.as_ref().is_some_and(|(path, _)| {
                path.segments.last().is_some_and(|last| private_traits.contains(&last.ident.to_string()))
            });
            if let Some(group) = groups.get_mut(&name)
                && !is_hidden
                && !is_test_only(&item.attrs)
            {
                group.extend(strip_impl(item));
            }
        } else if let Some((visibility, name)) = strip(&mut item)
            && is_public(&visibility)
        {
            let name = name.unwrap_or_else(|| format!("exports of {place}"));
            if is_listed(&name) {
                groups.entry(name).or_default().push(item);
            }
        }
    }
    groups
}

/// Removes the parts of an item that are not part of its interface: bodies, private fields and docs. Returns the item's
/// visibility, and its name unless it is an export.
fn strip(item: &mut Item) -> Option<(Visibility, Option<String>)> {
    let (attributes, visibility, name) = match item {
        Item::Const(item) => {
            *item.expr = parse_quote!(..);
            (&mut item.attrs, &item.vis, Some(&item.ident))
        }
        Item::Static(item) => {
            *item.expr = parse_quote!(..);
            (&mut item.attrs, &item.vis, Some(&item.ident))
        }
        Item::Enum(item) => {
            for variant in &mut item.variants {
                keep_visible(&mut variant.attrs);
                variant.fields.iter_mut().for_each(|field| keep_visible(&mut field.attrs));
            }
            (&mut item.attrs, &item.vis, Some(&item.ident))
        }
        Item::Fn(item) => {
            *item.block = parse_quote!({});
            (&mut item.attrs, &item.vis, Some(&item.sig.ident))
        }
        Item::Struct(item) => {
            strip_fields(&mut item.fields);
            (&mut item.attrs, &item.vis, Some(&item.ident))
        }
        Item::Trait(item) => {
            for member in &mut item.items {
                match member {
                    TraitItem::Fn(member) => {
                        keep_visible(&mut member.attrs);
                        // The existence of a default is part of the interface, but not its body.
                        member.default = member.default.take().map(|_| parse_quote!({}));
                    }
                    TraitItem::Const(member) => keep_visible(&mut member.attrs),
                    TraitItem::Type(member) => keep_visible(&mut member.attrs),
                    _ => {}
                }
            }
            (&mut item.attrs, &item.vis, Some(&item.ident))
        }
        Item::Type(item) => (&mut item.attrs, &item.vis, Some(&item.ident)),
        Item::Mod(item) => (&mut item.attrs, &item.vis, None),
        Item::Use(item) => (&mut item.attrs, &item.vis, None),
        _ => return None,
    };
    keep_visible(attributes);
    Some((visibility.clone(), name.map(ToString::to_string)))
}

/// Returns the public part of an inherent `impl`, or the header of a trait `impl`. Returns `None` if no part is public.
fn strip_impl(mut item: ItemImpl) -> Option<Item> {
    let is_of_trait = item.trait_.is_some();
    keep_visible(&mut item.attrs);
    item.items.retain_mut(|member| match member {
        ImplItem::Type(_) => is_of_trait,
        ImplItem::Const(member) => {
            keep_visible(&mut member.attrs);
            member.expr = parse_quote!(..);
            is_public(&member.vis)
        }
        ImplItem::Fn(member) => {
            keep_visible(&mut member.attrs);
            if let Some(FnArg::Receiver(receiver)) = member.sig.inputs.first_mut() {
                // `mut self` affects only the body.
                receiver.mutability = None;
            }
            member.block = parse_quote!({});
            is_public(&member.vis)
        }
        _ => false,
    });
    (is_of_trait || !item.items.is_empty()).then_some(Item::Impl(item))
}

/// Replaces all private fields with one `_`. Their presence determines who can construct and match a value.
fn strip_fields(fields: &mut Fields) {
    fields.iter_mut().for_each(|field| keep_visible(&mut field.attrs));
    match fields {
        Fields::Named(named) => {
            let (public, private): (Vec<_>, Vec<_>) =
                std::mem::take(&mut named.named).into_iter().partition(|field| is_public(&field.vis));
            named.named.extend(public);
            if !private.is_empty() {
                let private: syn::FieldsNamed = parse_quote!({ _private: _ });
                named.named.extend(private.named);
            }
        }
        Fields::Unnamed(unnamed) => {
            for field in unnamed.unnamed.iter_mut().filter(|field| !is_public(&field.vis)) {
                field.vis = Visibility::Inherited;
                field.ty = parse_quote!(_);
            }
        }
        Fields::Unit => {}
    }
}

fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}

/// Keeps the attributes on which a user of the item depends.
fn keep_visible(attributes: &mut Vec<Attribute>) {
    const VISIBLE: [&str; 6] = ["cfg", "derive", "non_exhaustive", "must_use", "deprecated", "repr"];
    attributes.retain(|attribute| VISIBLE.iter().any(|name| attribute.path().is_ident(name)));
}

/// Adds the names that a `use` introduces.
fn add_names(tree: &UseTree, names: &mut BTreeSet<String>) {
    match tree {
        UseTree::Path(path) => add_names(&path.tree, names),
        UseTree::Group(group) => group.items.iter().for_each(|tree| add_names(tree, names)),
        UseTree::Name(name) => drop(names.insert(name.ident.to_string())),
        UseTree::Rename(rename) => drop(names.insert(rename.ident.to_string())),
        UseTree::Glob(_) => {}
    }
}
