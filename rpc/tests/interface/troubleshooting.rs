//! The page `docs/book/src/operate/troubleshooting.md`. It lists log events, causes of lost sessions, reasons and codes of
//! statuses, and start errors, so that a search in the book finds the text of a log line.
//!
//! Texts, levels, causes and remedies are read from the source, and meanings of variants from their docs. Texts that are
//! not literals in the source are in `troubleshooting.txt`, which contains exactly one line for each.
//!
//! `TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface troubleshooting` updates the page.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::{Attribute, Expr, Item, ItemEnum, Lit, LitStr, Meta};

const RENEW: &str = "TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface troubleshooting";
const LINES: &str = include_str!("troubleshooting.txt");

const INTRODUCTION: &str = "The texts of a node's log at level warn or error, and at info with a cause; the causes of lost and refused sessions; \
    the reasons and codes of a status, also in `trunkctl ping` and `trunkctl record`; the errors of a node that does not start. Paste an event or a cause, without time and values, into the search of this book. `…` stands for a value.";

/// Sections with log events, and the source folders of the events.
const EVENTS: [(&str, &[&str]); 4] = [
    ("Log: calls, handlers and identity", &["rpc/src"]),
    ("Log: sessions and pollers", &["transport/src", "transport/machine/src"]),
    ("Log: software device", &["transport/softrdma/src", "transport/roce/src"]),
    ("Log: NICs", &["transport/rdma-core/src", "transport/dropin/src"]),
];

/// An enum, as the path of its file and its name.
type EnumPlace = (&'static str, &'static str);

/// Sections for enums, and the enums. The last value is true if each variant needs a remedy.
const ENUMS: [(&str, &[EnumPlace], bool); 5] = [
    ("Causes of lost or failed sessions", &[("transport/src/messages.rs", "PeerDown")], true),
    ("Causes of failed handshakes", &[("transport/src/identity/verifier.rs", "Refused")], false),
    ("Reasons of a status", &[("rpc/src/status/reason.rs", "Reason")], true),
    ("Codes of a status", &[("rpc/src/status/mod.rs", "Code")], false),
    (
        "Errors of the start",
        &[
            ("rpc/src/node/start_error.rs", "StartError"),
            ("transport/src/node/error.rs", "StartError"),
            ("transport/src/identity/credentials.rs", "IdentityError"),
            ("transport/softrdma/src/device/options.rs", "OpenError"),
            ("transport/softrdma/src/link/error.rs", "LinkError"),
            ("transport/softrdma/src/host/error.rs", "HostError"),
        ],
        false,
    ),
];

/// Minimum number of letters of an error text for which a search is useful. Shorter texts consist of values.
const FEWEST_LETTERS: usize = 9;

/// A text, its meaning and its remedy.
#[derive(Default)]
struct Entry {
    key: String,
    text: String,
    levels: BTreeSet<String>,
    meaning: String,
    cause: Option<String>,
    remedy: Option<String>,
    needs_remedy: bool,
}

#[test]
fn troubleshooting_page_lists_each_text() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut page = format!("# Troubleshooting\n\n<!-- Written by: {RENEW} -->\n\n{INTRODUCTION}\n");
    let parsed = LINES.lines().map(|line| {
        let parts = line.split(" | ").collect::<Vec<_>>();
        let [key, meaning, remedy] = parts[..] else { panic!("expected TEXT | MEANING | REMEDY: {line}") };
        (key, (meaning, remedy))
    });
    let mut lines = parsed.collect::<BTreeMap<_, _>>();
    let mut faults = Vec::new();
    let mut add = |title: &str, entries: Vec<Entry>| {
        page += &format!("\n## {title}\n");
        for entry in entries {
            let line = lines.remove(entry.key.as_str());
            page += &written(entry, line, &mut faults);
        }
    };
    for (title, folders) in EVENTS {
        add(title, events(folders.iter().map(|folder| root.join(folder)).collect()));
    }
    add("Causes of refused sessions", refusals(&root.join("transport/src/session/private_data.rs")));
    for (title, enums, needs_remedy) in ENUMS {
        let of_enum = |(file, name): &EnumPlace| variants(&root.join(file), name, needs_remedy);
        add(title, enums.iter().flat_map(of_enum).collect());
    }
    faults.extend(lines.keys().map(|key| format!("no such text in the source: {key}")));
    assert!(faults.is_empty(), "rpc/tests/interface/troubleshooting.txt:\n{}", faults.join("\n"));

    let file = root.join("docs/book/src/operate/troubleshooting.md");
    if std::env::var_os("TRUNKLINE_BLESS").is_some() {
        fs::write(&file, &page).expect("the page can be written");
    }
    let before = fs::read_to_string(&file).unwrap_or_default();
    let differs = page.lines().find(|line| !before.lines().any(|its| its == *line));
    assert!(
        before == page,
        "the texts have changed; renew the page by\n    {RENEW}\nfirst new line: {differs:?}"
    );
}

