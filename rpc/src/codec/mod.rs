//! Codecs for arguments and results.
//!
//! A service uses one codec. It is [`Bincode`], unless the service's attribute names another codec:
//!
//! ```
//! # use trunkline::Status;
//! #[trunkline::service(codec = trunkline::codec::Bincode)]
//! trait Kv {
//!     async fn get(&self, key: String) -> Result<String, Status>;
//! }
//! ```
//!
//! A program's own codec implements [`Codec`] and [`CodecFor`]. Items that these traits do not use are for generated code.
//! `docs/book/src/guide/evolution.md` compares the codecs.
//!
//! Decoding never panics. Its time is linear in the number of bytes, its memory is limited by [`Limits`], and its stack use
//! is limited by the thread's stack. The stack use of encoding is limited too. A codec without names refuses types whose
//! encoding and decoding differ.

mod arguments;
#[cfg(test)]
mod attributes;
mod bincode;
mod bounded;
mod buffering;
#[cfg(test)]
mod chosen;
mod coding;
#[cfg(test)]
mod evolution;
mod heap;
mod limited;
mod limits;
#[cfg(feature = "message-pack")]
mod message_pack;
#[cfg(test)]
mod one_sided;
mod shapes;
mod stack;

pub use self::bincode::Bincode;
pub use crate::wire::type_shape::TypeShape;
pub(crate) use arguments::decode_arguments;
pub use arguments::{ArgumentList, DecodeArguments, EncodeArguments};
pub use coding::{Codec, CodecFor, Coded, Coding, DecodeValue, Decoder, EncodeValue, NoCoding, NoValue};
#[cfg(test)]
pub(crate) use limits::Unlimited;
pub(crate) use limits::{Allowance, FREE, block};
pub use limits::{DecodeError, Limits};
#[cfg(feature = "message-pack")]
pub use message_pack::MessagePack;

/// Decodes a value from all of `bytes`. `allowance` grants heap memory beyond [`FREE`] bytes. On an error, granted bytes are
/// not returned.
///
/// # Errors
/// Returns a [`DecodeError`] if the bytes are not a value of the type, or if a limit is exceeded.
pub(crate) fn decode<C: CodecFor<T>, T>(bytes: &[u8], allowance: &dyn Allowance) -> Result<T, DecodeError> {
    decode_by(C::decode, bytes, allowance)
}

/// Decodes a value, like [`decode()`], with a function instead of a codec.
pub(crate) fn decode_by<T>(
    decode: fn(&[u8], &Limits<'_>) -> Result<T, DecodeError>,
    bytes: &[u8],
    allowance: &dyn Allowance,
) -> Result<T, DecodeError> {
    let limits = Limits::of_message(bytes.len(), allowance);
    let value = limits.checked(decode(bytes, &limits))?;
    limits.settle();
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Serialize};
    use std::collections::BTreeMap;
    use std::marker::PhantomData;

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        decode_by(Bincode::decode_value, bytes, &Unlimited).map_err(|error| error.to_string())
    }

    fn encode<T: Serialize>(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        Bincode::encode_value(value, into)
    }

    /// Returns a length in the encoding of the codec.
    fn length(claimed: u64) -> Vec<u8> {
        let mut bytes = vec![253];
        bytes.extend(claimed.to_le_bytes());
        bytes
    }

    #[test]
    fn claimed_length_is_not_allocated() {
        let bytes = length(1 << 62);
        assert!(decode::<Vec<u64>>(&bytes).is_err());
        assert!(decode::<String>(&bytes).is_err());
        assert!(decode::<bytes::Bytes>(&bytes).is_err());
        assert!(decode::<BTreeMap<String, u8>>(&bytes).is_err());
    }

    #[test]
    fn sequences_of_empty_elements_are_bounded() {
        #[derive(Debug, PartialEq, Eq, Deserialize)]
        struct Nothing;
        for claimed in [1 << 20, 1 << 62, u64::MAX] {
            let bytes = length(claimed);
            assert!(decode::<Vec<()>>(&bytes).unwrap_err().contains("elements"), "{claimed}");
            assert!(decode::<Vec<[Nothing; 3]>>(&bytes).is_err());
            assert!(decode::<Vec<((), PhantomData<u8>)>>(&bytes).is_err());
            assert!(decode::<BTreeMap<(), ()>>(&bytes).is_err());
            assert!(decode::<Option<(Vec<()>,)>>(&[&[1][..], &bytes].concat()).is_err());
        }
        // The limit applies to many short claims together.
        let many = [&[100][..], &[200; 100]].concat();
        assert!(decode::<Vec<Vec<()>>>(&many).unwrap_err().contains("elements"));
        assert_eq!(decode::<Vec<()>>(&[200]), Ok(vec![(); 200]), "a few are allowed");
    }

    #[test]
    fn deeply_nested_values_do_not_overflow_stack() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Chain(Option<Box<Self>>);
        #[derive(Debug, Serialize, Deserialize)]
        enum Tree {
            Leaf,
            Fork(Vec<Self>),
        }
        assert!(decode::<Chain>(&[1; 1 << 20]).unwrap_err().contains("deep"));
        assert!(decode::<Tree>(&[1; 1 << 20]).unwrap_err().contains("deep"));
        let mut chain = Chain(None);
        (0..100).for_each(|_| chain = Chain(Some(Box::new(std::mem::replace(&mut chain, Chain(None))))));
        let mut bytes = Vec::new();
        encode(&chain, &mut bytes).unwrap();
        assert_eq!(decode::<Chain>(&bytes), Ok(chain), "a hundred levels are allowed");
        // The number of siblings is not limited.
        let wide = Tree::Fork((0..5000).map(|_| Tree::Fork(vec![Tree::Leaf])).collect());
        bytes.clear();
        encode(&wide, &mut bytes).unwrap();
        assert!(decode::<Tree>(&bytes).is_ok());
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    enum All {
        Unit,
        Newtype(i128),
        Tuple(char, f32, Option<bool>),
        Struct { map: BTreeMap<u16, String>, array: [i8; 3], bytes: bytes::Bytes, unit: () },
    }

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Outer(Vec<All>, Inner);

    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Inner {
        address: Option<String>,
        time: std::time::Duration,
    }

    fn survives<C: CodecFor<Outer>>() {
        let (map, bytes) = (BTreeMap::from([(1, "one".to_owned())]), bytes::Bytes::from_static(b"raw"));
        let value = Outer(
            vec![
                All::Unit,
                All::Newtype(-1),
                All::Tuple('ä', 0.5, Some(true)),
                All::Struct { map, array: [-1, 0, 1], bytes, unit: () },
            ],
            Inner { address: None, time: std::time::Duration::from_millis(7) },
        );
        let mut encoded = Vec::new();
        C::encode(&value, &mut encoded).unwrap();
        let decoded = |bytes: &[u8]| super::decode::<C, Outer>(bytes, &Unlimited);
        assert_eq!(decoded(&encoded), Ok(value));
        for end in 0..encoded.len() {
            assert!(decoded(&encoded[..end]).is_err(), "cut at {end}");
        }
        encoded.push(0);
        assert!(decoded(&encoded).unwrap_err().to_string().contains("left over"));
    }

    #[test]
    fn values_of_every_shape_round_trip() {
        survives::<Bincode>();
        #[cfg(feature = "message-pack")]
        survives::<MessagePack>();
    }
}
