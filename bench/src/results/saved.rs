//! Reader for files written by `--json`.
//!
//! Defines the valid contents of such files. The contents are not trusted: the reader returns a value, or an error that
//! contains the name of the file and the number of the point. `compare` and `report` use this module.

use crate::meter::spread::{Spread, number};
use crate::scenario::point::{OfPeer, Summary};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

const MOST_BYTES: u64 = 256 << 20;

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Saved {
    /// Name of the file as given on the command line.
    #[serde(skip)]
    pub(crate) name: String,
    pub(crate) command: String,
    /// Version of the program, and time of the run. Older files contain neither.
    pub(crate) version: Option<String>,
    pub(crate) date: Option<String>,
    #[serde(default)]
    pub(crate) settings: Map<String, Value>,
    pub(crate) machine: Map<String, Value>,
    /// Number of cores used by other programs during the run; 0 if unknown.
    #[serde(default)]
    pub(crate) others_cores: f64,
    /// Reason why the run ended early, if it did.
    pub(crate) error: Option<String>,
    #[serde(skip)]
    pub(crate) points: Vec<SavedPoint>,
    /// All points, if there are several.
    #[serde(rename = "points")]
    listed: Option<Vec<Value>>,
    /// Keys of the only point, or settings that several points share.
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Debug, Clone, Deserialize)]
pub(crate) struct SavedPoint {
    /// Settings that distinguish the point from other points, such as its size. Their values are strings, numbers or
    /// booleans.
    #[serde(flatten)]
    pub(crate) settings: BTreeMap<String, Value>,
    /// Measured values by key, one per repetition. All values are greater than 0.
    #[serde(deserialize_with = "lists")]
    pub(crate) each_repetition: BTreeMap<String, Vec<f64>>,
    /// Calls and floors with times, by name.
    pub(crate) calls: Option<Summary>,
    #[serde(default)]
    pub(crate) floors: BTreeMap<String, Summary>,
    /// Other systems, by name.
    #[serde(default)]
    pub(crate) peers: BTreeMap<String, OfPeer>,
}

impl Saved {
    /// Reads a file.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is not a result of this program.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        Self::parse(&name, read(path)?).map_err(|why| not_a_result(&name, &why))
    }

    /// Parses the contents of the file `name`.
    ///
    /// # Errors
    /// Returns an error with the key that is missing or has the wrong type, and the number of the point.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let mut saved: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        name.clone_into(&mut saved.name);
        let others = std::mem::take(&mut saved.others);
        let listed = match saved.listed.take() {
            // In results of `scale`, the arguments are next to the points.
            Some(listed) => {
                saved.settings.extend(others.into_iter().filter(|(_, value)| !value.is_object()));
                listed
            }
            // A run that failed immediately contains no points.
            None if others.is_empty() => Vec::new(),
            None => vec![Value::Object(others)],
        };
        let point = |(at, value)| SavedPoint::parse(value).map_err(|why| format!("point {}: {why}", at + 1));
        saved.points = listed.into_iter().enumerate().map(point).collect::<Result<_, _>>()?;
        Ok(saved)
    }
}

impl SavedPoint {
    fn parse(value: Value) -> Result<Self, String> {
        let mut point: Self = serde_json::from_value(value).map_err(|error| error.to_string())?;
        let is_scalar = |value: &Value| value.is_string() || value.is_number() || value.is_boolean();
        point.settings.retain(|key, value| !point.each_repetition.contains_key(key) && is_scalar(value));
        Ok(point)
    }

    /// Returns the median and the extremes of a measured value.
    pub(crate) fn spread(&self, key: &str) -> Option<Spread> {
        Spread::of(self.each_repetition.get(key)?)
    }

    /// Returns the settings of the point as one line.
    pub(crate) fn label(&self) -> String {
        let each = |(key, value): (&String, &Value)| {
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            match (key.as_str(), text.parse()) {
                ("size_bytes", Ok(bytes)) => crate::sizes::with_unit(bytes),
                ("outstanding", _) => format!("{text} under way"),
                _ => format!("{} {text}", key.replace('_', " ")),
            }
        };
        // The size comes first, because most sweeps vary it.
        let (size, other): (Vec<_>, Vec<_>) = self.settings.iter().partition(|(key, _)| *key == "size_bytes");
        size.into_iter().chain(other).map(each).collect::<Vec<_>>().join(", ")
    }
}

