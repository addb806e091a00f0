//! The node GUID, which the connection manager sends as CA GUID.
//!
//! Owns the format of GUIDs: a prefix that identifies software devices, then a hash of host, network namespace and
//! address. Peers recognise a software device by the prefix. All incarnations at an address have the same GUID
//! (contract rocev2 12.5).
#![forbid(unsafe_code)]

use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;

/// First three bytes of a software device's GUID: 0x02 for a locally administered EUI-64, then "TL".
const PREFIX: u64 = 0x0254_4c00_0000_0000;
const HASH_BITS: u64 = 0x0000_00ff_ffff_ffff;

/// Returns true if a CA GUID belongs to a software device.
pub(in crate::device) fn is_soft(guid: u64) -> bool {
    guid & !HASH_BITS == PREFIX
}

/// Returns the GUID of the device whose first address is `address`.
pub(in crate::device) fn node_guid(address: Option<IpAddr>) -> u64 {
    let mut hash = Fnv::new();
    if let Ok(machine) = std::fs::read("/etc/machine-id") {
        hash.add(&machine);
    }
    if let Ok(name) = std::fs::read("/proc/sys/kernel/hostname") {
        hash.add(&name);
    }
    if let Ok(namespace) = std::fs::metadata("/proc/self/ns/net") {
        hash.add(&namespace.ino().to_le_bytes());
    }
    if let Some(address) = address {
        hash.add_address(address);
    }
    PREFIX | (hash.0 & HASH_BITS)
}

/// Returns a GUID that depends on the address alone, not on the host.
pub(in crate::device) fn address_guid(address: IpAddr) -> u64 {
    let mut hash = Fnv::new();
    hash.add_address(address);
    PREFIX | (hash.0 & HASH_BITS)
}

/// FNV-1a, which is stable across builds, unlike the standard library's hashers.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        // Mix the high bits into the low bits, since a multiplication carries upwards only.
        self.0 ^= self.0 >> 29;
    }

    fn add_address(&mut self, address: IpAddr) {
        match address {
            IpAddr::V4(v4) => self.add(&v4.octets()),
            IpAddr::V6(v6) => self.add(&v6.octets()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_give_equal_trunkline_guids() {
        let one = node_guid(Some(IpAddr::from([127, 0, 0, 1])));
        assert_eq!(one, node_guid(Some(IpAddr::from([127, 0, 0, 1]))));
        assert_ne!(one, node_guid(Some(IpAddr::from([127, 0, 0, 2]))));
        assert!(is_soft(one));
        assert!(!is_soft(0x5054_00ff_fe00_0001));
    }
}
