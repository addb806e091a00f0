use super::plot::{Line, Plot, colours};
use super::{figures, page};
use crate::saved::Saved;
use roxmltree::{Document, Node};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Returns times in microseconds, with a tail.
fn timed(us: f64) -> Value {
    let spread = |value: f64| json!({"median": value, "min": value * 0.9, "max": value * 1.2});
    json!({"p50_ns": spread(us * 1e3), "p99_ns": spread(us * 2e3), "per_s": spread(1e6 / us), "dropped": 1, "drifted": 0,
        "distribution_ns": {"0": us * 900.0, "0.5": us * 1e3, "0.99": us * 2e3, "0.999": us * 9e3, "1": us * 2e4}})
}

/// Returns a run with a point for each size and each number of calls under way.
fn run(command: &str, sizes: &[u32], outstanding: &[u32], settings: &Value) -> Saved {
    let mut points = Vec::new();
    for size in sizes {
        for under_way in outstanding {
            let us = f64::from(10 + size / 100 + under_way);
            points.push(json!({"size_bytes": size, "outstanding": under_way, "calls": timed(us),
                "floors": {"cache line": timed(0.1), "raw UDP, polling": timed(us / 2.0), "<a> & \"b\"": timed(us / 3.0)},
                "peers": {"tonic": {"p50_ns": timed(us)["p50_ns"], "per_s": timed(us)["per_s"]},
                    "fi_pingpong": {"mean_ns": timed(us)["p50_ns"]}},
                "each_repetition": {"rtt_p50_ns": vec![us; 3], "floor_p50_ns": vec![us / 2.0; 3],
                    "calls_per_s": vec![1e6 / us; 3], "floor_calls_per_s": vec![2e6 / us; 3]}}));
        }
    }
    let value = json!({"command": command, "settings": settings, "machine": {"cores": 2}, "points": points});
    Saved::parse("run <1>.json", value).unwrap()
}

fn texts(svg: Node<'_, '_>) -> Vec<String> {
    let all = svg.descendants().filter(|node| node.has_tag_name("text"));
    all.map(|node| node.text().unwrap_or_default().trim().to_owned()).collect()
}

/// Returns the places of a line in the colour of a series, left of the legend.
fn drawn(svg: Node<'_, '_>, colour: &str) -> BTreeSet<(i32, i32)> {
    let lines = svg
        .descendants()
        .filter(|node| node.attribute("stroke") == Some(colour) && node.has_tag_name("polyline"));
    let places = lines.flat_map(|node| node.attribute("points").unwrap_or_default().split_whitespace());
    let place = |text: &str| text.split_once(',').and_then(|(x, y)| Some((x.parse().ok()?, y.parse().ok()?)));
    places.filter_map(place).filter(|(x, _)| *x < 870).collect()
}

/// Asserts that a plot has a title, axes with titles and labels, a legend, lines in its colours, and nothing outside the drawing.
fn assert_complete(plot: &Plot) {
    for axis in [&plot.x, &plot.y] {
        assert!(
            axis.title.contains(", ") || axis.title.contains("per second") || axis.title.contains("calls"),
            "a unit"
        );
    }
    assert_drawn(plot);
}

