//! `--html` and `report` as a program: pages, an image, and failures to write them.

use std::path::Path;
use std::process::{Command, Output};
use trunkline_testkit::Folder;

fn program(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-bench"));
    command.args(line.split_whitespace());
    command
}

fn run(line: &str) -> Output {
    program(line).output().expect("the program runs")
}

fn page(path: &Path) -> String {
    std::fs::read_to_string(path).expect("a page")
}

#[test]
fn run_and_report_of_several_files_write_page() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let (json, html, all) = (folder.join("out.json"), folder.join("out.html"), folder.join("all.html"));
    let run_of = "latency --size 8,512 --link process --pin off --seconds 0.05 --repetitions 1 --quiet";
    let output = run(&format!("{run_of} --json {} --html {}", json.display(), html.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for title in ["Time by size", "Distribution, 512 B"] {
        assert!(page(&html).contains(title), "{title}");
    }
    let output = run(&format!("report {0} {0} --html {1}", json.display(), all.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(page(&all).matches("<h2>latency: ").count(), 2);
}

/// Also checks that the image in the top-level README agrees with the figures next to it. To update the image, run the
/// command in this test.
#[test]
fn image_of_readme_is_drawn_from_its_figures() {
    let folder = Folder::new().expect("a temporary directory");
    let images = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/images/round-trip");
    let svg = folder.join("out.svg");
    let output = run(&format!("report {images}.json --svg {}", svg.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(page(&svg) == page(Path::new(&format!("{images}.svg"))), "{images}.svg has other figures");
    for line in ["{images}.json {images}.json", "{images}.svg"].map(|files| files.replace("{images}", images))
    {
        let output = run(&format!("report {line} --svg {}", svg.display()));
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}

#[test]
fn unwritable_output_file_ends_run_before_measurement() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let (old, bad) = (folder.join("old.json"), folder.join("none/out"));
    std::fs::write(&old, "before").expect("a file");
    let both = [("--json", "--html"), ("--html", "--json")];
    let lines = both.map(|(one, other)| format!("latency {one} {} {other} {}", old.display(), bad.display()));
    let others =
        ["fair", "burst", "mixed --mix 8:1", "scale", "run --nodes 127.0.0.2,127.0.0.3 --pattern ring"];
    let others = others.map(|of| format!("{of} --json {}", bad.display()));
    for line in lines.into_iter().chain(others) {
        let output = run(&line);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{line}: {error}");
        assert!(error.contains(&format!("cannot write {}: No such file", bad.display())), "{line}: {error}");
    }
    assert_eq!(page(&old), "before");
}

#[test]
fn run_ends_with_summary_line() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let json = folder.join("out.json");
    let run_of = "latency --size 8,512 --link process --pin off --seconds 0.05 --repetitions 1";
    let output = run(&format!("{run_of} --json {}", json.display()));
    let text = String::from_utf8_lossy(&output.stdout);
    let last = text.lines().last().unwrap_or_default();
    for part in [
        "latency: 8 B in ",
        " us .. 512 B in ",
        "points 2, repetitions 1; took ",
        &json.display().to_string(),
    ] {
        assert!(last.contains(part), "{part}: {last}");
    }
    assert!(run(&format!("{run_of} --quiet")).stdout.is_empty());
}

#[test]
fn invalid_result_file_leaves_page_unchanged() {
    let _alone = crate::alone();
    let folder = Folder::new().expect("a temporary directory");
    let (json, html) = (folder.join("bad.json"), folder.join("out.html"));
    std::fs::write(&html, "before").expect("a file");
    for contents in
        ["", "{}", "{\"command\": \"latency\", \"settings\": {}, \"machine\": {}, \"points\": [7]}"]
    {
        std::fs::write(&json, contents).expect("a file");
        let output = run(&format!("report {} --html {}", json.display(), html.display()));
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.contains("bad.json")), (Some(2), true), "{error}");
        assert_eq!(page(&html), "before");
    }
}
