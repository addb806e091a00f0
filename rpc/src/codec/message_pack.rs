//! A self-describing codec that uses serde and MessagePack, with the names of fields and variants.

use super::arguments::absent;
use super::coding::{Codec, CodecFor};
use super::limited::LimitedSerializer;
use super::limits::{DEPTH, DecodeError, Limits, Unlimited};
use super::shapes::{Lists, Shapes};
use rmp_serde::decode::Error;
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A codec that uses MessagePack and accepts all types that derive serde's traits.
///
/// Structs are encoded as maps with field names, and variants are identified by name. Fields and variants can be added,
/// removed and reordered while old and new programs call each other, subject to the rules in
/// `docs/book/src/guide/evolution.md`. The encoding is larger and slower than [`Bincode`](super::Bincode).
///
/// Types with serde's `untagged`, `tag` or `flatten` can be nested up to 12 levels deep. `docs/book/src/guide/evolution.md`
/// explains the limit.
///
/// MessagePack has only one `nil`, so `Some(None)` and `Some(())` would be decoded as `None`. Encoding refuses these values.
/// It also refuses structs and variants with unnamed fields if encoding or decoding leaves out some of the fields. To detect
/// this, the first value of each such type is decoded right after it is encoded.
#[derive(Debug, Clone, Copy)]
pub struct MessagePack;

impl Codec for MessagePack {
    const ID: u8 = 1;
    const NAME: &'static str = "MessagePack";
}

impl MessagePack {
    #[inline]
    fn encode_noting<T: Serialize>(value: &T, shapes: &Shapes, into: &mut Vec<u8>) -> Result<(), String> {
        let mut serializer = rmp_serde::Serializer::new(into).with_struct_map();
        LimitedSerializer::new(value, shapes).serialize(&mut serializer).map_err(|error| error.to_string())
    }

    /// Compares the numbers of unnamed fields in a value with the numbers that its decoder reads.
    ///
    /// # Errors
    /// Returns a text that names the type that this codec cannot send.
    #[cold]
    fn check<T: Serialize + DeserializeOwned>(value: &T, bytes: &[u8]) -> Result<(), String> {
        let (sent, lists) = (Shapes::of_named(0).recorded(), Lists::default());
        Self::encode_noting(value, &sent, &mut Vec::new())?;
        let limits = Limits::listing(bytes.len(), &Unlimited, &lists);
        // If the type's own code refuses the value, the receiver refuses it too. The lists are then filled up to that point.
        let _ = catch_unwind(AssertUnwindSafe(|| Self::decode_value::<T>(bytes, &limits).map(drop)));
        sent.other_length(&lists).map_or(Ok(()), Err)
    }

    pub(crate) fn decode_value<T: DeserializeOwned>(
        bytes: &[u8],
        limits: &Limits<'_>,
    ) -> Result<T, DecodeError> {
        let mut deserializer = rmp_serde::Deserializer::from_read_ref(&bytes);
        // The nesting limit in `limits` is reached first.
        deserializer.set_max_depth(2 * DEPTH);
        let value = limits.deserialize(&mut deserializer).map_err(DecodeError::malformed)?;
        // The deserializer does not report its position, so decoding another value must fail.
        match limits.deserialize::<IgnoredAny, _>(&mut deserializer) {
            Err(Error::InvalidMarkerRead(error)) if error.kind() == ErrorKind::UnexpectedEof => Ok(value),
            _ => Err(DecodeError::malformed("bytes are left over")),
        }
    }
}

impl<T: Serialize + DeserializeOwned> CodecFor<T> for MessagePack {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        let check: fn(&T, &[u8]) -> Result<(), String> = Self::check::<T>;
        let mut shapes = Shapes::of_named((check as *const ()).addr());
        let start = into.len();
        Self::encode_noting(value, &shapes, into)?;
        if !shapes.are_checked() {
            check(value, &into[start..])?;
            shapes.set_checked();
        }
        Ok(())
    }

    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError> {
        Self::decode_value(bytes, limits)
    }

    fn absent() -> Option<T> {
        absent()
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode_by;
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    fn encoded<T: Serialize + DeserializeOwned>(value: &T) -> Vec<u8> {
        let mut bytes = Vec::new();
        MessagePack::encode(value, &mut bytes).unwrap();
        bytes
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        decode_by(MessagePack::decode_value, bytes, &Unlimited).map_err(|error| error.to_string())
    }

    #[test]
    fn fields_and_variants_have_their_names() {
        #[derive(Serialize, Deserialize)]
        struct Point {
            x: u8,
        }
        assert_eq!(encoded(&Point { x: 7 }), b"\x81\xa1x\x07");
        #[derive(Serialize, Deserialize)]
        enum Kind {
            Unit,
        }
        assert_eq!(encoded(&Kind::Unit), b"\xa4Unit");
    }

    /// Returns a map with one key, nested this deep.
    fn nested(depth: usize) -> Vec<u8> {
        let mut bytes = [0x81, 0xa1, b'x'].repeat(depth);
        bytes.push(0xc0);
        bytes
    }

    #[test]
    fn skipped_values_are_bounded() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Old {
            a: u8,
        }
        let with = |extra: &[u8]| [&[0x82, 0xa1, b'a', 7, 0xa1, b'b'][..], extra].concat();
        assert_eq!(decode::<Old>(&with(&nested(100))), Ok(Old { a: 7 }));
        for depth in [300, 100_000] {
            let error = decode::<Old>(&with(&nested(depth))).unwrap_err();
            assert!(error.contains("deep"), "{error}");
            let arrays = [vec![0x91; depth], vec![0xc0]].concat();
            assert!(decode::<Old>(&with(&arrays)).unwrap_err().contains("deep"));
        }
    }

    #[test]
    fn deeply_nested_and_claimed_values_are_refused() {
        #[derive(Debug, Deserialize)]
        #[serde(untagged)]
        #[allow(dead_code, reason = "it is only decoded")]
        enum Free {
            Number(u64),
            Text(String),
            List(Vec<Self>),
            Map(BTreeMap<String, Self>),
        }
        assert!(decode::<Free>(&encoded(&vec![1_u64, 2])).is_ok());
        assert!(decode::<Free>(&nested(100_000)).is_err());
        assert!(decode::<Free>(&[vec![0x91; 100_000], vec![1]].concat()).is_err());
        for claim in
            [&[0xdd, 0xff, 0xff, 0xff, 0xff][..], &[0xdf, 0xff, 0xff, 0xff, 0xff], &[0xc6, 0xff, 0, 0, 0]]
        {
            assert!(decode::<Free>(claim).is_err());
            assert!(decode::<Vec<u64>>(claim).is_err());
            assert!(decode::<Vec<()>>(claim).is_err());
            assert!(decode::<bytes::Bytes>(claim).is_err());
            assert!(decode::<BTreeMap<String, u8>>(claim).is_err());
        }
    }
}
