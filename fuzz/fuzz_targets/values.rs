//! See `trunkline::fuzz::values`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline::fuzz::values(data));
