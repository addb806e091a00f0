//! The report of a node as text for Prometheus.
//!
//! Metric names for calls follow OpenTelemetry's conventions for RPC, in the spelling of Prometheus. All other names
//! begin with `trunkline_`. Prometheus scrapes every few seconds, so the text is built from the report on demand, and
//! adds no cost to calls.

use crate::{EventCounter, Histogram, MethodReport, NodeReport};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::Duration;

/// Binary logarithms of the bucket bounds in nanoseconds, from 1 µs to 69 s.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=36;

impl NodeReport {
    /// Returns the calls, counters, budgets and limits in the text format of Prometheus.
    ///
    /// Durations of calls are in `rpc_server_call_duration_seconds` and `rpc_client_call_duration_seconds`, with the
    /// labels `rpc_system_name` and `rpc_method`, as in OpenTelemetry.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut text = Text::default();
        text.methods("server", &self.served);
        text.methods("client", &self.called);
        text.events("trunkline_events_total", "Events of the node.", &self.counters);
        let of_device = "Events of the device, such as packets, retransmissions and drops.";
        text.events("trunkline_device_events_total", of_device, &self.device_counters);
        if let Some(left) = self.certificate_expires_in {
            let help = "Time until the certificate of the node expires.";
            text.family("trunkline_certificate_expires_seconds", "gauge", help);
            text.sample("trunkline_certificate_expires_seconds", &[], left.as_secs());
        }
        text.family("trunkline_budget_used", "gauge", "Units of a budget in use by all peers.");
        for budget in &self.budgets {
            text.sample("trunkline_budget_used", &[("budget", budget.name)], budget.used);
        }
        text.family(
            "trunkline_budget_refused_total",
            "counter",
            "Refusals and waits at a limit of a budget.",
        );
        for budget in &self.budgets {
            let refused = [
                ("peer", budget.refused_to_peer),
                ("host", budget.refused_to_host),
                ("all", budget.refused_to_all),
            ];
            for (of, value) in refused {
                text.sample(
                    "trunkline_budget_refused_total",
                    &[("budget", budget.name), ("limit", of)],
                    value,
                );
            }
        }
        // A service may have the same name as a method of another service.
        let mut limits = BTreeMap::<_, (u64, u64)>::new();
        for limit in &self.limits {
            let (running, refused) = limits.entry(limit.name.as_str()).or_default();
            *running += u64::from(limit.running);
            *refused += limit.refused;
        }
        let help = "Calls that run under a limit of a service or method.";
        text.family("trunkline_limit_running", "gauge", help);
        for (name, (running, _)) in &limits {
            text.sample("trunkline_limit_running", &[("of", name)], *running);
        }
        let help = "Calls refused by a limit of a service or method.";
        text.family("trunkline_limit_refused_total", "counter", help);
        for (name, (_, refused)) in &limits {
            text.sample("trunkline_limit_refused_total", &[("of", name)], *refused);
        }
        text.0
    }
}

#[derive(Default)]
struct Text(String);

