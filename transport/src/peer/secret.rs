//! Secrets of a node, and keyed hashes under them.
//!
//! The hash is SipHash-2-4 with 128 bits, a pseudo-random function that is fast for a few dozen bytes. Published
//! hashes reveal neither the secret nor other hashes.
#![forbid(unsafe_code)]

use siphasher::sip128::{Hasher128, SipHasher24};
use std::hash::Hasher;
use std::net::IpAddr;
use trunkline_machine::Runtime;

/// A secret of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Secret(u64, u64);

impl Secret {
    pub(crate) fn new(runtime: &Runtime) -> Self {
        Self(runtime.random(), runtime.random())
    }

    /// Returns the hash of fields of fixed lengths.
    pub(crate) fn hash(self, fields: &[&[u8]]) -> u128 {
        let mut hasher = SipHasher24::new_with_keys(self.0, self.1);
        fields.iter().for_each(|field| hasher.write(field));
        let hash = hasher.finish128();
        u128::from(hash.h1) << 64 | u128::from(hash.h2)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Returns an address as a field, with IPv4 as IPv4-mapped IPv6.
pub(crate) fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}
