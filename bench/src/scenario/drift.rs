//! Detection of drift. The host may move virtual processors, which changes all measured times.
//!
//! The round-trip time of a cache line between both cores is measured before and after each measurement. If the two
//! samples differ by more than a factor of [`MOST`], the measurement is dropped and repeated.

use crate::floors;
use crate::meter::failure::Failure;
use crate::meter::pin::Cores;
use std::time::Duration;

/// Duration of a sample of the cache line.
const LINE: Duration = Duration::from_millis(5);
/// Maximum ratio of two samples that does not count as drift.
pub(crate) const MOST: f64 = 1.4;
/// Maximum number of repeats. The last measurement is kept regardless of its samples.
const REPEATS: u32 = 3;

/// A result, with the number of results that were dropped before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kept<T> {
    pub(crate) value: T,
    pub(crate) dropped: u32,
    /// True if the samples before and after this result also differ too much.
    pub(crate) drifted: bool,
}

/// Measures between two samples of the cache line, and repeats this while the samples differ too much.
///
/// # Errors
/// Returns errors from the measurement and from the samples.
pub(crate) fn steady<T>(
    cores: Option<Cores>,
    measure: impl FnMut() -> Result<T, Failure>,
) -> Result<Kept<T>, Failure> {
    repeated(|| Ok(floors::line(cores, LINE)?.times.value_at_quantile(0.5)), measure)
}

fn repeated<T, E>(
    mut line_ns: impl FnMut() -> Result<u64, E>,
    mut measure: impl FnMut() -> Result<T, E>,
) -> Result<Kept<T>, E> {
    let mut dropped = 0;
    loop {
        let before = line_ns()?;
        let value = measure()?;
        let drifted = differs(before, line_ns()?);
        if !drifted || dropped == REPEATS {
            return Ok(Kept { value, dropped, drifted });
        }
        dropped += 1;
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a round trip stay far below 2^52")]
fn differs(one: u64, other: u64) -> bool {
    one.max(other) as f64 > MOST * one.min(other) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn run(lines: &[u64]) -> Kept<u32> {
        let mut lines = lines.iter().copied().cycle();
        let mut measured = 0;
        let next = || Ok::<_, Infallible>(lines.next().unwrap_or_default());
        repeated(next, || {
            measured += 1;
            Ok(measured)
        })
        .unwrap()
    }

    #[test]
    fn measurement_between_drifted_samples_is_repeated() {
        assert_eq!(run(&[100, 139]), Kept { value: 1, dropped: 0, drifted: false });
        assert_eq!(run(&[100, 141, 100, 100]), Kept { value: 2, dropped: 1, drifted: false });
        assert_eq!(run(&[141, 100, 100, 100]), Kept { value: 2, dropped: 1, drifted: false });
    }

    #[test]
    fn repeats_are_bounded_and_last_one_is_marked_as_drifted() {
        assert_eq!(run(&[100, 200]), Kept { value: 4, dropped: 3, drifted: true });
    }
}
