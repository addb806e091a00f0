//! The default codec, which uses serde and bincode 2.

use super::arguments::absent;
use super::coding::{Codec, CodecFor};
use super::limited::LimitedSerializer;
use super::limits::{DecodeError, Limits, Unlimited};
use super::shapes::{Lists, Part, REMEDY, Shape, Shapes};
use crate::wire::type_shape::TypeShape;
use ::bincode::config::{Configuration, Limit, LittleEndian, Varint, standard};
use ::bincode::error::DecodeError as Error;
use ::bincode::serde::DecodeError as Unsupported;
use ::bincode::serde::{encode_into_std_write, seed_decode_from_slice};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::any::type_name;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Maximum size that one decoded value may claim, in bytes. The size of the message limits valid values. This limit applies
/// to large sizes claimed by a few hostile bytes.
const MOST_BYTES: usize = 1 << 30;

/// The default codec. It uses bincode 2 and accepts all types that derive serde's traits.
///
/// Encoding is fast and compact. The bytes contain only values, without names or types, so few changes to a type are
/// possible while old and new programs call each other.
///
/// The two sides of a call must agree on the fields and variants of a type. Encoding refuses types with serde attributes
/// that violate this rule, such as `skip_serializing_if`, `flatten` and `tag`. `docs/book/src/guide/evolution.md` lists the
/// attributes. To detect them, the first value of each struct and variant is decoded right after it is encoded.
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
    /// Appends the encoded value, without checking that its type can be decoded.
    pub(crate) fn encode_value<T: Serialize>(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        Self::encode_noting(value, &Shapes::of_type(0), into)
    }

    #[inline]
    fn encode_noting<T: Serialize>(value: &T, shapes: &Shapes, into: &mut Vec<u8>) -> Result<(), String> {
        let guarded = LimitedSerializer::new(value, shapes);
        encode_into_std_write(guarded, into, configuration()).map(|_| ()).map_err(unencodable)
    }

    /// Returns a number that is unique to a type. Names are ambiguous, because types in two blocks of one function, or in
    /// two versions of a crate, may share a name.
    #[inline]
    fn type_id<T: Serialize + DeserializeOwned>() -> usize {
        let check: fn(&T, &[u8]) -> Result<bool, String> = Self::check::<T>;
        (check as *const ()).addr()
    }

    /// Compares a value with the value decoded from its bytes. Returns false if the type's own code refuses the bytes before
    /// all of them are compared. A type that fails without reading any bytes is accepted as send-only.
    ///
    /// # Errors
    /// Returns a text that states why this codec cannot send the type.
    #[cold]
    fn check<T: Serialize + DeserializeOwned>(value: &T, bytes: &[u8]) -> Result<bool, String> {
        let whole = type_name::<T>();
        let recorded = || Shapes::of_type(0).recorded();
        let (sent, again, lists) = (recorded(), recorded(), Lists::default());
        Self::encode_noting(value, &sent, &mut Vec::new())?;
        let other_kind = || {
            let encode = |shapes: &Shapes| Self::encode_noting(value, shapes, &mut Vec::new());
            sent.other_kind(whole, &lists, encode)
        };
        let limits = Limits::listing(bytes.len(), &Unlimited, &lists);
        let decode = AssertUnwindSafe(|| Self::decode_or_error::<T>(bytes, &limits));
        // A send-only type may panic when it is decoded.
        let Ok(decoded) = catch_unwind(decode) else { return Ok(lists.are_empty()) };
        match decoded {
            Ok(value) => {
                Self::encode_noting(&value, &again, &mut Vec::new())?;
                let difference = sent.difference(Some(&again), &lists, sent.are_read(&lists));
                difference.or_else(other_kind).map_or(Ok(true), Err)
            }
            Err(error) => {
                let is_unsupported = matches!(error, Undecoded::Decoder(Error::Serde(_)));
                if let Some(difference) = sent.difference(None, &lists, false) {
                    return Err(difference);
                }
                if let Some(difference) = other_kind().filter(|_| !is_unsupported) {
                    return Err(difference);
                }
                let is_of_type =
                    matches!(error, Undecoded::Decoder(Error::OtherString(_) | Error::LimitExceeded));
                let text = malformed(error, &limits, whole).to_string();
                match (is_of_type, is_unsupported) {
                    (true, _) => Ok(sent.are_read(&lists) || lists.are_empty()),
                    (_, true) => Err(text),
                    _ => Err(format!("`{whole}` is not decoded as it is encoded, {text}: {REMEDY}")),
                }
            }
        }
    }

    #[inline]
    fn decode_or_error<T: DeserializeOwned>(bytes: &[u8], limits: &Limits<'_>) -> Result<T, Undecoded> {
        let decoded = seed_decode_from_slice(limits.seed::<T>(), bytes, configuration());
        let (value, used) = decoded.map_err(Undecoded::Decoder)?;
        match bytes.len() - used {
            0 => Ok(value),
            rest => Err(Undecoded::Rest(rest)),
        }
    }

    #[inline]
    pub(crate) fn decode_value<T: DeserializeOwned>(
        bytes: &[u8],
        limits: &Limits<'_>,
    ) -> Result<T, DecodeError> {
        Self::decode_or_error(bytes, limits).map_err(|error| malformed(error, limits, type_name::<T>()))
    }
}

