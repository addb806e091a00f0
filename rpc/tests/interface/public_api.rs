//! The public API of this crate as a checked-in listing, `rpc/public-api.txt`, so that review shows each
//! change.
//!
//! `TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface public_api` writes the listing again.

mod listing;
mod sources;
mod strip;

#[cfg(test)]
mod tests {
    use super::listing::listing;
    use std::fs;
    use std::path::Path;

    const RENEW: &str = "TRUNKLINE_BLESS=1 cargo test -p trunkline --test interface public_api";

    #[test]
    fn the_public_api_is_the_one_that_is_listed() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let file = root.join("public-api.txt");
        let now = listing(root);
        if std::env::var_os("TRUNKLINE_BLESS").is_some() {
            fs::write(&file, &now).expect("the listing can be written");
        }
        let before = fs::read_to_string(&file).unwrap_or_default();
        let gone: Vec<&str> =
            before.lines().filter(|line| !now.lines().any(|other| other == *line)).collect();
        let new: Vec<&str> = now.lines().filter(|line| !before.lines().any(|other| other == *line)).collect();
        assert!(
            before == now,
            "the public API has changed; if that is meant, renew rpc/public-api.txt by\n    {RENEW}\n\
             lines that are gone: {gone:#?}\nlines that are new: {new:#?}"
        );
    }

    /// Checks that the listing contains known items. An empty listing would also equal itself.
    #[test]
    fn methods_variants_and_what_other_crates_define_are_listed() {
        let now = listing(Path::new(env!("CARGO_MANIFEST_DIR")));
        for line in [
            "pub fn builder() -> NodeBuilder",
            "DeadlineExceeded",
            "// trunkline::Bytes, of another project",
            "// trunkline::NodeReport, of trunkline_transport",
            "impl std::error::Error for Status",
            "pub trait ",
        ] {
            assert!(now.contains(line), "{line:?} is not listed");
        }
        assert!(!now.contains("pub(crate)") && !now.contains("///"), "private things or docs are listed");
    }
}
