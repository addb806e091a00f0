//! The hashes that identify services and methods on the wire.

use crate::model::{Method, Payload, Service};

impl Service {
    /// Returns the hash that identifies the service on the wire.
    pub(crate) fn hash(&self) -> u64 {
        service_hash(&self.name)
    }

    /// Returns the hash that identifies a method of the service on the wire. It includes the positions of raw payloads.
    pub(crate) fn method_hash(&self, method: &Method) -> u64 {
        let raw = RawParts {
            argument: method.arguments.iter().position(|argument| argument.raw),
            result: method.output.payload,
            client_items: method.items.as_ref().is_some_and(|items| items.item.raw),
            server_items: method.output.items.as_ref().is_some_and(|item| item.raw),
        };
        method_hash(&self.name, &method.name, raw)
    }
}

/// Returns the 64-bit FNV-1a hash of the service's name. The hash is part of the protocol and never changes.
fn service_hash(service: &str) -> u64 {
    mix(0xcbf2_9ce4_8422_2325, service.as_bytes())
}

/// The parts of a method that are sent as raw bytes. Client and server must agree on them.
#[derive(Debug, Clone, Copy)]
struct RawParts {
    /// Position of the raw argument among all arguments.
    argument: Option<usize>,
    result: Payload,
    /// True if the client streams raw items.
    client_items: bool,
    /// True if the server streams raw items.
    server_items: bool,
}

/// Returns the 64-bit FNV-1a hash of the service's name, a zero byte, the method's name and the raw parts. The hash is part
/// of the protocol and never changes.
///
/// Each raw part contributes a zero byte and a code: `a` and the argument's position for a raw argument, `r` for a raw
/// result, `o` for an optional raw result, `i` for raw client items, and `e` for raw server items.
fn method_hash(service: &str, method: &str, raw: RawParts) -> u64 {
    let mut hash = mix(mix(service_hash(service), &[0]), method.as_bytes());
    if let Some(position) = raw.argument.and_then(|position| u8::try_from(position).ok()) {
        hash = mix(hash, &[0, b'a', position]);
    }
    hash = match raw.result {
        Payload::Coded => hash,
        Payload::Bytes => mix(hash, b"\0r"),
        Payload::OptionalBytes => mix(hash, b"\0o"),
    };
    hash = if raw.client_items { mix(hash, b"\0i") } else { hash };
    if raw.server_items { mix(hash, b"\0e") } else { hash }
}

fn mix(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODED: RawParts =
        RawParts { argument: None, result: Payload::Coded, client_items: false, server_items: false };

    #[test]
    fn hashes_match_fnv_1a() {
        assert_eq!(service_hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(service_hash("a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(service_hash("foobar"), 0x8594_4171_f739_67e8);
    }

    #[test]
    fn method_is_hashed_with_its_raw_parts() {
        let position = Some(1);
        for (raw, text) in [
            (CODED, "s\0m"),
            (RawParts { argument: position, ..CODED }, "s\0m\0a\u{1}"),
            (RawParts { argument: position, result: Payload::Bytes, ..CODED }, "s\0m\0a\u{1}\0r"),
            (RawParts { result: Payload::OptionalBytes, ..CODED }, "s\0m\0o"),
            (RawParts { client_items: true, server_items: true, ..CODED }, "s\0m\0i\0e"),
            (RawParts { server_items: true, ..CODED }, "s\0m\0e"),
        ] {
            assert_eq!(method_hash("s", "m", raw), service_hash(text), "{raw:?}");
        }
    }
}
