//! The programs on the pages for users of other crates. They compile, and are what the pages show.

/// A page's program, and the text of both.
macro_rules! page {
    ($name:ident) => {
        #[test]
        fn $name() {
            let page = include_str!(concat!("../../../docs/coming-from-", stringify!($name), ".md"));
            assert_eq!(
                program_of(page),
                include_str!(concat!("pages/coming-from-", stringify!($name), ".rs"))
            );
        }
    };
}

#[allow(dead_code, unreachable_pub, reason = "a program of its own, which is compiled only")]
mod with_tonic {
    include!("pages/coming-from-tonic.rs");
}

#[allow(dead_code, unreachable_pub, reason = "a program of its own, which is compiled only")]
mod with_tarpc {
    include!("pages/coming-from-tarpc.rs");
}

page!(tonic);
page!(tarpc);

/// The parts of a page that are not code of the other crate, which its first line names.
fn program_of(page: &str) -> String {
    let parts = page.split("```rust\n").skip(1).filter_map(|part| part.split("```").next());
    let is_other = |part: &&str| ["// tonic", "// tarpc"].iter().any(|other| part.starts_with(other));
    parts.filter(|part| !is_other(part)).map(|part| format!("{part}\n")).collect()
}
