//! Functions with which programs read files in sysfs.
//!
//! The device is not registered with the kernel, so its path is empty.

use super::device::ibv_get_device_name;
use crate::abi::ibv_device;
use crate::border::{Errno, In, OutBytes, value};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// `ibv_get_sysfs_path`: returns the mount point of sysfs.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

fn path(text: &CStr) -> &Path {
    Path::new(OsStr::from_bytes(text.to_bytes()))
}

/// Reads the beginning of a file into a buffer of `size` bytes, as text without the trailing newline. Returns the length of
/// the text.
fn read(file: &Path, buffer: &OutBytes<'_>, size: usize) -> Result<c_int, Errno> {
    let os = |error: std::io::Error| Errno(error.raw_os_error().unwrap_or(libc::EIO));
    let room = size.checked_sub(1).ok_or(Errno::EINVAL)?;
    let mut text = Vec::new();
    File::open(file).map_err(os)?.take(room as u64).read_to_end(&mut text).map_err(os)?;
    if text.last() == Some(&b'\n') {
        text.pop();
    }
    buffer.write_text(&text)?;
    c_int::try_from(text.len()).map_err(|_| Errno::EINVAL)
}

/// Reads `file` in `dir`. Returns the number of bytes, or sets `errno` and returns -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> c_int {
    value(|| {
        // SAFETY: by rdma-core's contract the program passes two C strings, and a buffer of `size` bytes.
        let (dir, file, buffer) = unsafe { (In::text(dir)?, In::text(file)?, OutBytes::new(buffer, size)?) };
        read(&path(&dir).join(path(&file)), &buffer, size)
    })
}

/// Reads a file below a device's directory. Providers' libraries pass a `printf` format as the name, but do not call this
/// for a device of this library. The format is therefore used as a plain name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_read_ibdev_sysfs_file(
    buffer: *mut c_char,
    size: usize,
    _sysfs: *mut ibv_device,
    file: *const c_char,
) -> c_int {
    value(|| {
        // SAFETY: by rdma-core's contract the program passes a C string, and a buffer of `size` bytes. The
        // device's name is a C string that this library stores.
        let (name, file, buffer) = unsafe {
            let name = ibv_get_device_name(super::device::the_device()?);
            (In::text(name)?, In::text(file)?, OutBytes::new(buffer, size)?)
        };
        let directory = PathBuf::from("/sys/class/infiniband").join(path(&name));
        read(&directory.join(path(&file)), &buffer, size)
    })
}
