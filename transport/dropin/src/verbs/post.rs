//! Posting linked lists of work requests.

use super::batch::{Batch, Bytes, Entry};
use super::objects::{QpObject, qp_of, srq_of};
use crate::abi::*;
use crate::border::{Errno, status};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use trunkline_verbs::{
    IoAddress, Lkey, PostError, ReceiveRequest, RemoteAddress, Rkey, SendFlags, SendOperation, Sge, SrqNumber,
};

thread_local! {
    static SENDS: RefCell<Batch> = RefCell::new(Batch::default());
    static SCATTER: RefCell<Vec<Sge>> = const { RefCell::new(Vec::new()) };
}

/// An SGE of C's.
pub(super) fn sge(from: &ibv_sge) -> Sge {
    Sge { address: IoAddress(from.addr), length: from.length, lkey: Lkey(from.lkey) }
}

/// The list of a work request.
///
/// # Safety
/// `list` points to `count` entries, unless that is 0.
unsafe fn sge_list<'a>(list: *const ibv_sge, count: c_int) -> Result<&'a [ibv_sge], Errno> {
    match usize::try_from(count) {
        Err(_) => Err(Errno::EINVAL),
        Ok(0) => Ok(&[]),
        // SAFETY: the caller's promise; the program does not change the list while it posts it.
        Ok(count) => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

/// Flags of a send request, without `IBV_SEND_INLINE`. Checksums are for UD and raw packets.
pub(super) fn send_flags(flags: c_uint) -> Result<SendFlags, Errno> {
    let known = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    let mut out = SendFlags::empty();
    out.set(SendFlags::SIGNALED, flags & IBV_SEND_SIGNALED != 0);
    out.set(SendFlags::FENCE, flags & IBV_SEND_FENCE != 0);
    out.set(SendFlags::SOLICITED, flags & IBV_SEND_SOLICITED != 0);
    Ok(out)
}

/// What a request asks for.
///
/// # Safety
/// The part of `wr.wr` that belongs to the opcode is filled in.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOperation, Errno> {
    let immediate = u32::from_be(wr.imm_data);
    let remote = || {
        // SAFETY: the caller's promise; any bits are a valid value.
        let rdma = unsafe { wr.wr.rdma };
        RemoteAddress { address: IoAddress(rdma.remote_addr), rkey: Rkey(rdma.rkey) }
    };
    let atomic = || {
        // SAFETY: as above.
        let atomic = unsafe { wr.wr.atomic };
        (RemoteAddress { address: IoAddress(atomic.remote_addr), rkey: Rkey(atomic.rkey) }, atomic)
    };
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOperation::Send,
        IBV_WR_SEND_WITH_IMM => SendOperation::SendWithImmediate(immediate),
        IBV_WR_RDMA_WRITE => SendOperation::RdmaWrite(remote()),
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOperation::RdmaWriteWithImmediate(remote(), immediate),
        IBV_WR_RDMA_READ => SendOperation::RdmaRead(remote()),
        IBV_WR_ATOMIC_CMP_AND_SWP => {
            let (remote, atomic) = atomic();
            SendOperation::CompareSwap { remote, compare: atomic.compare_add, swap: atomic.swap }
        }
        IBV_WR_ATOMIC_FETCH_AND_ADD => {
            let (remote, atomic) = atomic();
            SendOperation::FetchAdd { remote, add: atomic.compare_add }
        }
        IBV_WR_LOCAL_INV | IBV_WR_BIND_MW | IBV_WR_SEND_WITH_INV | IBV_WR_TSO | IBV_WR_ATOMIC_WRITE => {
            return Err(Errno::EOPNOTSUPP);
        }
        _ => return Err(Errno::EINVAL),
    })
}

