//! See `trunkline_transport::fuzz::identity`.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| trunkline_transport::fuzz::identity(data));