/// Asserts the same except for units, which a number of peers does not have.
fn assert_drawn(plot: &Plot) {
    let svg = plot.svg().unwrap();
    let document = Document::parse(&svg).unwrap_or_else(|error| panic!("{}: {error}", plot.title));
    let svg = document.root_element();
    let texts = texts(svg);
    assert_eq!(texts[0], plot.title);
    for axis in [&plot.x, &plot.y] {
        assert!(texts.contains(&axis.title), "{}: {}", plot.title, axis.title);
        let labelled = axis.labels.iter().filter(|(_, text)| texts.contains(text)).count();
        assert!(labelled >= 2, "{}: {}", plot.title, axis.title);
    }
    assert!(!plot.series.is_empty());
    let written = texts.join(" ");
    for (at, series) in plot.series.iter().enumerate() {
        assert!(written.contains(&series.name), "{}: {}", plot.title, series.name);
        // Three colours come first: ink, muted text and the grid.
        let (_, colour, _) = &colours()[3 + at];
        let places = drawn(svg, colour);
        assert!(
            places.iter().map(|(x, _)| x).collect::<BTreeSet<_>>().len() > 1,
            "{}: {}",
            plot.title,
            series.name
        );
    }
    let known: Vec<_> =
        colours().into_iter().map(|(_, written, _)| written).chain(["none".to_owned()]).collect();
    let size = |name| svg.attribute(name).and_then(|text| text.parse::<f64>().ok()).unwrap();
    for node in svg.descendants() {
        for name in ["fill", "stroke"] {
            let colour = node.attribute(name).unwrap_or("none");
            assert!(known.iter().any(|known| known == colour), "{}: {colour} has no dark value", plot.title);
        }
        let place = |name| node.attribute(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default();
        if node.has_tag_name("text") {
            assert!(
                (0.0..size("width")).contains(&place("x")) && (0.0..size("height")).contains(&place("y"))
            );
        }
    }
}

#[test]
fn every_plot_is_complete() {
    let none = json!({});
    let runs = [
        (
            run("latency", &[0, 64, 4096], &[1], &none),
            vec!["Time by size, 1 under way", "Calls per second by size, 1 under way"],
        ),
        (
            run("rate", &[64], &[1, 8, 32], &none),
            vec!["Rate against time, 64 B", "Rate by calls under way, 64 B"],
        ),
        (run("bandwidth", &[64], &[1], &none), vec![]),
    ];
    for (run, mut titles) in runs {
        let plots = figures::of_file(&run);
        plots.iter().for_each(assert_complete);
        if run.points.len() > 1 {
            titles.push("Distribution of all points");
        }
        let of_points: Vec<_> =
            run.points.iter().map(|point| format!("Distribution, {}", point.label())).collect();
        titles.extend(of_points.iter().map(String::as_str));
        assert_eq!(plots.iter().map(|plot| plot.title.as_str()).collect::<Vec<_>>(), titles);
        let last = plots.last().unwrap();
        assert_eq!(
            last.series.iter().filter(|series| series.line == Line::Floor).count(),
            3,
            "floors next to the calls"
        );
    }
}

#[test]
fn runs_of_scale_have_plots() {
    let point = |(count, dimension, rate): (f64, &str, &str)| {
        json!({"dimension": dimension, "count": count, "each_repetition": {
            "rtt_p50_ns": vec![1e4 * count; 3], "rtt_p99_ns": vec![3e4 * count; 3], rate: vec![1e5 / count; 3]}})
    };
    let all = [
        (1.0, "peers", "calls_per_s"),
        (4.0, "peers", "calls_per_s"),
        (1.0, "sessions, at once", "sessions_per_s"),
        (8.0, "sessions, at once", "sessions_per_s"),
    ];
    let points: Vec<_> = all.into_iter().map(point).collect();
    let value = json!({"command": "scale", "machine": {}, "link": "udp", "points": points});
    let plots = figures::of_file(&Saved::parse("scale.json", value).unwrap());
    plots.iter().for_each(assert_drawn);
    let titles: Vec<_> = plots.iter().map(|plot| plot.title.as_str()).collect();
    let wanted = [
        "Calls per second, peers",
        "Time of a call, peers",
        "Sessions per second, sessions, at once",
        "Time of a call, sessions, at once",
    ];
    assert_eq!(titles, wanted);
}

#[test]
fn other_systems_are_drawn_and_listed_as_far_as_they_report() {
    let run = run("rate", &[64, 512], &[1], &json!({}));
    let plots = figures::of_file(&run);
    let peers = |title: &str| {
        let plot = plots.iter().find(|plot| plot.title.starts_with(title)).unwrap();
        let peers = plot.series.iter().filter(|series| series.line == Line::Peer);
        peers.map(|series| series.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!(peers("Time by size"), ["fi_pingpong", "tonic"]);
    assert_eq!(peers("Calls per second by size"), ["tonic"]);
    let html = page::page(&[run]).unwrap();
    assert!(html.contains("(mean)</td>") && html.contains("<td>tonic</td>"));
}

#[test]
fn open_loops_of_several_files_are_one_plot() {
    let with = |rate: u32| {
        run("latency", &[64], &[8], &json!({"link": "udp", "client": "poller", "arrivals_per_s": rate}))
    };
    assert!(figures::of_open_loops(&[with(1000)]).is_empty(), "one rate is no sweep");
    let files = [with(2000), with(1000), with(3000)];
    let plots = figures::of_open_loops(&files);
    assert_eq!(plots.len(), 1);
    assert_complete(&plots[0]);
    let rates: Vec<_> = plots[0].series[0].points.iter().map(|point| point.0).collect();
    assert_eq!(rates, [1000.0, 2000.0, 3000.0]);
    assert!(page::page(&files).unwrap().contains("<h2>Open loops</h2>"));
}

#[test]
fn a_page_needs_nothing_else_and_escapes_what_files_contain() {
    let html = page::page(&[run("latency", &[64, 512], &[1], &json!({"link": "<script>"}))]).unwrap();
    for outside in ["<script", "<link", "@import", "url(", "src="] {
        assert!(!html.contains(outside), "{outside}");
    }
    // Links stay on the page.
    assert_eq!(html.matches("href=").count(), html.matches("href=\"#chart-").count());
    assert_eq!(html.matches("http").count(), html.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    for part in [
        "run &lt;1&gt;.json",
        "link &lt;script&gt;",
        "&lt;a&gt; &amp; &quot;b&quot;",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(html.contains(part), "{part}");
    }
    for (name, written, dark) in colours() {
        for rule in
            [format!("{name}: {written};"), format!("{name}: {dark};"), format!("[stroke=\"{written}\"]")]
        {
            assert!(html.contains(&rule), "{rule}");
        }
    }
}

#[test]
fn a_run_without_points_has_a_page_with_the_reason() {
    let value = json!({"command": "rate", "error": "it & died", "settings": {}, "machine": {}});
    let html = page::page(&[Saved::parse("none", value).unwrap()]).unwrap();
    assert!(html.contains("it &amp; died") && !html.contains("<svg"));
}

#[test]
fn a_page_opens_with_date_version_machine_and_one_table() {
    let mut value = json!({"command": "latency", "date": "2026-01-31 18:05 UTC", "version": "1.2.3", "settings": {"link": "shm"},
        "machine": {"processor": "Some CPU", "cores": 2, "is_virtual": true}, "points": []});
    let point = |size: u32, us: f64| {
        json!({"size_bytes": size, "outstanding": 1, "calls": timed(us),
            "floors": {"raw UDP, polling": timed(us / 2.0), "TCP, polling": timed(us)},
            "peers": {"tonic, TCP": {"p50_ns": timed(83.0)["p50_ns"], "per_s": timed(83.0)["per_s"]},
                "fi_pingpong": {"mean_ns": timed(40.0)["p50_ns"]}},
            "each_repetition": {"floor_p50_ns": vec![us * 500.0; 3]}})
    };
    value["points"] = json!([point(64, 35.6), point(4096, 123.4)]);
    let one = Saved::parse("one.json", value.clone()).unwrap();
    let html = page::page(std::slice::from_ref(&one)).unwrap();
    let top = &html[..html.find("<svg").unwrap()];
    let place = |text: &str| top.find(text).unwrap_or_else(|| panic!("{text} is missing: {top}"));
    let facts = "2026-01-31 18:05 UTC, trunkline-bench 1.2.3, on Some CPU, 2 cores, virtual machine";
    assert!(place(facts) < place("<table") && place("<table") < place("<nav"));
    let titles = "<th class=\"name\">size</th><th>Trunkline</th><th>floor</th><th>fi_pingpong</th><th>tonic<br><small>TCP</small></th>";
    let ours = "<td class=\"name\">64 B, 1 under way</td><td class=\"calls\">35.6<br><small>28.1 k/s</small><br><small>shared memory</small></td>";
    let floor = "<td>17.8<br><small>56.2 k/s</small><br><small>raw UDP, polling</small></td>";
    let peers =
        "<td>40.0<br><small>-</small><br><small>mean</small></td><td>83.0<br><small>12.0 k/s</small></td>";
    place(titles);
    place(&format!("{ours}{floor}{peers}"));
    assert_eq!(top.matches("<table").count(), 1, "one table comes first");
    value["date"] = json!("2026-02-01 00:00 UTC");
    let two = Saved::parse("a/latency-2.json", value.clone()).unwrap();
    let html = page::page(&[two.clone(), one.clone()]).unwrap();
    let dates = "<p class=\"run\">2026-01-31 18:05 UTC to 2026-02-01 00:00 UTC, trunkline-bench 1.2.3";
    for part in [dates, "<td class=\"name\">latency: one</td>", "<td class=\"name\">latency-2</td>"] {
        assert!(html.contains(part), "{part}");
    }
    value["version"] = json!("1.2.4");
    let three = Saved::parse("b/latency-2.json", value).unwrap();
    let html = page::page(&[one, two, three]).unwrap();
    for part in [
        "one.json: 2026-01-31",
        "b/latency-2.json: 2026-02-01",
        "<td class=\"name\">latency: b/latency-2.json</td>",
    ] {
        assert!(html.contains(part), "{part}");
    }
}

#[test]
fn a_legend_of_many_systems_stays_in_the_drawing() {
    let mut plot = figures::of_file(&run("rate", &[64, 512], &[1], &json!({}))).remove(0);
    while plot.series.len() < 16 {
        let mut series = plot.series[0].clone();
        series.name = format!("another system {}, shared memory", plot.series.len());
        plot.series.push(series);
    }
    let svg = plot.svg().unwrap();
    let document = Document::parse(&svg).unwrap();
    let number = |node: Node<'_, '_>, name| {
        node.attribute(name).and_then(|text| text.parse::<f64>().ok()).unwrap_or_default()
    };
    let texts = document.descendants().filter(|node| node.has_tag_name("text"));
    let mut ys: Vec<_> =
        texts.filter(|node| number(*node, "x") > 900.0).map(|node| number(node, "y")).collect();
    assert!(ys.len() >= 16 && ys.iter().all(|y| *y < 740.0), "{ys:?}");
    ys.dedup();
    assert!(ys.windows(2).all(|pair| pair[1] - pair[0] >= 14.0), "lines overlap: {ys:?}");
}

#[test]
fn a_page_has_at_most_eight_charts_and_lists_them() {
    let many = run("latency", &[0, 64, 512, 4096], &[1, 2, 4, 8], &json!({}));
    let few = run("rate", &[64], &[1], &json!({}));
    for (files, charts) in
        [(vec![many.clone()], 8), (vec![many.clone(), few.clone(), many], 8), (vec![few], 1)]
    {
        let html = page::page(&files).unwrap();
        assert_eq!(html.matches("<svg").count(), charts);
        for number in 1..=charts {
            let (link, place) = (format!("href=\"#chart-{number}\""), format!("id=\"chart-{number}\""));
            assert_eq!((html.matches(&link).count(), html.matches(&place).count()), (1, 1), "{number}");
        }
        assert_eq!(html.contains("further charts are left out"), charts == 8);
    }
    // Every file has one, and the first of a file is a sweep.
    let files = [run("latency", &[0, 64], &[1], &json!({})), run("rate", &[64], &[1, 8], &json!({}))];
    let html = page::page(&files).unwrap();
    assert!(html.contains("Time by size") && html.contains("Rate against time"));
}

#[test]
fn rates_have_a_logarithmic_axis() {
    let plots = figures::of_file(&run("rate", &[64], &[1, 512], &json!({})));
    let plot = plots.iter().find(|plot| plot.title.starts_with("Rate by calls under way")).unwrap();
    // 91 k, 1.9 k and so on: equal ratios are equally far apart.
    let place = |value: f64| plot.y.place(value);
    assert!((place(4e3) - place(2e3) - (place(2e4) - place(1e4))).abs() < 1e-9);
}

/// Returns a colour in OKLab as people see it with all cones, and without long, medium or short cones (Machado 2009).
fn seen(hex: &str) -> Vec<[f64; 3]> {
    let channel = |at: usize| {
        let value = f64::from(u8::from_str_radix(&hex[at..at + 2], 16).unwrap()) / 255.0;
        if value <= 0.040_45 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
    };
    let linear = [channel(1), channel(3), channel(5)];
    let times = |matrix: [[f64; 3]; 3], vector: [f64; 3]| {
        matrix.map(|row| row.iter().zip(vector).map(|(one, other)| one * other).sum::<f64>())
    };
    let eyes = [
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
        [
            [1.255_528, -0.076_749, -0.178_779],
            [-0.078_411, 0.930_809, 0.147_602],
            [0.004_733, 0.691_367, 0.303_900],
        ],
    ];
    let lms = [
        [0.412_221_5, 0.536_332_5, 0.051_446],
        [0.211_903_5, 0.680_699_5, 0.107_397],
        [0.088_302_5, 0.281_718_8, 0.629_978_7],
    ];
    let lab = [
        [0.210_454_3, 0.793_617_8, -0.004_072],
        [1.977_998_5, -2.428_592_2, 0.450_593_7],
        [0.025_904, 0.782_771_8, -0.808_675_8],
    ];
    let all = eyes.map(|eye| times(eye, linear).map(|value| value.clamp(0.0, 1.0)));
    all.map(|light| times(lab, times(lms, light).map(f64::cbrt))).to_vec()
}

#[test]
fn colours_differ_for_all_eyes_on_light_and_dark_pages() {
    // Three colours come first: ink, muted text and the grid.
    let series: Vec<_> = colours().into_iter().skip(3).collect();
    let light: Vec<_> = series.iter().map(|(_, written, _)| written.as_str()).collect();
    let dark: Vec<_> = series.iter().map(|(_, _, dark)| *dark).collect();
    for (page, colours) in [("#ffffff", light), ("#16191d", dark)] {
        for (at, one) in colours.iter().enumerate() {
            for other in colours[at + 1..].iter().chain([&page]) {
                for (one_seen, other_seen) in seen(one).into_iter().zip(seen(other)) {
                    let distance: f64 =
                        one_seen.iter().zip(other_seen).map(|(one, other)| (one - other).powi(2)).sum();
                    assert!(distance.sqrt() > 0.1, "{one} and {other} on {page}: {}", distance.sqrt());
                }
            }
        }
    }
}
