//! Serde support for a [`Status`] inside another value, such as a service's error caused by a nested call.
//!
//! Add `#[serde(with = "trunkline::nested_status")]` to the field.
//!
//! `Status` itself does not implement serde's traits, because the protocol has its own encoding for a `Status` that a method
//! returns. The bytes may come from a peer, so the limits on a status apply.
//!
//! ```
//! #[derive(Debug, thiserror::Error, serde::Serialize, serde::Deserialize)]
//! enum ShopError {
//!     #[error("the warehouse is closed")]
//!     Closed,
//!     #[error("the warehouse is unavailable")]
//!     Warehouse(#[serde(with = "trunkline::nested_status")] #[from] trunkline::Status),
//! }
//! ```

use crate::status::reason::{Origin, Reason};
use crate::status::{Code, MOST_DETAILS, MOST_MESSAGE_BYTES, Status, cut};
use crate::wire::metadata::Metadata;
use bytes::Bytes;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
struct Nested {
    code: u8,
    message: String,
    causes: Vec<String>,
    details: Bytes,
    /// 0 for this node, 1 for the peer, 2 for the handler.
    origin: u8,
    /// Number of the reason in replies; 0 if there is no reason.
    reason: u8,
    may_have_run: bool,
    /// Metadata entries, in wire format.
    #[serde(default)]
    metadata: Bytes,
}

/// Encodes a status.
///
/// # Errors
/// Returns the serializer's error.
pub fn serialize<S: Serializer>(status: &Status, serializer: S) -> Result<S::Ok, S::Error> {
    let status = status.clone().within_limits();
    let nested = Nested {
        code: status.code().number(),
        message: cut(status.message(), MOST_MESSAGE_BYTES).to_owned(),
        causes: status.causes().to_vec(),
        details: status.details().clone(),
        origin: match status.origin() {
            Origin::Local => 0,
            Origin::Peer => 1,
            Origin::Handler => 2,
        },
        reason: status.reason().map_or(0, Reason::number),
        may_have_run: status.may_have_run(),
        metadata: Bytes::copy_from_slice(status.metadata().block()),
    };
    nested.serialize(serializer)
}

/// Decodes a status.
///
/// # Errors
/// Returns the deserializer's error, or an error if the status exceeds a limit.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Status, D::Error> {
    let nested = Nested::deserialize(deserializer)?;
    if nested.message.len() > MOST_MESSAGE_BYTES || nested.details.len() > MOST_DETAILS {
        return Err(D::Error::custom("a status exceeds the limits of its message or its details"));
    }
    let metadata = Metadata::parse(&nested.metadata).map_err(D::Error::custom)?;
    let code = Code::from_number(nested.code);
    let message = nested.message;
    let status =
        if nested.may_have_run { Status::ran(code, message) } else { Status::not_run(code, message) };
    let status = match nested.origin {
        0 => status,
        1 => status.of_peer(),
        _ => status.of_handler(),
    };
    let status = match Reason::from_number(nested.reason) {
        Some(reason) => status.because(reason),
        None => status,
    };
    let status = status.with_details(nested.details).with_metadata(metadata);
    Ok(nested.causes.into_iter().fold(status, Status::with_cause))
}

#[cfg(test)]
mod tests {
    use crate::codec::{self, Bincode, CodecFor as _};
    use crate::{CallError, Metadata, Reason, Status};

    #[test]
    fn nested_status_keeps_all_fields() {
        let mut metadata = Metadata::new();
        metadata.insert("retry-after", "7").unwrap();
        metadata.insert_bin("seal-bin", &[0, 255]).unwrap();
        let statuses = [
            Status::unavailable("later").with_metadata(metadata),
            Status::aborted("no").with_cause("disk").with_details("details"),
            Status::not_run(crate::Code::Unavailable, "gone").because(Reason::Draining),
            Status::ran(crate::Code::Internal, "a panic").because(Reason::Panicked).of_peer(),
        ];
        for status in statuses {
            let error: CallError<u8> = CallError::Status(status);
            let mut bytes = Vec::new();
            Bincode::encode(&error, &mut bytes).unwrap();
            let decoded = codec::decode::<Bincode, CallError<u8>>(&bytes, &codec::Unlimited);
            assert_eq!(decoded, Ok(error));
        }
    }
}