impl Text {
    /// Begins a family of samples.
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds counters. Counters with the same name are added up.
    fn events(&mut self, family: &str, help: &str, counters: &[EventCounter]) {
        let mut events = BTreeMap::<_, u64>::new();
        for counter in counters {
            *events.entry(counter.name).or_default() += counter.value;
        }
        self.family(family, "counter", help);
        for (name, value) in events {
            self.sample(family, &[("event", name)], value);
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        self.labelled(name, labels);
        let _ = writeln!(self.0, " {value}");
    }

    fn labelled(&mut self, name: &str, labels: &[(&str, &str)]) {
        self.0.push_str(name);
        for (at, (label, value)) in labels.iter().enumerate() {
            let separator = if at == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.0, "{separator}{label}=\"{value}\"");
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
    }

    /// Adds the calls that the node serves or makes, as `side` states.
    fn methods(&mut self, side: &str, rows: &[MethodReport]) {
        let names = rows.iter().map(full_name).collect::<Vec<_>>();
        let rows = || rows.iter().zip(names.iter().map(String::as_str));
        let name = format!("rpc_{side}_call_duration_seconds");
        self.family(&name, "histogram", "Time of calls that were not refused.");
        rows().for_each(|(row, method)| self.histogram(&name, method, &row.latency));
        let name = format!("trunkline_{side}_queue_duration_seconds");
        self.family(&name, "histogram", "Time in a queue of calls that had to wait.");
        rows().for_each(|(row, method)| self.histogram(&name, method, &row.queued));
        let name = format!("trunkline_{side}_calls_total");
        self.family(&name, "counter", "Calls that have ended.");
        rows().for_each(|(row, method)| self.sample(&name, &[("rpc_method", method)], row.calls));
        let name = format!("trunkline_{side}_calls_failed_total");
        self.family(&name, "counter", "Calls that have failed, by code.");
        for (row, method) in rows() {
            for failed in &row.failed {
                let labels = [("rpc_method", method), ("rpc_response_status_code", failed.code)];
                self.sample(&name, &labels, failed.calls);
            }
        }
        let name = format!("trunkline_{side}_calls_refused_total");
        self.family(&name, "counter", "Calls that ended before they began.");
        rows().for_each(|(row, method)| self.sample(&name, &[("rpc_method", method)], row.refused));
        let name = format!("trunkline_{side}_calls_running");
        self.family(&name, "gauge", "Calls that run now.");
        rows().for_each(|(row, method)| self.sample(&name, &[("rpc_method", method)], row.running));
    }

    fn histogram(&mut self, name: &str, method: &str, times: &Histogram) {
        let labels = [("rpc_system_name", "trunkline"), ("rpc_method", method)];
        let bucket = format!("{name}_bucket");
        let [system, of_method] = labels;
        let mut buckets = times.buckets().peekable();
        let mut below = 0;
        for power in BOUNDS.step_by(2) {
            // The bound is the longest time of a bucket, so that the count is exact.
            let bound = Duration::from_nanos((1 << power) - 1);
            while let Some((_, count)) = buckets.next_if(|(top, _)| *top <= bound) {
                below += count;
            }
            self.sample(&bucket, &[system, of_method, ("le", seconds(bound).as_str())], below);
        }
        self.sample(&bucket, &[system, of_method, ("le", "+Inf")], times.count());
        self.labelled(&format!("{name}_sum"), &labels);
        let _ = writeln!(self.0, " {}", seconds(times.sum()));
        self.sample(&format!("{name}_count"), &labels, times.count());
    }
}

/// Returns the full name of a method in OpenTelemetry's form. A slash in the method's name is encoded, so that full
/// names are unique.
fn full_name(row: &MethodReport) -> String {
    let method = row.method.replace('%', "%25").replace('/', "%2F");
    if row.service.is_empty() { method } else { format!("{}/{method}", row.service) }
}

fn seconds(time: Duration) -> String {
    format!("{}.{:09}", time.as_secs(), time.subsec_nanos())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::histogram::HistogramWriter;
    use crate::{FailedCalls, LimitReport};
    use trunkline_testkit::parse_scrape;

    fn report() -> NodeReport {
        let writer = HistogramWriter::default();
        [0, 1023, 1024, 5_000_000, 200_000_000_000].iter().for_each(|ns| writer.record(*ns));
        let mut latency = Histogram::default();
        writer.add_to(&mut latency);
        let failed = vec![FailedCalls { code: "NOT_FOUND", calls: 2 }];
        let (service, method, queued) = ("shop.\"Till\"\\", "pay", Histogram::default());
        let row = MethodReport { service, method, calls: 6, failed, refused: 1, running: 3, latency, queued };
        let mut report = NodeReport::forked("127.0.0.1:1".parse().unwrap());
        report.served.push(row);
        report.certificate_expires_in = Some(Duration::from_secs(86_400));
        report.counters = vec![EventCounter { name: "hedged_calls", value: 3 }];
        report.device_counters = vec![EventCounter { name: "retransmits", value: 7 }; 2];
        let limit = LimitReport { name: "a\nb".to_owned(), running: 1, limit: 2, refused: 3 };
        report.limits.push(limit);
        report
    }

    #[test]
    fn values_match_report_and_labels_are_escaped() {
        let text = report().prometheus();
        let method = r#"rpc_method="shop.\"Till\"\\/pay""#;
        let time =
            format!(r#"rpc_server_call_duration_seconds_bucket{{rpc_system_name="trunkline",{method},le="#);
        for line in [
            format!(r#"{time}"0.000001023"}} 2"#),
            format!(r#"{time}"0.000004095"}} 3"#),
            format!(r#"{time}"68.719476735"}} 4"#),
            format!(r#"{time}"+Inf"}} 5"#),
            format!(
                r#"rpc_server_call_duration_seconds_sum{{rpc_system_name="trunkline",{method}}} 200.005002047"#
            ),
            format!(r#"trunkline_server_calls_total{{{method}}} 6"#),
            format!(
                r#"trunkline_server_calls_failed_total{{{method},rpc_response_status_code="NOT_FOUND"}} 2"#
            ),
            format!(r#"trunkline_server_calls_running{{{method}}} 3"#),
            r#"trunkline_events_total{event="hedged_calls"} 3"#.to_owned(),
            r#"trunkline_device_events_total{event="retransmits"} 14"#.to_owned(),
            r#"trunkline_limit_refused_total{of="a\nb"} 3"#.to_owned(),
            "trunkline_certificate_expires_seconds 86400".to_owned(),
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
        assert_eq!(text.matches(r#"event=""#).count(), 2, "an event is in one family\n{text}");
    }

    #[test]
    fn hostile_names_stay_in_their_labels() {
        let mut report = report();
        let row = report.served.remove(0);
        let names = [
            ("a", "b/c"),
            ("a/b", "c"),
            ("a", "b%2Fc"),
            ("\"} 1\nfake_total{x=\"", "\\"),
            ("# TYPE x counter", "\\n\r ,le=\"1\""),
            ("", "_OTHER"),
        ];
        for (service, method) in names {
            report.served.push(MethodReport { service, method, ..row.clone() });
        }
        report.called = report.served.clone();
        report.limits = vec![report.limits[0].clone(); 2];
        let samples = parse_scrape(&report.prometheus());
        for side in ["server", "client"] {
            let name = format!("trunkline_{side}_calls_total");
            let calls = samples.iter().filter(|sample| sample.name == name);
            let methods = calls.map(|sample| sample.labels["rpc_method"].as_str()).collect::<Vec<_>>();
            let expected = [
                "a/b%2Fc",
                "a/b/c",
                "a/b%252Fc",
                "\"} 1\nfake_total{x=\"/\\",
                "# TYPE x counter/\\n\r ,le=\"1\"",
                "_OTHER",
            ];
            assert_eq!(methods, expected);
        }
        let limits = samples.iter().filter(|sample| sample.labels.get("of").is_some_and(|of| of == "a\nb"));
        assert_eq!(limits.map(|sample| sample.value).collect::<Vec<_>>(), [2.0, 6.0]);
    }
}
