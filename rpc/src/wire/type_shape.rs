//! The shape of a type. For a codec without names, it must be equal on both sides of a call.
//!
//! A shape is a list of lines, one for each step through the type. Lines contain the names of fields and variants, in order,
//! and primitive types, but not the names of types. The first line that differs shows where two types differ.

use super::shape_tracer::{Line, trace};
use serde::de::DeserializeOwned;

/// Maximum length of a shape as text, in bytes.
const MOST_TEXT: usize = 4096;
/// The last line of a truncated text.
const CUT: &str = "...";
/// Maximum length of a line in an error message, in characters.
const MOST_SAID: usize = 64;

/// The shape of the type of an argument, a result, an item or an error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TypeShape {
    lines: Vec<Line>,
}

impl TypeShape {
    /// Returns the shape of a type that derives serde's traits, for a codec that sends neither names nor types.
    ///
    /// This runs the type's `Deserialize` with made-up values. Returns `None` if the `Deserialize` panics or calls
    /// `deserialize_any`, or if the type is too deep or too large.
    #[must_use]
    pub fn of<T: DeserializeOwned>() -> Option<Self> {
        trace::<T>().map(|lines| Self { lines })
    }

    /// Returns the fingerprint, which is never 0.
    pub(crate) fn fingerprint(&self) -> u32 {
        let mut hash = Fnv::default();
        for line in &self.lines {
            hash.add(line.text.as_bytes());
            hash.add(b"\n");
        }
        let [a, b, c, d, e, f, g, h] = hash.0.to_le_bytes();
        (u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h])).max(1)
    }

    /// Appends the lines, each preceded by a line feed, up to a total of [`MOST_TEXT`] bytes.
    pub(crate) fn write(&self, into: &mut String) {
        for line in &self.lines {
            // Leave room for `CUT`.
            if into.len() + line.text.len() + CUT.len() + 2 > MOST_TEXT {
                into.push('\n');
                return into.push_str(CUT);
            }
            into.push('\n');
            into.push_str(&line.text);
        }
    }

    /// Describes the first difference from the lines of another shape, which come from a peer.
    pub(crate) fn difference<'t>(&self, mut theirs: impl Iterator<Item = &'t str>) -> String {
        for line in &self.lines {
            match theirs.next() {
                Some(their) if their == line.text => {}
                None | Some(CUT) => break,
                Some(their) => {
                    let (here, there) = (said(&line.text), said(their));
                    return format!("{} is {here} here and {there} at the server", line.place);
                }
            }
        }
        "it differs from the server's, after what the server tells of that".to_owned()
    }
}

/// Formats a line for an error message.
fn said(line: &str) -> String {
    let escaped = |text: &str| {
        let short = text.chars().take(MOST_SAID).collect::<String>();
        format!("`{}`{}", short.escape_debug(), if short.len() < text.len() { "..." } else { "" })
    };
    match line {
        "{" => "a struct".to_owned(),
        "(" => "a tuple".to_owned(),
        "<" => "an enum".to_owned(),
        "option" => "an `Option`".to_owned(),
        "list" => "a list".to_owned(),
        "map" => "a map".to_owned(),
        "unit" => "empty".to_owned(),
        "?" => "unknown".to_owned(),
        "}" | ")" | ">" => "missing".to_owned(),
        _ => match line.split_at_checked(1) {
            Some(("." | "|", name)) => escaped(name),
            Some(("^", _)) => "a type around it".to_owned(),
            _ => escaped(line),
        },
    }
}

