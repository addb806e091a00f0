//! Traits that are not a service, and what the compiler reports at them: one error, at the place that is wrong.
//!
//! `TRYBUILD=overwrite cargo test -p trunkline --test compile_fail` writes the present messages; review the
//! difference before you commit it.

#[cfg(test)]
mod tests {
    // One run, because trybuild builds the dependencies once for each.
    #[test]
    fn errors_point_at_their_cause() {
        let cases = trybuild::TestCases::new();
        cases.compile_fail("tests/compile_fail/*.rs");
        for page in ["coming-from-tonic", "coming-from-tarpc"] {
            cases.pass(program_of(page));
        }
    }

    /// What a page has of Trunkline, as one program. What the other crate's parts are, their first line names.
    fn program_of(page: &str) -> std::path::PathBuf {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(root.join(format!("../docs/{page}.md"))).unwrap();
        let mut program = String::new();
        for part in text.split("```rust\n").skip(1) {
            let part = part.split("```").next().unwrap();
            let is_other = ["// tonic", "// tarpc"].iter().any(|other| part.starts_with(other));
            if !is_other {
                program += part;
                program += "\n";
            }
        }
        // It is run too, and its own `main` does not end.
        let program = program.replace("fn main()", "fn program()");
        let program = format!("#![allow(dead_code)]\n{program}\nfn main() {{}}\n");
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("pages");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(format!("{page}.rs"));
        std::fs::write(&path, program).unwrap();
        path
    }
}
