//! Rust examples in `README.md` and in the book in `docs/book`. Each example is contained verbatim in a program that is
//! compiled or run. Examples for another crate begin with a comment that names it.

use std::fs;
use std::path::Path;

mod budgets;
#[allow(dead_code, unreachable_pub, reason = "a program that is compiled only")]
mod coming_from_tarpc;
#[allow(dead_code, unreachable_pub, reason = "a program that is compiled only")]
mod coming_from_tonic;
#[allow(dead_code, reason = "programs that are compiled only")]
mod deploy;
mod evolution;
#[allow(dead_code, reason = "most examples are compiled only")]
mod guide;

/// The programs that contain the examples.
const PROGRAMS: [&str; 9] = [
    include_str!("../../../examples/hello/src/main.rs"),
    include_str!("../../../examples/hello/src/bin/shop.rs"),
    include_str!("pages/budgets.rs"),
    include_str!("pages/coming_from_tarpc.rs"),
    include_str!("pages/coming_from_tonic.rs"),
    include_str!("pages/deploy.rs"),
    include_str!("pages/evolution.rs"),
    // Run by `.ci/full` together with the adapter.
    include_str!("../../tonic/interop/tests/page.rs"),
    concat!(include_str!("pages/guide.rs"), include_str!("streams/unfinished.rs")),
];

#[test]
fn examples_of_documents_are_compiled() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut used = [false; PROGRAMS.len()];
    let mut paths = vec![root.join("README.md"), root.join("docs/book/src")];
    while let Some(path) = paths.pop() {
        if path.is_dir() {
            paths.extend(fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        for example in examples(&fs::read_to_string(&path).unwrap()) {
            let program = PROGRAMS.iter().position(|program| contains(program, &example));
            let missing =
                || panic!("{} has an example of no program:\n{}", path.display(), example.join("\n"));
            used[program.unwrap_or_else(missing)] = true;
        }
    }
    assert_eq!(used, [true; PROGRAMS.len()], "a program has no example");
}

/// Returns the lines of each Rust example in a document.
fn examples(document: &str) -> Vec<Vec<&str>> {
    let mut found: Vec<Vec<&str>> = Vec::new();
    let mut fence: Option<bool> = None;
    for line in document.lines() {
        match (line.trim_start().strip_prefix("```"), fence) {
            (Some(info), None) => {
                let is_rust = info.trim_start().to_lowercase().starts_with("rust");
                fence = Some(is_rust);
                found.extend(is_rust.then(Vec::new));
            }
            (Some(_), Some(_)) => fence = None,
            (None, Some(true)) => found.last_mut().unwrap().push(line),
            (None, _) => {}
        }
    }
    let of_another_crate = |lines: &[&str]| ["// tonic", "// tarpc"].contains(&lines[0].trim());
    found.retain(|lines| !of_another_crate(lines));
    found
}

/// Returns true if `program` contains the lines consecutively, with a common indentation.
fn contains(program: &str, lines: &[&str]) -> bool {
    let program = program.lines().collect::<Vec<_>>();
    let lines = without_indentation(lines);
    program.windows(lines.len()).any(|part| without_indentation(part) == lines)
}

fn without_indentation<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let text = lines.iter().filter(|line| !line.trim().is_empty());
    let common = text.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    lines.iter().map(|line| line.get(common..).unwrap_or("")).collect()
}

#[test]
fn changed_example_is_found() {
    let document =
        "text\n```rust\nlet a = 1;\n\nlet b = 2;\n```\n```sh\nls\n```\n```rust,ignore\n// tonic\nx\n```\n";
    let examples = examples(document);
    assert_eq!(examples, [["let a = 1;", "", "let b = 2;"]]);
    let is_in = |program| contains(program, &examples[0]);
    assert!(is_in("fn f() {\n    let a = 1;\n\n    let b = 2;\n}"));
    assert!(!is_in("fn f() {\n    let a = 1;\n\n    let b = 3;\n}"));
    assert!(!is_in("fn f() {\n    let a = 1;\n\n        let b = 2;\n}"));
    assert!(!is_in("fn f() {\n    let a = 1;\n    let b = 2;\n}"));
    assert!(!is_in("let a = 1;"));
}
