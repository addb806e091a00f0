//! Operator tools.
