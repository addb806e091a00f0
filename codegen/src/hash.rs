//! The hashes that identify services and methods on the wire.

/// 64-bit FNV-1a of the service's name, a zero byte and the method's name; with an empty `method`, of
/// the service's name alone. It is part of the protocol and never changes.
#[must_use]
pub const fn method_hash(service: &str, method: &str) -> u64 {
    let mut hash = mix(0xcbf2_9ce4_8422_2325, service.as_bytes());
    if !method.is_empty() {
        hash = mix(hash, &[0]);
        hash = mix(hash, method.as_bytes());
    }
    hash
}

const fn mix(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u64).wrapping_mul(0x0100_0000_01b3);
        at += 1;
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::method_hash;

    #[test]
    fn hashes_are_those_of_fnv_1a() {
        assert_eq!(method_hash("", ""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(method_hash("a", ""), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(method_hash("foobar", ""), 0x8594_4171_f739_67e8);
        assert_ne!(method_hash("a", "bc"), method_hash("ab", "c"));
    }
}
