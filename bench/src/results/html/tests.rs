use super::chart::{Chart, Line};
use super::{figures, page};
use crate::results::saved::Saved;
use roxmltree::{Document, Node};
use serde_json::{Value, json};

/// Returns times with a long tail, in microseconds.
fn timed(us: f64) -> Value {
    let spread = |value: f64| json!({"median": value, "min": value * 0.9, "max": value * 1.2});
    json!({"p50_ns": spread(us * 1e3), "p99_ns": spread(us * 2e3), "per_s": spread(1e6 / us), "dropped": 1, "drifted": 0,
        "distribution_ns": {"0": us * 900.0, "0.5": us * 1e3, "0.99": us * 2e3, "0.999": us * 9e3, "1": us * 2e4}})
}

/// Returns a run with one point per combination of size and number of calls in flight.
fn run(command: &str, sizes: &[u32], outstanding: &[u32], settings: &Value) -> Saved {
    let mut points = Vec::new();
    for size in sizes {
        for under_way in outstanding {
            let us = f64::from(10 + size / 100 + under_way);
            points.push(json!({"size_bytes": size, "outstanding": under_way, "calls": timed(us),
                "floors": {"cache line": timed(0.1), "raw UDP, polling": timed(us / 2.0), "<a> & \"b\"": timed(us / 3.0)},
                "peers": {"tonic, TCP": {"p50_ns": timed(us)["p50_ns"], "per_s": timed(us)["per_s"]},
                    "fi_pingpong": {"mean_ns": timed(40.0)["p50_ns"]}},
                "each_repetition": {"rtt_p50_ns": vec![us * 1e3; 3], "rtt_p99_ns": vec![us * 2e3; 3],
                    "floor_p50_ns": vec![us * 500.0; 3], "calls_per_s": [1e6 / us, 2e6 / us],
                    "floor_calls_per_s": vec![2e6 / us; 3]}}));
        }
    }
    let machine = json!({"processor": "Some CPU", "cores": 2, "is_virtual": true});
    let value = json!({"command": command, "date": "2026-01-31 18:05 UTC", "version": "1.2.3", "settings": settings,
        "machine": machine, "points": points});
    Saved::parse("run <1>.json", value).unwrap()
}

fn titles(charts: &[Chart]) -> Vec<&str> {
    charts.iter().map(|chart| chart.title.as_str()).collect()
}

