//! Short runs of each subcommand: keys, positive numbers, exit codes. No test checks a time.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};
use std::time::Duration;
use trunkline_testkit::{Folder, on_small_file_system, wait_until};

/// Keys that every result contains.
const ALWAYS: [&str; 3] = ["rtt_p50_ns", "rtt_p99_ns", "floor_p50_ns"];

fn program(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-bench"));
    command.args(line.split_whitespace());
    command
}

fn bench(line: &str) -> Output {
    program(line).output().expect("the program runs")
}

/// Runs the program. Returns its JSON and its standard output.
fn results(line: &str) -> (Value, String) {
    let folder = Folder::new().expect("a temporary directory");
    let path = folder.join("out.json");
    let output = bench(&format!("{line} --json {}", path.display()));
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    let json = serde_json::from_slice(&std::fs::read(path).expect("the file")).expect("JSON");
    (json, String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs the program briefly, and returns its JSON. Threads are not pinned, because other tests use the same cores at the
/// same time.
fn json(line: &str) -> Value {
    results(&format!("{line} --pin off --seconds 0.1 --repetitions 1")).0
}

fn assert_positive(point: &Value, keys: &[&str]) {
    for key in keys {
        assert!(point[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {point}");
    }
}

/// Asserts that results contain the date, the version and the machine.
fn assert_stamped(results: &Value) {
    assert!(results["date"].as_str().is_some_and(|date| date.ends_with(" UTC")), "{results}");
    assert_eq!(results["version"], env!("CARGO_PKG_VERSION"));
    assert!(results["machine"]["kernel"].is_string(), "{results}");
}

#[test]
fn table_has_both_links_other_systems_and_floors() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let (peers, path) = (folder.join("peers"), folder.join("out.json"));
    let script = "#!/bin/sh\ncase $1 in\n\
                  list) echo tarpc-tcp; echo broken ;;\n\
                  *) [ $2 = tarpc-tcp ] && echo '{\"times\":[[24500,10]],\"per_s\":204000.0}' ;;\nesac\n";
    std::fs::write(&peers, script).expect("a script");
    std::fs::set_permissions(&peers, Permissions::from_mode(0o700)).expect("a program");
    let line = format!(
        "table --pin off --seconds 0.05 --repetitions 2 --peers-program {} --json {}",
        peers.display(),
        path.display()
    );
    // Installed systems are hidden, because measuring them would only take time.
    let output = program(&line).env("PATH", folder.path()).output().expect("the program runs");
    let (text, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{error}");
    assert!(
        text.starts_with("| system | round trip of 64 B, µs | calls/s, 32 outstanding |\n|---|---:|---:|\n")
    );
    assert!(text.contains("\n| tarpc, TCP | 24.5 | 204 k |\n"), "{text}");
    for row in ["Trunkline, UDP", "Trunkline, shared memory", "floor: raw UDP", "floor: shared memory"] {
        let row = text.lines().find(|line| line.starts_with(&format!("| {row} | "))).expect(row);
        assert!(!row.contains("| - |") && row.contains(" k"), "{row}");
    }
    let note = text.lines().last().unwrap_or_default();
    assert!(note.contains(" UTC, trunkline-bench ") && note.contains("2 interleaved repetitions"), "{note}");
    assert!(error.contains("repetition 2 of 2") && error.contains("broken: not measured: "), "{error}");
    let json: Value = serde_json::from_slice(&std::fs::read(path).expect("the file")).expect("JSON");
    assert_stamped(&json);
    let rows = json["rows"].as_array().expect("rows");
    let rows: Vec<_> = rows.iter().filter(|row| row["system"] == "tarpc, TCP").collect();
    assert_eq!((rows.len(), &rows[0]["calls_per_s"]["max"]), (1, &204_000.0.into()));
}

#[test]
fn latency_reports_floors_and_machine() {
    let _alone = crate::alone();
    // Only this run is pinned, so that no two runs share a core.
    let (point, _) = results("latency --verify --link process --seconds 0.1 --repetitions 1");
    assert_positive(&point, &ALWAYS);
    assert_eq!((&point["command"], &point["settings"]["link"]), (&"latency".into(), &"process".into()));
    assert_eq!((&point["size_bytes"], &point["outstanding"]), (&64.into(), &1.into()));
    assert!(point["points"].is_null());
    for floor in ["cache line", "eventfd, same core", "raw UDP, polling", "TCP, polling"] {
        assert_positive(&point["floors"][floor]["p50_ns"], &["median"]);
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    assert!(point["machine"]["kernel"].is_string());
    assert_eq!(point["machine"]["cores"], cores);
    assert_eq!(point["settings"]["cores"].is_array(), cores > 1, "{point}");
}

#[test]
fn settings_name_effective_link_and_reason() {
    let _alone = crate::alone();
    let auto = |choice: &str| {
        let folder = Folder::new().expect("a temporary directory");
        let path = folder.join("out.json");
        let line =
            format!("latency --pin off --seconds 0.1 --repetitions 1 --quiet --json {}", path.display());
        let output = program(&line).env("TRUNKLINE_LINK", choice).output().expect("the program runs");
        assert!(output.status.success(), "{choice}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&std::fs::read(path).expect("the file")).expect("JSON")
    };
    for (choice, link, why) in [("auto", "shm", None), ("udp", "udp", Some("TRUNKLINE_LINK=udp"))] {
        let settings = &auto(choice)["settings"];
        assert_eq!(settings["link"], link, "{choice}");
        let given = settings["link_why"].as_str();
        assert!(why.map_or(given.is_none(), |why| given.is_some_and(|it| it.contains(why))), "{settings}");
    }
    let refused = program("latency --link shm --seconds 0.1 --repetitions 1")
        .env("TRUNKLINE_FAULTS", "drop=0.01,seed=7")
        .output()
        .expect("the program runs");
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("shared memory") && error.contains("TRUNKLINE_FAULTS"), "{error}");
}

#[test]
fn killed_server_gives_exit_code_3() {
    let _alone = crate::alone();
    let mut program = program("latency --pin off --seconds 60 --quiet");
    let program = program.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the program runs");
    let children = format!("/proc/{0}/task/{0}/children", program.id());
    let server = || -> Option<i32> { std::fs::read_to_string(&children).ok()?.trim().parse().ok() };
    let server = wait_until("a server process", Duration::from_secs(60), server);
    kill(Pid::from_raw(server), Signal::SIGKILL).expect("it is killed");
    let output = program.wait_with_output().expect("the program ends");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{error}");
    assert!(error.contains("the server process has died"), "{error}");
}

#[test]
fn rate_is_positive_with_each_client() {
    let _alone = crate::alone();
    for client in ["thread", "tokio"] {
        let point = json(&format!("rate --outstanding 8 --client {client}"));
        assert_positive(&point, &ALWAYS);
        assert_positive(&point, &["calls_per_s", "floor_calls_per_s"]);
    }
    let one_way = json("rate --one-way --buffer own --link process");
    assert_positive(&one_way, &["calls_per_s", "floor_calls_per_s"]);
}

#[test]
fn bandwidth_over_udp_is_positive() {
    let _alone = crate::alone();
    let point = json("bandwidth --size 256K --verify --link udp");
    assert_positive(&point, &ALWAYS);
    assert_positive(&point, &["bytes_per_s", "floor_bytes_per_s"]);
}

#[test]
fn pause_adds_blocking_floors() {
    let _alone = crate::alone();
    let point = json("latency --pause 1 --link process");
    for floor in ["eventfd, cross-core", "raw UDP, blocking"] {
        assert_positive(&point["floors"][floor]["p50_ns"], &["median"]);
    }
}

#[test]
fn open_loop_call_rate_is_bounded_by_arrivals() {
    let _alone = crate::alone();
    let point = json("latency --arrivals 500 --outstanding 4 --link process");
    let per_s = point["calls"]["per_s"]["median"].as_f64().expect("a rate");
    // An open loop does not make more calls than are scheduled.
    assert!(per_s > 0.0 && per_s < 2000.0, "{per_s}");
}

#[test]
fn invalid_usage_has_exit_code_2_and_reason() {
    let _alone = crate::alone();
    for (line, word) in [
        ("latency --size 65M", "67108864"),
        ("latency --pin 99999,99998", "core 99999"),
        ("bandwidth --size 0", "above 0"),
        ("lateness", "lateness"),
    ] {
        let output = bench(line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{line}: {error}");
        assert!(error.contains(word), "{line}: {error}");
    }
}

#[test]
fn results_are_printed_although_disk_is_full() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let path = folder.join("out.json");
    let mut command =
        program("latency --link process --size 8,64,1K --pin off --seconds 0.1 --repetitions 1");
    command.arg("--json").arg(&path);
    // The results of three points do not fit into the single page of the file system.
    let Some(mut command) = on_small_file_system(folder.path(), 4, &command) else {
        eprintln!("skip: this host allows no mounts in user namespaces");
        return;
    };
    let output = command.output().expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("out.json"), "{error}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("calls"), "the table");
}

#[test]
fn rest_and_shared_announce_or_omit_build_of_other_systems() {
    let _alone = crate::alone();
    for line in [
        // Shared memory does not have room for 501 idle sessions, so one point remains.
        "rest --rates 0 --sessions 501 --link shm --seconds 0.1",
        "shared --pin off --repetitions 1 --seconds 0.05",
    ] {
        let output = program(line).env("CARGO", "false").output().expect("the program runs");
        let text = String::from_utf8_lossy(&output.stderr);
        let [announced, failed] = ["the first time, cargo builds those in Rust", "cannot be built"]
            .map(|words| text.find(words).unwrap_or_else(|| panic!("{line}: {words}: {text}")));
        assert!(announced < failed && text.contains("--no-peers leaves other systems out"), "{text}");
        let output = program(&format!("{line} --no-peers")).env("CARGO", "false").output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !text.contains("cargo"), "{line}: {text}");
        assert!(!String::from_utf8_lossy(&output.stdout).contains("tonic"));
        let help = bench(&format!("{} --help", line.split_once(' ').unwrap().0)).stdout;
        let help = String::from_utf8_lossy(&help).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("The first run builds them with cargo, which takes some minutes"), "{help}");
    }
}

#[test]
fn burst_reports_calls_and_memory() {
    let _alone = crate::alone();
    let (results, text) = results("burst --calls 2000 --link process");
    assert!(text.contains("2000 succeeded"), "{text}");
    assert_eq!((&results["calls"], &results["failed"]), (&2000.into(), &0.into()));
    assert_positive(&results, &["seconds", "calls_per_s", "grown_bytes", "timer_grown_bytes"]);
    assert_stamped(&results);
}

#[test]
fn streams_have_rates_and_memory() {
    let _alone = crate::alone();
    let (results, text) =
        results("streams --items 2000 --repetitions 2 --open 20 --upload 1 --chunk 100 --pin off --link udp");
    assert!(text.contains("20 open streams"), "{text}");
    let rates = results["rates"].as_array().expect("rates");
    let shapes = rates.iter().map(|rate| &rate["shape"]).collect::<Vec<_>>();
    assert_eq!(shapes, ["calls", "from the server", "from the client", "both ways"]);
    for figure in rates.iter().flat_map(|rate| [&rate["per_s"], &rate["of_calls"]]) {
        assert_positive(figure, &["median", "min", "max"]);
    }
    assert_positive(&results["upload"], &["bytes_per_s", "calls_bytes_per_s"]);
    for (part, side) in [("upload", "client_grown_bytes"), ("open", "server_bytes_each")] {
        assert!(results[part][side].is_u64(), "{results}");
    }
    // One MiB corresponds to 10.24 chunks.
    let (bytes, streams) = (&results["upload"]["bytes"], &results["open"]["streams"]);
    assert_eq!((bytes, streams), (&(11 * 100 * 1024).into(), &20.into()));
    assert_stamped(&results);
}

#[test]
fn mix_reports_each_member_mixed_and_alone() {
    let _alone = crate::alone();
    let results = json("mixed --mix 64:50,1K/oneway:40,64K:10");
    assert_eq!(
        (&results["command"], &results["mix"]),
        (&"mixed".into(), &"64:50,1K/oneway:40,64K:10".into())
    );
    assert_positive(&results, &["calls_per_s", "bytes_per_s"]);
    assert_stamped(&results);
    let members = results["members"].as_array().expect("members");
    assert_eq!(members.iter().map(|member| &member["weight"]).collect::<Vec<_>>(), [50, 40, 10]);
    for (member, way) in members.iter().flat_map(|member| ["mixed", "alone"].map(|way| (member, way))) {
        for figure in ["p50_ns", "p99_ns", "per_s"] {
            assert_positive(&member[way][figure], &["median"]);
        }
    }
    let refused = bench("mixed --mix 64");
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("such as 64:90"));
}

#[test]
fn scale_varies_one_dimension_per_point() {
    let _alone = crate::alone();
    let results = json("scale --peers 1,3 --pollers 2 --services 16 --connections 4 --link process");
    let points = results["points"].as_array().expect("points");
    let named = |point: &Value| (point["dimension"].as_str().map(str::to_owned), point["count"].as_u64());
    let expected = [
        ("peers", 1),
        ("peers", 3),
        ("pollers", 2),
        ("services", 16),
        ("sessions, one after the other", 4),
        ("sessions, at once", 4),
    ];
    let expected = expected.map(|(dimension, count)| (Some(dimension.to_owned()), Some(count)));
    assert_eq!(points.iter().map(named).collect::<Vec<_>>(), expected);
    for (at, point) in points.iter().enumerate() {
        assert_positive(
            point,
            &["rtt_p50_ns", "rtt_p99_ns", if at < 4 { "calls_per_s" } else { "sessions_per_s" }],
        );
    }
    assert_eq!(bench("scale --services 17").status.code(), Some(2));
}

#[test]
fn small_calls_next_to_large_ones_are_reported() {
    let _alone = crate::alone();
    let (json, text) = results("fair --large 1 --bytes 1000000 --seconds 1 --quiet");
    assert!(text.is_empty(), "{text}");
    let keys = ["rtt_p50_ns", "rtt_p99_ns", "small_calls", "bytes_per_s", "four_pieces_ns", "large_bytes"];
    assert_positive(&json, &keys);
    assert_eq!(json["large_failed"], 0);
    assert_stamped(&json);
}
