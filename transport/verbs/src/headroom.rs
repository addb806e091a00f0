//! Memory kept free within the process's limits.
//!
//! Small allocations cannot return errors, because the allocator ends the process if memory is exhausted. Large allocations
//! can return errors, so they fail unless [`HEADROOM`] is left after them. This module enforces that rule for the limits on
//! the address space (`ulimit -v`) and on private memory (`ulimit -d`). Callers check before they allocate large blocks, map
//! files or start threads. Without a limit, each check makes two system calls. A check must never allocate.
//!
//! The checks do not lock, so threads that allocate at the same time may together leave less. The limit of a control group
//! is not checked; the kernel ends a process that exceeds that limit.

use crate::heap_ffi;
use nix::errno::Errno;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::str;

/// Bytes that are reserved for small allocations.
pub const HEADROOM: usize = 8 << 20;
/// Address space in bytes of a thread's stack with the standard library's default size, including its guard page.
pub const STACK: usize = (2 << 20) + 4096;
/// Minimum length of a large block, in bytes.
pub const LARGE: usize = 16 << 10;
/// Size of the buffer for the part of /proc/self/status that is read.
const STATUS_BYTES: usize = 4096;

/// Error returned when a limit would leave too little memory free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "{what} limited to {limit_kib} KiB (`{command}`), of which {used_kib} KiB are in use, and {wanted_kib} KiB more \
     are needed: raise the limit by at least {missing_kib} KiB, or lift it with `{command} unlimited`",
    what = self.limit.what(),
    command = self.limit.command(),
    missing_kib = self.used_kib.saturating_add(self.wanted_kib).saturating_sub(self.limit_kib)
)]
pub struct NoRoom {
    limit: Limit,
    limit_kib: u64,
    used_kib: u64,
    wanted_kib: u64,
}

impl From<NoRoom> for io::Error {
    fn from(error: NoRoom) -> Self {
        Self::new(io::ErrorKind::OutOfMemory, error)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Limit {
    AddressSpace,
    Data,
}

impl Limit {
    const fn what(self) -> &'static str {
        match self {
            Self::AddressSpace => "the address space is",
            Self::Data => "private memory is",
        }
    }

    const fn command(self) -> &'static str {
        match self {
            Self::AddressSpace => "ulimit -v",
            Self::Data => "ulimit -d",
        }
    }

    /// Returns the name of the line in /proc/self/status with the value that the kernel compares with the
    /// limit.
    const fn line(self) -> &'static str {
        match self {
            Self::AddressSpace => "VmSize:",
            Self::Data => "VmData:",
        }
    }

    fn bytes(self) -> Option<u64> {
        if cfg!(miri) {
            return None;
        }
        let resource = match self {
            Self::AddressSpace => Resource::RLIMIT_AS,
            Self::Data => Resource::RLIMIT_DATA,
        };
        let (soft, _hard) = getrlimit(resource).ok()?;
        (soft != RLIM_INFINITY).then_some(soft)
    }

    fn check(self, bytes: usize) -> Result<(), NoRoom> {
        let Some(limit) = self.bytes() else { return Ok(()) };
        // If /proc cannot be read, the allocation itself fails.
        let Some(used_kib) = in_use_kib(self) else { return Ok(()) };
        self.judge(limit >> 10, used_kib, (bytes as u64).saturating_add(HEADROOM as u64).div_ceil(1024))
    }

    fn judge(self, limit_kib: u64, used_kib: u64, wanted_kib: u64) -> Result<(), NoRoom> {
        if used_kib.saturating_add(wanted_kib) <= limit_kib {
            return Ok(());
        }
        Err(NoRoom { limit: self, limit_kib, used_kib, wanted_kib })
    }
}

/// Checks that [`HEADROOM`] is left after an allocation of `bytes` of private memory.
///
/// # Errors
/// [`NoRoom`] if a limit would leave less.
pub fn check(bytes: usize) -> Result<(), NoRoom> {
    Limit::AddressSpace.check(bytes)?;
    Limit::Data.check(bytes)
}

/// Checks that [`HEADROOM`] is left after `bytes` of shared memory are mapped from a file.
///
/// # Errors
/// Same as [`check`].
pub fn check_shared(bytes: usize) -> Result<(), NoRoom> {
    Limit::AddressSpace.check(bytes)
}

/// Error returned when a file would exceed the process's limit on file sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "files are limited to {limit} bytes (`ulimit -f`), and {wanted} are needed: raise the limit, or lift it with \
     `ulimit -f unlimited`"
)]
pub struct FileTooLarge {
    limit: u64,
    wanted: u64,
}

impl From<FileTooLarge> for io::Error {
    fn from(error: FileTooLarge) -> Self {
        Self::new(io::ErrorKind::FileTooLarge, error)
    }
}

/// Checks the length of a file against the process's limit. The kernel does not refuse a longer file but ends the process
/// with SIGXFSZ.
///
/// # Errors
/// [`FileTooLarge`] if the limit is below `bytes`.
pub fn check_file(bytes: u64) -> Result<(), FileTooLarge> {
    // Without a limit, the value is `u64::MAX`.
    let limit = getrlimit(Resource::RLIMIT_FSIZE).map_or(u64::MAX, |(soft, _hard)| soft);
    if bytes <= limit { Ok(()) } else { Err(FileTooLarge { limit, wanted: bytes }) }
}

