//! The default codec: serde over bincode 2.

use super::absent::absent;
use super::codec_for::{Codec, CodecFor};
use super::limits::{DecodeError, Limits};
use ::bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use ::bincode::serde::{encode_into_std_write, seed_decode_from_slice};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Maximum size that one decoded value may claim, in bytes. A message is far smaller, and its size limits real
/// values; this bounds what a few hostile bytes can claim.
const MOST_BYTES: usize = 1 << 30;

/// The default codec: bincode 2, for all types with serde's derives.
///
/// It is small and fast. The bytes hold only values, without names or types, so a type can change little while old
/// and new programs call each other.
#[derive(Debug, Clone, Copy)]
pub struct Bincode;

fn configuration() -> Configuration<LittleEndian, Varint, Limit<MOST_BYTES>> {
    standard().with_limit::<MOST_BYTES>()
}

impl Codec for Bincode {
    const ID: u8 = 0;
    const NAME: &'static str = "bincode";
}

impl Bincode {
    /// Appends the encoded value.
    pub(crate) fn encode_value<T: Serialize>(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        encode_into_std_write(value, into, configuration()).map(|_| ()).map_err(|error| error.to_string())
    }

    /// Decodes a value.
    #[inline]
    pub(crate) fn decode_value<T: DeserializeOwned>(
        bytes: &[u8],
        limits: &Limits<'_>,
    ) -> Result<T, DecodeError> {
        let decoded = seed_decode_from_slice(limits.seed::<T>(), bytes, configuration());
        let (value, used) = decoded.map_err(malformed)?;
        DecodeError::refuse_rest(bytes.len() - used)?;
        Ok(value)
    }
}

/// Describes why bytes are not a value of the requested type.
fn malformed(error: ::bincode::error::DecodeError) -> DecodeError {
    DecodeError::Malformed(match error {
        ::bincode::error::DecodeError::LimitExceeded => {
            "a length in it exceeds what a message may hold: it was encoded from another type".to_owned()
        }
        ::bincode::error::DecodeError::UnexpectedEnd { .. } => {
            "it ends too early: it was encoded from another type, or cut".to_owned()
        }
        error => error.to_string(),
    })
}

impl<T: Serialize + DeserializeOwned> CodecFor<T> for Bincode {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        Self::encode_value(value, into)
    }

    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError> {
        Self::decode_value(bytes, limits)
    }

    fn absent() -> Option<T> {
        absent()
    }
}
