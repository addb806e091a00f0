//! Limits for types that serde buffers because they have the attribute `untagged`, `tag` or `flatten`.
//!
//! Such a type first collects all values from its bytes, then decodes from the collected values, where
//! [`Bounded`](super::bounded) cannot check. Each level of the second pass uses stack and may copy all nested values. It may
//! also try several variants, and their number multiplies with each level. All three costs are therefore limited in the
//! first pass, by the number of containers around each collected value. Types without these attributes have no overhead.

use serde::de::Error;
use std::any::type_name;
use std::cell::Cell;

/// Maximum number of containers around a collected value.
pub(super) const BUFFERED_DEPTH: usize = 12;
/// Maximum number of tries for all values of a message, for types with two variants that match each container. A message
/// with up to 7 containers around its values reaches the default memory limit earlier.
const MOST_TRIES: usize = 1 << 27;
/// Path prefixes of visitors that collect values. Other visitors of serde request a specific type.
const COLLECTORS: [&str; 4] = ["serde::", "serde_core::", "serde_with::content::", "typetag::content::"];

/// Returns true if the visitor collects values for a second pass.
#[inline]
pub(super) fn is_collector<V>() -> bool {
    let name = type_name::<V>();
    COLLECTORS.iter().any(|path| name.starts_with(path))
}

/// The collected values of a message.
#[derive(Debug, Default)]
pub(super) struct Buffer {
    /// Number of containers around the next value.
    depth: Cell<usize>,
    tries: Cell<usize>,
    /// Size of the buffered type, in bytes.
    size: Cell<usize>,
}

impl Buffer {
    /// Returns the maximum number of additional copies of a collected value.
    pub(super) fn copies(&self) -> usize {
        self.depth.get()
    }

    /// Returns the size of the buffered type, in bytes. A collected value may become a value of this type.
    pub(super) fn size(&self) -> usize {
        self.size.get()
    }

    /// Collects a value for a type of `size` bytes. `admit` checks the stack for a given depth and size.
    pub(super) fn collect<T, E: Error>(
        &self,
        size: usize,
        admit: impl FnOnce(usize, usize) -> Result<(), E>,
        inside: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        let Self { depth: cell, tries, size: outer } = self;
        let depth = cell.get();
        if depth == 0 {
            outer.set(size);
        }
        tries.set(tries.get() + (1 << depth));
        if depth > BUFFERED_DEPTH || tries.get() > MOST_TRIES {
            return Err(too_deep(depth));
        }
        admit(depth, outer.get())?;
        cell.set(depth + 1);
        let collected = inside();
        cell.set(depth);
        collected
    }
}

#[cold]
fn too_deep<E: Error>(depth: usize) -> E {
    let (values, limit) = if depth > BUFFERED_DEPTH {
        ("values", BUFFERED_DEPTH)
    } else {
        ("too many values", depth.saturating_sub(1))
    };
    E::custom(format_args!(
        "{values} are nested more than {limit} deep in a type that serde buffers (`untagged`, `tag` or `flatten`): an \
         enum without these attributes may nest deeper"
    ))
}

