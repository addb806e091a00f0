//! `ibv_post_send`, `ibv_post_recv` and `ibv_post_srq_recv`, which post linked lists of work requests.

use super::batch::{Batch, Bytes, Entry};
use crate::abi::*;
use crate::border::{Errno, Handle, In, Out, status};
use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::thread::LocalKey;
use trunkline_verbs::{
    IoAddress, Lkey, PostError, ReceiveRequest, RemoteAddress, Rkey, SendFlags, SendOperation, Sge, SrqNumber,
};

thread_local! {
    static SENDS: RefCell<Batch> = RefCell::new(Batch::default());
    static SCATTER: RefCell<Vec<Sge>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` with the thread's reusable state. If the thread-local values have been destroyed, as during the program's
/// exit, uses a new state.
fn with<T: Default, R>(kept: &'static LocalKey<RefCell<T>>, work: impl FnOnce(&mut T) -> R) -> R {
    if kept.try_with(|_| ()).is_ok() { kept.with_borrow_mut(work) } else { work(&mut T::default()) }
}

/// Converts an SGE from C.
pub(super) fn sge(from: &ibv_sge) -> Sge {
    Sge { address: IoAddress(from.addr), length: from.length, lkey: Lkey(from.lkey) }
}

/// Returns the gather or scatter list of a work request. The list need not be aligned, because programs also store it in
/// packed structures.
///
/// # Safety
/// If `count` is positive, `list` must be null or point to `count` elements that are not changed while the iterator lives.
pub(super) unsafe fn sge_list(
    list: *const ibv_sge,
    count: impl TryInto<usize>,
) -> Result<impl Iterator<Item = ibv_sge>, Errno> {
    let count: usize = count.try_into().map_err(|_| Errno::EINVAL)?;
    if count > 0 && list.is_null() {
        return Err(Errno::EINVAL);
    }
    // SAFETY: the list is not null, and has `count` elements by this function's contract.
    Ok((0..count).map(move |at| unsafe { list.add(at).read_unaligned() }))
}

/// The requests that remain in a linked list posted by the program.
#[derive(Clone, Copy)]
struct List<'a, R> {
    first: *mut R,
    next: fn(&R) -> *mut R,
    lent: PhantomData<&'a R>,
}

impl<R> List<'_, R> {
    /// # Safety
    /// `first` is null, or points to a request for which `next` returns again such a pointer, and the
    /// requests and their scatter/gather lists are not changed during `'a`.
    unsafe fn new(first: *mut R, next: fn(&R) -> *mut R) -> Self {
        Self { first, next, lent: PhantomData }
    }
}

impl<'a, R> Iterator for List<'a, R> {
    /// A request, and the program's pointer to it.
    type Item = (In<'a, R>, *mut R);

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.first;
        // SAFETY: by the constructor's contract `at` is null or a request of the list.
        let request = unsafe { In::optional(at) }?;
        self.first = (self.next)(&request);
        Some((request, at))
    }
}

/// Returns the flags of a send request without `IBV_SEND_INLINE`, which the caller handles. Checksum flags apply only to UD
/// and raw packets, and return `EINVAL`.
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