/// Adds a request to the batch.
///
/// # Safety
/// `wr` is as the program must give it to `ibv_post_send`.
unsafe fn add(batch: &mut Batch, wr: &ibv_send_wr) -> Result<(), Errno> {
    let flags = send_flags(wr.send_flags)?;
    // SAFETY: the caller's promise, here and below.
    let operation = unsafe { operation(wr)? };
    // SAFETY: as above.
    let list = unsafe { sge_list(wr.sg_list, wr.num_sge)? };
    let bytes = if wr.send_flags & IBV_SEND_INLINE == 0 {
        let start = batch.sges.len();
        batch.sges.extend(list.iter().map(sge));
        Bytes::Gather(start..batch.sges.len())
    } else {
        let start = batch.inline.len();
        for piece in list {
            // SAFETY: with IBV_SEND_INLINE the pieces are the program's own readable memory.
            unsafe { copy_in(&mut batch.inline, piece.addr, piece.length as usize)? };
            if batch.inline.len() - start > MOST_INLINE {
                batch.inline.truncate(start);
                return Err(Errno::EINVAL);
            }
        }
        Bytes::Inline(start..batch.inline.len())
    };
    let remote_srq = SrqNumber::new(wr.remote_srqn);
    batch.entries.push(Entry { wr_id: wr.wr_id, operation, bytes, flags, remote_srq });
    Ok(())
}

/// More inline bytes than any QP takes, so that a wrong length is refused before it is copied.
const MOST_INLINE: usize = 4096;

/// Appends `length` bytes at `address`.
///
/// # Safety
/// They are readable, and stay as they are during the call.
pub(super) unsafe fn copy_in(into: &mut Vec<u8>, address: u64, length: usize) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    if length > MOST_INLINE || address == 0 {
        return Err(Errno::EINVAL);
    }
    let address = usize::try_from(address).map_err(|_| Errno::EINVAL)?;
    let start: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: the caller's promise.
    into.extend_from_slice(unsafe { std::slice::from_raw_parts(start, length) });
    Ok(())
}

/// The request at `index` of a list.
///
/// # Safety
/// The list has as many.
unsafe fn send_at(mut wr: *mut ibv_send_wr, index: usize) -> *mut ibv_send_wr {
    for _ in 0..index {
        // SAFETY: the caller's promise.
        wr = unsafe { (*wr).next };
    }
    wr
}

/// `ibv_post_send(3)`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    status(|| {
        // SAFETY: a QP of the caller's.
        let object: &QpObject = unsafe { qp_of(qp) };
        SENDS.with_borrow_mut(|batch| {
            batch.clear();
            let mut wr = list;
            let mut unread = Ok(());
            // SAFETY: the caller's list of requests, which ends with null.
            while let Some(request) = unsafe { wr.as_ref() } {
                // SAFETY: as above.
                unread = unsafe { add(batch, request) };
                if unread.is_err() {
                    break;
                }
                wr = request.next;
            }
            if let Err(refused) = batch.post(&*object.inner) {
                // SAFETY: the index is of a request of the list; the caller's place for it.
                unsafe { bad_wr.write(send_at(list, refused.index)) };
                return Err(refused.into());
            }
            if unread.is_err() {
                // SAFETY: the caller's place; `wr` is the request that could not be read.
                unsafe { bad_wr.write(wr) };
            }
            unread
        })
    })
}

/// Posts a list of receives, one by one: `post` is the queue's.
///
/// # Safety
/// `list` is as for `ibv_post_recv`, `bad_wr` a place for a pointer.
unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
    post: impl Fn(&[ReceiveRequest<'_>]) -> Result<(), PostError>,
) -> Result<(), Errno> {
    SCATTER.with_borrow_mut(|scatter| {
        let mut wr = list;
        // SAFETY: the caller's list of requests, which ends with null.
        while let Some(request) = unsafe { wr.as_ref() } {
            scatter.clear();
            // SAFETY: as above.
            let posted = unsafe { sge_list(request.sg_list, request.num_sge) }.and_then(|list| {
                scatter.extend(list.iter().map(sge));
                Ok(post(&[ReceiveRequest { wr_id: request.wr_id, scatter: scatter.as_slice() }])?)
            });
            if let Err(errno) = posted {
                // SAFETY: the caller's place.
                unsafe { bad_wr.write(wr) };
                return Err(errno);
            }
            wr = request.next;
        }
        Ok(())
    })
}

/// `ibv_post_recv(3)`.
pub(super) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: objects of the caller's.
    status(|| unsafe {
        let object = qp_of(qp);
        post_receives(list, bad_wr, |requests| object.inner.post_receive(requests))
    })
}

/// `ibv_post_srq_recv(3)`.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: objects of the caller's.
    status(|| unsafe {
        let object = srq_of(srq);
        post_receives(list, bad_wr, |requests| object.inner.post_receive(requests))
    })
}
