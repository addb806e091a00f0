//! See `trunkline::fuzz::poller`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline::fuzz::poller(data));
