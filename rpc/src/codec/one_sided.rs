//! Tests of types that encode one kind of value and decode another, and of values that MessagePack cannot distinguish. Such
//! a value arrives unchanged or is refused by name.

#![cfg(feature = "message-pack")]
#![allow(dead_code, reason = "attributes leave out fields and variants")]

use super::attributes::{is_zero, only_named, refused, refused_by, sent, works};
use super::{Bincode, CodecFor, MessagePack};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::cell::Cell;
use std::collections::BTreeMap;

/// Encodes a number as another type.
fn as_i32<S: Serializer>(number: &u8, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_i32(i32::from(*number))
}

fn as_text<S: Serializer>(number: &u8, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

fn option_as_i32<S: Serializer>(number: &Option<u8>, serializer: S) -> Result<S::Ok, S::Error> {
    number.map(i32::from).serialize(serializer)
}

fn list_as_i32<S: Serializer>(numbers: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(numbers.iter().map(|number| i32::from(*number)))
}

fn from_u16<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
    u8::try_from(u16::deserialize(deserializer)?).map_err(serde::de::Error::custom)
}

#[test]
fn field_encoded_as_another_type_is_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sent {
        first: u8,
        #[serde(serialize_with = "as_i32")]
        number: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Read {
        #[serde(deserialize_with = "from_u16")]
        number: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Text {
        #[serde(serialize_with = "as_text")]
        number: u8,
        rest: Vec<u8>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newtype(#[serde(serialize_with = "as_i32")] u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Event {
        Number(#[serde(serialize_with = "as_i32")] u8),
        Named {
            #[serde(serialize_with = "as_i32")]
            number: u8,
        },
    }
    // The `i32` 5 is encoded as the byte of the `u8` 10.
    only_named(&Sent { first: 1, number: 5 }, &["`number`", "`Sent`", "i32", "u8"]);
    only_named(&Read { number: 5 }, &["`number`", "`Read`", "u8", "u16"]);
    refused(&Text { number: 7, rest: vec![1] }, &["`number`", "`Text`", "bytes", "u8"]);
    only_named(&Newtype(5), &["Newtype`", "i32"]);
    only_named(&(1_u8, vec![Newtype(5)]), &["Newtype", "i32"]);
    only_named(&Event::Number(5), &["Event`", "i32"]);
    only_named(&Some(Event::Named { number: 5 }), &["`number`", "`Event::Named`"]);
    only_named(&Err::<u8, _>(Sent { first: 1, number: 5 }), &["`number`", "`Sent`"]);
    only_named(&BTreeMap::from([(1_u8, (Sent { first: 1, number: 5 }, 1_u8))]), &["`number`", "`Sent`"]);
}

#[test]
fn value_absent_from_first_message_is_compared() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Maybe {
        #[serde(serialize_with = "option_as_i32")]
        first: Option<u8>,
        #[serde(serialize_with = "option_as_i32")]
        second: Option<u8>,
        #[serde(serialize_with = "list_as_i32")]
        list: Vec<u8>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unnamed(
        #[serde(serialize_with = "option_as_i32")] Option<u8>,
        #[serde(serialize_with = "option_as_i32")] Option<u8>,
    );
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Element(#[serde(serialize_with = "as_i32")] u8);
    let maybe = |first, second, list: &[u8]| Maybe { first, second, list: list.to_vec() };
    works(&maybe(None, None, &[]));
    only_named(&maybe(Some(5), None, &[]), &["`first`", "`Maybe`"]);
    only_named(&maybe(None, Some(5), &[]), &["`second`", "`Maybe`"]);
    only_named(&maybe(None, None, &[5]), &["`list`", "`Maybe`"]);
    works(&Unnamed(None, None));
    only_named(&Unnamed(Some(5), None), &["Unnamed"]);
    only_named(&Unnamed(None, Some(5)), &["Unnamed"]);
    works(&Vec::<Element>::new());
    only_named(&vec![Element(5)], &["Element", "i32"]);
}

#[test]
fn conversions_to_and_from_other_types_are_compared() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(into = "i64", try_from = "u32")]
    struct Crossed(u32);
    impl From<Crossed> for i64 {
        fn from(Crossed(number): Crossed) -> Self {
            Self::from(number)
        }
    }
    impl TryFrom<u32> for Crossed {
        type Error = String;

        fn try_from(number: u32) -> Result<Self, String> {
            Ok(Self(number))
        }
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(into = "String", try_from = "String")]
    struct Both(u32);
    impl From<Both> for String {
        fn from(Both(number): Both) -> Self {
            number.to_string()
        }
    }
    impl TryFrom<String> for Both {
        type Error = std::num::ParseIntError;

        fn try_from(text: String) -> Result<Self, Self::Error> {
            text.parse().map(Self)
        }
    }
    only_named(&Crossed(5), &["Crossed`", "i64", "u32"]);
    only_named(&(vec![Crossed(5)], 1_u8), &["Crossed"]);
    works(&vec![(Both(5), Some(Both(7)))]);
}

mod remote {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, Clone, PartialEq)]
    pub(super) struct Foreign {
        pub(super) left: u8,
        pub(super) right: u16,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "Foreign")]
    pub(super) struct Definition {
        left: u8,
        right: u16,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(remote = "Foreign")]
    pub(super) struct Skipping {
        #[serde(skip_serializing, default)]
        left: u8,
        right: u16,
    }
}

