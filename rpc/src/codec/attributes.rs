//! Tests of serde attributes. They cover the rows of `docs/book/src/guide/evolution.md`, with both codecs. A value arrives
//! unchanged or is refused, and the refusal names the cause.

#![cfg(feature = "message-pack")]
#![allow(dead_code, reason = "attributes leave out fields and variants")]

use super::{Bincode, CodecFor, MessagePack, Unlimited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;

/// Sends a value and returns the value that arrives.
pub(super) fn sent<C: CodecFor<T>, T>(value: &T) -> Result<T, String> {
    let mut bytes = Vec::new();
    C::encode(value, &mut bytes)?;
    super::decode::<C, T>(&bytes, &Unlimited).map_err(|error| error.to_string())
}

/// Asserts that the value arrives with both codecs, before and after its type has been checked.
pub(super) fn works<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T) {
    for _ in 0..2 {
        assert_eq!(sent::<Bincode, T>(value).as_ref(), Ok(value), "bincode");
        assert_eq!(sent::<MessagePack, T>(value).as_ref(), Ok(value), "MessagePack");
    }
}

/// Asserts that the default codec refuses the value each time, with these words and the remedy.
pub(super) fn refused<T: Serialize + DeserializeOwned>(value: &T, words: &[&str]) {
    refused_by::<Bincode, T>(value, words);
    refused_by::<Bincode, T>(value, &["MessagePack"]);
}

/// Asserts that a codec refuses to encode the value each time, with these words.
pub(super) fn refused_by<C: CodecFor<T>, T>(value: &T, words: &[&str]) {
    for _ in 0..2 {
        let error = C::encode(value, &mut Vec::new()).unwrap_err();
        for word in words {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
}

/// Asserts that the value arrives with MessagePack only.
pub(super) fn only_named<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: &T, words: &[&str]) {
    refused(value, words);
    assert_eq!(sent::<MessagePack, T>(value).as_ref(), Ok(value), "MessagePack");
}

pub(super) fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[test]
fn skip_serializing_if_is_refused_for_skipped_values() {
    #[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
    #[serde(default)]
    struct Order {
        #[serde(skip_serializing_if = "is_zero")]
        first: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        second: Option<u8>,
        last: u8,
    }
    works(&Order { first: 1, second: Some(2), last: 3 });
    only_named(&Order { first: 0, second: Some(2), last: 3 }, &["`first`", "`Order`", "skip_serializing_if"]);
    only_named(&vec![Order { first: 1, second: None, last: 3 }], &["`second`", "`Order`"]);
    works(&Order { first: 1, second: Some(2), last: 3 });
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Event {
        Paid {
            #[serde(default, skip_serializing_if = "is_zero")]
            cents: u8,
            account: u8,
        },
    }
    works(&Event::Paid { cents: 1, account: 2 });
    only_named(&Event::Paid { cents: 0, account: 2 }, &["`cents`", "`Event::Paid`"]);
}

#[test]
fn skip_serializing_is_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Secret {
        #[serde(default, skip_serializing)]
        password: u8,
        user: u8,
    }
    let secret = || Secret { password: 0, user: 7 };
    only_named(&secret(), &["`password`", "`Secret`", "skip_serializing"]);
    // Without the refusal, the bytes of the next value would decode as the field.
    only_named(&(secret(), vec![0_u8]), &["`password`", "`Secret`"]);
    only_named(&HashMap::from([(1_u8, secret())]), &["`password`", "`Secret`"]);
}

#[test]
fn skip_deserializing_of_field_is_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Computed {
        #[serde(skip_deserializing)]
        sum: u8,
        part: u8,
    }
    refused(&Computed { sum: 0, part: 7 }, &["`sum`", "`Computed`", "skip_deserializing"]);
    refused(&(Computed { sum: 0, part: 7 }, "text".to_owned()), &["`sum`", "`Computed`"]);
    assert!(sent::<MessagePack, _>(&Computed { sum: 0, part: 7 }).is_ok());
}

#[test]
fn fields_skipped_by_opposite_sides_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Crossed {
        #[serde(default, skip_serializing)]
        read: u8,
        #[serde(skip_deserializing)]
        written: u8,
        both: u8,
    }
    refused(&Crossed { read: 0, written: 0, both: 1 }, &["`written`", "`Crossed`"]);
}

#[test]
fn skipped_fields_round_trip() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Cached {
        #[serde(skip)]
        cache: u8,
        key: u8,
    }
    works(&Cached { cache: 0, key: 1 });
}