/// Returns the operation of a request.
///
/// # Safety
/// The member of `wr.wr` for the opcode must be initialised.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOperation, Errno> {
    let immediate = u32::from_be(wr.imm_data);
    let remote = || {
        // SAFETY: initialised by this function's contract; any bits are a valid value.
        let rdma = unsafe { wr.wr.rdma };
        RemoteAddress { address: IoAddress(rdma.remote_addr), rkey: Rkey(rdma.rkey) }
    };
    let atomic = || {
        // SAFETY: initialised by this function's contract; any bits are a valid value.
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
/// `wr` must be a request as described in `ibv_post_send(3)`. The members that its opcode and flags require must be
/// initialised, and its list and inline data must be readable.
unsafe fn add(batch: &mut Batch, wr: &ibv_send_wr) -> Result<(), Errno> {
    let flags = send_flags(wr.send_flags)?;
    // SAFETY: the caller guarantees that the request is as `ibv_post_send(3)` describes it.
    let (operation, list) = unsafe { (operation(wr)?, sge_list(wr.sg_list, wr.num_sge)?) };
    let bytes = if wr.send_flags & IBV_SEND_INLINE == 0 {
        let start = batch.sges.len();
        batch.sges.extend(list.map(|piece| sge(&piece)));
        Bytes::Gather(start..batch.sges.len())
    } else {
        let start = batch.inline.len();
        for piece in list {
            // SAFETY: by this function's contract the pieces are readable memory with IBV_SEND_INLINE.
            unsafe { copy_in(&mut batch.inline, piece.addr, piece.length as usize)? };
            if batch.inline.len() - start > MAX_INLINE_BYTES {
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

/// Maximum number of inline bytes in a request. It exceeds the capacity of every QP. A longer request is refused before
/// the bytes are copied.
const MAX_INLINE_BYTES: usize = 4096;

/// Appends the `length` bytes at `address`.
///
/// # Safety
/// The bytes must be readable and must not change during the call.
pub(super) unsafe fn copy_in(into: &mut Vec<u8>, address: u64, length: usize) -> Result<(), Errno> {
    if length == 0 {
        return Ok(());
    }
    if length > MAX_INLINE_BYTES || address == 0 {
        return Err(Errno::EINVAL);
    }
    let address = usize::try_from(address).map_err(|_| Errno::EINVAL)?;
    let start: *const u8 = std::ptr::with_exposed_provenance(address);
    // SAFETY: this function's contract.
    into.extend_from_slice(&unsafe { In::array(start, length)? });
    Ok(())
}

/// Stores a pointer to the first request that was not posted, if the program passes memory for it.
fn report<R>(bad_wr: Option<Out<'_, *mut R>>, at: *mut R) {
    if let Some(bad_wr) = bad_wr {
        bad_wr.write(at);
    }
}

/// `ibv_post_send(3)`.
pub(super) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    list: *mut ibv_send_wr,
    bad_wr: *mut *mut ibv_send_wr,
) -> c_int {
    status(|| {
        // SAFETY: as `ibv_post_send(3)` requires, the program passes a live QP, a null-terminated
        // list that does not change during the call, and memory for a pointer or null.
        let (qp, list, bad_wr) =
            unsafe { (Handle::new(qp)?, List::new(list, |wr| wr.next), Out::optional(bad_wr)) };
        with(&SENDS, |batch| {
            batch.clear();
            let mut malformed = None;
            for (request, at) in list {
                // SAFETY: as `ibv_post_send(3)` requires, the program sets the fields that the
                // request's opcode and flags use.
                if let Err(errno) = unsafe { add(batch, &request) } {
                    malformed = Some((errno, at));
                    break;
                }
            }
            // The requests before a malformed request are posted.
            if let Err(refused) = batch.post(&*qp.inner) {
                let at = list.into_iter().nth(refused.index).map_or(null_mut(), |(_, at)| at);
                report(bad_wr, at);
                return Err(refused.into());
            }
            malformed.map_or(Ok(()), |(errno, at)| {
                report(bad_wr, at);
                Err(errno)
            })
        })
    })
}

/// Posts the receives in a list to a queue, one by one, with `post`.
fn post_receives(
    list: List<'_, ibv_recv_wr>,
    bad_wr: Option<Out<'_, *mut ibv_recv_wr>>,
    post: impl Fn(&[ReceiveRequest<'_>]) -> Result<(), PostError>,
) -> Result<(), Errno> {
    with(&SCATTER, |scatter| {
        for (request, at) in list {
            scatter.clear();
            // SAFETY: `List::new`'s contract covers the SGEs that the requests point to.
            let posted = unsafe { sge_list(request.sg_list, request.num_sge) }.and_then(|list| {
                scatter.extend(list.map(|piece| sge(&piece)));
                Ok(post(&[ReceiveRequest { wr_id: request.wr_id, scatter: scatter.as_slice() }])?)
            });
            if let Err(errno) = posted {
                report(bad_wr, at);
                return Err(errno);
            }
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
    status(|| {
        // SAFETY: as `ibv_post_recv(3)` requires, the program passes a live QP, a null-terminated
        // list that does not change during the call, and memory for a pointer or null.
        let (qp, list, bad_wr) =
            unsafe { (Handle::new(qp)?, List::new(list, |wr| wr.next), Out::optional(bad_wr)) };
        post_receives(list, bad_wr, |requests| qp.inner.post_receive(requests))
    })
}

/// `ibv_post_srq_recv(3)`.
pub(super) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    list: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    status(|| {
        // SAFETY: as `ibv_post_srq_recv(3)` requires, the program passes a live SRQ, a
        // null-terminated list that does not change during the call, and memory for a pointer or
        // null.
        let (srq, list, bad_wr) =
            unsafe { (Handle::new(srq)?, List::new(list, |wr| wr.next), Out::optional(bad_wr)) };
        post_receives(list, bad_wr, |requests| srq.inner.post_receive(requests))
    })
}
