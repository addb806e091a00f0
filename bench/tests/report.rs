//! `--html` and `report` as a program: what they write, and what happens when they cannot.

#![allow(clippy::tests_outside_test_module, reason = "an integration test is a test module of its own")]

use std::path::Path;
use std::process::{Command, Output};
use trunkline_testkit::{Folder, on_small_file_system};

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
fn each_subcommand_writes_a_page_and_so_do_their_files_together() {
    let folder = Folder::new().expect("a temporary directory");
    let mut files = String::new();
    for (command, titles) in [
        ("latency --size 8,512", ["Time by size", "Distribution, 512 B"]),
        ("rate --outstanding 1,8", ["Rate against time", "Rate by calls under way"]),
        ("bandwidth --size 64K,128K", ["Bytes per second by size", "Distribution, 64K B"]),
    ] {
        let name = command.split_once(' ').expect("a subcommand").0;
        let (json, html) = (folder.join(format!("{name}.json")), folder.join(format!("{name}.html")));
        let rest = "--link process --pin off --seconds 0.05 --repetitions 1 --quiet";
        let output = run(&format!("{command} {rest} --json {} --html {}", json.display(), html.display()));
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        for title in titles {
            assert!(page(&html).contains(title), "{command}: {title}");
        }
        files.push_str(&format!("{} ", json.display()));
    }
    let all = folder.join("all.html");
    let output = run(&format!("report {files} --html {}", all.display()));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for title in ["<h2>latency: ", "<h2>rate: ", "<h2>bandwidth: ", "Time by size", "Rate against time"] {
        assert!(page(&all).contains(title), "{title}");
    }
}

#[test]
fn files_that_are_not_results_leave_the_page_as_it_was() {
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

#[test]
fn results_are_printed_and_json_is_written_although_the_page_does_not_fit() {
    let folder = Folder::new().expect("a temporary directory");
    let (json, html) = (folder.join("out.json"), folder.join("out.html"));
    let mut command = program("latency --link process --size 8,64 --pin off --seconds 0.05 --repetitions 1");
    command.arg("--json").arg(&json).arg("--html").arg(&html);
    // The JSON file has room, and the page does not.
    let Some(mut command) = on_small_file_system(folder.path(), 32, &command) else {
        eprintln!("skip: this host allows no mounts in user namespaces");
        return;
    };
    let output = command.output().expect("the program runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("cannot write") && error.contains("out.html"), "{error}");
    assert!(!error.contains("out.json"), "{error}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("calls"), "the table");
}
