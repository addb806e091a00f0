//! Memory regions.

use super::convert::access;
use super::host::host;
use super::objects::{MrObject, context_of, hand_out, mr_of, pd_of, take_back};
use crate::abi::*;
use crate::border::{Errno, object, status, value};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use trunkline_verbs::{Access, IoAddress, Memory};

/// Registers `length` bytes at `addr` for work requests that name `iova`.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    let rights = access(flags & !IBV_ACCESS_ZERO_BASED)?;
    let start = NonNull::new(addr.cast::<u8>()).ok_or(Errno::EFAULT)?;
    // As the kernel: nothing to pin, or a range that wraps.
    if length == 0 || addr.addr().checked_add(length).is_none() {
        return Err(Errno::EINVAL);
    }
    let iova = if flags & IBV_ACCESS_ZERO_BASED == 0 { iova } else { 0 };
    let page = page_size()?;
    // As the kernel: pages are what is mapped, so a byte keeps its place in one.
    if flags & IBV_ACCESS_ZERO_BASED == 0 && iova % page as u64 != (addr.addr() % page) as u64 {
        return Err(Errno::EINVAL);
    }
    check_mapped(addr.addr(), length, page)?;
    if rights.contains(Access::LOCAL_WRITE) {
        check_writable(addr.addr(), length, page)?;
    }
    // SAFETY: a domain of the caller's, and its context.
    let (domain, owner) = unsafe { (pd_of(pd), context_of((*pd).context)) };
    // SAFETY: the caller promises that the range stays mapped until ibv_dereg_mr, and accesses it
    // as one accesses memory that a device writes.
    let memory = unsafe { Memory::from_raw_parts(start, length) };
    let inner = domain.inner.register_at(memory, IoAddress(iova), rights)?;
    let base = UnsafeCell::new(ibv_mr {
        // SAFETY: the caller's domain.
        context: unsafe { (*pd).context },
        pd,
        addr,
        length,
        handle: host().next_handle(),
        lkey: inner.lkey().0,
        rkey: inner.rkey().0,
    });
    let mr = hand_out(MrObject { base, inner: inner.clone() });
    owner.live.mrs.insert(mr, &inner);
    Ok(mr.cast())
}

fn page_size() -> Result<usize, Errno> {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| Errno::EIO)
}

/// `EFAULT` for a range with holes, as when the kernel pins it. What the program unmaps later is
/// its own loss.
fn check_mapped(address: usize, length: usize, page: usize) -> Result<(), Errno> {
    const PIECE: usize = 1 << 30;
    let mut at = address & !(page - 1);
    let end = address + length;
    while at < end {
        let piece = (end - at).min(PIECE);
        let mut resident = vec![0_u8; piece.div_ceil(page)];
        // SAFETY: mincore reads no memory of the range; the vector has a byte for each page.
        let answer =
            unsafe { libc::mincore(std::ptr::without_provenance_mut(at), piece, resident.as_mut_ptr()) };
        if answer != 0 {
            return Err(Errno::EFAULT);
        }
        at += piece;
    }
    Ok(())
}

/// `EFAULT` for memory that may be read only, as when the kernel pins it to be written. The first and
/// the last page stand for all. Kernels before 5.14 cannot be asked, and let it pass.
fn check_writable(address: usize, length: usize, page: usize) -> Result<(), Errno> {
    let first = address & !(page - 1);
    let last = (address + length - 1) & !(page - 1);
    let may = |at: usize, how: c_int| {
        // SAFETY: both kinds of advice fault a page in as an access would, and change no byte of it.
        unsafe { libc::madvise(std::ptr::without_provenance_mut(at), page, how) == 0 }
    };
    let read_only = |at: usize| !may(at, libc::MADV_POPULATE_WRITE) && may(at, libc::MADV_POPULATE_READ);
    if [first, last].into_iter().any(read_only) { Err(Errno::EFAULT) } else { Ok(()) }
}

/// `ibv_reg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on from the caller.
    object(|| unsafe { register(pd, addr, length, addr.addr() as u64, access.cast_unsigned()) })
}

/// `ibv_reg_mr_iova(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on from the caller.
    object(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// What the header makes of `ibv_reg_mr` when the access is no constant or has optional bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: passed on from the caller.
    object(|| unsafe { register(pd, addr, length, iova, access) })
}

/// No memory of another device can be reached.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_dmabuf_mr(
    _pd: *mut ibv_pd,
    _offset: u64,
    _length: usize,
    _iova: u64,
    _fd: c_int,
    _access: c_int,
) -> *mut ibv_mr {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_rereg_mr(3)`: not a feature of this device. The answer says that the region is as it was.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    _mr: *mut ibv_mr,
    _flags: c_int,
    _pd: *mut ibv_pd,
    _addr: *mut c_void,
    _length: usize,
    _access: c_int,
) -> c_int {
    value(|| {
        Errno::EOPNOTSUPP.set();
        Ok(IBV_REREG_MR_ERR_INPUT)
    })
}

/// `ibv_dereg_mr(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        // SAFETY: a region of the caller's, and its context.
        let (object, owner) = unsafe { (mr_of(mr), context_of((*mr).context)) };
        object.inner.destroy()?;
        owner.live.mrs.remove(mr);
        // SAFETY: handed out by `register`; the caller gives it up.
        unsafe { take_back(mr.cast::<MrObject>()) };
        Ok(())
    })
}

/// No region can be named by a handle of another process.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// Nothing to undo: [`ibv_import_mr`] answers none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}
