//! Loopback addresses for tests that run in parallel. Port 4791 can be bound only once per address, so each test needs its
//! own addresses.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Port of the addresses that [`fresh_address`] returns.
const PORT: u16 = 7471;

/// Returns a loopback address in 127.64.0.0/10 for use by one test. The first address in a process is random, and the
/// following ones are consecutive.
#[must_use]
pub fn fresh_ip() -> Ipv4Addr {
    static START: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = *START.get_or_init(|| {
        let [a, b, c, ..] = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        u32::from_le_bytes([a, b, c, 0])
    });
    let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let last = u8::try_from(1 + next % 254).unwrap_or(1);
    let [b, a, ..] = (next / 254).to_le_bytes();
    Ipv4Addr::new(127, 64 | a & 63, b, last)
}

/// Returns an address from [`fresh_ip`] with a port on which a node can listen.
#[must_use]
pub fn fresh_address() -> SocketAddr {
    SocketAddr::new(fresh_ip().into(), PORT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_loopback_hosts_and_differ() {
        let addresses: Vec<_> = (0..600).map(|_| fresh_ip()).collect();
        for (index, address) in addresses.iter().enumerate() {
            let [a, b, _, d] = address.octets();
            assert!(a == 127 && (64..128).contains(&b) && (1..255).contains(&d), "{address}");
            assert!(!addresses[..index].contains(address), "{address} came twice");
        }
    }
}
