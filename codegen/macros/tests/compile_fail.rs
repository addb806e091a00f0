//! The inputs that the macro rejects, and its messages.
//!
//! `TRYBUILD=overwrite cargo test -p trunkline-macros --test compile_fail` writes the present messages;
//! review the difference before you commit it.

#[cfg(test)]
mod tests {
    #[test]
    fn errors_point_at_their_cause() {
        let cases = trybuild::TestCases::new();
        cases.compile_fail("tests/compile_fail/*.rs");
    }
}