/// Asserts that a chart has a title and labelled axes, that each series has a line and a legend entry, and that nothing
/// is drawn outside the drawing.
fn assert_complete(chart: &Chart) {
    let text = format!("<figure>{}</figure>", chart.html());
    let document = Document::parse(&text).unwrap_or_else(|error| panic!("{}: {error}", chart.title));
    let of = |node: Node<'_, '_>, tag: &str, class: &str| {
        let is_it = |node: &Node<'_, '_>| {
            node.has_tag_name(tag) && node.attribute("class").unwrap_or_default() == class
        };
        node.descendants()
            .filter(is_it)
            .map(|node| node.text().unwrap_or_default().to_owned())
            .collect::<Vec<_>>()
    };
    let root = document.root_element();
    assert_eq!(of(root, "figcaption", ""), [chart.title.as_str()]);
    let (x, y) = (of(root, "text", "x"), of(root, "text", "y"));
    assert!(x.contains(&chart.x) && x.iter().any(|text| text == chart.y), "{}: {x:?}", chart.title);
    assert!(x.len() >= 4 && y.len() >= 2, "{}: {x:?} {y:?}", chart.title);
    // Each name occurs once in the drawing and once in the legend.
    assert_eq!(of(root, "path", "line").len(), 2 * chart.series.len());
    for series in &chart.series {
        assert!(root.descendants().any(|node| node.text() == Some(&series.name)), "{}", series.name);
    }
    for text in root.descendants().filter(|node| node.has_tag_name("text")) {
        let at = |name| text.attribute(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
        assert!((0.0..620.0).contains(&at("x")) && (0.0..370.0).contains(&at("y")), "{text:?}");
    }
}

#[test]
fn every_chart_is_complete() {
    let none = json!({});
    let several = ["Distribution of all points"].map(str::to_owned);
    for (run, sweeps) in [
        (
            run("latency", &[0, 64, 4096], &[1], &none),
            vec!["Time by size, 1 under way", "Calls per second by size, 1 under way"],
        ),
        (
            run("rate", &[64], &[1, 8, 32], &none),
            vec!["Rate against time, 64 B", "Calls per second by calls under way, 64 B"],
        ),
        (run("bandwidth", &[64], &[1], &none), vec![]),
    ] {
        let charts = figures::of_file(&run);
        charts.iter().for_each(assert_complete);
        let of_all = if sweeps.is_empty() { &[][..] } else { &several[..] };
        let of_points = run.points.iter().map(|point| format!("Distribution, {}", point.label()));
        let expected: Vec<_> =
            sweeps.into_iter().map(str::to_owned).chain(of_all.iter().cloned()).chain(of_points).collect();
        assert_eq!(titles(&charts), expected);
        let floors = charts.last().unwrap().series.iter().filter(|series| series.line == Line::Floor);
        assert_eq!(floors.count(), 3, "floors next to the calls");
    }
}

#[test]
fn runs_of_scale_have_charts() {
    let point = |count: f64, dimension: &str, rate: &str| {
        json!({"dimension": dimension, "count": count, "each_repetition": {
            "rtt_p50_ns": vec![1e4 * count; 3], "rtt_p99_ns": vec![3e4 * count; 3], rate: vec![1e5 / count; 3]}})
    };
    let sessions = "sessions, at once";
    let points = [
        point(1.0, "peers", "calls_per_s"),
        point(4.0, "peers", "calls_per_s"),
        point(1.0, sessions, "sessions_per_s"),
        point(8.0, sessions, "sessions_per_s"),
    ];
    let value = json!({"command": "scale", "machine": {}, "link": "udp", "points": points});
    let charts = figures::of_file(&Saved::parse("scale.json", value).unwrap());
    charts.iter().for_each(assert_complete);
    let [time, rate] = ["Time by", "Sessions per second by"].map(|what| format!("{what} {sessions}"));
    assert_eq!(titles(&charts), ["Time by peers", "Calls per second by peers", &time, &rate]);
}

#[test]
fn other_systems_appear_only_in_charts_of_reported_values() {
    let charts = figures::of_file(&run("rate", &[64, 512], &[1], &json!({})));
    let peers = |title: &str| {
        let chart = charts.iter().find(|chart| chart.title.starts_with(title)).unwrap();
        let peers = chart.series.iter().filter(|series| series.line == Line::Peer);
        peers.map(|series| series.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(peers("Time by size"), ["fi_pingpong", "tonic, TCP"]);
    assert_eq!(peers("Calls per second by size"), ["tonic, TCP"]);
}

#[test]
fn open_loops_of_several_files_are_one_chart() {
    let with = |rate: u32| {
        run("latency", &[64], &[8], &json!({"link": "udp", "client": "poller", "arrivals_per_s": rate}))
    };
    assert!(figures::of_open_loops(&[with(1000)]).is_empty(), "one rate is no sweep");
    let files = [with(2000), with(1000), with(3000)];
    let charts = figures::of_open_loops(&files);
    assert_eq!(charts.len(), 1);
    assert_complete(&charts[0]);
    let rates: Vec<_> = charts[0].series[0].points.iter().map(|point| point.0).collect();
    assert_eq!(rates, [1000.0, 2000.0, 3000.0]);
    assert!(page(&files).contains("<h2>Open loops</h2>"));
}

#[test]
fn page_is_self_contained_and_escapes_contents_of_files() {
    let html = page(&[run("latency", &[64, 512], &[1], &json!({"link": "<script>"}))]);
    for outside in ["<script", "<link", "@import", "url(", "src=", "http"] {
        assert!(!html.contains(outside), "{outside}");
    }
    // All links point to anchors on the page.
    assert_eq!(html.matches("href=").count(), html.matches("href=\"#chart-").count());
    let parts = [
        "run &lt;1&gt;.json",
        "link &lt;script&gt;",
        "&lt;a&gt; &amp; &quot;b&quot;",
        "prefers-color-scheme: dark",
        "@media print",
    ];
    for part in parts {
        assert!(html.contains(part), "{part}");
    }
    let value = json!({"command": "rate", "error": "it & died", "settings": {}, "machine": {}});
    let html = page(&[Saved::parse("none", value).unwrap()]);
    assert!(html.contains("it &amp; died") && !html.contains("<svg"));
}

#[test]
fn page_opens_with_date_version_machine_and_one_table() {
    let one = run("latency", &[64], &[1], &json!({"link": "shm"}));
    let html = page(std::slice::from_ref(&one));
    let top = &html[..html.find("<svg").unwrap()];
    let place = |text: &str| top.find(text).unwrap_or_else(|| panic!("{text} is missing: {top}"));
    let facts = "2026-01-31 18:05 UTC, trunkline-bench 1.2.3, on Some CPU, 2 cores, virtual machine";
    assert!(place(facts) < place("<table") && place("<table") < place("<nav"));
    place("<th>Trunkline</th><th>floor</th><th>fi_pingpong</th><th>tonic<br><small>TCP</small></th>");
    let ours =
        "<td>64 B, 1 under way</td><td>11.0<br><small>90.9 k/s</small><br><small>shared memory</small></td>";
    let floor = "<td>5.50<br><small>182 k/s</small><br><small>raw UDP, polling</small></td>";
    let peers =
        "<td>40.0<br><small>-</small><br><small>mean</small></td><td>11.0<br><small>90.9 k/s</small></td>";
    place(&format!("{ours}{floor}{peers}"));
    assert_eq!(top.matches("<table").count(), 1, "one table comes first");
    let (mut later, mut other) = (one.clone(), one.clone());
    later.date = Some("2026-02-01 00:00 UTC".to_owned());
    other.version = Some("1.2.4".to_owned());
    let html = page(&[later, one, other]);
    for part in [
        "2026-01-31 18:05 UTC to 2026-02-01 00:00 UTC, trunkline-bench 1.2.3",
        "<p class=\"run\">2026-01-31 18:05 UTC, trunkline-bench 1.2.4",
    ] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn page_has_and_links_at_most_eight_charts() {
    let many = run("latency", &[0, 64, 512, 4096], &[1, 2, 4, 8], &json!({}));
    let few = run("rate", &[64], &[1], &json!({}));
    for (files, charts) in
        [(vec![many.clone()], 8), (vec![many.clone(), few.clone(), many], 8), (vec![few], 1)]
    {
        let html = page(&files);
        assert_eq!(html.matches("<figure").count(), charts);
        for number in 1..=charts {
            let (link, place) = (format!("href=\"#chart-{number}\""), format!("id=\"chart-{number}\""));
            assert_eq!((html.matches(&link).count(), html.matches(&place).count()), (1, 1), "{number}");
        }
        assert_eq!(html.contains("further charts are left out"), charts == 8);
        assert_eq!(html.matches("<h2>").count(), files.len() + 1, "every file has its section");
    }
}
