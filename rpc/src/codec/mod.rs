//! Arguments and results to bytes and back: serde over bincode 2.
//!
//! The bytes come from a peer: decoding costs time in proportion to their length at most, no more memory than an
//! [`Allowance`] grants, no more stack than the thread has, and never panics.

mod absent;
mod arguments;
mod bounded;
mod growth;
mod heap;
mod limits;
mod stack;

pub(crate) use arguments::decode_arguments;
pub use arguments::{ArgumentList, DecodeArguments, EncodeArguments};
pub(crate) use limits::{Allowance, DecodeError, FREE};

use bincode::config::{Configuration, Limit};
use bounded::Seed;
use limits::Limits;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::marker::PhantomData;

/// Most bytes that one decoded value may claim. A message is far smaller, and its size limits real
/// values; this constant bounds what a few hostile bytes can claim.
const MOST_BYTES: usize = 1 << 30;

fn configuration() -> Configuration<bincode::config::LittleEndian, bincode::config::Varint, Limit<MOST_BYTES>>
{
    bincode::config::standard().with_limit::<MOST_BYTES>()
}

/// Appends the encoded value.
///
/// # Errors
/// A human-readable reason.
pub(crate) fn encode<T: Serialize>(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
    bincode::serde::encode_into_std_write(value, into, configuration())
        .map(|_| ())
        .map_err(|error| error.to_string())
}

/// The value that `bytes` encode, all of them. Beyond [`FREE`] bytes it takes no more of the heap than
/// `allowance` grants; what was granted for a value that is not returned has not been put back.
///
/// # Errors
/// [`DecodeError`].
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], allowance: &dyn Allowance) -> Result<T, DecodeError> {
    let limits = Limits::of_message(bytes.len(), allowance);
    let value = decode_within(bytes, &limits)?;
    limits.settle();
    Ok(value)
}

/// The value that `bytes`, a part of the message that has these limits, encode.
fn decode_within<T: DeserializeOwned>(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError> {
    let seed = Seed::new(PhantomData::<T>, limits);
    let decoded = bincode::serde::seed_decode_from_slice(seed, bytes, configuration());
    // A type's own code may have gone on after the refusal.
    if let Some(refusal) = limits.refusal() {
        return Err(refusal);
    }
    let (value, used) = decoded.map_err(|error| DecodeError::Malformed(error.to_string()))?;
    if used < bytes.len() {
        return Err(DecodeError::Malformed(format!("{} bytes are left over", bytes.len() - used)));
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use std::collections::BTreeMap;

    /// Grants everything.
    pub(super) struct Unlimited;

    impl Allowance for Unlimited {
        fn more(&self, _: usize) -> Result<(), DecodeError> {
            Ok(())
        }

        fn less(&self, _: usize) {}
    }

    fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
        super::decode(bytes, &Unlimited).map_err(|error| error.to_string())
    }

    #[test]
    fn values_survive_a_round_trip() {
        let mut bytes = Vec::new();
        encode(&(7_u64, "seven".to_owned(), vec![Some(1_u8), None]), &mut bytes).unwrap();
        assert_eq!(
            decode::<(u64, String, Vec<Option<u8>>)>(&bytes),
            Ok((7, "seven".to_owned(), vec![Some(1), None]))
        );
        bytes.push(0);
        assert!(decode::<(u64, String, Vec<Option<u8>>)>(&bytes).unwrap_err().contains("left over"));
    }

    /// A length, as the codec writes it.
    fn length(claimed: u64) -> Vec<u8> {
        let mut bytes = vec![253];
        bytes.extend(claimed.to_le_bytes());
        bytes
    }

    #[test]
    fn a_claimed_length_is_not_allocated() {
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
        // Many short claims do not get around the limit.
        let many = [&[100][..], &[200; 100]].concat();
        assert!(decode::<Vec<Vec<()>>>(&many).unwrap_err().contains("elements"));
        assert_eq!(decode::<Vec<()>>(&[200]), Ok(vec![(); 200]), "a few are allowed");
    }

    #[test]
    fn deeply_nested_values_do_not_overflow_the_stack() {
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
        // Siblings are not limited.
        let wide = Tree::Fork((0..5000).map(|_| Tree::Fork(vec![Tree::Leaf])).collect());
        bytes.clear();
        encode(&wide, &mut bytes).unwrap();
        assert!(decode::<Tree>(&bytes).is_ok());
    }

    #[test]
    fn every_shape_survives_a_round_trip() {
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
            address: std::net::SocketAddr,
            time: std::time::Duration,
        }
        let (map, bytes) = (BTreeMap::from([(1, "one".to_owned())]), bytes::Bytes::from_static(b"raw"));
        let value = Outer(
            vec![
                All::Unit,
                All::Newtype(-1),
                All::Tuple('ä', 0.5, Some(true)),
                All::Struct { map, array: [-1, 0, 1], bytes, unit: () },
            ],
            Inner { address: ([1, 2, 3, 4], 5).into(), time: std::time::Duration::from_millis(7) },
        );
        let mut encoded = Vec::new();
        encode(&value, &mut encoded).unwrap();
        assert_eq!(decode::<Outer>(&encoded), Ok(value));
        for end in 0..encoded.len() {
            assert!(decode::<Outer>(&encoded[..end]).is_err(), "cut at {end}");
        }
    }
}