#[test]
fn variants_after_skip_deserializing_variant_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        First,
        #[serde(skip_deserializing)]
        Internal,
        Second,
        Third(u8),
    }
    // The type is checked with a variant that works.
    works(&Kind::First);
    only_named(&Kind::Second, &["`Kind::Second`", "`Third`", "skip"]);
    only_named(&vec![Kind::First, Kind::Third(7)], &["`Kind::Third`"]);
    only_named(&BTreeMap::from([(1, Some(Kind::Second))]), &["`Kind::Second`"]);
    refused(&Kind::Internal, &["`Kind::Internal`"]);
    works(&Kind::First);
}

#[test]
fn variants_after_skipped_one_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        #[serde(skip)]
        Internal,
        First,
        Second,
    }
    only_named(&Kind::First, &["`Kind::First`", "`Second`"]);
    only_named(&Kind::Second, &["`Kind::Second`"]);
    // Skipping the last variants leaves the numbers of other variants unchanged.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Last {
        First,
        Second {
            number: u8,
        },
        #[serde(skip)]
        Internal,
    }
    works(&vec![Last::First, Last::Second { number: 1 }]);
}

#[test]
fn skip_serializing_variant_fails_and_others_work() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        #[serde(skip_serializing)]
        Old,
        New,
    }
    works(&Kind::New);
    assert!(sent::<Bincode, _>(&Kind::Old).is_err());
}

#[test]
fn flattened_fields_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Page {
        size: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Listing {
        name: String,
        #[serde(flatten)]
        page: Page,
    }
    let listing = || Listing { name: "a".to_owned(), page: Page { size: 1 } };
    only_named(&listing(), &["Listing`", "flatten"]);
    only_named(&Some(vec![listing()]), &["Listing`", "flatten"]);
}

#[test]
fn internally_tagged_enums_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type")]
    enum Message {
        Ping,
        Text { body: String },
    }
    only_named(&Message::Ping, &["Message`", "tag"]);
    only_named(&vec![Message::Text { body: "a".to_owned() }], &["Message`", "tag"]);
}

#[test]
fn untagged_enums_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Pair {
        left: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Filter {
        Number(u64),
        Pair(Pair),
    }
    // The sender detects the attribute through the struct only. The receiver always detects it.
    only_named(&Filter::Pair(Pair { left: 1 }), &["Filter`", "untagged"]);
    only_named(&Filter::Number(7), &["Filter`", "untagged"]);
    only_named(&vec![(1_u8, Filter::Number(7))], &["Filter`", "untagged"]);
}

#[test]
fn adjacently_tagged_enums_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(tag = "type", content = "value")]
    enum Message {
        Ping,
        Text(String),
        Pair { left: u8, right: u8 },
    }
    for message in [Message::Ping, Message::Text("a".to_owned()), Message::Pair { left: 1, right: 2 }] {
        only_named(&message, &["Message`", "`tag`"]);
    }
    only_named(&vec![Message::Ping, Message::Ping], &["Message`", "`tag`"]);
}

#[test]
fn fields_with_different_names_per_side_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Renamed {
        #[serde(rename(serialize = "out", deserialize = "in"))]
        field: u8,
    }
    refused(&Renamed { field: 1 }, &["`out`", "`Renamed`", "rename"]);
}

#[test]
fn supported_attributes_round_trip() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase", deny_unknown_fields)]
    struct Fields {
        #[serde(rename = "id")]
        number: u8,
        #[serde(alias = "a_name", alias = "z_name")]
        long_name: String,
        #[serde(default)]
        list: Vec<u8>,
        #[serde(with = "crate::nested_status")]
        status: Status,
    }
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Variants {
        #[serde(alias = "a_first", alias = "z_first")]
        First,
        #[serde(alias = "b_second")]
        TheSecond(u8),
        Third {
            #[serde(alias = "y")]
            x: u8,
        },
        #[serde(other)]
        Other,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Transparent(Vec<Variants>);
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(from = "Vec<Variants>", into = "Vec<Variants>")]
    struct Converted(Vec<Variants>);
    impl From<Vec<Variants>> for Converted {
        fn from(variants: Vec<Variants>) -> Self {
            Self(variants)
        }
    }
    impl From<Converted> for Vec<Variants> {
        fn from(converted: Converted) -> Self {
            converted.0
        }
    }
    use crate::Status;
    use Variants::{First, Other, TheSecond, Third};
    let all = vec![First, TheSecond(1), Third { x: 2 }, Other];
    works(&Fields { number: 1, long_name: "a".to_owned(), list: vec![1], status: Status::aborted("no") });
    works(&Transparent(all.clone()));
    works(&Converted(all.clone()));
    // The order of a `HashMap` varies.
    works(&(0..20_u8).map(|key| (key, all.clone())).collect::<HashMap<_, _>>());
}

