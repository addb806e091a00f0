//! The C structures and constants of `<infiniband/verbs.h>` and `<rdma/rdma_cma.h>`.
//!
//! This module defines only their layout, under the C names. The functions in `verbs` and `cm` read and write the
//! structures. A test compares sizes, offsets and values with `exports/layout.txt`, and `deploy/checks/30-abi.sh` compares
//! that file with Debian's headers.
#![allow(non_camel_case_types, reason = "the names are those of the C headers")]
#![allow(missing_docs, missing_debug_implementations, reason = "plain C structures, documented there")]
#![allow(clippy::use_self, reason = "structures look as they do in C")]

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
