//! Posting of work requests.
//!
//! Linked lists of C structures are built on the stack, in batches and without allocations. SGE lists are passed unchanged,
//! because [`Sge`] has the layout of `ibv_sge`.

use crate::error::{Doing, check};
use crate::handle::Live;
use crate::inlines;
use rdma_sys::*;
use std::ffi::c_int;
use std::mem::{MaybeUninit, offset_of, size_of};
use std::ptr::null_mut;
use trunkline_verbs::{
    PostError, ReceiveRequest, RemoteAddress, SendData, SendFlags, SendOperation, SendRequest, Sge,
    VerbsError,
};

/// Maximum number of requests posted with one doorbell. They use 4 KiB of stack.
const BATCH: usize = 32;

const _: () = assert!(
    size_of::<Sge>() == size_of::<ibv_sge>()
        && offset_of!(Sge, address) == offset_of!(ibv_sge, addr)
        && offset_of!(Sge, length) == offset_of!(ibv_sge, length)
        && offset_of!(Sge, lkey) == offset_of!(ibv_sge, lkey)
);

/// Posts sends to a QP.
pub(crate) fn send(
    qp: Live<'_, ibv_qp>,
    is_xrc: bool,
    requests: &[SendRequest<'_>],
) -> Result<(), PostError> {
    let mut posted = 0;
    for batch in requests.chunks(BATCH) {
        let mut list = [const { MaybeUninit::<ibv_send_wr>::uninit() }; BATCH];
        let mut inline = [const { ibv_sge { addr: 0, length: 0, lkey: 0 } }; BATCH];
        let first = list.as_mut_ptr().cast::<ibv_send_wr>();
        let mut known_bad = None;
        let mut length = 0;
        for (index, (request, bytes)) in batch.iter().zip(&mut inline).enumerate() {
            match send_wr(request, is_xrc, bytes) {
                // SAFETY: the index is less than the batch's length, which is at most the array's.
                Ok(wr) => unsafe { first.add(index).write(wr) },
                Err(cause) => {
                    known_bad = Some(PostError { index: posted + index, cause });
                    break;
                }
            }
            if index > 0 {
                // SAFETY: both elements were written before.
                unsafe { (*first.add(index - 1)).next = first.add(index) };
            }
            length = index + 1;
        }
        if length > 0 {
            let mut refused = null_mut();
            // SAFETY: the list has `length` requests and ends with null. The requests point to `batch` and
            // `inline`, which do not change during the call.
            let status = unsafe { inlines::post_send(qp, first, &mut refused) };
            outcome(status, first, refused, length, posted)?;
        }
        if let Some(error) = known_bad {
            return Err(error);
        }
        posted += length;
    }
    Ok(())
}

/// The queue to which receives are posted.
#[derive(Clone, Copy)]
pub(crate) enum Receiver<'a> {
    /// The receive queue of a QP.
    Qp(Live<'a, ibv_qp>),
    /// A shared receive queue.
    Srq(Live<'a, ibv_srq>),
}

/// Posts receives to a queue.
pub(crate) fn receive(to: Receiver<'_>, requests: &[ReceiveRequest<'_>]) -> Result<(), PostError> {
    let mut posted = 0;
    for batch in requests.chunks(BATCH) {
        let mut list = [const { MaybeUninit::<ibv_recv_wr>::uninit() }; BATCH];
        let first = list.as_mut_ptr().cast::<ibv_recv_wr>();
        for (index, request) in batch.iter().enumerate() {
            let (sg_list, num_sge) = sges(request.scatter);
            // SAFETY: the index is less than the batch's length, which is at most the array's.
            unsafe {
                first.add(index).write(ibv_recv_wr {
                    wr_id: request.wr_id,
                    next: null_mut(),
                    sg_list,
                    num_sge,
                });
                if index > 0 {
                    (*first.add(index - 1)).next = first.add(index);
                }
            }
        }
        let mut refused = null_mut();
        // SAFETY: the list has as many requests as `batch`, points to the elements of `batch`, and ends
        // with null.
        let status = unsafe {
            match to {
                Receiver::Qp(qp) => inlines::post_recv(qp, first, &mut refused),
                Receiver::Srq(srq) => inlines::post_srq_recv(srq, first, &mut refused),
            }
        };
        outcome(status, first, refused, batch.len(), posted)?;
        posted += batch.len();
    }
    Ok(())
}

/// Returns the result of one call, after earlier calls have posted `posted` requests. If the device leaves `refused` unset,
/// the first request of the call counts as refused.
fn outcome<T>(
    status: c_int,
    first: *mut T,
    refused: *mut T,
    length: usize,
    posted: usize,
) -> Result<(), PostError> {
    check(Doing::Post, status).map_err(|cause| {
        let bytes = refused.addr().wrapping_sub(first.addr());
        let index = bytes / size_of::<T>();
        PostError { index: posted + if index < length { index } else { 0 }, cause }
    })
}

fn sges(list: &[Sge]) -> (*mut ibv_sge, c_int) {
    // A list that is too long for C's counter exceeds the limit of every device.
    (list.as_ptr().cast_mut().cast(), c_int::try_from(list.len()).unwrap_or(c_int::MAX))
}

fn send_wr(request: &SendRequest<'_>, is_xrc: bool, inline: &mut ibv_sge) -> Result<ibv_send_wr, VerbsError> {
    use ibv_wr_opcode as O;
    let mut flags = 0;
    for (ours, theirs) in [
        (SendFlags::SIGNALED, ibv_send_flags::IBV_SEND_SIGNALED),
        (SendFlags::FENCE, ibv_send_flags::IBV_SEND_FENCE),
        (SendFlags::SOLICITED, ibv_send_flags::IBV_SEND_SOLICITED),
    ] {
        if request.flags.contains(ours) {
            flags |= theirs.0;
        }
    }
    let rdma =
        |remote: RemoteAddress| wr_t { rdma: rdma_t { remote_addr: remote.address.0, rkey: remote.rkey.0 } };
    let atomic = |remote: RemoteAddress, compare_add: u64, swap: u64| wr_t {
        atomic: atomic_t { remote_addr: remote.address.0, compare_add, swap, rkey: remote.rkey.0 },
    };
    let nowhere = RemoteAddress::default();
    let (opcode, immediate, wr) = match request.operation {
        SendOperation::Send => (O::IBV_WR_SEND, 0, rdma(nowhere)),
        SendOperation::SendWithImmediate(immediate) => (O::IBV_WR_SEND_WITH_IMM, immediate, rdma(nowhere)),
        SendOperation::RdmaWrite(remote) => (O::IBV_WR_RDMA_WRITE, 0, rdma(remote)),
        SendOperation::RdmaWriteWithImmediate(remote, immediate) => {
            (O::IBV_WR_RDMA_WRITE_WITH_IMM, immediate, rdma(remote))
        }
        SendOperation::RdmaRead(remote) => (O::IBV_WR_RDMA_READ, 0, rdma(remote)),
        SendOperation::CompareSwap { remote, compare, swap } => {
            (O::IBV_WR_ATOMIC_CMP_AND_SWP, 0, atomic(remote, compare, swap))
        }
        SendOperation::FetchAdd { remote, add } => {
            (O::IBV_WR_ATOMIC_FETCH_AND_ADD, 0, atomic(remote, add, 0))
        }
    };
    let (sg_list, num_sge) = match request.data {
        SendData::Gather(list) => sges(list),
        SendData::Inline(bytes) => {
            if matches!(
                request.operation,
                SendOperation::RdmaRead(_)
                    | SendOperation::CompareSwap { .. }
                    | SendOperation::FetchAdd { .. }
            ) {
                return Err(VerbsError::Invalid("READs and atomics have no inline data"));
            }
            let length = u32::try_from(bytes.len());
            inline.length = length.map_err(|_| VerbsError::Invalid("the inline data is too long"))?;
            inline.addr = bytes.as_ptr().expose_provenance() as u64;
            flags |= ibv_send_flags::IBV_SEND_INLINE.0;
            (&raw mut *inline, 1)
        }
    };
    // SAFETY: the structure consists of numbers and pointers.
    let mut built: ibv_send_wr = unsafe { crate::convert::zeroed() };
    built.wr_id = request.wr_id;
    built.sg_list = sg_list;
    built.num_sge = num_sge;
    built.opcode = opcode;
    built.send_flags = flags;
    built.imm_data_invalidated_rkey_union.imm_data = immediate.to_be();
    built.wr = wr;
    if is_xrc {
        built.qp_type.xrc = xrc_t { remote_srqn: request.remote_srq.get() };
    }
    Ok(built)
}
