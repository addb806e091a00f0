//! The header `grpc-timeout`, which consists of up to eight digits and a unit.

use http::HeaderValue;
use std::time::Duration;

/// Name of the header.
pub(crate) const GRPC_TIMEOUT: &str = "grpc-timeout";
/// Largest number in the header.
const MAX_UNITS: u128 = 99_999_999;

/// Parses a header value. Returns `None` if the value is malformed.
pub(crate) fn parse(value: &HeaderValue) -> Option<Duration> {
    let text = value.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let units = digits.parse::<u64>().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(units * 3600),
        "M" => Duration::from_secs(units * 60),
        "S" => Duration::from_secs(units),
        "m" => Duration::from_millis(units),
        "u" => Duration::from_micros(units),
        "n" => Duration::from_nanos(units),
        _ => return None,
    })
}

/// Returns the header value for a time limit, in the finest unit whose number has at most eight digits.
pub(crate) fn format(timeout: Duration) -> String {
    let units =
        [(timeout.as_micros(), 'u'), (timeout.as_millis(), 'm'), (u128::from(timeout.as_secs()), 'S')];
    let fitting = units.into_iter().find(|(count, _)| *count <= MAX_UNITS);
    let (count, unit) = fitting.unwrap_or((MAX_UNITS, 'S'));
    format!("{count}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_round_trip_through_header() {
        for (timeout, text) in [
            (Duration::ZERO, "0u"),
            (Duration::from_micros(99_999_999), "99999999u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
        ] {
            assert_eq!(format(timeout), text);
            assert_eq!(parse(&HeaderValue::from_static(text)), Some(timeout));
        }
        assert_eq!(format(Duration::MAX), "99999999S");
        assert_eq!(parse(&HeaderValue::from_static("2H")), Some(Duration::from_secs(7200)));
        for bad in ["", "1", "S", "123456789S", "-1S", "+1S", "1s", "1 S"] {
            assert_eq!(parse(&HeaderValue::from_static(bad)), None, "{bad}");
        }
    }
}
