//! One point of a run, such as one size, with its repetitions and their summary.

use crate::floors::Floor;
use crate::meter::recorder::Sample;
use crate::meter::spread::Spread;
use crate::results::distribution::Distribution;
use crate::scenario::drift::Kept;
use crate::systems::figures::Figures;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    Latency,
    Rate,
    Bandwidth,
}

impl Measure {
    /// Returns the name used on the command line and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Latency => "latency",
            Self::Rate => "rate",
            Self::Bandwidth => "bandwidth",
        }
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Repetitions {
    p50_ns: Vec<f64>,
    p99_ns: Vec<f64>,
    per_s: Vec<f64>,
    /// Times of all repetitions together.
    times: Option<Histogram<u64>>,
    dropped: u32,
    drifted: u32,
}

/// Floors to which ratios refer, by measured quantity.
#[derive(Debug, Clone, Copy)]
pub(crate) struct References {
    pub(crate) latency: Floor,
    pub(crate) rate: Floor,
    pub(crate) bandwidth: Floor,
}

#[derive(Debug)]
pub(crate) struct Point {
    pub(crate) measure: Measure,
    pub(crate) size: usize,
    pub(crate) outstanding: usize,
    pub(crate) references: References,
    pub(crate) calls: Repetitions,
    pub(crate) floors: BTreeMap<Floor, Repetitions>,
    pub(crate) systems: BTreeMap<String, Vec<Figures>>,
    /// Reasons why systems are not measured at this point.
    pub(crate) skipped: BTreeMap<String, String>,
}

/// Values measured at a point, by JSON key.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Values {
    /// Medians over the repetitions.
    #[serde(flatten)]
    medians: BTreeMap<&'static str, f64>,
    /// Values from which the medians are computed, in the order of measurement. `compare` determines the noise from them.
    each_repetition: BTreeMap<&'static str, Vec<f64>>,
}

impl Values {
    /// Returns the values, or `None` if any of them was never measured.
    pub(crate) fn of(each_repetition: BTreeMap<&'static str, Vec<f64>>) -> Option<Self> {
        let medians = each_repetition.iter().map(|(&key, values)| Some((key, Spread::of(values)?.median)));
        Some(Self { medians: medians.collect::<Option<_>>()?, each_repetition })
    }

    /// Returns the median of a value, or 0 if the value is not measured at this point.
    pub(crate) fn get(&self, key: &str) -> f64 {
        self.medians.get(key).copied().unwrap_or_default()
    }
}

/// Results at one point, as JSON.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Results {
    pub(crate) size_bytes: usize,
    pub(crate) outstanding: usize,
    #[serde(flatten)]
    pub(crate) values: Values,
    pub(crate) calls: Summary,
    pub(crate) floors: BTreeMap<&'static str, Summary>,
    /// Results of other systems, or reasons why they were not measured.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) peers: BTreeMap<String, OfPeer>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) peers_skipped: BTreeMap<String, String>,
}

/// Summary of another system's repetitions. It contains only values that the system reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct OfPeer {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p99_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mean_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) per_s: Option<Spread>,
}

impl OfPeer {
    pub(crate) fn of(all: &[Figures]) -> Self {
        let spread = |figure: fn(&Figures) -> Option<f64>| {
            Spread::of(&all.iter().filter_map(figure).collect::<Vec<_>>())
        };
        Self {
            p50_ns: spread(|figures| figures.p50_ns),
            p99_ns: spread(|figures| figures.p99_ns),
            mean_ns: spread(|figures| figures.mean_ns),
            per_s: spread(|figures| figures.per_s),
        }
    }

    /// Returns the median time, or the mean if the system reports no median.
    pub(crate) fn middle_ns(&self) -> Option<Spread> {
        self.p50_ns.or(self.mean_ns)
    }

