//! The operator tool.
fn main() {}
