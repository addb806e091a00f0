//! See `trunkline_softrdma::wire::fuzz::packet`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_softrdma::wire::fuzz::packet(data));
