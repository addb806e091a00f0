//! The three front ends, attribute macro, `build.rs` helper and command line, make the same code.

#[cfg(test)]
mod tests {
    use quote::ToTokens as _;
    use std::fs;
    use std::path::{Path, PathBuf};
    use std::process::{Command, Output};
    use trunkline_testkit::Folder;

    /// A service with documentation, `Bytes`, an own error, options and a one-way method.
    const SOURCE: &str = r#"
use trunkline::{Bytes, Status};

/// A shop.
///
/// It sells things.
#[trunkline::service(name = "shop.Shop", version = 3, accepts = 2..=3)]
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

    /// Returns the output of the attribute macro for the trait, between the items around it.
    fn macro_output() -> String {
        let mut file = syn::parse_file(SOURCE).unwrap();
        let syn::Item::Trait(mut item) = file.items.remove(1) else { panic!("the second item is the trait") };
        let attribute = item.attrs.pop().expect("the attribute is the last one");
        let options = attribute.meta.require_list().unwrap().tokens.clone();
        let stubs = trunkline_codegen::expand(options, item.to_token_stream());
        let import = &file.items[0];
        prettyplease::unparse(&syn::parse2(quote::quote!(#import #stubs)).unwrap())
    }

    #[test]
    fn all_front_ends_make_the_same_code() {
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
    fn a_stale_output_is_noticed() {
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
            "\n#[trunkline::service]\ntrait Wrong {\n    fn get(&self);\n    async fn put(&self, key: &str);\n}\n",
        );
        let failed = cli(&[&input]);
        assert!(!failed.status.success() && failed.stdout.is_empty());
        let text = String::from_utf8(failed.stderr).unwrap();
        assert!(text.contains("wrong.rs:4:5: `get` has to be an `async fn`"), "{text}");
        assert!(text.contains("wrong.rs:5:30: argument `key` of `put` cannot be sent"), "{text}");
        assert!(!cli(&[Path::new("/no such file")]).status.success());
    }

    #[test]
    fn a_closed_pipe_is_no_error() {
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
