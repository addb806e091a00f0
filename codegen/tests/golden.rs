//! Compares the emitted stubs with `golden/kv.rs`, which shows the expansion of `#[trunkline::service]`.
//!
//! `TRUNKLINE_BLESS=1 cargo test -p trunkline-codegen --test golden` updates the file. Review the changes before you commit
//! them.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;
    use trunkline_codegen::generate;

    #[test]
    fn stubs_match_golden_file() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let stubs = generate(&fs::read_to_string(folder.join("kv.in.rs")).unwrap()).unwrap();
        let golden = folder.join("kv.rs");
        if std::env::var_os("TRUNKLINE_BLESS").is_some() {
            fs::write(&golden, &stubs).unwrap();
        }
        let expected = fs::read_to_string(golden).unwrap();
        for (at, (emitted, expected)) in stubs.lines().zip(expected.lines()).enumerate() {
            assert_eq!(emitted, expected, "line {}; set TRUNKLINE_BLESS=1 to accept", at + 1);
        }
        assert!(stubs == expected, "the number of lines or their endings differ");
    }

    #[test]
    fn unmarked_items_are_copied_unchanged() {
        let source = "trait Plain {\n    fn method(&self);\n}\n#[service]\ntrait Foreign {}\n";
        assert_eq!(generate(source).unwrap(), source);
    }

    #[test]
    fn service_without_options_uses_name_of_its_trait() {
        let stubs = generate("#[trunkline::service]\ntrait Bare {}").unwrap();
        assert!(stubs.contains("struct BareServer"), "{stubs}");
        assert!(stubs.contains("name: \"Bare\""), "{stubs}");
        let stubs = generate("#[trunkline::service(version = 9)]\ntrait r#type { }").unwrap();
        assert!(stubs.contains("version: 9u32") && stubs.contains("name: \"type\""), "{stubs}");
    }

    #[test]
    fn crate_path_is_set_by_option() {
        let methods = "{ async fn one(&self, a: u8) -> Result<Option<Bytes>, Status>; #[blocking] async fn two(&self) -> Result<u8>; }";
        for attribute in ["facade::rpc::service(crate = facade::rpc)", "service(crate = facade::rpc)"] {
            let stubs = generate(&format!("#[{attribute}]\ntrait Kv {methods}")).unwrap();
            assert!(stubs.contains("use facade::rpc as __KvCrate;"), "{stubs}");
            assert!(!stubs.contains("::trunkline"), "{stubs}");
        }
        let foreign = "#[other::service(crate = facade::rpc)]\ntrait Kv {}\n";
        assert_eq!(generate(foreign).unwrap(), foreign);
    }
}
