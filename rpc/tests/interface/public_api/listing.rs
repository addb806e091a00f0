//! Lists the items that a user of the crate can name.

use super::sources::{ModulePath, Sources, Target, imports, is_test_only, name_of, visibility_of};
use super::strip::{is_public, stripped, stripped_impl};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use syn::{Attribute, Expr, ExprLit, File, Item, ItemImpl, Lit, MetaNameValue, Type, parse_quote};

const HEAD: &str = "// The public API of the crate trunkline, without docs and bodies; `_` is private.\n\
                    // Written by: TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface public_api\n";

/// Returns the whole listing: by path, each item with its methods and its traits.
pub(crate) fn listing(root: &Path) -> String {
    let sources = Sources::read(root);
    let mut walk = Walk { sources: &sources, found: BTreeMap::new(), seen: BTreeSet::new() };
    walk.module(&["trunkline".to_owned()], "trunkline");
    let mut text = HEAD.to_owned();
    for (path, entry) in &walk.found {
        text.push_str(&format!("\n// {path}{}\n", entry.origin));
        text.push_str(&written(&entry.items));
    }
    text
}

fn written(items: &[Item]) -> String {
    let mut file: File = parse_quote!();
    file.items = items.to_vec();
    prettyplease::unparse(&file)
}

/// Returns the feature that an item needs, if any.
fn feature(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().filter(|attribute| attribute.path().is_ident("cfg")).find_map(|attribute| {
        let condition: MetaNameValue = attribute.parse_args().ok()?;
        let Expr::Lit(ExprLit { lit: Lit::Str(name), .. }) = condition.value else { return None };
        condition.path.is_ident("feature").then(|| name.value())
    })
}

struct Entry {
    /// The other crate that defines the item, if any.
    origin: String,
    items: Vec<Item>,
}

struct Walk<'a> {
    sources: &'a Sources,
    found: BTreeMap<String, Entry>,
    seen: BTreeSet<(ModulePath, String)>,
}

impl Walk<'_> {
    /// Lists all public items of a module under the name `shown`.
    fn module(&mut self, module: &[String], shown: &str) {
        if !self.seen.insert((module.to_vec(), shown.to_owned())) {
            return;
        }
        for item in self.sources.items(module) {
            if !visibility_of(item).is_some_and(is_public) {
                continue;
            }
            match item {
                Item::Mod(inner) => {
                    let name = inner.ident.to_string();
                    self.module(&[module, std::slice::from_ref(&name)].concat(), &format!("{shown}::{name}"));
                }
                Item::Use(import) => {
                    if is_test_only(&import.attrs) {
                        continue;
                    }
                    for one in imports(&import.tree) {
                        self.import(module, &one.name, &one.path, shown);
                        if let (Some(entry), Some(feature)) =
                            (self.found.get_mut(&format!("{shown}::{}", one.name)), feature(&import.attrs))
                        {
                            entry.origin.push_str(&format!(", with the feature {feature}"));
                        }
                    }
                }
                _ => {
                    if let Some(name) = name_of(item) {
                        self.item(&module.to_vec(), item, &format!("{shown}::{name}"));
                    }
                }
            }
        }
    }

    fn import(&mut self, from: &[String], name: &str, path: &[String], shown: &str) {
        match self.sources.resolve(from, path) {
            Target::Item(module, item) => self.item(module, item, &format!("{shown}::{name}")),
            Target::Module(inner) if name == "*" => self.module(&inner, shown),
            Target::Module(inner) => self.module(&inner, &format!("{shown}::{name}")),
            Target::Foreign => {
                let origin = format!(", of another project: {}", path.join("::"));
                self.found.insert(format!("{shown}::{name}"), Entry { origin, items: Vec::new() });
            }
        }
    }

    fn item(&mut self, module: &ModulePath, item: &Item, shown: &str) {
        let mut items = vec![stripped(item.clone())];
        if let Some(name) = name_of(item)
            && !matches!(item, Item::Fn(_) | Item::Const(_) | Item::Static(_))
        {
            items.extend(self.impls(module, &name));
        }
        let origin = if shown.starts_with(&format!("{}::", module[0])) {
            String::new()
        } else {
            format!(", of {}", module[0])
        };
        self.found.insert(shown.to_owned(), Entry { origin, items });
    }

    /// Returns the interface of the type `name` of `module`: inherent methods first, then traits in order.
    fn impls(&self, module: &ModulePath, name: &str) -> Vec<Item> {
        let mut own = Vec::new();
        let mut traits = BTreeMap::new();
        for (place, items) in self.sources.crate_of(module) {
            for item in items {
                let Item::Impl(implementation) = item else { continue };
                if is_test_only(&implementation.attrs) || !self.is_for(implementation, place, module, name) {
                    continue;
                }
                let Some(kept) = stripped_impl(implementation.clone()) else { continue };
                match &implementation.trait_ {
                    None => own.push(Item::Impl(kept)),
                    Some((path, _)) if self.is_private(path, place) => {}
                    Some(_) => {
                        let item = Item::Impl(kept);
                        traits.insert(written(std::slice::from_ref(&item)), item);
                    }
                }
            }
        }
        own.into_iter().chain(traits.into_values()).collect()
    }

    /// Returns true if an `impl` written in `place` belongs to the type `name` of `module`.
    fn is_for(&self, implementation: &ItemImpl, place: &[String], module: &ModulePath, name: &str) -> bool {
        let Type::Path(of) = &*implementation.self_ty else { return false };
        let path: Vec<String> = of.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        match self.sources.resolve(place, &path) {
            Target::Item(defined, item) => defined == module && name_of(item).is_some_and(|its| its == name),
            _ => false,
        }
    }

    /// Returns true if a trait belongs to the project but cannot be named by users.
    fn is_private(&self, path: &syn::Path, place: &[String]) -> bool {
        let path: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        matches!(self.sources.resolve(place, &path), Target::Item(_, item) if !visibility_of(item).is_some_and(is_public))
    }
}
