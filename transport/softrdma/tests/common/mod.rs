//! Common parts of the software device's tests, such as devices at separate addresses.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod by_hand;
pub(crate) mod host;
pub(crate) mod log;
pub(crate) mod node;
pub(crate) mod processes;
pub(crate) mod side;
pub(crate) mod suite;

use std::net::IpAddr;
use std::sync::Arc;
use trunkline_softrdma::device::{LinkChoice, PathChoice, SoftOptions};
use trunkline_softrdma::link::Hub;

/// Returns a loopback address that no other test uses.
pub(crate) fn address() -> IpAddr {
    trunkline_testkit::fresh_ip().into()
}

/// Returns options of a device at a fresh address, on UDP.
pub(crate) fn udp() -> SoftOptions {
    SoftOptions { addresses: vec![address()], path: PathChoice::Udp, ..SoftOptions::default() }
}

/// Returns options of a device at a fresh address that reaches others through shared memory only.
pub(crate) fn memory() -> SoftOptions {
    SoftOptions { path: PathChoice::Shm, ..udp() }
}

/// Returns options of two devices on a separate network inside the process.
pub(crate) fn in_process() -> [SoftOptions; 2] {
    let hub = Hub::new();
    [(); 2].map(|()| SoftOptions { link: LinkChoice::InProcess(Arc::clone(&hub)), ..udp() })
}