#[test]
fn types_of_standard_library_round_trip() {
    use std::num::NonZeroU8;
    use std::ops::{Bound, RangeInclusive};
    use std::time::{Duration, SystemTime};
    type First = (Duration, SystemTime, RangeInclusive<u8>, Bound<u8>, NonZeroU8);
    type Second = (std::net::SocketAddr, std::net::IpAddr, Result<u8, String>, std::path::PathBuf, [u8; 32]);
    let range = 1..=9_u8;
    let first: First =
        (Duration::new(1, 2), SystemTime::UNIX_EPOCH, range, Bound::Excluded(1), NonZeroU8::MIN);
    works(&first);
    let address = std::net::SocketAddr::from(([1, 2, 3, 4], 5));
    assert_eq!(
        sent::<Bincode, Second>(&(address, address.ip(), Err("no".to_owned()), "a/b".into(), [7; 32]))
            .map(drop),
        Ok(())
    );
}

#[test]
fn value_refused_by_try_from_is_encoded_and_refused_by_receiver() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(try_from = "Even")]
    struct Odd {
        number: u8,
    }
    #[derive(Deserialize)]
    struct Even {
        number: u8,
    }
    impl TryFrom<Even> for Odd {
        type Error = &'static str;

        fn try_from(Even { number }: Even) -> Result<Self, &'static str> {
            if number % 2 == 1 { Ok(Self { number }) } else { Err("it is even") }
        }
    }
    works(&Odd { number: 1 });
    let mut bytes = Vec::new();
    assert_eq!(Bincode::encode(&Some(Odd { number: 2 }), &mut bytes), Ok(()));
    assert!(sent::<Bincode, _>(&Odd { number: 2 }).unwrap_err().contains("it is even"));
}

#[test]
fn containers_with_different_names_per_side_are_compared() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename(serialize = "Out", deserialize = "In"))]
    struct Secret {
        #[serde(default, skip_serializing)]
        password: u8,
        user: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename(serialize = "Out", deserialize = "In"))]
    enum Kind {
        First,
        #[serde(skip_deserializing)]
        Internal,
        Second,
        Third,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename(serialize = "Out", deserialize = "In"))]
    struct Pair {
        left: u8,
        right: u8,
    }
    refused(&(Secret { password: 0, user: 7 }, vec![0_u8]), &["`password`", "`Out`"]);
    refused(&Kind::Second, &["`Out::Second`", "`Third`"]);
    works(&(Pair { left: 1, right: 2 }, vec![Kind::First]));
}

#[test]
fn conversions_of_each_side_with_fields_in_another_order_are_refused() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    #[serde(from = "Read", into = "Written")]
    struct Pair {
        left: u8,
        right: u8,
    }
    #[derive(Serialize)]
    struct Written {
        left: u8,
        right: u8,
    }
    #[derive(Deserialize)]
    struct Read {
        right: u8,
        left: u8,
    }
    impl From<Read> for Pair {
        fn from(Read { right, left }: Read) -> Self {
            Self { left, right }
        }
    }
    impl From<Pair> for Written {
        fn from(Pair { left, right }: Pair) -> Self {
            Self { left, right }
        }
    }
    only_named(&Pair { left: 1, right: 2 }, &["`right`", "`Written`"]);
}

#[test]
fn types_with_equal_names_are_checked_separately() {
    {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        enum Kind {
            First,
            Second,
            Third,
        }
        works(&Kind::Second);
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Kind {
        First,
        #[serde(skip_deserializing)]
        Second,
        Third,
    }
    refused(&Kind::Second, &["`Kind::Second`", "`Third`"]);
}

/// Decodes a text and trims it.
fn trimmed<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(String::deserialize(deserializer)?.trim().to_owned())
}

#[test]
fn values_changed_by_deserialize_with_arrive_changed() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct User {
        #[serde(alias = "mail", deserialize_with = "trimmed")]
        address: String,
    }
    let user = |address: &str| User { address: address.to_owned() };
    for address in [" a@b ", "a@b", "", "  "] {
        let arrives = Ok(user(address.trim()));
        assert_eq!(sent::<Bincode, _>(&user(address)), arrives);
        assert_eq!(sent::<MessagePack, _>(&user(address)), arrives);
    }
    // The type loses more each time, but not through its own code.
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Secret {
        #[serde(default, skip_serializing)]
        password: u8,
        #[serde(deserialize_with = "trimmed")]
        user: String,
    }
    let secret = Secret { password: 0, user: "a".to_owned() };
    refused(&(secret, vec![0_u8; 70]), &["`password`", "`Secret`"]);
}

