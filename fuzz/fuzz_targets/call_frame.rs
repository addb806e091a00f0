//! See `trunkline::fuzz::call_frame`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline::fuzz::call_frame(data));
