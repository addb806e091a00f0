//! The objects to which C programs hold pointers, with one type per kind.
//!
//! Each object begins with its C structure. The object of `trunkline_verbs` that does the work follows. Only files in this
//! folder access an object, through the [`Handle`] for its C structure.

use super::events::{ContextEvents, EventCount};
use super::live::Live;
use super::turn::Turn;
use super::wr::Posting;
use crate::abi::*;
use crate::border::{Handle, Structure, field};
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::{Arc, Mutex};
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::legacy::LegacyXrc;
use trunkline_verbs::{
    Completion, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair,
    SharedReceiveQueue, XrcDomain,
};

/// An open device.
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) table: UnsafeCell<verbs_context>,
    pub(crate) device: Arc<SoftDevice>,
    pub(crate) events: Arc<ContextEvents>,
    /// Live objects of the context.
    pub(crate) live: Live,
    /// XRC receive QPs registered through the OFED 1.x calls.
    pub(crate) legacy: LegacyXrc,
}

/// A protection domain.
#[repr(C)]
pub(crate) struct PdObject {
    pub(crate) base: UnsafeCell<ibv_pd>,
    pub(crate) inner: Arc<dyn ProtectionDomain>,
}

/// A memory region.
#[repr(C)]
pub(crate) struct MrObject {
    pub(crate) base: UnsafeCell<ibv_mr>,
    pub(crate) inner: Arc<dyn MemoryRegion>,
}

/// A completion channel with its CQs, which are listed by the number in their events.
#[repr(C)]
pub(crate) struct ChannelObject {
    pub(crate) base: UnsafeCell<ibv_comp_channel>,
    pub(crate) inner: Arc<dyn CompletionChannel>,
    pub(crate) cqs: Mutex<HashMap<u64, CqTarget>>,
}

/// The entry for a CQ in its channel's table.
#[derive(Debug, Clone)]
pub(crate) struct CqTarget {
    pub(crate) address: usize,
    pub(crate) count: Arc<EventCount>,
}

/// A completion queue. Every CQ supports the functions of extended CQs.
#[repr(C)]
pub(crate) struct CqObject {
    pub(crate) base: UnsafeCell<ibv_cq_ex>,
    pub(crate) inner: Arc<dyn CompletionQueue>,
    /// Number of the CQ in events.
    pub(crate) id: u64,
    pub(crate) completion_events: Arc<EventCount>,
    pub(crate) async_events: Arc<EventCount>,
    /// Held from `start_poll` to `end_poll`. Contains the completion that is being read.
    pub(crate) turn: Turn<Completion>,
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqObject {
    pub(crate) base: UnsafeCell<ibv_srq>,
    pub(crate) inner: Arc<dyn SharedReceiveQueue>,
    /// Number of the SRQ in events.
    pub(crate) id: u64,
    pub(crate) events: Arc<EventCount>,
}

/// A handle for an XRC domain.
#[repr(C)]
pub(crate) struct XrcdObject {
    pub(crate) base: UnsafeCell<ibv_xrcd>,
    pub(crate) inner: Arc<dyn XrcDomain>,
}

/// A queue pair, or a handle of a TGT.
#[repr(C)]
pub(crate) struct QpObject {
    pub(crate) base: UnsafeCell<ibv_qp_ex>,
    pub(crate) inner: Arc<dyn QueuePair>,
    pub(crate) events: Arc<EventCount>,
    /// True if every send request produces a completion, whether or not it is signalled.
    pub(crate) signal_all: bool,
    /// True if the program requested the `ibv_wr_*` functions with `send_ops_flags`.
    pub(crate) is_extended: bool,
    /// Held from `wr_start` to `wr_complete` or `wr_abort`. Contains the requests so far.
    pub(crate) turn: Turn<Posting>,
}

/// An address handle. No QP type of this device uses one.
#[repr(C)]
pub(crate) struct AhObject {
    pub(crate) base: UnsafeCell<ibv_ah>,
    pub(crate) _pd: Arc<dyn ProtectionDomain>,
}

// SAFETY: `ContextObject` is `repr(C)` and begins with `table`, which contains the structure.
unsafe impl Structure for ibv_context {
    type Object = ContextObject;
    const OFFSET: usize = offset_of!(verbs_context, context);
}

macro_rules! structures {
    ($($structure:ty => $object:ty),* $(,)?) => {
        $(
            // SAFETY: the object is `repr(C)` and begins with `base`, an `UnsafeCell` of the
            // structure or of the extended one, which begins with the structure.
            unsafe impl Structure for $structure {
                type Object = $object;
            }
        )*
    };
}

structures! {
    ibv_pd => PdObject,
    ibv_mr => MrObject,
    ibv_comp_channel => ChannelObject,
    ibv_cq => CqObject,
    ibv_cq_ex => CqObject,
    ibv_srq => SrqObject,
    ibv_xrcd => XrcdObject,
    ibv_qp => QpObject,
    ibv_qp_ex => QpObject,
    ibv_ah => AhObject,
}

macro_rules! owners {
    ($($structure:ty),*) => {
        $(
            impl<'a> Handle<'a, $structure> {
                /// Returns the object's context.
                pub(crate) fn owner(self) -> Result<Handle<'a, ibv_context>, crate::border::Errno> {
                    // SAFETY: the library stored the context when it created the object, programs only read
                    // the field, and a program uses no object after it has closed the context.
                    unsafe { Handle::new(self.get(field!($structure, context))) }
                }
            }
        )*
    };
}

owners!(ibv_pd, ibv_mr, ibv_cq, ibv_srq, ibv_xrcd, ibv_qp);
