//! See `trunkline_softrdma::wire::fuzz::capture`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_softrdma::wire::fuzz::capture(data));
