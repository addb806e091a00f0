//! Reader for files that `--json` wrote.
//!
//! Defines the valid contents of such a file. Contents are not trusted: reading ends with a value, or with an error that
//! names the file and the place in it. Called by `compare` and `report`; it never writes.

use crate::spread::Spread;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Maximum length of a file.
const MOST_BYTES: u64 = 256 << 20;
/// Top-level keys that describe the run and not a point.
const OF_THE_RUN: [&str; 8] =
    ["command", "error", "version", "date", "settings", "machine", "others_cores", "points"];

/// The results of one run.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    /// The file's name as given on the command line.
    pub(crate) name: String,
    /// The subcommand.
    pub(crate) command: String,
    /// The version of the program, and the time of the run; older files have neither.
    pub(crate) version: Option<String>,
    pub(crate) date: Option<String>,
    pub(crate) settings: Map<String, Value>,
    pub(crate) machine: Map<String, Value>,
    /// Cores that other programs used meanwhile; 0 if unknown.
    pub(crate) others_cores: f64,
    /// Reason for which the run ended early, if it did.
    pub(crate) error: Option<String>,
    pub(crate) points: Vec<SavedPoint>,
}

/// One point of a run.
#[derive(Debug, Clone)]
pub(crate) struct SavedPoint {
    /// Settings as text that distinguish the point from the others, such as its size.
    pub(crate) settings: BTreeMap<String, String>,
    /// Measured values by key, one per repetition, all above 0.
    pub(crate) each_repetition: BTreeMap<String, Vec<f64>>,
    /// Calls and floors with times, by name.
    pub(crate) calls: Option<Timed>,
    pub(crate) floors: BTreeMap<String, Timed>,
    /// Other systems, by name.
    pub(crate) peers: BTreeMap<String, SavedPeer>,
}

/// Report of another system.
#[derive(Debug, Clone)]
pub(crate) struct SavedPeer {
    pub(crate) p50_ns: Option<Spread>,
    pub(crate) p99_ns: Option<Spread>,
    pub(crate) mean_ns: Option<Spread>,
    pub(crate) per_s: Option<Spread>,
}

/// The times and the rate of calls, or of a floor.
#[derive(Debug, Clone)]
pub(crate) struct Timed {
    pub(crate) p50_ns: Spread,
    pub(crate) p99_ns: Spread,
    pub(crate) per_s: Spread,
    /// Quantiles and times, both in ascending order.
    pub(crate) distribution_ns: Vec<(f64, f64)>,
    pub(crate) dropped: f64,
    pub(crate) drifted: f64,
}

impl Saved {
    /// Reads a file.
    ///
    /// # Errors
    /// Fails if it cannot be read or is not a result of this program, with the reason.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let named = |why: &dyn std::fmt::Display| format!("{name}: {why}");
        let file = File::open(path).map_err(|error| named(&error))?;
        let mut text = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(|error| named(&error))?;
        if text.len() as u64 > MOST_BYTES {
            return Err(named(&format_args!("more than {} MiB", MOST_BYTES >> 20)));
        }
        let value =
            serde_json::from_slice(&text).map_err(|error| named(&format_args!("not JSON: {error}")))?;
        Self::parse(&name, value)
            .map_err(|why| named(&format_args!("not a result of trunkline-bench: {why}")))
    }

    /// Parses the contents of the file `name`.
    ///
    /// # Errors
    /// Fails with the place of a value that is missing or has the wrong type.
    pub(crate) fn parse(name: &str, value: Value) -> Result<Self, String> {
        let Value::Object(mut top) = value else { return Err("it is not an object".to_owned()) };
        let command = text(&top, "command")?.ok_or("`command` is missing")?;
        let error = text(&top, "error")?;
        let (version, date) = (text(&top, "version")?, text(&top, "date")?);
        let machine = object(&mut top, "machine")?;
        let mut settings = by_name(&mut top, "settings", Ok)?;
        let others_cores = top.get("others_cores").and_then(number).unwrap_or_default();
        let listed = match top.remove("points") {
            None => {
                top.retain(|key, _| !OF_THE_RUN.contains(&key.as_str()));
                // A run that failed at once has no points.
                if top.is_empty() { Vec::new() } else { vec![Value::Object(top)] }
            }
            Some(Value::Array(points)) => {
                // The arguments of `scale` are next to its points.
                top.retain(|key, value| !OF_THE_RUN.contains(&key.as_str()) && !value.is_object());
                settings.extend(top);
                points
            }
            Some(_) => return Err("`points` is not a list".to_owned()),
        };
        let point = |(at, value)| SavedPoint::parse(value).map_err(|why| format!("point {}: {why}", at + 1));
        let points = listed.into_iter().enumerate().map(point).collect::<Result<_, _>>()?;
        let settings = settings.into_iter().collect();
        Ok(Self {
            name: name.to_owned(),
            command,
            version,
            date,
            settings,
            machine,
            others_cores,
            error,
            points,
        })
    }
}