/// Returns a suffix for the text of an error that reports a reached limit. The suffix names the limit, its value if the
/// process can read it, and how to raise it. It is empty for other errors.
#[must_use]
pub const fn remedy(errno: Option<i32>) -> Remedy {
    Remedy(errno)
}

/// Text that [`remedy`] returns.
#[derive(Debug, Clone, Copy)]
pub struct Remedy(Option<i32>);

impl fmt::Display for Remedy {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let limit = |resource| getrlimit(resource).map_or(RLIM_INFINITY, |(soft, _hard)| soft);
        match self.0.map(Errno::from_raw) {
            Some(Errno::EMFILE) => {
                let files = limit(Resource::RLIMIT_NOFILE);
                write!(out, "; open files are limited to {files} (`ulimit -n`): raise the limit")
            }
            Some(Errno::ENFILE) => {
                out.write_str("; the host's limit on open files is reached: raise it (`sysctl fs.file-max`)")
            }
            Some(Errno::EFBIG) => {
                let bytes = limit(Resource::RLIMIT_FSIZE);
                write!(out, "; files are limited to {bytes} bytes (`ulimit -f`): raise the limit")
            }
            Some(Errno::EAGAIN) => match limit(Resource::RLIMIT_NPROC) {
                RLIM_INFINITY => out.write_str(
                    "; a limit on threads is reached, such as pids.max of the service or container: raise it",
                ),
                threads => write!(
                    out,
                    "; threads of this user are limited to {threads} (`ulimit -u`), and those of a service or \
                     container by its pids.max: raise the limit"
                ),
            },
            _ => Ok(()),
        }
    }
}

/// Returns true if the process's address space or private memory is limited.
#[must_use]
pub fn is_limited() -> bool {
    Limit::AddressSpace.bytes().is_some() || Limit::Data.bytes().is_some()
}

/// Minimizes glibc's use of memory if the process's address space or private memory is limited. By default, glibc reserves
/// 64 MiB of address space for each new thread that allocates, and temporarily twice as much, unless `MALLOC_ARENA_MAX` is
/// set. Whether that fits the limit depends on the order of the threads. glibc also keeps large freed blocks, which
/// [`check`] counts as used. The cost is that threads wait for each other to allocate, and that large blocks are mapped
/// again each time.
///
/// The change affects the whole process, so nodes call this function before they start threads, but devices do not call it.
pub fn tune_heap() {
    if is_limited() {
        heap_ffi::use_least();
    }
}

/// Makes the whole process return large blocks to the system when they are freed. This is for programs that create and drop
/// many nodes, such as simulations. Most of a pool is never touched, so fresh pages, which are zero, cost less than used
/// memory that must be zeroed.
pub fn return_large_blocks() {
    heap_ffi::return_large_blocks();
}

/// Returns the memory that counts against a limit, in KiB.
fn in_use_kib(limit: Limit) -> Option<u64> {
    let mut bytes = [0; STATUS_BYTES];
    let mut length = 0;
    let mut status = File::open("/proc/self/status").ok()?;
    while length < bytes.len() {
        match status.read(&mut bytes[length..]).ok()? {
            0 => break,
            more => length += more,
        }
    }
    parse(str::from_utf8(&bytes[..length]).ok()?, limit.line())
}

/// Returns the number in a line such as `VmSize:     5312 kB`.
fn parse(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_is_exact_to_one_kib_and_named() {
        assert_eq!(Limit::AddressSpace.judge(100_000, 60_000, 40_000), Ok(()));
        let refused = Limit::AddressSpace.judge(100_000, 60_000, 40_001).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "the address space is limited to 100000 KiB (`ulimit -v`), of which 60000 KiB are in use, and 40001 KiB \
             more are needed: raise the limit by at least 1 KiB, or lift it with `ulimit -v unlimited`"
        );
        let data = Limit::Data.judge(0, u64::MAX, 1).unwrap_err().to_string();
        assert!(data.contains("private memory") && data.contains("ulimit -d"), "{data}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri knows no limits")]
    fn errors_caused_by_limit_name_limit_and_value() {
        let text = |errno: Errno| remedy(Some(errno as i32)).to_string();
        let (files, _hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(text(Errno::EMFILE).contains(&format!("limited to {files} (`ulimit -n`)")));
        assert!(text(Errno::EAGAIN).contains("pids.max") && text(Errno::EFBIG).contains("ulimit -f"));
        assert_eq!((text(Errno::EIO), remedy(None).to_string()), (String::new(), String::new()));
    }

    #[test]
    fn status_of_process_has_both_numbers() {
        let status = "Name:\tx\nVmPeak:\t    9000 kB\nVmSize:\t    5312 kB\nVmData:\t     401 kB\n";
        assert_eq!(parse(status, "VmSize:"), Some(5312));
        assert_eq!(parse(status, "VmData:"), Some(401));
        assert_eq!(parse(status, "VmLck:"), None);
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no /proc")]
    fn used_memory_of_this_process_is_positive() {
        assert!(in_use_kib(Limit::AddressSpace) > in_use_kib(Limit::Data));
        assert!(in_use_kib(Limit::Data) > Some(0));
    }
}
