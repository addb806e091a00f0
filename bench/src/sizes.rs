//! Sizes and counts on the command line, with units, lists and ranges.

use std::str::FromStr;

/// Maximum size of a payload, in bytes.
pub(crate) const MOST_BYTES: u64 = 64 << 20;
/// Maximum number of calls in flight.
pub(crate) const MOST_OUTSTANDING: u64 = 4096;

/// Payload sizes in bytes: `64`, `4K`, `64,4K,1M`, or `64..64K`, which doubles at each step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sizes(pub(crate) Vec<usize>);

/// Numbers of calls in flight, in the format of sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Outstanding(pub(crate) Vec<usize>);

/// Numbers from 1 to `MOST`, in the format of sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Counts<const MOST: u16>(pub(crate) Vec<u16>);

impl<const MOST: u16> FromStr for Counts<MOST> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let counts = list(text, 1, MOST.into())?.into_iter();
        counts
            .map(|count| u16::try_from(count).map_err(|error| error.to_string()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        list(text, 0, MOST_BYTES).map(Self)
    }
}

impl FromStr for Outstanding {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        list(text, 1, MOST_OUTSTANDING).map(Self)
    }
}

/// Parses a number with an optional unit: `K` is 2^10, `M` is 2^20.
fn number(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (digits, shift) = match text.strip_suffix(['K', 'k']) {
        Some(digits) => (digits, 10),
        None => text.strip_suffix(['M', 'm']).map_or((text, 0), |digits| (digits, 20)),
    };
    let value: u64 = digits.parse().map_err(|_| format!("`{text}` is not a number like 64, 4K or 1M"))?;
    value.checked_mul(1 << shift).ok_or_else(|| format!("`{text}` is too large"))
}

fn list(text: &str, least: u64, most: u64) -> Result<Vec<usize>, String> {
    let mut all = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => all.push(number(part)?),
            Some((from, to)) => all.extend(doubling(number(from)?, number(to)?, part)?),
        }
    }
    if let Some(out) = all.iter().find(|value| !(least..=most).contains(*value)) {
        return Err(format!("{out} is not between {least} and {most}"));
    }
    all.into_iter().map(|value| usize::try_from(value).map_err(|error| error.to_string())).collect()
}

/// Returns `from` and its doublings up to `to`. The last value is always `to`.
fn doubling(from: u64, to: u64, text: &str) -> Result<Vec<u64>, String> {
    if from > to {
        return Err(format!("the range `{text}` ends before it begins"));
    }
    let mut all = vec![from];
    let mut next = from.max(1).saturating_mul(if from == 0 { 1 } else { 2 });
    while next < to {
        all.push(next);
        next = next.saturating_mul(2);
    }
    if from < to {
        all.push(to);
    }
    Ok(all)
}

/// Converts a size to `f64`, for arithmetic with rates.
#[expect(clippy::cast_precision_loss, reason = "sizes are at most 2^27")]
pub(crate) const fn as_f64(bytes: usize) -> f64 {
    bytes as f64
}

/// Formats a size on the command line. A unit is used if the size is a multiple of it.
pub(crate) fn written(bytes: usize) -> String {
    match bytes {
        0 => "0".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        _ => bytes.to_string(),
    }
}

/// Formats a size for readers: `64 B`, `4 KiB`, `1 MiB`.
pub(crate) fn with_unit(bytes: usize) -> String {
    match bytes {
        0 => "0 B".to_owned(),
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_lists_and_ranges_are_parsed() {
        let sizes = |text: &str| text.parse::<Sizes>().map(|sizes| sizes.0);
        assert_eq!(sizes("0, 64,4K,64M").unwrap(), [0, 64, 4096, 64 << 20]);
        assert_eq!(sizes("64..1K").unwrap(), [64, 128, 256, 512, 1024]);
        assert_eq!(sizes("0..5").unwrap(), [0, 1, 2, 4, 5]);
        assert_eq!(sizes("7..7").unwrap(), [7]);
        assert_eq!("1,3..5".parse::<Counts<5>>().unwrap().0, [1, 3, 5]);
        assert!("6".parse::<Counts<5>>().unwrap_err().contains("between 1 and 5"));
        assert_eq!("1..8".parse::<Outstanding>().unwrap().0, [1, 2, 4, 8]);
    }

    #[test]
    fn invalid_sizes_are_refused_with_cause() {
        for (text, word) in [
            ("", "not a number"),
            ("4G", "`4G`"),
            ("65M", "between 0 and 67108864"),
            ("8..4", "ends before it begins"),
            ("99999999999999999M", "too large"),
        ] {
            let error = text.parse::<Sizes>().unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
        assert!("0".parse::<Outstanding>().unwrap_err().contains("between 1 and 4096"));
    }

    #[test]
    fn sizes_are_formatted_with_units() {
        let all = [0, 64, 1500, 4096, 1 << 20].map(written);
        assert_eq!(all, ["0", "64", "1500", "4K", "1M"]);
        let all = [0, 64, 1500, 4096, 1 << 20].map(with_unit);
        assert_eq!(all, ["0 B", "64 B", "1500 B", "4 KiB", "1 MiB"]);
    }
}
