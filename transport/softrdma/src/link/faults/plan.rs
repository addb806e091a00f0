//! The faults that a faulty link injects, and their notation in an environment variable.
#![forbid(unsafe_code)]

use std::str::FromStr;
use std::time::Duration;

/// The faults of a link, parsed from text such as `drop=0.01,reorder=0.01,duplicate=0.01,corrupt=0.001,
/// delay=200us,longest=1400,seed=7`. The keys may be in any order, and omitted faults do not occur.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FaultPlan {
    /// Probability in units of 2^-32, like the next three fields.
    pub(super) drop: u64,
    pub(super) reorder: u64,
    pub(super) duplicate: u64,
    pub(super) corrupt: u64,
    pub(super) delay: Duration,
    /// Maximum length of a datagram from BTH to ICRC, in bytes. Longer datagrams are lost. 0 means no limit.
    pub(super) longest: u64,
    pub(super) seed: u64,
}

/// Error returned when a [`FaultPlan`] cannot be parsed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultPlanError {
    /// A part is not of the form `key=value`.
    #[error("invalid part `{part}`: expected key=value, such as drop=0.01")]
    Form {
        /// The part between two commas.
        part: String,
    },
    /// A key is unknown.
    #[error("unknown key `{key}`: expected drop, reorder, duplicate, corrupt, delay, longest or seed")]
    Key {
        /// The key as written.
        key: String,
    },
    /// A value is not valid for its key.
    #[error("`{value}` does not fit {key}, which takes {wanted}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// The values that the key accepts.
        wanted: &'static str,
    },
}

impl FaultPlan {
    /// Returns true if a datagram is longer than the plan permits.
    pub(super) fn is_too_long(&self, datagram: &[u8]) -> bool {
        self.longest != 0 && u64::try_from(datagram.len()).is_ok_and(|length| length > self.longest)
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (key, value) =
                part.split_once('=').ok_or_else(|| FaultPlanError::Form { part: part.to_owned() })?;
            let value = value.trim();
            match key.trim() {
                "drop" => plan.drop = probability("drop", value)?,
                "reorder" => plan.reorder = probability("reorder", value)?,
                "duplicate" => plan.duplicate = probability("duplicate", value)?,
                "corrupt" => plan.corrupt = probability("corrupt", value)?,
                "delay" => plan.delay = duration("delay", value)?,
                "longest" => {
                    let wanted = "a number of bytes, such as 1400";
                    plan.longest = value.parse().map_err(|_| wrong("longest", value, wanted))?;
                }
                "seed" => {
                    plan.seed = value.parse().map_err(|_| wrong("seed", value, "a whole number"))?;
                }
                other => return Err(FaultPlanError::Key { key: other.to_owned() }),
            }
        }
        Ok(plan)
    }
}

fn wrong(key: &'static str, value: &str, wanted: &'static str) -> FaultPlanError {
    FaultPlanError::Value { key, value: value.to_owned(), wanted }
}

fn probability(key: &'static str, value: &str) -> Result<u64, FaultPlanError> {
    let number: f64 = value.parse().unwrap_or(f64::NAN);
    if !(0.0..=1.0).contains(&number) {
        return Err(wrong(key, value, "a probability from 0 to 1, such as 0.01"));
    }
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 2^32, which a u64 holds"
    )]
    Ok((number * 4_294_967_296.0).round() as u64)
}

fn duration(key: &'static str, value: &str) -> Result<Duration, FaultPlanError> {
    const WANTED: &str = "a time of at most 10 s, such as 200us or 5ms";
    let end = value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len());
    let (digits, unit) = value.split_at(end);
    let count: u64 = digits.parse().map_err(|_| wrong(key, value, WANTED))?;
    let time = match unit {
        "us" => Duration::from_micros(count),
        "ms" => Duration::from_millis(count),
        "s" => Duration::from_secs(count),
        _ => return Err(wrong(key, value, WANTED)),
    };
    if time > Duration::from_secs(10) { Err(wrong(key, value, WANTED)) } else { Ok(time) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plan_is_parsed() {
        let plan: FaultPlan =
            "drop=0.5, reorder=1,duplicate=0,corrupt=0.25,delay=200us,longest=1400,seed=7".parse().unwrap();
        let half = 1 << 31;
        let expected = FaultPlan {
            drop: half,
            reorder: 2 * half,
            duplicate: 0,
            corrupt: half / 2,
            delay: Duration::from_micros(200),
            longest: 1400,
            seed: 7,
        };
        assert_eq!(plan, expected);
        assert_eq!("".parse(), Ok(FaultPlan::default()));
    }

    #[test]
    fn malformed_plans_are_refused_with_their_cause() {
        for (text, named) in [
            ("drop", "key=value"),
            ("loss=0.1", "`loss`"),
            ("drop=2", "drop, which takes a probability"),
            ("drop=-0.1", "drop, which takes a probability"),
            ("corrupt=NaN", "corrupt, which takes a probability"),
            ("reorder=", "reorder, which takes a probability"),
            ("delay=5", "delay, which takes a time"),
            ("delay=ms", "delay, which takes a time"),
            ("delay=11s", "delay, which takes a time"),
            ("longest=1k", "longest, which takes a number of bytes"),
            ("seed=x", "seed, which takes a whole number"),
        ] {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}