/// The error of a failed decoding.
enum Undecoded {
    Decoder(Error),
    /// Number of remaining bytes.
    Rest(usize),
}

/// Returns a text that states why a value cannot be encoded.
#[cold]
fn unencodable(error: ::bincode::error::EncodeError) -> String {
    match error {
        ::bincode::error::EncodeError::OtherString(text) => text,
        error => error.to_string(),
    }
}

/// Returns the error for bytes that are not a value of the requested type.
#[cold]
fn malformed(error: Undecoded, limits: &Limits<'_>, whole: &str) -> DecodeError {
    DecodeError::Malformed(match error {
        Undecoded::Rest(bytes) => format!("{bytes} bytes are left over"),
        Undecoded::Decoder(Error::LimitExceeded) => {
            "a length in it exceeds what a message may hold: it was encoded from another type".to_owned()
        }
        Undecoded::Decoder(Error::UnexpectedEnd { .. }) => {
            "it ends too early: it was encoded from another type, or cut".to_owned()
        }
        Undecoded::Decoder(Error::Serde(Unsupported::AnyNotSupported)) => format!(
            "`{}` asks what the bytes hold (serde's `untagged` or `tag`), which they do not tell: {REMEDY}",
            limits.asking().unwrap_or(whole)
        ),
        Undecoded::Decoder(Error::Serde(
            Unsupported::IdentifierNotSupported | Unsupported::IgnoredAnyNotSupported,
        )) => {
            format!(
                "`{whole}` asks for names of fields (as for serde's `flatten`, or `tag` with `content`), which are not sent: {REMEDY}"
            )
        }
        Undecoded::Decoder(error) => error.to_string(),
    })
}

impl<T: Serialize + DeserializeOwned> CodecFor<T> for Bincode {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        let mut shapes = Shapes::of_type(Self::type_id::<T>());
        let start = into.len();
        shapes.note(Part::of::<T>(), Shape::Whole);
        Self::encode_noting(value, &shapes, into)?;
        if !shapes.are_checked() {
            let is_known = Self::check(value, &into[start..])?;
            if is_known {
                shapes.set_checked();
            }
        }
        Ok(())
    }

    fn decode(bytes: &[u8], limits: &Limits<'_>) -> Result<T, DecodeError> {
        Self::decode_value(bytes, limits)
    }

    fn absent() -> Option<T> {
        absent()
    }

    fn shape() -> Option<TypeShape> {
        TypeShape::of::<T>()
    }
}
