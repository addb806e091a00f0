//! Exported functions of libibverbs, implemented with the traits of `trunkline_verbs`.
//!
//! | part | files |
//! |---|---|
//! | the process: its one device, events, forks, exit | `host`, `events`, `fork`, `end` |
//! | objects that C holds pointers to | `objects`, `live`, `turn`, and one file for each kind |
//! | tables that the header's inline functions call | `ops` |
//! | programs that spin | `spin` |
//! | posting | `post` (lists of requests), `wr` (`ibv_wr_*`), `batch` (the batch that both fill) |
//! | functions without a device | `strings`, `rates`, `sysfs`, `marshal` |
//! | missing features | `missing`, `private` |
//!
//! Each exported function behaves as its manual page specifies, and otherwise as in rdma-core 44. As in rdma-core, a
//! pointer is checked for null and otherwise trusted. A pointer is not kept after its target may have become invalid.
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
mod live;
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
mod turn;
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
