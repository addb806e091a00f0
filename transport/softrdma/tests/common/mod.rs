//! Addresses for tests that run side by side: port 4791 is taken per address.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod by_hand;
pub(crate) mod host;
pub(crate) mod node;
pub(crate) mod processes;
pub(crate) mod suite;

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;

/// A loopback address that no other test has: random for each process, then counted.
pub(crate) fn address() -> IpAddr {
    static START: OnceLock<u32> = OnceLock::new();
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = *START.get_or_init(|| {
        let [a, b, c, ..] = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        u32::from_le_bytes([a, b, c, 0])
    });
    let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
    let last = u8::try_from(1 + next % 254).unwrap_or(1);
    let [b, a, ..] = (next / 254).to_le_bytes();
    IpAddr::from([127, a | 0x40, b, last])
}

/// Options of a device at a fresh address, on UDP.
pub(crate) fn udp() -> SoftOptions {
    SoftOptions { addresses: vec![address()], ..SoftOptions::default() }
}

/// Options for two devices on a network of their own inside the process.
pub(crate) fn in_process() -> [SoftOptions; 2] {
    let hub = Hub::new();
    [(); 2].map(|()| SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..udp() })
}
