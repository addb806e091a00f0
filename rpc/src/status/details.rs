//! Typed details of a status. Client and server must use the same type.
//!
//! ```text
//! 0 hash of the type's name (8)   the value, by the default codec
//! ```
//!
//! The bytes may come from a peer, so decoding is limited in the same way as for a reply.

use crate::codec::{self, Allowance, Bincode, CodecFor as _, DecodeError};
use crate::status::{MOST_DETAILS, Status};
use crate::wire::type_shape::Fnv;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::Cell;

/// Maximum memory of decoded details, in bytes.
const MOST_DECODED: usize = 16 * MOST_DETAILS;

/// A type whose values a [`Status`] can carry as its details.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use trunkline::{Details, Status};
///
/// #[derive(Debug, PartialEq, Serialize, Deserialize)]
/// struct OutOfStock {
///     left: u32,
/// }
///
/// impl Details for OutOfStock {
///     const NAME: &'static str = "shop.OutOfStock";
/// }
///
/// let status = Status::failed_precondition("too few are left").with_typed_details(&OutOfStock { left: 3 });
/// assert_eq!(status.typed_details(), Ok(Some(OutOfStock { left: 3 })));
/// ```
pub trait Details: Serialize + DeserializeOwned {
    /// Name by which the receiver identifies the type. It must be unique, and must change when the type's fields change.
    const NAME: &'static str;
}

impl Status {
    /// Sets the details to a value. If the value cannot be encoded, the error is added as a cause instead.
    #[must_use]
    pub fn with_typed_details<T: Details>(self, details: &T) -> Self {
        let mut bytes = hash_of(T::NAME).to_le_bytes().to_vec();
        match Bincode::encode(details, &mut bytes) {
            Ok(()) => self.with_details(bytes),
            Err(error) => self.with_cause(format_args!("its details {} cannot be encoded: {error}", T::NAME)),
        }
    }

    /// Returns the details if they have this type, and `None` otherwise.
    ///
    /// # Errors
    /// Returns an error if the details have this type's name but cannot be decoded.
    pub fn typed_details<T: Details>(&self) -> Result<Option<T>, DecodeError> {
        match self.details().split_first_chunk() {
            Some((name, bytes)) if u64::from_le_bytes(*name) == hash_of(T::NAME) => {
                codec::decode::<Bincode, T>(bytes, &Granted(Cell::new(MOST_DECODED))).map(Some)
            }
            _ => Ok(None),
        }
    }
}

/// Returns the 64-bit FNV-1a hash of a name, as used for services.
fn hash_of(name: &str) -> u64 {
    let mut hash = Fnv::default();
    hash.add(name.as_bytes());
    hash.0
}

/// Allowance for one value, in bytes.
struct Granted(Cell<usize>);

impl Allowance for Granted {
    fn more(&self, bytes: usize) -> Result<(), DecodeError> {
        let left = self.0.get().checked_sub(bytes);
        self.0.set(left.ok_or_else(|| {
            DecodeError::TooLarge(format!("details take more than {MOST_DECODED} bytes of memory"))
        })?);
        Ok(())
    }

    fn less(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Left(Vec<String>);
    impl Details for Left {
        const NAME: &'static str = "tests.Left";
    }

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Other(Vec<String>);
    impl Details for Other {
        const NAME: &'static str = "tests.Other";
    }

    #[test]
    fn details_decode_only_as_encoded_type() {
        let left = Left(vec!["salt".to_owned()]);
        let status = Status::aborted("no").with_typed_details(&left);
        assert_eq!(status.typed_details(), Ok(Some(left)));
        assert_eq!(status.typed_details::<Other>(), Ok(None));
        assert_eq!(Status::aborted("no").typed_details::<Left>(), Ok(None));
        assert_eq!(Status::aborted("no").with_details("short").typed_details::<Left>(), Ok(None));
    }

    #[test]
    fn malformed_and_too_large_details_are_refused() {
        let mut bytes = hash_of(Left::NAME).to_le_bytes().to_vec();
        bytes.push(7);
        let short = Status::aborted("no").with_details(bytes.clone());
        assert!(matches!(short.typed_details::<Left>(), Err(DecodeError::Malformed(_))));
        bytes.truncate(8);
        bytes.extend([252, 0, 0, 0x10, 0]);
        bytes.resize(bytes.len() + (1 << 20), 0);
        let large = Status::aborted("no").with_details(bytes);
        assert!(matches!(large.typed_details::<Left>(), Err(DecodeError::TooLarge(_))));
    }
}
