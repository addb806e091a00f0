//! Registration and deregistration of memory regions, with their checks.

use super::convert::access;
use super::host::host;
use super::objects::MrObject;
use crate::abi::*;
use crate::border::{Errno, Handle, hand_out, object, status, value};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::NonNull;
use trunkline_verbs::{Access, IoAddress, Memory};

/// Registers `length` bytes at `addr`. Work requests and peers use addresses that start at `iova`.
///
/// # Safety
/// `pd` is null or a PD that the program has not deallocated. The program keeps the range mapped
/// until `ibv_dereg_mr`, and expects the device to read it, and to write it where the flags allow.
unsafe fn register(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    let rights = access(flags & !IBV_ACCESS_ZERO_BASED)?;
    let start = NonNull::new(addr.cast::<u8>()).ok_or(Errno::EFAULT)?;
    // The kernel also refuses empty ranges and ranges that wrap around.
    if length == 0 || addr.addr().checked_add(length).is_none() {
        return Err(Errno::EINVAL);
    }
    let iova = if flags & IBV_ACCESS_ZERO_BASED == 0 { iova } else { 0 };
    let page = page_size()?;
    // As in the kernel, which maps pages, an address and its IOVA must have the same offset in a page.
    if flags & IBV_ACCESS_ZERO_BASED == 0 && iova % page as u64 != (addr.addr() % page) as u64 {
        return Err(Errno::EINVAL);
    }
    check_mapped(addr.addr(), length, page)?;
    if rights.contains(Access::LOCAL_WRITE) {
        check_writable(addr.addr(), length, page)?;
    }
    // SAFETY: this function's contract about the PD.
    let pd = unsafe { Handle::new(pd)? };
    let owner = pd.owner()?;
    // SAFETY: by this function's contract the range stays mapped while it is registered, and the program treats it as
    // memory that a device may write.
    let memory = unsafe { Memory::from_raw_parts(start, length) };
    let inner = pd.inner.register_at(memory, IoAddress(iova), rights)?;
    let base = UnsafeCell::new(ibv_mr {
        context: owner.as_ptr(),
        pd: pd.as_ptr(),
        addr,
        length,
        handle: host().next_handle(),
        lkey: inner.lkey().0,
        rkey: inner.rkey().0,
    });
    let mr: Handle<'_, ibv_mr> = hand_out(MrObject { base, inner: inner.clone() });
    owner.live.mrs.insert(mr.address(), &inner);
    Ok(mr.as_ptr())
}

fn page_size() -> Result<usize, Errno> {
    // SAFETY: `sysconf` takes no pointer and changes no state.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(|_| Errno::EIO)
}

/// Checks that a range is completely mapped. Returns `EFAULT` otherwise, as the kernel does when it pins the range. If the
/// program later unmaps the range, this is not detected.
fn check_mapped(address: usize, length: usize, page: usize) -> Result<(), Errno> {
    const PIECE: usize = 1 << 30;
    let mut at = address & !(page - 1);
    let end = address + length;
    while at < end {
        let piece = (end - at).min(PIECE);
        let mut resident = vec![0_u8; piece.div_ceil(page)];
        // SAFETY: mincore accesses no memory of the range, and the vector has a byte for each page.
        let failed =
            unsafe { libc::mincore(std::ptr::without_provenance_mut(at), piece, resident.as_mut_ptr()) };
        if failed != 0 {
            return Err(Errno::EFAULT);
        }
        at += piece;
    }
    Ok(())
}

/// Checks that memory is mapped for writing. Returns `EFAULT` otherwise, as the kernel does when it pins memory for
/// writing. Only the first and the last page are checked. Kernels before 5.14 lack the check, and every range passes there.
fn check_writable(address: usize, length: usize, page: usize) -> Result<(), Errno> {
    let first = address & !(page - 1);
    let last = (address + length - 1) & !(page - 1);
    let may = |at: usize, how: c_int| {
        // SAFETY: both kinds of advice fault a page in as an access does, and change no byte of it.
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
    // SAFETY: as `ibv_reg_mr(3)` requires, the program passes a live PD, and memory that stays
    // allocated while it is registered.
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
    // SAFETY: as `ibv_reg_mr_iova(3)` requires, the program passes a live PD, and memory that stays
    // allocated while it is registered.
    object(|| unsafe { register(pd, addr, length, iova, access.cast_unsigned()) })
}

/// Called by the header's `ibv_reg_mr` if the access flags are not constant or contain optional bits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: as `ibv_reg_mr(3)` requires, the program passes a live PD, and memory that stays
    // allocated while it is registered.
    object(|| unsafe { register(pd, addr, length, iova, access) })
}

/// `ibv_reg_dmabuf_mr(3)`: `EOPNOTSUPP`, because this device cannot access the memory of another device.
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

/// `ibv_rereg_mr(3)`: `EOPNOTSUPP`. The return value says that the region is unchanged.
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
        // SAFETY: as `ibv_dereg_mr(3)` requires, the program passes a registered MR.
        let mr = unsafe { Handle::new(mr)? };
        let owner = mr.owner()?;
        mr.inner.destroy()?;
        owner.live.mrs.remove(mr.address());
        // SAFETY: this is the program's last use of the MR, and its context does not list it any more.
        unsafe { mr.release() };
        Ok(())
    })
}

/// `ibv_import_mr(3)`: `EOPNOTSUPP`, because processes cannot share an MR of this device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_mr(_pd: *mut ibv_pd, _handle: u32) -> *mut ibv_mr {
    object(|| Err(Errno::EOPNOTSUPP))
}

/// `ibv_unimport_mr(3)`: no-op, because [`ibv_import_mr`] never succeeds.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_unimport_mr(_mr: *mut ibv_mr) {}
