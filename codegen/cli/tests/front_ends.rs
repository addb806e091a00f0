//! The three front ends (attribute macro, `build.rs` helper, command line) generate the same code.

#[cfg(test)]
mod tests {
    use quote::ToTokens as _;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};
    use trunkline_testkit::Folder;

    /// A service with documentation, `Bytes`, a custom error type, options, streams, a `cfg` and methods of each kind.
    const SOURCE: &str = r#"
use trunkline::{Bytes, Context, Status, Stream, Streaming, codec::MessagePack};

/// A shop.
///
/// It sells things.
#[cfg(all())]
#[trunkline::service(name = "shop.Shop", version = 3, accepts = 2..=3, codec = MessagePack)]
pub trait Shop {
    /// Orders something.
    async fn order(&self, item: String, count: u32) -> Result<u64, Status>;
    /// Its picture.
    #[name = "image"]
    async fn picture(&self, item: String) -> Option<Bytes>;
    /// Counts for long.
    #[blocking]
    async fn count(&self) -> u64;
    #[offload]
    async fn weigh(&self, item: String) -> Result<u32, Status>;
    #[oneway]
    async fn visit(&self);
    /// Pays.
    #[idempotent]
    async fn pay(&self, cx: &Context, r#type: (u8, Vec<String>)) -> Result<(), Refusal>;
    async fn prices(&self, from: u32) -> Result<impl Stream<Item = Result<u64, Status>>, Status>;
    async fn deliver(&self, crates: Streaming<Bytes>) -> Result<u64, Status>;
}

#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub enum Refusal {
    NoMoney,
}
"#;

    fn file(folder: &Folder, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn cli(arguments: &[&Path]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_trunkline-codegen")).args(arguments).output().unwrap()
    }

    /// Returns the attribute macro's output for the trait, with the other items of the source around it.
    fn macro_output() -> String {
        let mut file = syn::parse_file(SOURCE).unwrap();
        let syn::Item::Trait(mut item) = file.items.remove(1) else { panic!("the second item is the trait") };
        let attribute = item.attrs.pop().expect("the attribute is the last one");
        let options = attribute.meta.require_list().unwrap().tokens.clone();
        let stubs = trunkline_codegen::expand(options, item.to_token_stream());
        let (import, error) = (&file.items[0], &file.items[1]);
        prettyplease::unparse(&syn::parse2(quote::quote!(#import #stubs #error)).unwrap())
    }

    #[test]
    fn all_front_ends_generate_same_code() {
        let folder = Folder::new().unwrap();
        let input = file(&folder, "same.rs", SOURCE);
        let printed = cli(&[&input]);
        assert!(printed.status.success());
        let printed = String::from_utf8(printed.stdout).unwrap();
        let directory = input.with_extension("out");
        fs::create_dir_all(&directory).unwrap();
        let built = fs::read_to_string(trunkline_codegen::build_into(&input, &directory).unwrap()).unwrap();
        assert_eq!(printed, built);
        assert_eq!(printed, macro_output());
        for text in ["/// A shop.", "/// It sells things.", "/// Orders something.", "name: \"image\""] {
            assert!(printed.contains(text), "{text}");
        }
    }

    #[test]
    fn all_stubs_of_conditional_service_have_its_condition() {
        let condition = "#[cfg(feature = \"shop\")]";
        for source in [
            format!("{condition}\n#[trunkline::service]\ntrait Shop {{ async fn order(&self) -> u8; }}"),
            format!("#[trunkline::service]\n{condition}\ntrait Shop {{ async fn order(&self) -> u8; }}"),
        ] {
            let stubs = syn::parse_file(&trunkline_codegen::generate(&source).unwrap()).unwrap();
            for item in stubs.items {
                let text = item.to_token_stream().to_string();
                assert!(text.contains("cfg (feature = \"shop\")"), "{text}");
            }
        }
    }

    #[test]
    fn services_in_modules_are_generated_and_other_items_kept() {
        let folder = Folder::new().unwrap();
        let service = "#[trunkline::service]\n    pub trait Shop { async fn order(&self) -> u8; }";
        let source = format!(
            "/// Old.\npub mod v1 {{\n    #![allow(unused)]\n    {service}\n    mod a {{}}\n}}\nmod b;\n"
        );
        let output = cli(&[&file(&folder, "modules.rs", &source)]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.starts_with("/// Old.\npub mod v1 {\n    #![allow(unused)]\n"), "{text}");
        assert!(
            text.contains("    pub struct ShopServer") && text.ends_with("    mod a {}\n}\nmod b;\n"),
            "{text}"
        );
        assert!(!text.contains("trunkline::service"), "{text}");
    }

    #[test]
    fn command_prints_help_and_errors() {
        let folder = Folder::new().unwrap();
        let help = String::from_utf8(cli(&[Path::new("--help")]).stdout).unwrap();
        for text in ["#[trunkline::service]", "--output src/kv.rs", "--check", "build script", "Exit status"]
        {
            assert!(help.contains(text), "{text}: {help}");
        }
        let input = file(&folder, "input.rs", SOURCE);
        let fails = |arguments: &[&Path], text: &str| {
            let output = cli(arguments);
            let error = String::from_utf8(output.stderr).unwrap();
            assert!(!output.status.success() && error.contains(text), "{error}");
        };
        fails(&[&input, Path::new("--output"), &input], "is the input");
        assert_eq!(fs::read_to_string(&input).unwrap(), SOURCE);
        fails(&[&file(&folder, "plain.rs", "trait Plain {}")], "plain.rs: no trait is marked");
        fails(
            &[&input, Path::new("--check"), Path::new("--output"), &folder.join("new.rs")],
            "does not exist",
        );
    }

    #[test]
    fn stale_output_is_detected() {
        let folder = Folder::new().unwrap();
        let (input, output) = (file(&folder, "stale.rs", SOURCE), file(&folder, "stale.out.rs", ""));
        let check = || cli(&[&input, Path::new("--check"), Path::new("--output"), &output]);
        let stale = check();
        assert!(!stale.status.success());
        assert!(String::from_utf8_lossy(&stale.stderr).contains("differs"));
        assert!(cli(&[&input, Path::new("--output"), &output]).status.success());
        assert!(check().status.success());
    }

    #[test]
    fn errors_name_file_line_and_column() {
        let folder = Folder::new().unwrap();
        let input = file(
            &folder,
            "wrong.rs",
            "\n#[trunkline::service]\ntrait Wrong {\n    fn get(&self);\n    async fn put(&self, key: &str);\n}\n\
             #[trunkline::service(colour = 1)]\ntrait Also<T> {}\n",
        );
        let failed = cli(&[&input]);
        assert!(!failed.status.success() && failed.stdout.is_empty());
        let text = String::from_utf8(failed.stderr).unwrap();
        assert!(text.contains("wrong.rs:4:5: `get` has to be an `async fn`"), "{text}");
        assert!(text.contains("wrong.rs:5:30: argument `key` of `put` cannot be sent"), "{text}");
        assert!(text.contains("wrong.rs:8:12: a service cannot be generic"), "{text}");
        assert!(text.contains("wrong.rs:7:22: unknown option `colour`"), "{text}");
        assert!(!cli(&[&file(&folder, "prose.rs", "this is no Rust")]).status.success());
        assert!(!cli(&[Path::new("/no such file")]).status.success());
    }

    #[test]
    fn closed_pipe_does_not_fail() {
        let folder = Folder::new().unwrap();
        let source = file(&folder, "closed_pipe.rs", SOURCE);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(env!("CARGO_BIN_EXE_trunkline-codegen"));
        let output =
            command.arg(&source).stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    }
}