/// Returns the part of the page for an entry. `line` contains the entry's meaning and remedy from `troubleshooting.txt`.
/// The remedy is `-` if the text itself contains it.
fn written(entry: Entry, line: Option<(&str, &str)>, faults: &mut Vec<String>) -> String {
    let (meaning, own) = line.unwrap_or_default();
    let known = if meaning.is_empty() { entry.meaning.as_str() } else { meaning };
    let cause = entry.cause.map(|cause| format!("Cause: {cause}."));
    let described = [known, cause.as_deref().unwrap_or_default()].join(" ").trim().to_owned();
    let is_remedy_missing = entry.remedy.is_none() && own.is_empty();
    if entry.needs_remedy && (described.is_empty() || is_remedy_missing) {
        faults.push(format!("no line with meaning and remedy: {}", entry.key));
    }
    if entry.remedy.is_some() && !own.is_empty() {
        faults.push(format!("the source has a remedy already: {}", entry.key));
    }
    let remedy = entry.remedy.unwrap_or_else(|| own.to_owned());
    let title = entry.text.split_once(": ").filter(|_| entry.text.len() > 80).map(|(head, _)| head);
    let mut part = format!("\n### {}\n\n", title.unwrap_or(&entry.text));
    if title.is_some() {
        part += &format!("> {}\n\n", entry.text);
    }
    if !entry.levels.is_empty() {
        part += &format!("Level {}. ", entry.levels.into_iter().collect::<Vec<_>>().join(" or "));
    }
    if !described.is_empty() {
        part += &format!("{described}\n");
    }
    if !remedy.is_empty() && remedy != "-" {
        part += &format!("\n**Remedy:** {}.\n", remedy.trim_end_matches('.'));
    }
    part
}

/// Returns the log events in the given folders, by text.
fn events(mut folders: Vec<PathBuf>) -> Vec<Entry> {
    let (mut calls, mut constants) = (Vec::new(), BTreeMap::<_, BTreeSet<_>>::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.file_stem().is_some_and(|name| name == "tests") {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                if text.contains("tracing::") || text.contains(": &str =") {
                    add_calls(text.parse().unwrap(), &mut calls, &mut constants);
                }
            }
        }
    }
    let mut entries = BTreeMap::<String, Entry>::new();
    for (level, arguments) in calls {
        let trees = arguments.into_iter().collect::<Vec<_>>();
        let mut entry = Entry { needs_remedy: true, ..Entry::default() };
        let mut has_cause = false;
        for argument in trees.split(|tree| tree.to_string() == ",") {
            let names = argument.iter().map(ToString::to_string).collect::<Vec<_>>();
            let (Some(first), Some(last)) = (names.first(), argument.last()) else { continue };
            let name = if first.len() == 1 { names.get(1).unwrap_or(first) } else { first };
            has_cause |= ["cause", "error"].contains(&name.as_str());
            // If constants of one name have several values, a line in `troubleshooting.txt` must state the cause or the remedy.
            let constant = constants.get(&last.to_string()).filter(|values| values.len() == 1);
            let value = literal(last).or_else(|| constant.and_then(|values| values.first().cloned()));
            match name.as_str() {
                "cause" => entry.cause = value,
                "remedy" => entry.remedy = value,
                _ if argument.len() == 1 => entry.text = value.unwrap_or(entry.text),
                _ => {}
            }
        }
        if level != "info" || has_cause {
            entry.key = entry.text.clone();
            entries.entry(entry.text.clone()).or_insert(entry).levels.insert(level);
        }
    }
    entries.into_values().collect()
}

/// Adds calls of `tracing` macros with their levels, and string constants.
fn add_calls(
    tokens: TokenStream,
    calls: &mut Vec<(String, TokenStream)>,
    constants: &mut BTreeMap<String, BTreeSet<String>>,
) {
    let trees = tokens.into_iter().collect::<Vec<_>>();
    for (at, tree) in trees.iter().enumerate() {
        let before = |count: usize| {
            trees[at.saturating_sub(count)..at].iter().map(ToString::to_string).collect::<String>()
        };
        if let Some(value) = literal(tree)
            && let Some(name) = before(6).strip_prefix("const").and_then(|rest| rest.strip_suffix(":&str="))
        {
            constants.entry(name.to_owned()).or_default().insert(value);
        }
        let TokenTree::Group(group) = tree else { continue };
        let is_of_macro = trees.get(at.wrapping_sub(1)).is_some_and(|tree| tree.to_string() == "!");
        let call = if is_of_macro { before(5) } else { String::new() };
        match call.strip_prefix("tracing::") {
            Some("info!" | "warn!" | "error!") => {
                calls.push((call[9..call.len() - 1].to_owned(), group.stream()));
            }
            _ if before(2) == "modtests" => {}
            _ => add_calls(group.stream(), calls, constants),
        }
    }
}