#[test]
fn nan_and_sets_are_encoded_without_refusal() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Numbers {
        #[serde(alias = "double")]
        large: f64,
        small: f32,
        set: std::collections::HashSet<i128>,
    }
    let numbers = || Numbers { large: f64::NAN, small: f32::NEG_INFINITY, set: (-20..20).collect() };
    for _ in 0..20 {
        assert_eq!(sent::<Bincode, _>(&numbers()).map(|numbers| numbers.large.is_nan()), Ok(true));
    }
}

#[test]
fn send_only_type_with_panicking_decoder_is_encoded() {
    #[derive(Debug, Serialize)]
    struct OnlySent {
        number: u8,
    }
    impl<'de> Deserialize<'de> for OnlySent {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            unreachable!("it is only sent")
        }
    }
    for number in [1, 2] {
        let mut bytes = Vec::new();
        assert_eq!(Bincode::encode(&(OnlySent { number }, 3_u8), &mut bytes), Ok(()));
        assert_eq!(bytes, [number, 3]);
    }
}

/// Asserts that both codecs refuse the value.
fn refused_by_both<T: Serialize + DeserializeOwned>(value: &T, words: &[&str]) {
    refused(value, words);
    refused_by::<MessagePack, T>(value, words);
    refused_by::<MessagePack, T>(value, &["give its fields names"]);
}

#[test]
fn unnamed_fields_skipped_by_one_side_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unwritten(#[serde(default, skip_serializing)] u8, #[serde(default)] u8, #[serde(default)] u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Unread(#[serde(skip_deserializing)] u8, u8, #[serde(default)] u8);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Sometimes(
        #[serde(default, skip_serializing_if = "is_zero")] u8,
        #[serde(default, skip_serializing_if = "is_zero")] u8,
        #[serde(default)] u8,
    );
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Never(u8, #[serde(skip)] u8, u8);
    // Without the refusal, the bytes of the next value would decode as the fields.
    refused_by_both(
        &(Unwritten(0, 7, 1), vec![0_u8]),
        &["`Unwritten`", "2 fields", "with 3", "skip_serializing"],
    );
    refused_by_both(&(Unread(0, 0, 0), vec![0_u8]), &["`Unread`", "3 fields", "with 2"]);
    works(&(Sometimes(1, 2, 3), vec![0_u8]));
    let words = ["`Sometimes`", "2 fields", "with 3", "skip_serializing_if"];
    refused_by_both(&(Sometimes(0, 2, 3), vec![0_u8]), &words);
    refused_by_both(&(vec![Some(Sometimes(0, 0, 3))], vec![0_u8; 2]), &["`Sometimes`", "1 fields", "with 3"]);
    works(&Never(1, 0, 3));
}

#[test]
fn unnamed_variant_fields_skipped_by_one_side_are_refused() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Event {
        Unit,
        Unwritten(#[serde(default, skip_serializing)] u8),
        Unread(#[serde(skip_deserializing)] u8),
        Empty(#[serde(skip)] u8),
        Never(#[serde(skip)] u8, u8, u8),
        Pair(#[serde(default, skip_serializing)] u8, #[serde(default)] u8),
        Sometimes(#[serde(default, skip_serializing_if = "is_zero")] u8, #[serde(default)] u8),
    }
    let events = || vec![Event::Unit, Event::Never(0, 1, 2), Event::Sometimes(1, 2)];
    works(&events());
    assert_eq!(sent::<Bincode, _>(&Event::Empty(0)), Ok(Event::Empty(0)));
    refused_by_both(&(Event::Unwritten(0), vec![0_u8]), &["`Event::Unwritten`", "0 fields", "with 1"]);
    refused(&(Event::Unread(0), vec![0_u8]), &["`Event::Unread`", "1 fields", "with 0"]);
    refused_by_both(&(events(), Event::Pair(0, 7), vec![0_u8]), &["`Event::Pair`", "1 fields", "with 2"]);
    refused_by_both(&(Event::Sometimes(0, 7), vec![0_u8]), &["`Event::Sometimes`", "1 fields", "with 2"]);
}

#[test]
fn equal_fields_of_two_variants_are_distinguished() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Event {
        First {
            #[serde(default, skip_serializing)]
            secret: u8,
            user: u8,
        },
        Second {
            user: u8,
        },
    }
    let first = || Event::First { secret: 0, user: 7 };
    works(&Event::Second { user: 1 });
    refused(&(Event::Second { user: 1 }, first(), vec![0_u8]), &["`secret`", "`Event::First`"]);
}
