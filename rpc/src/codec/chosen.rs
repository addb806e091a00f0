//! Tests of types whose own code chooses how a value is encoded. With the default codec, each value arrives unchanged or is
//! refused by name, regardless of earlier values.

#![cfg(feature = "message-pack")]

use super::attributes::{refused, sent};
use super::{Bincode, CodecFor};
use serde::de::{DeserializeOwned, Error as _};
use serde::ser::{SerializeMap as _, SerializeStruct as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;
use std::fmt::Debug;

const KINDS: u8 = 24;

/// A value that is encoded as the kind with its number, and decoded as the kind `READ`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chosen<const READ: u8>(u8);

#[derive(Serialize, Deserialize)]
#[serde(rename = "Chosen")]
enum Variants {
    Only,
}

macro_rules! kinds {
    ($($kind:literal $ty:ty = $value:expr;)*) => {
        impl<const READ: u8> Serialize for Chosen<READ> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                match self.0 {
                    $($kind => <$ty>::serialize(&$value, serializer),)*
                    kind => unreachable!("kind {kind}"),
                }
            }
        }

        impl<'de, const READ: u8> Deserialize<'de> for Chosen<READ> {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                match READ {
                    $($kind => <$ty>::deserialize(deserializer).map(|_| Self(READ)),)*
                    kind => unreachable!("kind {kind}"),
                }
            }
        }
    };
}

kinds! {
    0 bool = true; 1 i8 = 5; 2 i16 = 5; 3 i32 = 5; 4 i64 = 5; 5 i128 = 5; 6 u8 = 5; 7 u16 = 5; 8 u32 = 5; 9 u64 = 5;
    10 u128 = 5; 11 f32 = 5.0; 12 f64 = 5.0; 13 char = 'a'; 14 String = "a".to_owned(); 15 () = (); 16 Option<u8> = None;
    17 Vec<u8> = vec![1]; 18 Vec<u16> = vec![1]; 19 BTreeMap<u8, u8> = BTreeMap::from([(1, 1)]); 20 Variants = Variants::Only;
    21 Vec<u8> = Vec::new(); 22 (u8, u16) = (1, 1); 23 Option<u16> = Some(1);
}

/// Sends a value of each kind, wrapped by `wrap`, after a value that is encoded and decoded as the same kind.
fn judge<const READ: u8, T>(wrap: impl Fn(Chosen<READ>) -> T)
where
    T: Serialize + DeserializeOwned + PartialEq + Debug,
{
    for written in 0..KINDS {
        let good = wrap(Chosen(READ));
        assert_eq!(sent::<Bincode, _>(&good).as_ref(), Ok(&good));
        let value = wrap(Chosen(written));
        // Some kinds represent values of the same type.
        if READ == written || matches!((READ, written), (17 | 18, 21) | (21, 17) | (23, 16)) {
            assert_eq!(sent::<Bincode, _>(&value).as_ref(), Ok(&good), "{written}");
        } else {
            let error =
                Bincode::encode(&value, &mut Vec::new()).expect_err(&format!("{value:?}, read as {READ}"));
            assert!(error.contains("MessagePack"), "{written} as {READ}: {error}");
        }
    }
}

fn judge_everywhere<const READ: u8>() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Named<T> {
        first: u8,
        chosen: T,
        last: u8,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Newtype<T>(T);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(transparent)]
    struct Transparent<T>(T);
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Variant<T> {
        Newtype(T),
        Tuple(u8, T),
        Named { chosen: T },
    }
    judge(|chosen: Chosen<READ>| Newtype(Transparent(chosen)));
    judge(|chosen: Chosen<READ>| Named { first: 1, chosen, last: 2 });
    judge(|chosen: Chosen<READ>| (1_u8, [chosen], 2_u8));
    judge(|chosen: Chosen<READ>| vec![Chosen(READ), chosen]);
    judge(|chosen: Chosen<READ>| BTreeMap::from([(1_u8, chosen)]));
    judge(|chosen: Chosen<READ>| BTreeMap::from([(chosen, 1_u8)]));
    judge(|chosen: Chosen<READ>| Err::<u8, _>(Variant::Newtype(chosen)));
    judge(|chosen: Chosen<READ>| vec![Variant::Tuple(1, chosen)]);
    judge(|chosen: Chosen<READ>| Variant::Named { chosen });
}

#[test]
fn type_with_value_dependent_encoding_is_compared_for_each_encoding() {
    macro_rules! judge_all {
        ($($read:literal)*) => {
            $(
                judge(|chosen: Chosen<$read>| chosen);
                judge(|chosen: Chosen<$read>| vec![Some(Box::new(chosen))]);
            )*
        };
    }
    judge_all!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23);
}