#[cfg(test)]
#[cfg(feature = "message-pack")]
mod tests {
    use super::super::{CodecFor as _, MessagePack, Unlimited, decode_by};
    use super::type_name;
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};
    use std::cell::Cell;
    use std::collections::{BTreeMap, VecDeque};
    use std::fmt::Debug;

    /// Decodes a value on a stack of normal size.
    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        stacker::grow(2 << 20, || {
            decode_by(MessagePack::decode_value, bytes, &Unlimited).map_err(|error| error.to_string())
        })
    }

    /// Returns a value inside `levels` levels, each of which begins with `open`.
    fn nested(open: &[u8], levels: usize, leaf: &[u8]) -> Vec<u8> {
        [&open.repeat(levels), leaf].concat()
    }

    /// A list with one element, and a number.
    const LIST: &[u8] = b"\x91";
    const NUMBER: &[u8] = b"\x07";
    const REFUSAL: &str =
        "nested more than 12 deep in a type that serde buffers (`untagged`, `tag` or `flatten`)";

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Json {
        Number(i64),
        Text(String),
        List(Vec<Self>),
        Map(BTreeMap<String, Self>),
    }

    /// Asserts that this number of levels is decoded, and that one more level is refused.
    fn deepest<T: DeserializeOwned + Debug>(open: &[u8], levels: usize, leaf: &[u8]) {
        let decoded = |levels| decode::<T>(&nested(open, levels, leaf)).map(drop);
        assert_eq!(decoded(levels), Ok(()), "{}", type_name::<T>());
        assert!(decoded(levels + 1).unwrap_err().contains(REFUSAL), "{}", type_name::<T>());
    }

    /// The names belong to serde. If serde changes them, this test fails.
    #[test]
    fn every_buffering_attribute_is_recognized() {
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        #[serde(tag = "t")]
        enum Tagged {
            A { below: Option<Box<Self>> },
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        #[serde(tag = "t", content = "c")]
        enum Adjacent {
            A(Option<Box<Self>>),
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        struct Flat {
            #[serde(flatten)]
            inner: Inner,
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        struct Inner {
            below: Option<Box<Flat>>,
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        enum Mixed {
            Bare(#[serde(deserialize_with = "Json::deserialize")] Json),
            #[serde(untagged)]
            Below(Vec<Self>),
        }
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        struct Holder {
            json: Json,
            tagged: Option<Box<Tagged>>,
        }
        deepest::<Json>(LIST, 12, NUMBER);
        deepest::<Json>(b"\x81\xa1k", 12, NUMBER);
        deepest::<Vec<Json>>(LIST, 13, NUMBER);
        deepest::<Option<Json>>(LIST, 12, NUMBER);
        deepest::<Box<Json>>(LIST, 12, NUMBER);
        deepest::<Tagged>(b"\x82\xa1t\xa1A\xa5below", 12, b"\xc0");
        // The fields of the outermost struct are collected one by one.
        deepest::<Flat>(b"\x81\xa5below", 13, b"\xc0");
        // If the tag comes first, as encoders write it, the value is not collected.
        let adjacent = |open: &[u8], levels| decode::<Adjacent>(&nested(open, levels, b"\xc0")).map(drop);
        assert_eq!(adjacent(b"\x82\xa1t\xa1A\xa1c", 40), Ok(()));
        let mut open = b"\x82\xa1c".repeat(13);
        open.push(0xc0);
        open.extend(b"\xa1t\xa1A".repeat(13));
        assert_eq!(decode::<Adjacent>(&open).map(drop), Ok(()));
        let last = [b"\x82\xa1c", &open[..], b"\xa1t\xa1A"].concat();
        assert!(decode::<Adjacent>(&last).unwrap_err().contains(REFUSAL));
        deepest::<Mixed>(LIST, 11, b"\x81\xa4Bare\x07");
        let holder = |open: &[u8]| [b"\x82\xa4json", open, b"\xa6tagged\xc0"].concat();
        assert!(decode::<Holder>(&holder(&nested(LIST, 12, NUMBER))).is_ok());
        assert!(decode::<Holder>(&holder(&nested(LIST, 13, NUMBER))).unwrap_err().contains(REFUSAL));
    }

    #[test]
    fn unbuffered_types_may_nest_deeper() {
        // The `Deserialize` of `Value` accepts any value and decodes it without collecting it.
        assert!(decode::<serde_json::Value>(&nested(LIST, 100, NUMBER)).is_ok());
        #[derive(Debug, Deserialize)]
        #[allow(dead_code, reason = "it is only decoded")]
        enum Tree {
            Leaf,
            Below(Vec<Self>),
        }
        assert!(decode::<Tree>(&nested(b"\x81\xa5Below\x91", 60, b"\xa4Leaf")).is_ok());
    }

    #[test]
    fn buffered_tree_of_moderate_depth_round_trips() {
        let text = || Json::Text("a".to_owned());
        let tree = (0..6).fold(text(), |below, _| {
            Json::List(vec![
                Json::Map([("a".to_owned(), below), ("b".to_owned(), text())].into()),
                Json::Number(1),
            ])
        });
        let mut bytes = Vec::new();
        MessagePack::encode(&tree, &mut bytes).unwrap();
        assert_eq!(decode::<Json>(&bytes).as_ref(), Ok(&tree));
    }

    type Part<const WORDS: usize> = [[u64; 5]; WORDS];

    macro_rules! survive {
        ($($name:ident of $words:literal on $stack:expr;)*) => {
            $(
                mod $name {
                    use super::*;

                    #[derive(Debug, Deserialize)]
                    #[serde(untagged)]
                    #[allow(dead_code, clippy::large_enum_variant, reason = "it is only decoded")]
                    pub(super) enum Untagged {
                        Number(i64),
                        Page { kids: Vec<Self>, #[serde(default)] a: [Part<6>; $words], #[serde(default)] b: [Part<6>; $words] },
                    }
                    #[derive(Debug, Deserialize)]
                    #[serde(tag = "t")]
                    #[allow(dead_code, reason = "it is only decoded")]
                    pub(super) enum Tagged {
                        Page { kids: Vec<Self>, #[serde(default)] a: [Part<6>; $words], #[serde(default)] b: [Part<6>; $words] },
                    }
                    #[derive(Debug, Deserialize)]
                    #[allow(dead_code, reason = "it is only decoded")]
                    pub(super) struct Flat {
                        #[serde(default)]
                        a: [Part<6>; $words],
                        #[serde(default)]
                        b: [Part<6>; $words],
                        #[serde(flatten)]
                        inner: Inner,
                    }
                    #[derive(Debug, Deserialize)]
                    #[allow(dead_code, reason = "it is only decoded")]
                    pub(super) struct Inner {
                        kids: Vec<Flat>,
                    }
                    /// A type whose large parts are behind pointers.
                    #[derive(Debug, Deserialize)]
                    #[serde(untagged)]
                    #[allow(dead_code, reason = "it is only decoded")]
                    pub(super) enum Boxed {
                        Number(i64),
                        List(Vec<Box<Flat>>),
                        Page(Box<Untagged>),
                    }
                }
                let page: &[u8] = b"\x81\xa4kids\x91";
                survives::<$name::Untagged>($stack, page, NUMBER);
                survives::<$name::Tagged>($stack, b"\x82\xa1t\xa4Page\xa4kids\x91", b"\x82\xa1t\xa4Page\xa4kids\x90");
                survives::<$name::Flat>($stack, page, b"\x81\xa4kids\x90");
            )*
        };
    }

    /// Decodes values of increasing depth on stacks of several sizes. Each value is decoded, or refused with a reason.
    fn survives<T: DeserializeOwned>(least: usize, open: &[u8], leaf: &[u8]) {
        for stack in [least, 4 * least, 2 << 20] {
            for levels in (0..8).chain([60, 120]) {
                let bytes = nested(open, levels, leaf);
                let decoded = stacker::grow(stack, || {
                    decode_by(MessagePack::decode_value::<T>, &bytes, &Unlimited).map(drop)
                });
                let is_small = size_of::<T>() < 5 << 10;
                assert!(
                    decoded.is_ok() || levels > 1 || !is_small || stack < 1 << 20,
                    "{}: {decoded:?}",
                    type_name::<T>()
                );
                if let Err(error) = decoded {
                    assert!(error.to_string().contains("nested"), "{error}");
                }
            }
        }
    }

    #[test]
    fn no_buffered_value_overflows_its_stack() {
        survive! {
            small of 1 on 64 << 10;
            page of 8 on 64 << 10;
            large of 32 on 512 << 10;
        }
        survives::<small::Boxed>(1 << 20, b"\x81\xa4kids\x91", NUMBER);
        survives::<page::Boxed>(1 << 20, b"\x81\xa4kids\x91", NUMBER);
    }

    /// Counts the attempts to decode it.
    #[derive(Debug)]
    struct Tried;

    thread_local! {
        static TRIES: Cell<usize> = const { Cell::new(0) };
    }

    impl<'de> Deserialize<'de> for Tried {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            TRIES.set(TRIES.get() + 1);
            Err(serde::de::Error::custom("not this one"))
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(untagged)]
    #[allow(dead_code, reason = "it is only decoded")]
    enum Expr {
        Number(i64),
        Tried(Tried),
        Pair(Vec<Self>),
        Set(VecDeque<Self>),
    }

    #[test]
    fn tries_of_variants_are_bounded() {
        let float = b"\xca\x3f\x80\x00\x00";
        TRIES.set(0);
        let error = decode::<Expr>(&nested(LIST, 12, float)).unwrap_err();
        assert!(error.contains("did not match"), "{error}");
        assert_eq!(TRIES.get(), (1 << 13) - 1, "once for each way to its containers");
        for levels in [13, 40, 100] {
            assert!(decode::<Expr>(&nested(LIST, levels, float)).unwrap_err().contains(REFUSAL));
        }
        assert_eq!(TRIES.get(), (1 << 13) - 1);
    }

    #[test]
    fn many_buffered_values_lower_depth_limit() {
        let list = |levels: usize, length: u16| {
            let numbers = vec![7; length.into()];
            decode::<Json>(&nested(
                LIST,
                levels - 1,
                &[&[0xdc], &length.to_be_bytes()[..], &numbers].concat(),
            ))
            .map(drop)
        };
        assert_eq!(list(12, 32_000), Ok(()));
        let error = list(12, 33_000).unwrap_err();
        assert!(error.contains("too many values are nested more than 11 deep"), "{error}");
        assert_eq!(list(11, 33_000), Ok(()));
    }
}
