//! Arguments and answers to bytes and back: serde over bincode 2.
//!
//! The bytes come from a peer: decoding has a limit on what it allocates and never panics.

use crate::{Code, Status};
use bincode::config::{Configuration, Limit};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Most bytes that one decoded value may claim. A message is far smaller, and its size is what
/// limits real values; this bounds what a few hostile bytes can claim.
const MOST_BYTES: usize = 1 << 30;

fn configuration() -> Configuration<bincode::config::LittleEndian, bincode::config::Varint, Limit<MOST_BYTES>>
{
    bincode::config::standard().with_limit::<MOST_BYTES>()
}

/// Appends the encoded value.
///
/// # Errors
/// `Internal` when the value cannot be encoded, `ResourceExhausted` when it is too large.
pub(crate) fn encode<T: Serialize>(value: &T, into: &mut Vec<u8>) -> Result<(), Status> {
    bincode::serde::encode_into_std_write(value, into, configuration())
        .map(|_| ())
        .map_err(|error| Status::not_run(Code::Internal, format!("a value cannot be encoded: {error}")))
}

/// The value that `bytes` hold from the first to the last.
///
/// # Errors
/// What is wrong, for people.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let (value, used) =
        bincode::serde::decode_from_slice(bytes, configuration()).map_err(|error| error.to_string())?;
    if used == bytes.len() { Ok(value) } else { Err(format!("{} bytes are left over", bytes.len() - used)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        let mut bytes = Vec::new();
        encode(&(7_u64, "seven".to_owned(), vec![Some(1_u8), None]), &mut bytes).unwrap();
        assert_eq!(
            decode::<(u64, String, Vec<Option<u8>>)>(&bytes),
            Ok((7, "seven".to_owned(), vec![Some(1), None]))
        );
        bytes.push(0);
        assert!(decode::<(u64, String, Vec<Option<u8>>)>(&bytes).unwrap_err().contains("left over"));
    }

    #[test]
    fn a_claimed_length_is_not_allocated() {
        // A vector that claims 2^62 entries in nine bytes.
        let mut bytes = vec![253];
        bytes.extend((1_u64 << 62).to_le_bytes());
        assert!(decode::<Vec<u64>>(&bytes).is_err());
        assert!(decode::<String>(&bytes).is_err());
    }
}
