//! Headers as metadata, and as an item.
//!
//! Values of keys that end in `-bin` travel as bytes, without base64. An entry of an item is the length of its key (1), the
//! length of its value (2, little-endian), the key, and the value.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use tonic::Status;
use trunkline::Metadata;

/// Writes no padding and accepts both forms, as gRPC asks for.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Returns headers as metadata.
///
/// # Errors
/// A key or a value breaks a rule of gRPC.
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

/// Returns metadata as headers.
///
/// # Errors
/// A key or a value cannot be in a header.
pub(crate) fn from_metadata(metadata: &Metadata) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::new();
    for (key, value) in metadata.iter() {
        append(&mut headers, key, value)?;
    }
    Ok(headers)
}

/// Returns headers as an item.
///
/// # Errors
/// As for [`to_metadata`].
pub(crate) fn to_item(headers: &HeaderMap) -> Result<Bytes, Status> {
    let mut item = Vec::new();
    for (key, value) in to_metadata(headers)?.iter() {
        // Metadata has checked both lengths.
        item.push(u8::try_from(key.len()).unwrap_or_default());
        item.extend(u16::try_from(value.len()).unwrap_or_default().to_le_bytes());
        item.extend_from_slice(key.as_bytes());
        item.extend_from_slice(value);
    }
    Ok(item.into())
}

/// Returns the headers of an item.
///
/// # Errors
/// The item is malformed.
pub(crate) fn from_item(mut item: &[u8]) -> Result<HeaderMap, Status> {
    let mut headers = HeaderMap::new();
    while !item.is_empty() {
        let entry = split_entry(item).ok_or_else(|| Status::internal("malformed headers of a peer"))?;
        append(&mut headers, entry.key, entry.value)?;
        item = entry.rest;
    }
    Ok(headers)
}

/// The first entry of an item, and what follows it.
struct Entry<'a> {
    key: &'a str,
    value: &'a [u8],
    rest: &'a [u8],
}

fn split_entry(item: &[u8]) -> Option<Entry<'_>> {
    let (&[key, low, high], rest) = item.split_first_chunk::<3>()?;
    let (key, rest) = rest.split_at_checked(usize::from(key))?;
    let (value, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes([low, high])))?;
    Some(Entry { key: std::str::from_utf8(key).ok()?, value, rest })
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
    // Fails beyond 24,576 headers.
    let added = headers.try_append(name, value);
    added.map_err(|_| Status::resource_exhausted("too many headers of a peer"))?;
    Ok(())
}

/// Returns the values of a header. A binary one may hold several, separated by commas.
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
    fn values_keep_their_order_and_binary_ones_travel_as_bytes() {
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
        assert_eq!(from_item(&to_item(&given).unwrap()).unwrap(), expected);
    }

    #[test]
    fn what_grpc_does_not_allow_is_refused() {
        for (key, value) in [("sum-bin", "A"), ("tag", "a\tb")] {
            assert!(to_metadata(&headers(&[(key, value)])).is_err(), "{key}: {value}");
        }
    }

    #[test]
    fn malformed_items_are_refused() {
        let item = to_item(&headers(&[("ab", "value")])).unwrap();
        for end in 1..item.len() {
            assert!(from_item(&item[..end]).is_err(), "cut at {end}");
        }
        for (at, byte) in [(0, 0), (3, b' '), (3, 0xff), (5, b'\n')] {
            let mut bad = item.to_vec();
            bad[at] = byte;
            assert!(from_item(&bad).is_err(), "{bad:?}");
        }
    }
}
