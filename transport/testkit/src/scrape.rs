//! A parser for the Prometheus text format. A Prometheus server drops a whole scrape because of one malformed line, and the
//! parser checks each line as the server does. It also checks that each metric and each series occurs once, and that the
//! buckets of histograms are consistent.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a sample, by name. The values are unescaped.
pub type Labels = BTreeMap<String, String>;

/// A sample, which is a line with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// Name of the metric, with the suffix if the series belongs to a histogram.
    pub name: String,
    /// Labels by name.
    pub labels: Labels,
    /// Value of the sample.
    pub value: f64,
}

/// Parses a text in the Prometheus format.
///
/// # Panics
/// Panics if a line is malformed, a metric or series occurs twice, or the buckets of a histogram are inconsistent.
#[must_use]
pub fn parse_scrape(text: &str) -> Vec<Sample> {
    assert!(text.ends_with('\n'), "the last line has no end");
    let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
    let (mut family, mut kind) = ("", "");
    let mut samples = Vec::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').unwrap_or_else(|| panic!("no help in {line}")).0;
            kind = "";
            assert!(families.insert(family), "{family} twice");
        } else if let Some(of) = line.strip_prefix("# TYPE ") {
            assert!(kind.is_empty(), "a second type of {family}: {line}");
            kind = of.strip_prefix(family).unwrap_or_else(|| panic!("{line} after {family}")).trim_start();
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
        } else {
            let (id, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("no value in {line}"));
            let (name, labels) = id.split_at(id.find('{').unwrap_or(id.len()));
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{line} in {family}"));
            assert!(is_name(name) && suffixes.contains(&suffix), "{line} in {family}");
            assert!(kind != "counter" || name.ends_with("_total"), "{line} counts without _total");
            assert!(series.insert(id), "{id} twice");
            let value = value.parse().unwrap_or_else(|_| panic!("no number in {line}"));
            samples.push(Sample { name: name.to_owned(), labels: parse_labels(labels), value });
        }
    }
    check_histograms(&samples);
    samples
}

fn is_name(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && name.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
}

fn parse_labels(text: &str) -> Labels {
    let mut labels = Labels::new();
    let Some(mut rest) = text.strip_prefix('{') else { return labels };
    loop {
        let (name, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label in {rest}"));
        assert!(is_name(name), "the name of a label in {text}");
        let (mut chars, mut plain) = (value.chars(), String::new());
        loop {
            match chars.next() {
                Some('"') => break,
                Some('\\') => plain.push(match chars.next() {
                    Some('n') => '\n',
                    Some(escaped @ ('\\' | '"')) => escaped,
                    other => panic!("{other:?} is escaped in {text}"),
                }),
                Some(char) => plain.push(char),
                None => panic!("a value without an end in {text}"),
            }
        }
        assert!(labels.insert(name.to_owned(), plain).is_none(), "{name} twice in {text}");
        rest = chars.as_str();
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => {
                assert_eq!(rest, "}", "after the labels of {text}");
                return labels;
            }
        }
    }
}

/// Checks that the buckets of each histogram are cumulative, and that the last bucket is `+Inf` and equals the count.
fn check_histograms(samples: &[Sample]) {
    let mut buckets = BTreeMap::<_, (f64, f64)>::new();
    for Sample { name, labels, value } in samples {
        let Some(family) = name.strip_suffix("_bucket") else { continue };
        let mut of = labels.clone();
        let le = of.remove("le").expect("a bound of each bucket");
        let le = if le == "+Inf" { f64::INFINITY } else { le.parse().expect("a number as bound") };
        let (bound, below) = buckets.entry((family, of)).or_insert((f64::NEG_INFINITY, 0.0));
        assert!(*bound < le && *below <= *value, "{name} {labels:?} is not cumulative");
        (*bound, *below) = (le, *value);
    }
    for ((family, labels), (bound, count)) in buckets {
        assert!(bound.is_infinite(), "{family} {labels:?} has no bucket +Inf");
        let part = |suffix: &str| {
            let name = format!("{family}{suffix}");
            let mut all = samples.iter().filter(|sample| sample.name == name && sample.labels == labels);
            all.next().unwrap_or_else(|| panic!("no {name} of {labels:?}")).value
        };
        assert!(part("_count").total_cmp(&count).is_eq(), "the count of {family} {labels:?}");
        assert!(part("_sum") >= 0.0, "the sum of {family} {labels:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_malformed_scrape_line_is_refused() {
        let right = "# HELP n_total N.\n# TYPE n_total counter\nn_total{x=\"\\\\1\"} 1\n\
            # HELP t T.\n# TYPE t histogram\nt_bucket{le=\"1\"} 2\nt_bucket{le=\"+Inf\"} 3\nt_sum 1.5\nt_count 3\n";
        assert_eq!(parse_scrape(right)[0].labels["x"], "\\1");
        for (from, to) in [
            ("\\\\", "\\"),
            ("\\\\", "\""),
            ("\\\\", "\n"),
            ("1\"}", "1}"),
            ("} 1\n", "} one\n"),
            ("} 1\n", "} 1\nn_total{x=\"\\\\1\"} 1\n"),
            ("n_total", "n"),
            ("# HELP t T.", "# HELP n_total T."),
            ("counter", "number"),
            ("} 2", "} 4"),
            ("\"+Inf\"", "\"2\""),
            ("\"+Inf\"", "\"0.5\""),
            ("t_count 3", "t_count 4"),
            ("t_sum 1.5\n", ""),
        ] {
            let wrong = right.replace(from, to);
            assert!(std::panic::catch_unwind(|| parse_scrape(&wrong)).is_err(), "{wrong}");
        }
    }
}