#[test]
fn remote_and_generic_types_are_checked() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Holder<T> {
        #[serde(with = "remote::Definition")]
        foreign: remote::Foreign,
        inner: T,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrong {
        #[serde(with = "remote::Skipping")]
        foreign: remote::Foreign,
        list: Vec<u8>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Skips {
        #[serde(default, skip_serializing_if = "is_zero")]
        number: u8,
    }
    let foreign = || remote::Foreign { left: 0, right: 2 };
    works(&Holder { foreign: foreign(), inner: Some(Holder { foreign: foreign(), inner: 1_u8 }) });
    only_named(&Wrong { foreign: foreign(), list: vec![0; 9] }, &["`left`", "`Skipping`"]);
    works(&Holder { foreign: foreign(), inner: Skips { number: 1 } });
    only_named(
        &Holder { foreign: foreign(), inner: vec![Some(Skips { number: 0 })] },
        &["`number`", "`Skips`"],
    );
}

#[test]
fn enum_with_one_untagged_variant_is_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Mixed {
        Tagged(u8),
        Unit,
        #[serde(untagged)]
        Bare(String),
    }
    only_named(&Mixed::Tagged(1), &["Mixed`", "untagged"]);
    only_named(&Mixed::Bare("a".to_owned()), &["Mixed`", "untagged"]);
    only_named(&Some(vec![Mixed::Unit]), &["Mixed`", "untagged"]);
}

#[test]
fn message_pack_round_trips_untagged_flattened_and_tagged_values() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum Step {
        Move(u8, u8),
        Stay,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Free {
        Steps(Vec<Step>),
        Text(String),
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Inner {
        hidden: Step,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Outer {
        free: Free,
        seen: Step,
        #[serde(flatten)]
        inner: Inner,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type", content = "value")]
    enum Tagged {
        One(Outer),
        Two(u8, Step),
    }
    let outer = Outer {
        free: Free::Steps(vec![Step::Stay, Step::Move(1, 2)]),
        seen: Step::Move(3, 4),
        inner: Inner { hidden: Step::Stay },
    };
    let all =
        (outer.clone(), vec![Tagged::Two(1, Step::Stay), Tagged::One(outer)], Free::Text("a".to_owned()));
    for _ in 0..2 {
        assert_eq!(sent::<MessagePack, _>(&all).as_ref(), Ok(&all));
    }
}

#[test]
fn some_of_empty_value_is_refused_if_encoded_as_none() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newtype(Option<u8>);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unit;
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Patch {
        name: Option<Option<String>>,
    }
    let words = ["`Some`", "Bincode"];
    refused_by::<MessagePack, _>(&Some(None::<u8>), &words);
    refused_by::<MessagePack, _>(&Some(()), &words);
    refused_by::<MessagePack, _>(&Some(Newtype(None)), &words);
    refused_by::<MessagePack, _>(&vec![Patch { name: Some(None) }], &words);
    assert_eq!(sent::<Bincode, _>(&Patch { name: Some(None) }), Ok(Patch { name: Some(None) }));
    works(&(Some(Unit), Some(Some(1_u8)), Some(Newtype(Some(1))), Patch { name: None }));
    works(&(Some((None::<u8>, ())), Some(vec![None::<u8>]), Patch { name: Some(Some(String::new())) }));
}

thread_local! {
    static DECODED: Cell<usize> = const { Cell::new(0) };
}

#[test]
fn undecodable_type_is_tried_at_most_twice() {
    #[derive(Debug, Serialize)]
    struct OnlySent {
        number: u8,
    }
    impl<'de> Deserialize<'de> for OnlySent {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            DECODED.set(DECODED.get() + 1);
            Err(serde::de::Error::custom("it is only sent"))
        }
    }
    for number in 0..10 {
        assert_eq!(Bincode::encode(&(OnlySent { number }, 1_u8), &mut Vec::new()), Ok(()));
    }
    assert!((1..=2).contains(&DECODED.get()), "decoded {} times", DECODED.get());
}
