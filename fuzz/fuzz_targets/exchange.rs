//! See `trunkline_transport::fuzz::exchange`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_transport::fuzz::exchange(data));