/// Reads a file as `T`.
///
/// # Errors
/// Returns an error with the file's name if the file cannot be read or has other contents.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> Result<T, String> {
    let name = path.display().to_string();
    let named = |why: &dyn std::fmt::Display| format!("{name}: {why}");
    let file = File::open(path).map_err(|error| named(&error))?;
    let mut text = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| named(&error))?;
    if text.len() as u64 > MOST_BYTES {
        return Err(named(&format_args!("more than {} MiB", MOST_BYTES >> 20)));
    }
    serde_json::from_slice(&text).map_err(|error| match error.classify() {
        Category::Data => not_a_result(&name, &error),
        _ => named(&format_args!("not JSON: {error}")),
    })
}

fn not_a_result(name: &str, why: &dyn std::fmt::Display) -> String {
    format!("{name}: not a result of trunkline-bench: {why}")
}

fn lists<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, Vec<f64>>, D::Error> {
    let all = BTreeMap::<String, Vec<Value>>::deserialize(deserializer)?;
    let list = |(key, list): (String, Vec<Value>)| match list.iter().map(number).collect() {
        Ok(numbers) if !list.is_empty() => Ok((key, numbers)),
        Ok(_) => Err(D::Error::custom(format!("`{key}` is empty"))),
        Err(why) => Err(D::Error::custom(format!("`{key}`: {why}"))),
    };
    all.into_iter().map(list).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_point_is_at_top_level_and_several_are_listed() {
        let point = json!({"size_bytes": 4096, "outstanding": 2, "rtt_p50_ns": 1.0,
            "each_repetition": {"rtt_p50_ns": [1.0, 2.0]}});
        let mut one = json!({"command": "latency", "settings": {}, "machine": {}});
        let mut many = one.clone();
        many["points"] = json!([point, point]);
        one.as_object_mut().unwrap().extend(point.as_object().unwrap().clone());
        let one = Saved::parse("one", one).unwrap();
        assert_eq!(one.points.len(), 1);
        assert_eq!(one.points[0].label(), "4 KiB, 2 under way");
        assert_eq!(one.points[0].each_repetition["rtt_p50_ns"], [1.0, 2.0]);
        assert_eq!(Saved::parse("many", many).unwrap().points.len(), 2);
        let none = json!({"command": "latency", "error": "no", "settings": {}, "machine": {}});
        assert_eq!(Saved::parse("none", none).unwrap().points.len(), 0);
    }

    #[test]
    fn invalid_fields_are_named() {
        let with = |key: &str, value: Value| {
            let mut all = json!({"command": "rate", "settings": {}, "machine": {}, "points": []});
            all[key] = value;
            Saved::parse("file", all).unwrap_err()
        };
        let repetitions = |value: Value| with("points", json!([{"each_repetition": value}]));
        for (error, word) in [
            (Saved::parse("file", json!([])).unwrap_err(), "invalid type: sequence"),
            (Saved::parse("file", json!({})).unwrap_err(), "missing field `command`"),
            (with("command", json!(5)), "expected a string"),
            (with("error", json!(5)), "expected a string"),
            (with("settings", json!([])), "expected a map"),
            (with("points", json!({})), "expected a sequence"),
            (with("points", json!([5])), "point 1: invalid type"),
            (with("points", json!([{}])), "missing field `each_repetition`"),
            (repetitions(json!([])), "expected a map"),
            (with("points", json!([{"each_repetition": {}, "calls": {}}])), "missing field `p50_ns`"),
            (
                with("points", json!([{"each_repetition": {}, "floors": {"a b": 5}}])),
                "invalid type: integer `5`",
            ),
            (repetitions(json!({"a": 5})), "expected a sequence"),
            (repetitions(json!({"a": []})), "`a` is empty"),
            (repetitions(json!({"a": [1, null]})), "`a`: null is not a number"),
            (repetitions(json!({"a": [0]})), "0 is not a number above 0"),
            (repetitions(json!({"a": [1e300]})), "not a number above 0"),
        ] {
            assert!(error.contains(word), "{error}");
        }
    }
}