#[test]
fn type_with_value_dependent_encoding_is_compared_in_every_position() {
    judge_everywhere::<4>();
    judge_everywhere::<6>();
    judge_everywhere::<14>();
    judge_everywhere::<15>();
    judge_everywhere::<23>();
}

#[test]
fn type_with_value_dependent_fields_is_compared_for_each_value() {
    /// Encoded according to its number; decoded as the first value of each form.
    #[derive(Debug, PartialEq)]
    struct Fields(u8);
    impl Serialize for Fields {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let two = |serializer: S, names: [&'static str; 2]| {
                let mut fields = serializer.serialize_struct("Fields", 2)?;
                fields.serialize_field(names[0], &1_u8)?;
                fields.serialize_field(names[1], &1_u8)?;
                fields.end()
            };
            match self.0 {
                0 => two(serializer, ["left", "right"]),
                1 => two(serializer, ["right", "left"]),
                2 => {
                    let mut fields = serializer.serialize_struct("Fields", 1)?;
                    fields.serialize_field("left", &1_u8)?;
                    fields.end()
                }
                3 => {
                    let mut fields = serializer.serialize_struct("Fields", 2)?;
                    fields.serialize_field("left", &1_u8)?;
                    fields.serialize_field("right", &1_u16)?;
                    fields.end()
                }
                4 => (1_u8, 1_i8).serialize(serializer),
                5 => {
                    let mut map = serializer.serialize_map(Some(1))?;
                    map.serialize_entry(&1_u8, &1_u8)?;
                    map.end()
                }
                _ => serializer.serialize_newtype_variant("Fields", 0, "Fields", &1_u8),
            }
        }
    }
    impl<'de> Deserialize<'de> for Fields {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            #[derive(Deserialize)]
            #[serde(rename = "Fields")]
            #[allow(dead_code, reason = "only their names and types matter")]
            struct Read {
                left: u8,
                right: u8,
            }
            Read::deserialize(deserializer).map(|_| Self(0))
        }
    }
    assert_eq!(sent::<Bincode, _>(&(Fields(0), 1_u8)), Ok((Fields(0), 1)));
    for number in 1..7 {
        refused(&(Fields(number), 1_u8), &["Fields", "MessagePack"]);
    }
    /// Elements of several types, decoded as one type.
    #[derive(Debug, PartialEq)]
    struct Mixed(bool);
    impl Serialize for Mixed {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            use serde::ser::SerializeSeq as _;
            let mut elements = serializer.serialize_seq(Some(2))?;
            elements.serialize_element(&1_u8)?;
            if self.0 {
                elements.serialize_element(&1_u16)?
            } else {
                elements.serialize_element(&1_u8)?
            }
            elements.end()
        }
    }
    impl<'de> Deserialize<'de> for Mixed {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            Vec::<u8>::deserialize(deserializer).map(|_| Self(false))
        }
    }
    assert_eq!(sent::<Bincode, _>(&Mixed(false)), Ok(Mixed(false)));
    refused(&Mixed(true), &["Mixed", "u16", "u8"]);
}

fn from_u16<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u8>, D::Error> {
    let number = Option::<u16>::deserialize(deserializer)?;
    number.map(u8::try_from).transpose().map_err(D::Error::custom)
}

#[test]
fn equal_fields_are_compared_in_each_struct() {
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Plain {
        number: Option<u8>,
    }
    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Wrong {
        #[serde(deserialize_with = "from_u16")]
        number: Option<u8>,
    }
    let both = |number| (Plain { number: Some(5) }, Wrong { number });
    assert_eq!(sent::<Bincode, _>(&both(None)), Ok(both(None)));
    refused(&both(Some(5)), &["`number`", "`Wrong`", "u8", "u16"]);
}

#[test]
fn value_refused_by_decoder_does_not_hide_next_fault() {
    fn below_ten<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u8, D::Error> {
        let number = u8::deserialize(deserializer)?;
        assert!(number < 100, "refused by a panic");
        if number < 10 { Ok(number) } else { Err(D::Error::custom("too large")) }
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Wrong {
        #[serde(deserialize_with = "below_ten")]
        number: u8,
        #[serde(deserialize_with = "from_u16")]
        last: Option<u8>,
    }
    for number in [10, 10, 10, 100, 100] {
        let _ = Bincode::encode(&Wrong { number, last: Some(5) }, &mut Vec::new());
    }
    refused(&Wrong { number: 1, last: Some(5) }, &["`last`", "`Wrong`"]);
}
