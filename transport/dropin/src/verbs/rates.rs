//! Conversions between rate codes, multiples of 2.5 Gb/s, and Mb/s.

use std::ffi::c_int;

/// Code of each rate, its multiple of 2.5 Gb/s or -1, and its value in Mb/s.
const RATES: [(c_int, c_int, c_int); 23] = [
    (2, 1, 2500),
    (3, 4, 10_000),
    (4, 12, 30_000),
    (5, 2, 5000),
    (6, 8, 20_000),
    (7, 16, 40_000),
    (8, 24, 60_000),
    (9, 32, 80_000),
    (10, 48, 120_000),
    (11, -1, 14_062),
    (12, -1, 56_250),
    (13, -1, 112_500),
    (14, -1, 168_750),
    (15, -1, 25_781),
    (16, -1, 103_125),
    (17, -1, 206_250),
    (18, -1, 309_375),
    (19, 11, 28_125),
    (20, 20, 53_125),
    (21, 160, 425_000),
    (22, 240, 637_500),
    (23, 320, 850_000),
    (24, 480, 1_275_000),
];

/// `ibv_rate_to_mult(3)`: returns -1 if the code has no multiple.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mult(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.1)
}

/// `mult_to_ibv_rate(3)`: returns 0, the code for the port's rate, if the number is not a rate.
#[unsafe(no_mangle)]
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> c_int {
    RATES.iter().find(|known| known.1 == mult && mult > 0).map_or(0, |known| known.0)
}

/// `ibv_rate_to_mbps(3)`: returns -1 if the code is not a rate.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_rate_to_mbps(rate: c_int) -> c_int {
    RATES.iter().find(|known| known.0 == rate).map_or(-1, |known| known.2)
}

/// `mbps_to_ibv_rate(3)`: returns 0, the code for the port's rate, if the number is not a rate.
#[unsafe(no_mangle)]
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
    RATES.iter().find(|known| known.2 == mbps).map_or(0, |known| known.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_round_trip_through_conversions() {
        for (code, mult, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(code), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), code);
            assert_eq!(ibv_rate_to_mult(code), mult);
            assert_eq!(mult_to_ibv_rate(mult), if mult > 0 { code } else { 0 });
        }
        assert_eq!((ibv_rate_to_mbps(0), mbps_to_ibv_rate(1)), (-1, 0));
    }
}
