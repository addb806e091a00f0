//! Traits that are not services, and the compiler's errors for them. Each trait has one error, which is located in the
//! user's code.
//!
//! rustc checks each file in `tests/compile_fail` against the library with which this test was built, so no dependency is
//! compiled for the check. `TRUNKLINE_BLESS=1` writes the current errors. Review the changes before you commit them.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;
use trunkline_testkit::Folder;

#[test]
fn errors_point_at_their_cause() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    for (name, library) in [
        ("aliases", "trunkline"),
        ("pool", "trunkline"),
        ("renamed", "rpc"),
        ("streams", "trunkline"),
        ("traits", "trunkline"),
        ("types", "trunkline"),
    ] {
        let expected = folder.join(name).with_extension("txt");
        let errors = errors_of(&folder.join(name).with_extension("rs"), library);
        if std::env::var_os("TRUNKLINE_BLESS").is_some() {
            std::fs::write(&expected, &errors).unwrap();
        }
        let expected = std::fs::read_to_string(&expected).unwrap();
        assert!(
            errors == expected,
            "tests/compile_fail/{name}.rs has other errors; TRUNKLINE_BLESS=1 shows which:\n{errors}"
        );
    }
}

/// Returns a line for each error: its location, its text, the label at its location, and the remedies. The program refers
/// to the library as `library`.
fn errors_of(program: &Path, library: &str) -> String {
    let libraries = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    let output_folder = Folder::new().unwrap();
    let output = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()))
        .args(["--edition", "2024", "--emit", "metadata", "--error-format", "json", "-o"])
        .arg(output_folder.join("compile_fail.rmeta"))
        .arg("-L")
        .arg(format!("dependency={}", libraries.display()))
        .arg("--extern")
        .arg(format!("{library}={}", newest_library(&libraries).display()))
        .arg(program)
        .output()
        .unwrap();
    assert!(!output.status.success(), "{} compiles", program.display());
    let messages = String::from_utf8(output.stderr).unwrap();
    let messages = messages.lines().map(|line| serde_json::from_str::<Value>(line).expect(line));
    messages.filter(|message| message["level"] == "error").filter_map(|message| line_of(&message)).collect()
}

/// Returns the line for an error, or `None` for the message with the number of errors.
fn line_of(message: &Value) -> Option<String> {
    let spans = message["spans"].as_array()?;
    let place = spans.iter().find(|span| span["is_primary"] == true)?;
    let mut line =
        format!("{}:{} {}", place["line_start"], place["column_start"], message["message"].as_str()?);
    if let Some(label) = place["label"].as_str() {
        line += &format!("\n    {label}");
    }
    let remedies =
        message["children"].as_array()?.iter().filter(|child| child["spans"] == Value::Array(vec![]));
    for remedy in remedies
        .filter_map(|child| child["message"].as_str())
        .filter(|text| !text.contains("macro-backtrace"))
    {
        line += &format!("\n    {remedy}");
    }
    Some(line + "\n")
}

/// Returns the newest build of this crate's library, which this test uses.
fn newest_library(libraries: &Path) -> PathBuf {
    let is_library = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy();
        name.starts_with("libtrunkline-") && name.ends_with(".rlib")
    };
    let built =
        |path: &PathBuf| path.metadata().and_then(|data| data.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
    let files = std::fs::read_dir(libraries).unwrap().map(|file| file.unwrap().path());
    files.filter(is_library).max_by_key(built).expect("the library is beside this test")
}
