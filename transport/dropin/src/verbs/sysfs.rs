//! Files of sysfs, as programs read them through the library. The kernel shows none of our
//! device, so those below its path are not there.

use super::device::ibv_get_device_name;
use crate::abi::ibv_device;
use crate::border::{Errno, value};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `ibv_get_sysfs_path`: where sysfs is.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

unsafe fn path<'a>(text: *const c_char) -> &'a Path {
    // SAFETY: the caller's string, which ends with a zero.
    Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(text) }.to_bytes()))
}

/// Reads a file's beginning into the caller's buffer, as text without its line end.
unsafe fn read(file: &Path, buffer: *mut c_char, size: usize) -> Result<c_int, Errno> {
    let os = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let room = size.checked_sub(1).ok_or(Errno::EINVAL)?;
    let mut text = Vec::new();
    File::open(file).map_err(os)?.take(room as u64).read_to_end(&mut text).map_err(os)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    // SAFETY: the caller's buffer has `size` bytes, and the text is shorter.
    unsafe {
        buffer.copy_from_nonoverlapping(text.as_ptr().cast(), text.len());
        buffer.add(text.len()).write(0);
    }
    c_int::try_from(text.len()).map_err(|_| Errno::EINVAL)
}

/// Reads `file` in `dir`: how many bytes, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller's strings and buffer.
    value(|| unsafe { read(&path(dir).join(path(file)), buffer, size) })
}

/// The same below the directory of a device. Providers' libraries name the file by a format of
/// printf's; with a device of ours they never come here, so it is taken as a plain name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _sysfs: *mut ibv_device,
    file: *const c_char,
) -> c_int {
    value(|| {
        // SAFETY: the caller's strings and buffer.
        unsafe {
            let name = super::device::the_device().map(|device| ibv_get_device_name(device))?;
            let directory = PathBuf::from("/sys/class/infiniband").join(path(name));
            read(&directory.join(path(file)), buffer, size)
        }
    })
}
