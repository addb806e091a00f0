//! See `trunkline_roce::fuzz::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_roce::fuzz::packet(data));
