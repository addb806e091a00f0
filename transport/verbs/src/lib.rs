//! Types and traits for verbs, the calls on an RDMA device.
//!
//! This crate contains plain types and object-safe traits in the terms of libibverbs and librdmacm. Providers (the software
//! device, the adapter over rdma-core) implement the traits; pollers, trunks and the conformance suite use them. The crate
//! does no I/O, and must never name a C type. Some modules query the system for all crates above: [`headroom`] and
//! [`host_memory`] for free memory, [`internal_thread`] for threads, [`fork`] for forks of the process, and [`descriptors`]
//! for descriptors above the standard streams.
//!
//! Objects are returned as `Arc<dyn Trait>`. One virtual call moves a whole batch of work requests or completions. Each
//! object has an explicit `destroy` that returns [`VerbsError::Busy`] while another object still uses it. Dropping the last
//! `Arc` also destroys the object, in the order that the device requires.

mod access;
mod async_event;
mod channel;
mod cm;
mod completion;
mod copy;
mod counters;
mod cq;
pub mod descriptors;
mod device;
mod error;
pub mod fork;
mod fork_ffi;
mod gid;
pub mod headroom;
mod heap_ffi;
pub mod host_memory;
pub mod internal_thread;
mod io_address;
pub mod legacy;
mod memory;
mod mr;
mod mtu;
mod number;
mod pd;
mod peer_host;
mod provider;
mod qp;
mod qp_attributes;
mod qp_path;
mod qp_state;
mod qp_transition;
mod qp_type;
mod srq;
mod time;
mod work_request;
mod xrcd;

pub use access::Access;
pub use async_event::{AsyncEvent, AsyncEventKind, AsyncSubject};
pub use channel::CompletionChannel;
pub use cm::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, CmOption, ConnectParameters, ConnectionManager,
    EndpointDone, EndpointRequest, EndpointSide, OneFlow, PeerView, PortSpace, RejectReason, SidrStatus,
    UDP_Q_KEY, UdpPorts, UnreachableCause, canonical,
};
pub use completion::{Completion, CompletionFlags, CompletionOpcode, CompletionStatus};
pub use counters::Counter;
pub use cq::{CompletionQueue, CqInit, DeviceWait, Notify, Prepared};
pub use device::{AddressOwner, Device, DeviceAttributes, DeviceCapabilities, PortAttributes, PortState};
pub use error::{PostError, VerbsError, WILDCARD_TAKEN};
pub use gid::{Gid, GidEntry, GidKind};
pub use io_address::IoAddress;
pub use memory::{Memory, MemoryError};
pub use mr::{Lkey, MemoryRegion, RemoteAddress, Rkey};
pub use mtu::Mtu;
pub use number::{PKEY_DEFAULT, Psn, QpNumber, SrqNumber};
pub use pd::ProtectionDomain;
pub use peer_host::PeerHost;
pub use provider::{DeviceInfo, Provider};
pub use qp::{QpInit, QueueCapacities, QueuePair, ReadAllowance};
pub use qp_attributes::{AddressVector, QpAttributes, QpModify};
pub use qp_path::{PathChoice, QpPath};
pub use qp_state::QpState;
pub use qp_transition::{AttributeMask, TransitionError, check_transition, effective_mask};
pub use qp_type::QpType;
pub use srq::{SharedReceiveQueue, SrqAttributes, SrqInit, SrqKind};
pub use time::{Clock, Time, VirtualClock};
pub use work_request::{ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest, Sge};
pub use xrcd::{XrcDomain, XrcdFlags};
