//! `compare` as a program: exit codes and invalid files.

use serde_json::{Value, json};
use std::path::Path;
use std::process::{Command, Output};
use trunkline_testkit::Folder;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_trunkline-bench")).args(arguments).output().expect("the program runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("its name is text")
}

/// Writes the files of two runs. Call times in the second file are the given multiple of call times in the first file.
fn files(folder: &Folder, times: f64) -> [std::path::PathBuf; 2] {
    [("before.json", 1.0), ("after.json", times)].map(|(name, times)| {
        let calls = [10.0, 11.0, 10.5, 10.2, 10.8].map(|us| us * times);
        let result = json!({"command": "latency", "settings": {}, "machine": {}, "size_bytes": 64, "outstanding": 1,
            "each_repetition": {"rtt_p50_ns": calls, "floor_p50_ns": [5, 5, 5, 5, 5]}});
        let path = folder.join(name);
        std::fs::write(&path, result.to_string()).expect("a file");
        path
    })
}

#[test]
fn exit_code_is_4_for_regression_beyond_bound() {
    let folder = Folder::new().expect("a temporary directory");
    for (times, bound, code, verdict) in [
        (1.0, "15", 0, "no_change"),
        (1.3, "15", 4, "worse"),
        (1.3, "40", 0, "no_change"),
        (0.6, "15", 0, "better"),
    ] {
        let [before, after] = files(&folder, times);
        let out = folder.join("out.json");
        let output = run(&["compare", text(&before), text(&after), "--bound", bound, "--json", text(&out)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{times}: {error}");
        assert_eq!(error.contains("became worse"), code == 4, "{error}");
        let written: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
        assert_eq!(written["rows"][0]["verdict"], verdict, "{written}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("64 B, 1 under way"));
    }
}

#[test]
fn invalid_or_incomparable_result_files_are_refused_by_name() {
    let folder = Folder::new().expect("a temporary directory");
    let [good, _] = files(&folder, 1.0);
    let bad = folder.join("bad.json");
    let deep = "[".repeat(100_000);
    let whole = std::fs::read_to_string(&good).expect("the file");
    for (contents, word) in [
        ("", "not JSON"),
        (&whole[..whole.len() / 2], "not JSON"),
        (&deep, "not JSON"),
        (&whole.replace("10.0", "NaN"), "not JSON"),
        (&whole.replace("10.0", "1e999"), "not JSON"),
        (&whole.replace("10.0", "-1"), "-1 is not a number above 0"),
        (&whole.replace("10.0", "\"10\""), "is not a number above 0"),
        (&whole.replace("each_repetition", "repetitions"), "missing field `each_repetition`"),
        (&whole.replace("latency", "rate"), "only runs of one subcommand"),
        (&whole.replace("64", "65"), "no point in common"),
        ("\u{0}\u{1}", "not JSON"),
        ("{}", "missing field `command`"),
    ] {
        std::fs::write(&bad, contents).expect("a file");
        let output = run(&["compare", text(&good), text(&bad)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{word}: {error}");
        assert!(error.starts_with("error: ") && error.contains(word), "{word}: {error}");
    }
    for (file, word) in [(folder.join("none.json"), "No such file"), (folder.path().to_owned(), "directory")]
    {
        let output = run(&["compare", text(&file), text(&good)]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), error.contains(word)), (Some(2), true), "{error}");
        assert!(error.contains(text(&file)), "{error}");
    }
    let output = run(&["compare", text(&good), text(&good), "--bound", "NaN"]);
    assert_eq!(output.status.code(), Some(2));
}