impl SavedPoint {
    fn parse(value: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = value else { return Err("it is not an object".to_owned()) };
        if !fields.contains_key("each_repetition") {
            return Err(
                "`each_repetition` is missing; only latency, rate, bandwidth and scale write it, and older versions do not"
                    .to_owned(),
            );
        }
        let calls =
            fields.remove("calls").map(Timed::parse).transpose().map_err(|why| format!("`calls`: {why}"))?;
        let floors = by_name(&mut fields, "floors", Timed::parse)?;
        let peers = by_name(&mut fields, "peers", SavedPeer::parse)?;
        let lists = object(&mut fields, "each_repetition")?;
        let each_repetition = lists
            .into_iter()
            .map(|(key, list)| {
                numbers(&list).map(|list| (key.clone(), list)).map_err(|why| format!("`{key}`: {why}"))
            })
            .collect::<Result<BTreeMap<_, _>, _>>()?;
        let mut settings = BTreeMap::new();
        for (key, value) in fields {
            let written = match value {
                _ if each_repetition.contains_key(&key) => continue,
                Value::String(text) => text,
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                Value::Null | Value::Array(_) | Value::Object(_) => continue,
            };
            settings.insert(key, written);
        }
        Ok(Self { settings, each_repetition, calls, floors, peers })
    }

    /// Returns the median and the extremes of a measured value.
    pub(crate) fn spread(&self, key: &str) -> Option<Spread> {
        Spread::of(self.each_repetition.get(key)?)
    }

    /// Returns the point's settings as one line.
    pub(crate) fn label(&self) -> String {
        let each = |(key, value): (&String, &String)| match (key.as_str(), value.parse()) {
            ("size_bytes", Ok(bytes)) => crate::sizes::with_unit(bytes),
            ("outstanding", _) => format!("{value} under way"),
            _ => format!("{} {value}", key.replace('_', " ")),
        };
        // Sizes come first, because most sweeps vary the size.
        let (size, other): (Vec<_>, Vec<_>) = self.settings.iter().partition(|(key, _)| *key == "size_bytes");
        size.into_iter().chain(other).map(each).collect::<Vec<_>>().join(", ")
    }
}

impl Timed {
    fn parse(value: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = value else { return Err("it is not an object".to_owned()) };
        let p50_ns = spread(&mut fields, "p50_ns")?;
        let (p99_ns, per_s) = (spread(&mut fields, "p99_ns")?, spread(&mut fields, "per_s")?);
        let count = |key: &str| fields.get(key).and_then(number).unwrap_or_default();
        let (dropped, drifted) = (count("dropped"), count("drifted"));
        let mut distribution_ns: Vec<(f64, f64)> = Vec::new();
        // Files of older versions do not have it.
        if fields.contains_key("distribution_ns") {
            for (quantile, time) in object(&mut fields, "distribution_ns")? {
                let both = (quantile.parse().ok(), number(&time));
                let (Some(at @ 0.0..=1.0), Some(time)) = both else {
                    return Err(format!(
                        "`distribution_ns`: {quantile} of {time} is not a quantile and a time"
                    ));
                };
                distribution_ns.push((at, time));
            }
        }
        distribution_ns.sort_by(|one, other| one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1)));
        Ok(Self { p50_ns, p99_ns, per_s, distribution_ns, dropped, drifted })
    }
}