    /// Returns `mean` if the time is a mean.
    pub(crate) fn note(&self) -> &'static str {
        if self.p50_ns.is_none() && self.mean_ns.is_some() { "mean" } else { "" }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) p50_ns: Spread,
    pub(crate) p99_ns: Spread,
    pub(crate) per_s: Spread,
    #[serde(default)]
    pub(crate) distribution_ns: Distribution,
    #[serde(default)]
    repetitions: usize,
    /// Number of measurements that were dropped because the time of the cache line changed during the measurement.
    #[serde(default)]
    pub(crate) dropped: u32,
    /// Number of repetitions that were kept although the time of the cache line changed in each attempt.
    #[serde(default)]
    pub(crate) drifted: u32,
}

impl Repetitions {
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call stay far below 2^52")]
    pub(crate) fn add(&mut self, kept: &Kept<Sample>) {
        let at = |quantile| kept.value.times.value_at_quantile(quantile) as f64;
        self.p50_ns.push(at(0.5));
        self.p99_ns.push(at(0.99));
        self.per_s.push(kept.value.per_s);
        match &mut self.times {
            None => self.times = Some(kept.value.times.clone()),
            // All histograms have the same range, so the addition cannot fail.
            Some(times) => times.add(&kept.value.times).unwrap_or_default(),
        }
        self.dropped += kept.dropped;
        self.drifted += u32::from(kept.drifted);
    }

    /// Returns the summary, or `None` if there is no measurement.
    pub(crate) fn summary(&self) -> Option<Summary> {
        Some(Summary {
            p50_ns: Spread::of(&self.p50_ns)?,
            p99_ns: Spread::of(&self.p99_ns)?,
            per_s: Spread::of(&self.per_s)?,
            distribution_ns: Distribution::of(self.times.as_ref()?),
            repetitions: self.per_s.len(),
            dropped: self.dropped,
            drifted: self.drifted,
        })
    }

    pub(crate) const fn times(&self) -> Option<&Histogram<u64>> {
        self.times.as_ref()
    }

    /// Returns times and rates by JSON key, in the order of measurement.
    pub(crate) fn each(&self, rate: &'static str) -> BTreeMap<&'static str, Vec<f64>> {
        let (p50, p99) = (("rtt_p50_ns", self.p50_ns.clone()), ("rtt_p99_ns", self.p99_ns.clone()));
        BTreeMap::from([p50, p99, (rate, self.per_s.clone())])
    }
}

impl Point {
    /// Creates a point without measurements.
    pub(crate) fn new(measure: Measure, size: usize, outstanding: usize, references: References) -> Self {
        let (calls, floors) = (Repetitions::default(), BTreeMap::new());
        let (systems, skipped) = (BTreeMap::new(), BTreeMap::new());
        Self { measure, size, outstanding, references, calls, floors, systems, skipped }
    }

    /// Returns the results, or `None` if any kind was never measured.
    pub(crate) fn results(&self) -> Option<Results> {
        let calls = self.calls.summary()?;
        let mut floors = BTreeMap::new();
        for (floor, repetitions) in &self.floors {
            floors.insert(floor.name(), repetitions.summary()?);
        }
        Some(Results {
            size_bytes: self.size,
            outstanding: self.outstanding,
            values: Values::of(self.each_repetition()?)?,
            calls,
            floors,
            peers: self.systems.iter().map(|(name, all)| (name.clone(), OfPeer::of(all))).collect(),
            peers_skipped: self.skipped.clone(),
        })
    }

