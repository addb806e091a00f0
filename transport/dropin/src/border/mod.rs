//! The interface between C and Rust.
//!
//! An exported function receives raw pointers, and must not panic into C. It wraps each pointer once, in a type whose
//! constructor states the program's obligations, and then uses only the wrapper. Its body runs inside a function that
//! catches panics and sets `errno`.
//!
//! | part | contents |
//! |---|---|
//! | `outcome` | error numbers, panics, the three ways in which C functions return |
//! | `lent` | memory that the program lends for the length of a call: [`In`], [`InOut`], [`Out`] |
//! | `handle` | objects of this library that programs hold pointers to: [`Handle`] |
//!
//! The manual page of each function states the program's obligations. A null pointer that the page does not allow is
//! refused with `EINVAL`; other pointers cannot be checked.

mod handle;
mod lent;
mod outcome;

pub(crate) use handle::{Field, Handle, Structure, field, hand_out};
pub(crate) use lent::{In, InOut, Out, OutArray, OutBytes};
pub(crate) use outcome::{Errno, guarded, made, object, status, value};
