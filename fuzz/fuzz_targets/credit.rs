//! See `trunkline_transport::fuzz::credit`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_transport::fuzz::credit(data));