    /// Returns the measured values by JSON key, one per repetition.
    fn each_repetition(&self) -> Option<BTreeMap<&'static str, Vec<f64>>> {
        let floor = |floor: Floor| self.floors.get(&floor);
        let mut values = BTreeMap::from([
            ("rtt_p50_ns", self.calls.p50_ns.clone()),
            ("rtt_p99_ns", self.calls.p99_ns.clone()),
            ("floor_p50_ns", floor(self.references.latency)?.p50_ns.clone()),
        ]);
        match self.measure {
            Measure::Latency => {}
            Measure::Rate => {
                values.insert("calls_per_s", self.calls.per_s.clone());
                values.insert("floor_calls_per_s", floor(self.references.rate)?.per_s.clone());
            }
            Measure::Bandwidth => {
                #[expect(clippy::cast_precision_loss, reason = "at most 2^26")]
                let size = self.size as f64;
                // The rate of UDP with GSO is in bytes per second, because the kernel splits messages.
                let unit = if self.references.bandwidth == Floor::UdpGso { 1.0 } else { size };
                let bytes = |per_s: &[f64], each: f64| per_s.iter().map(|value| value * each).collect();
                values.insert("bytes_per_s", bytes(&self.calls.per_s, size));
                values.insert("floor_bytes_per_s", bytes(&floor(self.references.bandwidth)?.per_s, unit));
            }
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meter::recorder::Recorder;

    const REFERENCES: References =
        References { latency: Floor::Udp, rate: Floor::UdpBatched, bandwidth: Floor::UdpGso };

    /// Returns a sample of sequential calls with a duration of `us` microseconds each.
    fn kept(us: u64) -> Kept<Sample> {
        let mut recorder = Recorder::new(20_000_000);
        let mut now = 0;
        while recorder.ended(now, now + us * 1000) {
            now += us * 1000;
        }
        Kept { value: recorder.finish().unwrap(), dropped: 1, drifted: false }
    }

    fn point(measure: Measure) -> Point {
        let mut point = Point::new(measure, 64, 1, REFERENCES);
        for us in [10, 30, 20] {
            point.calls.add(&kept(us));
            for floor in [Floor::Udp, Floor::UdpBatched, Floor::UdpGso] {
                point.floors.entry(floor).or_default().add(&kept(5));
            }
        }
        point
    }

    #[test]
    fn subcommand_reports_only_its_measured_values() {
        let keys = |measure| {
            let json = serde_json::to_value(point(measure).results().unwrap()).unwrap();
            [
                "rtt_p50_ns",
                "floor_p50_ns",
                "calls_per_s",
                "floor_calls_per_s",
                "bytes_per_s",
                "floor_bytes_per_s",
            ]
            .map(|key| json.get(key).is_some_and(serde_json::Value::is_number))
        };
        assert_eq!(keys(Measure::Latency), [true, true, false, false, false, false]);
        assert_eq!(keys(Measure::Rate), [true, true, true, true, false, false]);
        assert_eq!(keys(Measure::Bandwidth), [true, true, false, false, true, true]);
    }

    #[test]
    fn results_are_medians_of_repetitions() {
        let results = point(Measure::Bandwidth).results().unwrap();
        let near = |key: &str, value: f64| {
            let measured = results.values.get(key);
            assert!((measured - value).abs() < value / 100.0, "{key}: {measured}");
        };
        near("rtt_p50_ns", 20_000.0);
        near("floor_p50_ns", 5_000.0);
        near("bytes_per_s", 64.0 * 50_000.0);
        near("floor_bytes_per_s", 200_000.0);
        assert_eq!((results.calls.repetitions, results.calls.dropped), (3, 3));
        let times: Vec<_> =
            results.values.each_repetition["rtt_p50_ns"].iter().map(|ns| (ns / 1e3).round()).collect();
        assert_eq!(times, [10.0, 30.0, 20.0], "in the order of measurement");
    }

    #[test]
    fn other_systems_have_figures_or_reason_for_absence() {
        let mut point = point(Measure::Rate);
        for us in [3.0, 1.0, 2.0] {
            point
                .systems
                .entry("fast".to_owned())
                .or_default()
                .push(Figures { mean_ns: Some(us * 1e3), ..Figures::default() });
        }
        point.skipped.insert("slow".to_owned(), "it is not installed".to_owned());
        let json = serde_json::to_value(point.results().unwrap()).unwrap();
        assert_eq!(
            (&json["peers"]["fast"]["mean_ns"]["median"], &json["peers"]["fast"]["per_s"]),
            (&2e3.into(), &serde_json::Value::Null)
        );
        assert_eq!(json["peers_skipped"]["slow"], "it is not installed");
    }

    #[test]
    fn point_without_measurements_has_no_results() {
        assert_eq!(Point::new(Measure::Rate, 64, 1, REFERENCES).results(), None);
    }
}
