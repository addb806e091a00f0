//! Types that cannot be sent, and what the compiler reports at them.
//!
//! `TRYBUILD=overwrite cargo test -p trunkline --test compile_fail` writes the present messages; review the
//! difference before you commit it.

#[cfg(test)]
mod tests {
    #[test]
    fn errors_point_at_the_type() {
        let cases = trybuild::TestCases::new();
        cases.compile_fail("tests/compile_fail/*.rs");
    }
}
