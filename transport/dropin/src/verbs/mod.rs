//! What libibverbs exports, over the traits of `trunkline_verbs`.
//!
//! | part | files |
//! |---|---|
//! | the process: its one device, numbers, events on their way to contexts, forks | `host`, `events`, `fork` |
//! | objects that C holds pointers to | `objects`, and one file for each kind |
//! | tables that the header's inline functions call | `ops` |
//! | programs that spin | `spin` |
//! | work | `post` (lists of requests), `wr` (`ibv_wr_*`), `batch` (what both make) |
//! | answers without a device | `strings`, `rates`, `sysfs` |
//! | what this device has not | `missing`, `private` |
//!
//! Each exported function is as its manual page says; where that leaves a choice, as rdma-core
//! 44 does. Pointers are believed, as they are by rdma-core: a program may break itself. They
//! are never kept beyond the life of what they point to.
#![allow(clippy::missing_safety_doc, reason = "callers are C programs; the manual pages are the contract")]

mod ah;
mod batch;
mod channel;
mod context;
pub(crate) mod convert;
mod cq;
mod cq_ex;
mod device;
mod end;
pub(crate) mod events;
mod fork;
mod gid;
mod host;
mod marshal;
mod missing;
mod mr;
pub(crate) mod objects;
mod ops;
mod pd;
mod port;
mod post;
mod private;
mod qp;
mod qp_modify;
mod query;
mod rates;
mod spin;
mod srq;
mod strings;
mod sysfs;
mod wr;
mod xrcd;

pub use ah::*;
pub use channel::*;
pub use context::*;
pub use cq::*;
pub use device::*;
pub use gid::*;
pub use marshal::*;
pub use missing::*;
pub use mr::*;
pub use pd::*;
pub use port::*;
pub use private::*;
pub use qp::*;
pub use qp_modify::*;
pub(crate) use qp_modify::{attributes, change};
pub use query::*;
pub use rates::*;
pub(crate) use srq::create_srq_ex;
pub use srq::*;
pub use strings::*;
pub use sysfs::*;
pub use wr::ibv_qp_to_qp_ex;
pub(crate) use xrcd::{close_xrcd, open_xrcd};
