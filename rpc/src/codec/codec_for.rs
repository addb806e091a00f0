//! A codec: an identity, and a way to encode and decode each type that it accepts.

use super::limits::{DecodeError, Limits};
use super::type_shape::TypeShape;

/// A codec of values. The types that it accepts are those for which it implements [`CodecFor`].
///
/// ```
/// use trunkline::codec::{Codec, CodecFor, DecodeError, Limits};
///
/// /// Text by its own bytes.
/// struct Plain;
///
/// impl Codec for Plain {
///     const ID: u8 = 128;
///     const NAME: &'static str = "plain";
/// }
///
/// impl CodecFor<String> for Plain {
///     fn encode(value: &String, into: &mut Vec<u8>) -> Result<(), String> {
///         into.extend_from_slice(value.as_bytes());
///         Ok(())
///     }
///
///     fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<String, DecodeError> {
///         limits.allocate(bytes.len())?;
///         String::from_utf8(bytes.to_vec()).map_err(DecodeError::malformed)
///     }
/// }
///
/// #[trunkline::service(codec = Plain)]
/// trait Shout {
///     async fn shout(&self, text: String) -> String;
/// }
/// # fn main() {}
/// ```
pub trait Codec: 'static {
    /// Number on the wire. A request names it, and a server refuses any number but its service's. Trunkline uses 0
    /// to 127; programs choose from 128 to 255.
    const ID: u8;
    /// Name in error messages.
    const NAME: &'static str;
}

/// A codec that accepts values of type `T`, with serde or without.
pub trait CodecFor<T>: Codec {
    /// Appends the encoded value.
    ///
    /// # Errors
    /// Returns a human-readable reason why it cannot be encoded.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String>;

    /// Decodes a value from all of `bytes`.
    ///
    /// The bytes come from a peer. Take memory from `limits` before allocating in proportion to what the bytes
    /// claim, and decode nested values through `limits`.
    ///
    /// # Errors
    /// Returns a [`DecodeError`].
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError>;

    /// Returns the value of an argument that a caller does not know and does not send. `None`, the default, if
    /// every caller must send it.
    #[must_use]
    fn absent() -> Option<T> {
        None
    }

    /// Returns the shape of the type, which both sides of a call must have alike. `None`, the default, if they are not
    /// compared, as for a codec that sends the names of fields.
    #[must_use]
    fn shape() -> Option<TypeShape> {
        None
    }
}
