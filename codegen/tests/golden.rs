//! The emitted stubs as text: `golden/kv.rs` shows what `#[trunkline::service]` expands to, `golden/pooled.rs` for methods of the worker pool.
//!
//! `TRUNKLINE_BLESS=1 cargo test -p trunkline-codegen --test golden` writes the present output; review
//! the difference before you commit it.

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use trunkline_codegen::{Payload, generate};

    fn golden(name: &str) -> PathBuf {
        [env!("CARGO_MANIFEST_DIR"), "tests/golden", name].iter().collect()
    }

    #[test]
    fn the_stubs_match_the_golden_files() {
        for name in ["kv", "pooled", "streams"] {
            is_golden(name);
        }
    }

    fn is_golden(name: &str) {
        let (written, file) = (format!("{name}.in.rs"), format!("{name}.rs"));
        let stubs = generate(&fs::read_to_string(golden(&written)).unwrap()).unwrap();
        if std::env::var_os("TRUNKLINE_BLESS").is_some() {
            fs::write(golden(&file), &stubs).unwrap();
        }
        let expected = fs::read_to_string(golden(&file)).unwrap();
        if let Some((line, (now, then))) = stubs
            .lines()
            .chain(std::iter::repeat(""))
            .zip(expected.lines().chain(std::iter::repeat("")))
            .take(stubs.lines().count().max(expected.lines().count()))
            .enumerate()
            .find(|(_, (now, then))| now != then)
        {
            panic!(
                "line {} of golden/{file} is {then:?}, but {now:?} is emitted; set TRUNKLINE_BLESS=1 to accept",
                line + 1
            );
        }
        assert!(stubs == expected, "the line endings differ");
    }

    #[test]
    fn unmarked_items_are_passed_through() {
        let source = "trait Plain {\n    fn method(&self);\n}\n#[service]\ntrait Foreign {}\n";
        assert_eq!(generate(source).unwrap(), source);
    }

    #[test]
    fn a_service_without_options_uses_the_name_of_its_trait() {
        let stubs = generate("#[trunkline::service]\ntrait Bare {}").unwrap();
        assert!(stubs.contains("struct BareServer"), "{stubs}");
        assert!(stubs.contains("name: \"Bare\""), "{stubs}");
        let stubs = generate("#[trunkline::service(version = 9)]\ntrait r#type { }").unwrap();
        assert!(stubs.contains("version: 9u32") && stubs.contains("name: \"type\""), "{stubs}");
    }

    #[test]
    fn the_path_of_the_crate_is_an_option() {
        let methods = "{ async fn one(&self, a: u8) -> Result<Option<Bytes>, Status>; #[blocking] async fn two(&self) -> Result<u8>; }";
        for attribute in ["facade::rpc::service(crate = facade::rpc)", "service(crate = facade::rpc)"] {
            let stubs = generate(&format!("#[{attribute}]\ntrait Kv {methods}")).unwrap();
            assert!(stubs.contains("use facade::rpc as __KvCrate;"), "{stubs}");
            assert!(!stubs.contains("::trunkline"), "{stubs}");
        }
        let foreign = "#[other::service(crate = facade::rpc)]\ntrait Kv {}\n";
        assert_eq!(generate(foreign).unwrap(), foreign);
    }

    #[test]
    fn all_errors_are_reported_at_once() {
        let source = "#[trunkline::service]\ntrait Bad { fn one(&self); async fn two(self); type T; }";
        let errors: Vec<_> =
            generate(source).unwrap_err().into_iter().map(|error| error.to_string()).collect();
        assert_eq!(
            errors,
            [
                "`one` has to be an `async fn`",
                "`two` has to take `&self` first",
                "a service can have only methods; put types and constants next to it"
            ]
        );
        assert!(generate("this is no Rust").is_err());
        assert!(generate("#[trunkline::service(colour = 1)] trait Odd {}").is_err());
    }

    #[test]
    fn a_generic_trait_gets_one_error() {
        let source =
            "#[trunkline::service]\ntrait Bad<'a> { async fn one(&self, a: Cow<'a, str>) -> &'a str; }";
        let errors: Vec<_> =
            generate(source).unwrap_err().into_iter().map(|error| error.to_string()).collect();
        assert_eq!(errors, ["a service cannot be generic: its types must be known on both sides"]);
    }

    #[test]
    fn hashes_are_stable() {
        // The hash is part of the protocol: another value would break every deployed peer.
        let hash = |raw, payload| trunkline_codegen::method_hash("golden.Kv", "get", raw, payload);
        assert_eq!(hash(None, Payload::Coded), 0x2ad5_80a9_e5e3_f733);
        assert_eq!(hash(Some(1), Payload::OptionalBytes), 0x4dcc_6051_f0aa_6aaa);
    }
}
