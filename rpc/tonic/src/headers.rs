//! Converts headers and trailers to metadata and back. Values of keys that end in `-bin` are sent as raw bytes, not base64.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;
use trunkline::Metadata;

/// Base64 as required by gRPC: without padding when encoding, and with or without padding when decoding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Converts headers to metadata.
///
/// # Errors
/// Returns an error if a key or a value violates a rule of gRPC.
pub(crate) fn to_metadata(headers: &HeaderMap) -> Result<Metadata, Status> {
    let mut metadata = Metadata::new();
    for (key, value) in headers {
        for value in values(key.as_str(), value)? {
            let added = metadata.append_reserved(key.as_str(), &value);
            added.map_err(|error| Status::internal(format!("header {key}: {error}")))?;
        }
    }
    Ok(metadata)
}

/// Converts metadata to headers.
///
/// # Errors
/// Returns an error if a key or a value is not allowed in headers.
pub(crate) fn from_metadata(metadata: &Metadata) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::new();
    for (key, value) in metadata.iter() {
        append(&mut headers, key, value)?;
    }
    Ok(headers)
}

fn append(headers: &mut HeaderMap, key: &str, value: &[u8]) -> Result<(), Status> {
    let name = HeaderName::from_bytes(key.as_bytes());
    let value = if is_binary(key) {
        HeaderValue::try_from(BASE64.encode(value))
    } else {
        HeaderValue::from_bytes(value)
    };
    let (Ok(name), Ok(value)) = (name, value) else {
        return Err(Status::internal(format!("key {key:?} of a peer cannot be a header")));
    };
    // `try_append` fails beyond 24,576 headers.
    let added = headers.try_append(name, value);
    added.map_err(|_| Status::resource_exhausted("too many headers of a peer"))?;
    Ok(())
}

/// Returns the values in a header. A binary header may contain several values, separated by commas.
fn values(key: &str, value: &HeaderValue) -> Result<Vec<Vec<u8>>, Status> {
    if !is_binary(key) {
        return Ok(vec![value.as_bytes().to_vec()]);
    }
    let parts = value.as_bytes().split(|byte| *byte == b',');
    let decoded = parts.map(|part| BASE64.decode(part.trim_ascii())).collect::<Result<_, _>>();
    decoded.map_err(|_| Status::internal(format!("header {key}: invalid base64")))
}

fn is_binary(key: &str) -> bool {
    key.ends_with("-bin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(entries: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (key, value) in entries {
            headers.append(*key, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn values_keep_order_and_binary_values_are_sent_as_bytes() {
        let given = headers(&[
            ("tag", "blue"),
            ("tag", ""),
            ("grpc-status", "5"),
            ("sum-bin", "AP8="),
            ("sum-bin", "AQ,Ag=="),
        ]);
        let expected = headers(&[
            ("tag", "blue"),
            ("tag", ""),
            ("grpc-status", "5"),
            ("sum-bin", "AP8"),
            ("sum-bin", "AQ"),
            ("sum-bin", "Ag"),
        ]);
        let metadata = to_metadata(&given).unwrap();
        let sums = metadata.get_all_bin("sum-bin").collect::<Vec<_>>();
        assert_eq!(sums, [&[0, 255][..], &[1], &[2]]);
        assert_eq!(from_metadata(&metadata).unwrap(), expected);
    }

    #[test]
    fn invalid_base64_is_refused() {
        assert!(to_metadata(&headers(&[("sum-bin", "A")])).is_err());
    }
}
