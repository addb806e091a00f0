//! Traits that are not a service, and what the compiler reports at them: one error, at the place that is wrong.
//!
//! `TRYBUILD=overwrite cargo test -p trunkline --test compile_fail` writes the present messages; review the
//! difference before you commit it.

#[cfg(test)]
mod tests {
    // No program passes: trybuild would build all dependencies for it, and otherwise it only checks them.
    #[test]
    fn errors_point_at_their_cause() {
        trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
    }
}