impl SavedPeer {
    fn parse(value: Value) -> Result<Self, String> {
        let Value::Object(mut fields) = value else { return Err("it is not an object".to_owned()) };
        let mut given = |key: &str| fields.contains_key(key).then(|| spread(&mut fields, key)).transpose();
        let (p50_ns, p99_ns) = (given("p50_ns")?, given("p99_ns")?);
        Ok(Self { p50_ns, p99_ns, mean_ns: given("mean_ns")?, per_s: given("per_s")? })
    }
}

impl SavedPeer {
    /// Returns the median time, or the mean of a system that reports no median.
    pub(crate) fn middle_ns(&self) -> Option<Spread> {
        self.p50_ns.or(self.mean_ns)
    }

    /// Returns `mean` if that is the time.
    pub(crate) fn note(&self) -> &'static str {
        if self.p50_ns.is_none() && self.mean_ns.is_some() { "mean" } else { "" }
    }
}

/// Parses an object whose values have the same type. A missing object is empty.
fn by_name<T>(
    fields: &mut Map<String, Value>,
    key: &str,
    parse: fn(Value) -> Result<T, String>,
) -> Result<BTreeMap<String, T>, String> {
    if !fields.contains_key(key) {
        return Ok(BTreeMap::new());
    }
    let each = |(name, value)| match parse(value) {
        Ok(parsed) => Ok((name, parsed)),
        Err(why) => Err(format!("`{key}`, `{name}`: {why}")),
    };
    object(fields, key)?.into_iter().map(each).collect()
}

fn spread(fields: &mut Map<String, Value>, key: &str) -> Result<Spread, String> {
    let all = object(fields, key)?;
    let part = |part| all.get(part).and_then(number).ok_or(format!("`{key}` has no {part} above 0"));
    Ok(Spread { median: part("median")?, min: part("min")?, max: part("max")? })
}

fn text(fields: &Map<String, Value>, key: &str) -> Result<Option<String>, String> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(format!("`{key}` is not text")),
    }
}

fn object(fields: &mut Map<String, Value>, key: &str) -> Result<Map<String, Value>, String> {
    match fields.remove(key) {
        Some(Value::Object(object)) => Ok(object),
        Some(_) => Err(format!("`{key}` is not an object")),
        None => Err(format!("`{key}` is missing")),
    }
}

fn numbers(value: &Value) -> Result<Vec<f64>, String> {
    let list = value.as_array().ok_or("it is not a list")?;
    if list.is_empty() {
        return Err("it is empty".to_owned());
    }
    list.iter().map(|value| number(value).ok_or_else(|| format!("{value} is not a number above 0"))).collect()
}

/// Returns a number between 1e-100 and 1e100, so that the ratio of two is a normal number.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().filter(|number| (1e-100..=1e100).contains(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_point_is_at_the_top_level_and_several_are_listed() {
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
    fn what_is_wrong_is_named() {
        let with = |key: &str, value: Value| {
            let mut all = json!({"command": "rate", "settings": {}, "machine": {}, "points": []});
            all[key] = value;
            Saved::parse("file", all).unwrap_err()
        };
        let repetitions = |value: Value| with("points", json!([{"each_repetition": value}]));
        for (error, word) in [
            (Saved::parse("file", json!([])).unwrap_err(), "not an object"),
            (Saved::parse("file", json!({})).unwrap_err(), "`command` is missing"),
            (with("command", json!(5)), "`command` is not text"),
            (with("error", json!(5)), "`error` is not text"),
            (with("settings", json!([])), "`settings` is not an object"),
            (with("points", json!({})), "`points` is not a list"),
            (with("points", json!([5])), "point 1: it is not an object"),
            (with("points", json!([{}])), "older versions"),
            (repetitions(json!([])), "not an object"),
            (with("points", json!([{"each_repetition": {}, "calls": {}}])), "`calls`: `p50_ns` is missing"),
            (
                with("points", json!([{"each_repetition": {}, "floors": {"a b": 5}}])),
                "`floors`, `a b`: it is not",
            ),
            (repetitions(json!({"a": 5})), "`a`: it is not a list"),
            (repetitions(json!({"a": []})), "`a`: it is empty"),
            (repetitions(json!({"a": [1, null]})), "null is not a number"),
            (repetitions(json!({"a": [0]})), "0 is not a number above 0"),
            (repetitions(json!({"a": [1e300]})), "not a number above 0"),
        ] {
            assert!(error.contains(word), "{error}");
        }
    }
}
