//! What a codec is: an identity, and a way to encode and decode each type that it takes.

use super::limits::{DecodeError, Limits};

/// A way to make bytes of values and values of bytes. Which types it takes is up to its [`CodecFor`].
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
    /// Its number on the wire: a request names it, and a server refuses another one than its service has. 0 to 127
    /// are Trunkline's; programs choose from 128 to 255.
    const ID: u8;
    /// Its name, for texts of errors.
    const NAME: &'static str;
}

/// A codec that takes values of type `T`, with serde or without.
pub trait CodecFor<T>: Codec {
    /// Appends the encoded value.
    ///
    /// # Errors
    /// Why it cannot be encoded, in a human-readable form.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String>;

    /// The value that `bytes` encode, all of them. They come from a peer: whatever is allocated in proportion to what they claim
    /// is first taken from `limits`, and values within values are decoded through these.
    ///
    /// # Errors
    /// [`DecodeError`].
    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError>;

    /// The value of an argument that a caller does not send because it does not know it; `None` if every caller has
    /// to send it, as by default.
    #[must_use]
    fn absent() -> Option<T> {
        None
    }
}
