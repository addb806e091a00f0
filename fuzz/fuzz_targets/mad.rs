//! See `trunkline_roce::fuzz::mad`. Short inputs are padded with zeros.
#![no_main]

use trunkline_roce::fuzz;
use trunkline_roce::wire::MAD_BYTES;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let mut mad = [0; MAD_BYTES];
    mad.iter_mut().zip(data).for_each(|(to, from)| *to = *from);
    fuzz::mad(&mad);
});
