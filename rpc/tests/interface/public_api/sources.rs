//! The modules of the project's crates as syntax trees, and the resolution of paths in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Item, Meta, UseTree, Visibility};

/// The path of a module, which begins with its crate.
pub(crate) type ModulePath = Vec<String>;

/// Crates of the project whose items the API may show, and their folders relative to this crate.
const CRATES: [(&str, &str); 3] =
    [("trunkline", "."), ("trunkline_transport", "../transport"), ("trunkline_verbs", "../transport/verbs")];

/// Items of all modules.
pub(crate) struct Sources {
    modules: BTreeMap<ModulePath, Vec<Item>>,
}

/// A name that a `use` brings into a module.
pub(crate) struct Import {
    /// Name of the item there; `*` for all items of a module.
    pub(crate) name: String,
    /// Path of the import.
    pub(crate) path: Vec<String>,
}

/// The result of resolving a path.
pub(crate) enum Target<'a> {
    /// An item, and the module that defines it.
    Item(&'a ModulePath, &'a Item),
    /// A module.
    Module(ModulePath),
    /// An item of a crate outside the project.
    Foreign,
}

impl Sources {
    pub(crate) fn read(root: &Path) -> Self {
        let mut all = Self { modules: BTreeMap::new() };
        for (name, folder) in CRATES {
            let folder = root.join(folder).join("src");
            all.read_module(vec![name.to_owned()], &folder.join("lib.rs"), &folder);
        }
        all
    }

    fn read_module(&mut self, path: ModulePath, file: &Path, folder: &Path) {
        let text = fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        self.add(path, parsed.items, folder);
    }

    fn add(&mut self, path: ModulePath, items: Vec<Item>, folder: &Path) {
        let mut kept = Vec::new();
        for item in items {
            if let Item::Mod(module) = &item {
                if is_test_only(&module.attrs) {
                    continue;
                }
                let name = module.ident.to_string();
                let inner = [path.as_slice(), std::slice::from_ref(&name)].concat();
                let inner_folder = folder.join(&name);
                match &module.content {
                    Some((_, items)) => self.add(inner, items.clone(), &inner_folder),
                    None => {
                        let candidates: [PathBuf; 2] =
                            [folder.join(format!("{name}.rs")), inner_folder.join("mod.rs")];
                        let file = candidates.iter().find(|file| file.exists());
                        let file = file.unwrap_or_else(|| panic!("no file for module {inner:?}"));
                        self.read_module(inner, file, &inner_folder);
                    }
                }
            }
            kept.push(item);
        }
        self.modules.insert(path, kept);
    }

    pub(crate) fn items(&self, module: &[String]) -> &[Item] {
        self.modules.get(module).map_or(&[], Vec::as_slice)
    }

    /// Returns all modules of the crate that `module` is part of.
    pub(crate) fn crate_of(&self, module: &[String]) -> impl Iterator<Item = (&ModulePath, &Vec<Item>)> {
        let name = module[0].clone();
        self.modules.iter().filter(move |(path, _)| path[0] == name)
    }

    /// Resolves a path used in `from`, through any number of re-exports.
    pub(crate) fn resolve(&self, from: &[String], path: &[String]) -> Target<'_> {
        let Some((first, rest)) = path.split_first() else { return Target::Foreign };
        let nested = [from, std::slice::from_ref(first)].concat();
        let mut here: ModulePath = match first.as_str() {
            "crate" => vec![from[0].clone()],
            "self" => from.to_vec(),
            "super" => from[..from.len() - 1].to_vec(),
            _ if self.modules.contains_key(&nested) => nested,
            _ if self.modules.contains_key(std::slice::from_ref(first)) => vec![first.clone()],
            _ if rest.is_empty() => return self.lookup(from, first),
            _ => return Target::Foreign,
        };
        for (index, name) in rest.iter().enumerate() {
            let inner = [here.as_slice(), std::slice::from_ref(name)].concat();
            if name == "super" {
                here.pop();
            } else if self.modules.contains_key(&inner) {
                here = inner;
            } else if index + 1 == rest.len() {
                return self.lookup(&here, name);
            } else {
                return Target::Foreign;
            }
        }
        Target::Module(here)
    }

    /// Finds an item of a module by its name, defined there or imported.
    fn lookup(&self, module: &[String], name: &str) -> Target<'_> {
        let Some((path, items)) = self.modules.get_key_value(module) else { return Target::Foreign };
        if let Some(item) = items.iter().find(|item| name_of(item).is_some_and(|its| its == name)) {
            return Target::Item(path, item);
        }
        for item in items {
            let Item::Use(import) = item else { continue };
            for one in imports(&import.tree) {
                if one.name == name && one.path.len() > 1 {
                    return self.resolve(module, &one.path);
                }
            }
        }
        Target::Foreign
    }
}

/// Returns the name of an item, if it has one.
pub(crate) fn name_of(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// Returns the visibility of an item, if it has one.
pub(crate) fn visibility_of(item: &Item) -> Option<&Visibility> {
    Some(match item {
        Item::Const(item) => &item.vis,
        Item::Enum(item) => &item.vis,
        Item::Fn(item) => &item.vis,
        Item::Mod(item) => &item.vis,
        Item::Static(item) => &item.vis,
        Item::Struct(item) => &item.vis,
        Item::Trait(item) => &item.vis,
        Item::Type(item) => &item.vis,
        Item::Union(item) => &item.vis,
        Item::Use(item) => &item.vis,
        _ => return None,
    })
}

/// Returns the names that a `use` brings in.
pub(crate) fn imports(tree: &UseTree) -> Vec<Import> {
    fn collect(tree: &UseTree, mut prefix: Vec<String>, found: &mut Vec<Import>) {
        match tree {
            UseTree::Path(path) => {
                prefix.push(path.ident.to_string());
                collect(&path.tree, prefix, found);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    collect(tree, prefix.clone(), found);
                }
            }
            UseTree::Glob(_) => found.push(Import { name: "*".to_owned(), path: prefix }),
            UseTree::Name(name) if name.ident == "self" => {
                found.push(Import { name: prefix.last().cloned().unwrap_or_default(), path: prefix });
            }
            UseTree::Name(name) => {
                prefix.push(name.ident.to_string());
                found.push(Import { name: name.ident.to_string(), path: prefix });
            }
            UseTree::Rename(rename) => {
                prefix.push(rename.ident.to_string());
                found.push(Import { name: rename.rename.to_string(), path: prefix });
            }
        }
    }
    let mut found = Vec::new();
    collect(tree, Vec::new(), &mut found);
    found
}

/// Returns true if an item exists in tests only.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}
