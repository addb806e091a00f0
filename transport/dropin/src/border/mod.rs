//! The interface between C and Rust.
//!
//! An exported function receives raw pointers and must not unwind into C. It wraps each pointer once, in a type whose
//! constructor states the program's obligations, and then uses only the wrapper. The function's body runs inside another
//! function, which catches panics and sets `errno`.
//!
//! | part | contents |
//! |---|---|
//! | `outcome` | error numbers, panics, and the three ways in which C functions return |
//! | `lent` | memory that the program lends for one call: [`In`], [`InOut`], [`Out`] |
//! | `handle` | objects of this library to which programs hold pointers: [`Handle`] |
//!
//! The manual page of each function states the program's obligations. A null pointer that the page does not allow is
//! refused with `EINVAL`. Other pointers cannot be checked.

mod handle;
mod lent;
mod outcome;

pub(crate) use handle::{Field, Handle, Structure, field, hand_out};
pub(crate) use lent::{In, InOut, Out, OutArray, OutBytes};
pub(crate) use outcome::{Errno, guarded, made, object, status, value};