/// State of a 64-bit FNV-1a hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Fnv(pub(crate) u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(dead_code, reason = "the types are only traced")]

    use super::*;
    use serde::{Deserialize, Deserializer};
    use std::collections::BTreeMap;
    use std::net::IpAddr;
    use std::num::NonZeroU16;

    fn shape<T: DeserializeOwned>() -> TypeShape {
        TypeShape::of::<T>().expect("it has a shape")
    }

    fn text(shape: &TypeShape) -> String {
        let mut text = String::new();
        shape.write(&mut text);
        text
    }

    fn lines<T: DeserializeOwned>() -> String {
        text(&shape::<T>()).trim().replace('\n', " ")
    }

    /// Returns the difference that a client with the type `A` reports for a server with the type `B`.
    fn difference<A: DeserializeOwned, B: DeserializeOwned>() -> String {
        let (here, there) = (shape::<A>(), shape::<B>());
        assert_ne!(here.fingerprint(), there.fingerprint());
        here.difference(text(&there).split('\n').skip(1))
    }

    macro_rules! types {
        ($($name:ident { $($item:item)* })*) => {
            $(mod $name { use super::*; $(#[derive(Deserialize)] $item)* })*
        };
    }

    #[test]
    fn shape_contains_names_and_kinds_of_all_parts() {
        #[derive(Deserialize)]
        struct Order {
            net: u64,
            tags: Vec<Option<String>>,
            by: BTreeMap<char, (f32, bool)>,
            state: Phase,
        }
        #[derive(Deserialize)]
        enum Phase {
            New,
            Paid(u8),
            Pair(i128, ()),
            Sent { at: Wrapped },
        }
        #[derive(Deserialize)]
        struct Wrapped(i64);
        assert_eq!(
            lines::<Order>(),
            "{ .net .tags .by .state } u64 list option string map char ( f32 bool ) \
             < |New |Paid ( u8 ) |Pair ( i128 unit ) |Sent { .at } i64 >"
        );
        assert_eq!(lines::<Wrapped>(), "i64", "a newtype is sent as its value");
    }

    #[test]
    fn first_difference_is_named_with_both_sides() {
        types! {
            old {
                pub(super) struct Order { net: u64, tax: u64, state: Phase }
                pub(super) enum Phase { New, Paid(u8) }
            }
            swapped {
                pub(super) struct Order { tax: u64, net: u64, state: Phase }
                pub(super) enum Phase { New, Paid(u8) }
            }
            longer {
                pub(super) struct Order { net: u64, tax: u64, state: Phase, note: String }
                pub(super) enum Phase { New, Paid(u8) }
            }
            wider {
                pub(super) struct Order { net: u64, tax: i64, state: Phase }
                pub(super) enum Phase { New, Paid(u8) }
            }
            added {
                pub(super) struct Order { net: u64, tax: u64, state: Phase }
                pub(super) enum Phase { New, Paid(u8), Shipped }
            }
            other_value {
                pub(super) struct Order { net: u64, tax: u64, state: Phase }
                pub(super) enum Phase { New, Paid(Option<u8>) }
            }
        }
        type Old = old::Order;
        assert_eq!(
            difference::<Old, swapped::Order>(),
            "field 1 of `Order` is `net` here and `tax` at the server"
        );
        assert_eq!(
            difference::<Old, longer::Order>(),
            "field 4 of `Order` is missing here and `note` at the server"
        );
        assert_eq!(
            difference::<longer::Order, Old>(),
            "field 4 of `Order` is `note` here and missing at the server"
        );
        assert_eq!(
            difference::<Old, wider::Order>(),
            "field `tax` of `Order` is `u64` here and `i64` at the server"
        );
        assert_eq!(
            difference::<Vec<Old>, Vec<added::Order>>(),
            "variant 3 of `Phase` is missing here and `Shipped` at the server"
        );
        assert_eq!(
            difference::<Old, other_value::Order>(),
            "field 1 of `Phase::Paid` is `u8` here and an `Option` at the server"
        );
        assert_eq!(difference::<u8, String>(), "it is `u8` here and `string` at the server");
        // Names of types are not compared.
        types! { renamed { pub(super) struct Bill { net: u64, tax: u64, state: Stage } pub(super) enum Stage { New, Paid(u8) } } }
        assert_eq!(shape::<Old>().fingerprint(), shape::<renamed::Bill>().fingerprint());
    }

    #[test]
    fn shapes_of_recursive_types_are_finite() {
        #[derive(Deserialize)]
        struct Tree {
            value: u8,
            below: Vec<Self>,
        }
        #[derive(Deserialize)]
        enum Expr {
            Sum(Box<Self>, Box<Self>, u8),
            Not(Box<Self>),
            Literal(u64),
        }
        #[derive(Deserialize)]
        struct Chain(Option<Box<Self>>);
        #[derive(Deserialize)]
        struct Node {
            kind: NodeKind,
            after: u8,
        }
        #[derive(Deserialize)]
        enum NodeKind {
            Child(Box<Node>, u16),
            Leaf,
        }
        assert_eq!(lines::<Tree>(), "{ .value .below } u8 list ^0");
        assert_eq!(lines::<Expr>(), "< |Sum ( ^0 ^0 u8 ) |Not ( ^0 ) |Literal ( u64 ) >");
        assert_eq!(lines::<Chain>(), "option ^0");
        assert_eq!(lines::<Node>(), "{ .kind .after } < |Child ( ^1 u16 ) |Leaf > u8");
    }

    #[test]
    fn types_with_equal_names_and_generics_are_distinguished() {
        mod inner {
            #[derive(serde::Deserialize)]
            pub(super) struct Point {
                x: u8,
            }
        }
        #[derive(Deserialize)]
        struct Point {
            x: inner::Point,
            y: Page<u16>,
            z: Page<Page<String>>,
        }
        #[derive(Deserialize)]
        struct Page<T> {
            items: Vec<T>,
        }
        assert_eq!(
            lines::<Point>(),
            "{ .x .y .z } { .x } u8 { .items } list u16 { .items } list { .items } list string"
        );
        assert_ne!(shape::<Page<u8>>().fingerprint(), shape::<Page<u16>>().fingerprint());
    }

    #[test]
    fn validating_types_do_not_hide_other_types() {
        fn not_one<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
            let number = u8::deserialize(deserializer)?;
            if number == 1 { Err(serde::de::Error::custom("it is one")) } else { Ok(number) }
        }
        fn never<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
            u8::deserialize(deserializer)?;
            Err(serde::de::Error::custom("no value is right"))
        }
        #[derive(Deserialize)]
        #[serde(try_from = "String")]
        struct Date(String);
        impl TryFrom<String> for Date {
            type Error = &'static str;
            fn try_from(text: String) -> Result<Self, &'static str> {
                if text == "1970-01-01" { Ok(Self(text)) } else { Err("not a date") }
            }
        }
        #[derive(Deserialize)]
        struct Checked {
            zero: NonZeroU16,
            address: IpAddr,
            date: Date,
            #[serde(deserialize_with = "not_one")]
            number: u8,
            last: i8,
        }
        #[derive(Deserialize)]
        struct Never {
            #[serde(deserialize_with = "never")]
            first: u8,
            second: u16,
        }
        let bytes = |count| vec!["u8"; count].join(" ");
        let address = format!("< |V4 ( ( {} ) ) |V6 ( ( {} ) ) >", bytes(4), bytes(16));
        assert_eq!(
            lines::<Checked>(),
            format!("{{ .zero .address .date .number .last }} u16 {address} string u8 i8")
        );
        assert_eq!(lines::<Never>(), "{ .first .second } u8 ?", "what follows it is unchecked");
        assert_eq!(lines::<Vec<Never>>(), "list { .first .second } u8 ?");
        assert_eq!(lines::<(Option<Never>, i8)>(), "( option { .first .second } u8 ? i8 )");
    }

    #[test]
    fn types_without_bound_are_unchecked() {
        #[derive(Deserialize)]
        #[serde(transparent)]
        struct Endless(Vec<Self>);
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Untagged {
            Number(u8),
        }
        struct Panics;
        impl<'de> Deserialize<'de> for Panics {
            fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
                panic!("on purpose")
            }
        }
        type Wide<T> = (T, T, T, T, T, T, T, T);
        assert_eq!(TypeShape::of::<Endless>(), None);
        assert_eq!(TypeShape::of::<Untagged>(), None);
        assert_eq!(TypeShape::of::<(u8, Panics)>(), None);
        assert!(TypeShape::of::<Wide<Wide<Wide<u8>>>>().is_some());
        assert_eq!(TypeShape::of::<Wide<Wide<Wide<Wide<u8>>>>>(), None);
    }

    #[test]
    fn texts_are_bounded_and_escaped() {
        #[derive(Deserialize)]
        struct Named {
            #[serde(rename = "a\n\u{1b}b")]
            a: u8,
        }
        assert_eq!(lines::<Named>(), r"{ .a\n\u{1b}b } u8");
        type Wide<T> = (T, T, T, T, T, T, T, T, T, T, T, T);
        let (long, other) = (shape::<(Wide<Wide<Wide<u8>>>, u8)>(), shape::<(Wide<Wide<Wide<u8>>>, u16)>());
        let cut = text(&long);
        assert!(cut.len() <= MOST_TEXT && cut.len() > MOST_TEXT - 16 && cut.ends_with("\n..."), "{cut}");
        assert_ne!(long.fingerprint(), other.fingerprint());
        assert!(other.difference(cut.split('\n').skip(1)).contains("after what the server tells"));
        // A hostile text.
        let number = shape::<u8>();
        assert_eq!(
            number.difference(["\u{1b}[2J\u{202e}\r"].into_iter()),
            r"it is `u8` here and `\u{1b}[2J\u{202e}\r` at the server"
        );
        let endless = "\u{7}".repeat(1 << 16);
        assert!(number.difference([&*endless].into_iter()).len() < 600);
        assert!(number.difference([].into_iter()).contains("after what the server tells"));
        assert!(number.difference(["ä"].into_iter()).contains("`ä`"));
    }
}
