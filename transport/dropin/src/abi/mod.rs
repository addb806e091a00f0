//! The C structures and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`.
//!
//! Owns their layout, under the names that C gives them. The functions of `verbs` and `cm` fill
//! and read them. Sizes, offsets and values are held against `exports/layout.txt` by the test
//! here, and that file against Debian's headers by `deploy/checks/30-abi.sh`. Nothing here does
//! anything.
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]
#![allow(missing_docs, missing_debug_implementations, reason = "plain C structures, documented there")]
#![allow(clippy::use_self, reason = "a structure reads as it does in C")]

mod cma;
mod codes;
mod context;
mod cq;
mod device;
mod kernel;
#[cfg(test)]
mod layout;
mod memory;
mod qp;
mod qp_ex;
mod srq;
mod work;

pub use cma::*;
pub use codes::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use kernel::*;
pub use memory::*;
pub use qp::*;
pub use qp_ex::*;
pub use srq::*;
pub use work::*;
