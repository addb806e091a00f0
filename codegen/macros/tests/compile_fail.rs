//! What the macro refuses, and with which words.
//!
//! `TRYBUILD=overwrite cargo test -p trunkline-macros --test compile_fail` writes what the compiler says
//! now; look at the difference before it is committed.

#[cfg(test)]
mod tests {
    #[test]
    fn errors_point_at_their_cause() {
        let cases = trybuild::TestCases::new();
        cases.compile_fail("tests/compile_fail/*.rs");
    }
}