/// Returns the causes of refusals with their remedies. The causes in the peer's status precede the causes in this node's
/// log.
fn refusals(file: &Path) -> Vec<Entry> {
    let tokens = fs::read_to_string(file).unwrap().parse().unwrap();
    let texts = |function| {
        let mut texts = Vec::new();
        add_texts(&tokens, function, &mut texts);
        assert!(!texts.is_empty(), "no texts in {function}");
        texts
    };
    let explained = texts("explain").into_iter().map(|text: String| Entry {
        key: text.clone(),
        meaning: "The peer refuses, and its status has this cause.".into(),
        text,
        needs_remedy: true,
        ..Entry::default()
    });
    let advice = texts("advice");
    let advised = advice.chunks(2).map(|pair| Entry {
        text: pair[0].clone(),
        meaning: "This node refuses a peer: cause of `session request refused`.".into(),
        remedy: pair.get(1).cloned(),
        needs_remedy: true,
        ..Entry::default()
    });
    explained.chain(advised).collect()
}

/// Adds the texts in the body of a function.
fn add_texts(tokens: &TokenStream, function: &str, texts: &mut Vec<String>) {
    let mut is_named = function.is_empty();
    for tree in tokens.clone() {
        match &tree {
            TokenTree::Ident(name) => is_named |= name == function,
            TokenTree::Group(group) if is_named && group.to_string().starts_with(['{', '(']) => {
                add_texts(&group.stream(), "", texts);
                is_named = function.is_empty() || !group.to_string().starts_with('{');
            }
            TokenTree::Group(group) => add_texts(&group.stream(), function, texts),
            _ if is_named => texts.extend(literal(&tree)),
            _ => {}
        }
    }
}

/// Returns the variants of an enum. If it is an error, they are texts, and otherwise names.
fn variants(file: &Path, name: &str, needs_remedy: bool) -> Vec<Entry> {
    let items = syn::parse_file(&fs::read_to_string(file).unwrap()).unwrap().items;
    let constants = items.iter().filter_map(string_constant).collect::<Vec<_>>();
    let is_of_name = |item| match item {
        Item::Enum(item) if item.ident == name => Some(item),
        _ => None,
    };
    let item: ItemEnum = items.into_iter().find_map(is_of_name).expect("the enum exists");
    let entry = |variant: syn::Variant| {
        let docs = variant.attrs.iter().filter_map(doc).collect::<String>();
        let meaning = cut(docs.trim(), "](", ")", "").replace("[`", "`").replace("`]", "`");
        let sentence = meaning.split(". ").next().unwrap_or_default().trim_end_matches('.');
        let text = match variant.attrs.iter().find(|attribute| attribute.path().is_ident("error")) {
            None if name == "Code" => named(&variant.ident.to_string()),
            None => variant.ident.to_string(),
            Some(error) => match error_text(error, &constants) {
                text if text.chars().filter(char::is_ascii_alphabetic).count() >= FEWEST_LETTERS => text,
                // The text is written by another type.
                _ if needs_remedy => sentence.to_owned(),
                _ => return None,
            },
        };
        let key = format!("{name}::{}", variant.ident);
        Some(Entry { key, text, meaning, needs_remedy, ..Entry::default() })
    };
    item.variants.into_iter().filter_map(entry).collect()
}

/// Returns the name of a variant together with its gRPC form.
fn named(name: &str) -> String {
    let upper = |letter: char| {
        [Some('_').filter(|_| letter.is_uppercase()), Some(letter.to_ascii_uppercase())].into_iter().flatten()
    };
    let grpc = name.chars().flat_map(upper).collect::<String>();
    format!("{name}, {}", grpc.trim_start_matches('_'))
}

/// Returns the placeholder and the value of a string constant.
fn string_constant(item: &Item) -> Option<(String, String)> {
    let Item::Const(item) = item else { return None };
    let Expr::Lit(value) = &*item.expr else { return None };
    let Lit::Str(text) = &value.lit else { return None };
    Some((format!("{{{}}}", item.ident), text.value()))
}

/// Returns the text of `#[error("…")]` with the constants of its file, and with `…` in place of other values.
fn error_text(attribute: &Attribute, constants: &[(String, String)]) -> String {
    let Meta::List(list) = &attribute.meta else { return "…".into() };
    let Some(text) = list.tokens.clone().into_iter().next().and_then(|tree| literal(&tree)) else {
        return "…".into();
    };
    let text = constants.iter().fold(text, |text, (name, value)| text.replace(name, value));
    cut(&text, "{", "}", "…").replace("……", "…")
}

/// Replaces each part between `open` and `close`, including both, with `mark`.
fn cut(text: &str, open: &str, close: &str, mark: &str) -> String {
    let mut parts = text.split(open);
    let first = parts.next().unwrap_or_default().to_owned();
    let rest = parts.map(|part| format!("{mark}{}", part.split_once(close).map_or("", |(_, after)| after)));
    first + &rest.collect::<String>()
}

fn doc(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(value) => match &value.lit {
                Lit::Str(text) => Some(text.value()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    }
}

fn literal(tree: &TokenTree) -> Option<String> {
    let text = match tree {
        TokenTree::Literal(literal) => literal.to_string(),
        _ => return None,
    };
    syn::parse_str::<LitStr>(&text).ok().map(|text| text.value())
}
