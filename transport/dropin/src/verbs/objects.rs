//! The objects that C holds pointers to.
//!
//! Each has its C structure first, so that a pointer to the one is a pointer to the other, and
//! the object of `trunkline_verbs` behind it. The C structure stands in an `UnsafeCell`: programs
//! write some of its fields.

use super::events::{ContextEvents, EventCount};
use super::wr::Posting;
use crate::abi::*;
use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::mem::offset_of;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use trunkline_softrdma::device::SoftDevice;
use trunkline_verbs::legacy::LegacyXrc;
use trunkline_verbs::{
    Completion, CompletionChannel, CompletionQueue, MemoryRegion, ProtectionDomain, QueuePair,
    SharedReceiveQueue, VerbsError, XrcDomain,
};

/// An opened device.
#[repr(C)]
pub(crate) struct ContextObject {
    pub(crate) table: UnsafeCell<verbs_context>,
    pub(crate) device: Arc<SoftDevice>,
    pub(crate) events: Arc<ContextEvents>,
    pub(crate) live: Live,
    /// The receive QPs of OFED 1.x that the process is registered with.
    pub(crate) legacy: LegacyXrc,
}

/// What was made in a context and is not destroyed: it ends with the context (contract A14).
#[derive(Debug, Default)]
pub(crate) struct Live {
    pub(crate) pds: Table<dyn ProtectionDomain>,
    pub(crate) mrs: Table<dyn MemoryRegion>,
    pub(crate) cqs: Table<dyn CompletionQueue>,
    pub(crate) srqs: Table<dyn SharedReceiveQueue>,
    pub(crate) xrcds: Table<dyn XrcDomain>,
    pub(crate) qps: Table<dyn QueuePair>,
}

/// Objects by the address of their C structure.
#[derive(Debug)]
pub(crate) struct Table<T: ?Sized>(pub(crate) Mutex<HashMap<usize, Arc<T>>>);

impl<T: ?Sized> Default for Table<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
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

/// A completion channel, and the CQs that report to it by the number in their events.
#[repr(C)]
pub(crate) struct ChannelObject {
    pub(crate) base: UnsafeCell<ibv_comp_channel>,
    pub(crate) inner: Arc<dyn CompletionChannel>,
    pub(crate) cqs: Mutex<HashMap<u64, CqTarget>>,
}

/// A CQ as its channel knows it.
#[derive(Debug, Clone)]
pub(crate) struct CqTarget {
    pub(crate) address: usize,
    pub(crate) count: Arc<EventCount>,
}

/// A completion queue; all of them have the readers of extended ones.
#[repr(C)]
pub(crate) struct CqObject {
    pub(crate) base: UnsafeCell<ibv_cq_ex>,
    pub(crate) inner: Arc<dyn CompletionQueue>,
    pub(crate) id: u64,
    pub(crate) completion_events: Arc<EventCount>,
    pub(crate) async_events: Arc<EventCount>,
    /// Held from `start_poll` to `end_poll`.
    pub(crate) turn: Turn,
    /// What the readers read; belongs to who holds `turn`.
    pub(crate) current: UnsafeCell<Completion>,
}

/// A shared receive queue.
#[repr(C)]
pub(crate) struct SrqObject {
    pub(crate) base: UnsafeCell<ibv_srq>,
    pub(crate) inner: Arc<dyn SharedReceiveQueue>,
    pub(crate) id: u64,
    pub(crate) events: Arc<EventCount>,
}

/// A handle on an XRC domain.
#[repr(C)]
pub(crate) struct XrcdObject {
    pub(crate) base: UnsafeCell<ibv_xrcd>,
    pub(crate) inner: Arc<dyn XrcDomain>,
}

/// A queue pair, or a handle on a TGT.
#[repr(C)]
pub(crate) struct QpObject {
    pub(crate) base: UnsafeCell<ibv_qp_ex>,
    pub(crate) inner: Arc<dyn QueuePair>,
    pub(crate) events: Arc<EventCount>,
    pub(crate) signal_all: bool,
    /// Made with `send_ops_flags`.
    pub(crate) is_extended: bool,
    /// Held from `wr_start` to `wr_complete` or `wr_abort`.
    pub(crate) turn: Turn,
    /// Belongs to who holds `turn`.
    pub(crate) posting: UnsafeCell<Posting>,
}

/// An address handle; this device has no QP type that uses one.
#[repr(C)]
pub(crate) struct AhObject {
    pub(crate) base: UnsafeCell<ibv_ah>,
    pub(crate) _pd: Arc<dyn ProtectionDomain>,
}

/// A lock that is taken in one call of the program and given back in another.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    taken: Mutex<bool>,
    freed: Condvar,
}

impl Turn {
    pub(crate) fn take(&self) {
        let mut taken = super::events::lock(&self.taken);
        while *taken {
            taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken = true;
    }

    pub(crate) fn give_back(&self) {
        *super::events::lock(&self.taken) = false;
        self.freed.notify_one();
    }
}

/// The object of a context.
///
/// # Safety
/// `context` was answered by `ibv_open_device` and is not closed.
pub(crate) unsafe fn context_of<'a>(context: *mut ibv_context) -> &'a ContextObject {
    // SAFETY: every ibv_context that programs hold lies inside of a ContextObject, at this distance.
    unsafe { &*context.byte_sub(offset_of!(verbs_context, context)).cast::<ContextObject>() }
}

macro_rules! accessor {
    ($name:ident, $c:ty, $object:ty) => {
        /// The object behind a pointer of the program.
        ///
        /// # Safety
        /// The pointer was answered by the function that makes such objects, and the object is
        /// not destroyed.
        pub(crate) unsafe fn $name<'a>(pointer: *mut $c) -> &'a $object {
            // SAFETY: each such structure that programs hold is the first field of the object.
            unsafe { &*pointer.cast::<$object>() }
        }
    };
}

accessor!(pd_of, ibv_pd, PdObject);
accessor!(mr_of, ibv_mr, MrObject);
accessor!(channel_of, ibv_comp_channel, ChannelObject);
accessor!(cq_of, ibv_cq, CqObject);
accessor!(cq_ex_of, ibv_cq_ex, CqObject);
accessor!(srq_of, ibv_srq, SrqObject);
accessor!(xrcd_of, ibv_xrcd, XrcdObject);
accessor!(qp_of, ibv_qp, QpObject);
accessor!(qp_ex_of, ibv_qp_ex, QpObject);

/// Puts an object where C can hold it.
pub(crate) fn hand_out<T>(object: T) -> *mut T {
    Box::into_raw(Box::new(object))
}

/// Takes an object back from C and drops it.
///
/// # Safety
/// `pointer` came from [`hand_out`] with the same type, and C uses it no more.
pub(crate) unsafe fn take_back<T>(pointer: *mut T) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(pointer) });
}

impl<T: ?Sized> Table<T> {
    pub(crate) fn insert<C>(&self, pointer: *mut C, object: &Arc<T>) {
        super::events::lock(&self.0).insert(pointer.addr(), Arc::clone(object));
    }

    pub(crate) fn remove<C>(&self, pointer: *mut C) {
        super::events::lock(&self.0).remove(&pointer.addr());
    }

    /// Ends what is left. What refuses ends with its last `Arc`.
    pub(crate) fn end(&self, end: impl Fn(&T) -> Result<(), VerbsError>) {
        let left = std::mem::take(&mut *super::events::lock(&self.0));
        for object in left.values() {
            let _refused = end(object);
        }
    }
}
