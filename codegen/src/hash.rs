//! The hashes that identify services and methods on the wire.

use crate::payload::Payload;

/// Returns the 64-bit FNV-1a hash of the service's name. The hash is part of the protocol and never changes.
#[must_use]
pub fn service_hash(service: &str) -> u64 {
    mix(0xcbf2_9ce4_8422_2325, service.as_bytes())
}

/// Returns the 64-bit FNV-1a hash of the service's name, a zero byte and the method's name. The hash is part of the
/// protocol and never changes.
///
/// The method's raw payloads follow, because both sides must agree on them: for a raw argument a zero byte, an `a` and its
/// position among all arguments; for a raw result a zero byte and an `r`, or an `o` if it is optional.
#[must_use]
pub fn method_hash(service: &str, method: &str, raw_argument: Option<usize>, result: Payload) -> u64 {
    let mut hash = mix(mix(service_hash(service), &[0]), method.as_bytes());
    if let Some(position) = raw_argument.and_then(|position| u8::try_from(position).ok()) {
        hash = mix(hash, &[0, b'a', position]);
    }
    match result {
        Payload::Coded => hash,
        Payload::Bytes => mix(hash, &[0, b'r']),
        Payload::OptionalBytes => mix(hash, &[0, b'o']),
    }
}

/// Adds the items that are raw, of the client's stream and of the server's, to a method's hash: for each a zero byte, and
/// an `i` or an `e`.
pub(crate) fn with_raw_items(hash: u64, [of_client, of_server]: [bool; 2]) -> u64 {
    let hash = if of_client { mix(hash, b"\0i") } else { hash };
    if of_server { mix(hash, b"\0e") } else { hash }
}

fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        assert_eq!(service_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(service_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(service_hash("foobar"), 0x8594_4171_f739_67e8);
        let hash = |service, method| method_hash(service, method, None, Payload::Coded);
        assert_eq!(hash("a", "bc"), service_hash("a\0bc"));
        assert_ne!(hash("a", "bc"), hash("ab", "c"));
    }

    #[test]
    fn methods_that_send_other_parts_raw_differ() {
        let positions = [None, Some(0), Some(1)];
        let results = [Payload::Coded, Payload::Bytes, Payload::OptionalBytes];
        let mut all: Vec<_> = positions
            .into_iter()
            .flat_map(|position| results.map(|result| method_hash("s", "m", position, result)))
            .collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 9);
        assert_eq!(method_hash("s", "m", Some(1), Payload::Bytes), service_hash("s\0m\0a\u{1}\0r"));
        let items = |of_client, of_server| with_raw_items(service_hash("s\0m"), [of_client, of_server]);
        assert_eq!(items(true, true), service_hash("s\0m\0i\0e"));
        assert_eq!(
            (items(false, false), items(false, true)),
            (service_hash("s\0m"), service_hash("s\0m\0e"))
        );
    }
}
