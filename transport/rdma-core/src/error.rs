//! Conversion of libibverbs' errnos to errors, with remedies for the user.
//!
//! Each caller names its operation, because an errno has different causes in different operations.

use std::ffi::c_int;
use trunkline_verbs::VerbsError;

/// The operation that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doing {
    /// Listing the devices.
    List,
    /// Registering memory.
    Register,
    /// Creating a completion queue.
    CreateCq,
    /// Creating a shared receive queue.
    CreateSrq,
    /// Creating a queue pair.
    CreateQp,
    /// Opening another handle of a TGT.
    OpenQp,
    /// Opening an XRC domain.
    OpenXrcd,
    /// Creating a protection domain or a completion channel.
    Allocate,
    /// Changing attributes or the state of a queue pair.
    ModifyQp,
    /// Changing a shared receive queue.
    ModifySrq,
    /// Changing the size of a CQ.
    ResizeCq,
    /// Posting a work request.
    Post,
    /// Querying a state or requesting a notification.
    Query,
    /// Destroying an object.
    Destroy(&'static str),
}

/// Returns the error of this thread's last C call.
pub(crate) fn last(doing: Doing) -> VerbsError {
    named(doing, last_errno())
}

/// Returns the errno of this thread's last C call.
pub(crate) fn last_errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Converts the result of a C function. Returns `Ok` if it is 0. libibverbs returns an errno. Some of its providers return
/// a negative errno, and others return -1 and set errno.
pub(crate) fn check(doing: Doing, status: c_int) -> Result<(), VerbsError> {
    match status {
        0 => Ok(()),
        -1 => Err(last(doing)),
        errno => Err(named(doing, errno.saturating_abs())),
    }
}

/// Returns the error for the failed destruction of an object.
pub(crate) fn check_destroy(errno: i32, why_busy: &'static str) -> VerbsError {
    check(Doing::Destroy(why_busy), errno).err().unwrap_or(VerbsError::Gone)
}

/// Returns the error that an errno means for an operation.
pub(crate) fn named(doing: Doing, errno: c_int) -> VerbsError {
    match errno {
        libc::EINVAL => VerbsError::Invalid(invalid(doing)),
        libc::EBUSY => VerbsError::Busy(match doing {
            Doing::Destroy(why) => why,
            _ => "the device reports that the object is in use",
        }),
        libc::ENOMEM if doing == Doing::Register => VerbsError::OutOfResources(memlock()),
        libc::ENOMEM => VerbsError::OutOfResources(no_memory(doing)),
        // `ibv_get_device_list` fails with ENOSYS if the kernel does not support RDMA.
        libc::ENODEV | libc::ENOENT | libc::ENXIO | libc::ENOSYS if doing == Doing::List => {
            VerbsError::Missing(NO_DEVICES)
        }
        libc::EOPNOTSUPP | libc::ENOSYS => VerbsError::NotSupported(unsupported(doing)),
        libc::EAGAIN if doing == Doing::OpenXrcd => VerbsError::NoSuchDomain,
        libc::EBADF if doing == Doing::OpenXrcd => VerbsError::BadFile,
        libc::EACCES | libc::EPERM => VerbsError::Denied(match doing {
            Doing::List => {
                "/dev/infiniband/uverbs* and /dev/infiniband/rdma_cm must be readable and writable: \
                 check their mode and owner, in a container also its list of devices"
            }
            Doing::Register => {
                "memory that is not writable cannot be registered for writing, and locking it needs \
                 CAP_IPC_LOCK or a higher RLIMIT_MEMLOCK (`ulimit -l`)"
            }
            _ => "the kernel refused it: check the mode of /dev/infiniband/uverbs*",
        }),
        libc::ENODEV => VerbsError::NoDevice,
        // After the device is removed, every call fails with EIO.
        libc::EIO => VerbsError::Gone,
        errno => VerbsError::Os(errno),
    }
}

const NO_DEVICES: &str = "no RDMA device: none is present, or its driver is not loaded (`rdma link show`; \
    `modprobe ib_uverbs rdma_ucm` and the driver, for example `modprobe rdma_rxe`)";

fn invalid(doing: Doing) -> &'static str {
    match doing {
        Doing::List => "the devices cannot be listed",
        Doing::Register => {
            "the device refuses this registration: remote write and atomic rights need LOCAL_WRITE, \
             and the range must not be empty or wrap"
        }
        Doing::CreateCq | Doing::ResizeCq => {
            "the CQ's capacity is 0, above the device's limit, or less than the entries in the CQ"
        }
        Doing::CreateSrq => "the SRQ's size is above the device's limit, or its objects do not fit its type",
        Doing::CreateQp => {
            "a queue size is above the device's limit, or the objects do not fit the QP's type"
        }
        Doing::OpenQp => "the domain has no TGT with this number",
        Doing::OpenXrcd => "this file cannot name an XRC domain, or the flags contradict what exists",
        Doing::Allocate => "the device refuses to make the object",
        Doing::ModifyQp => {
            "the QP cannot make this transition, or attributes for it are missing, superfluous or out of \
             range"
        }
        Doing::ModifySrq => {
            "the SRQ's size is less than its limit or the posted receives, or the limit is above its size"
        }
        Doing::Post => {
            "the QP or SRQ does not accept the request: wrong state or type, too many SGEs, or too much inline data"
        }
        Doing::Query => "the device refuses the query",
        Doing::Destroy(_) => "the device refuses to destroy the object",
    }
}

fn no_memory(doing: Doing) -> &'static str {
    match doing {
        Doing::Post => "the queue is full",
        Doing::CreateQp => "the device has no room for a QP of this size",
        Doing::CreateCq | Doing::ResizeCq => "the device has no room for a CQ of this size",
        Doing::CreateSrq | Doing::ModifySrq => "the device has no room for an SRQ of this size",
        _ => {
            "the device or the kernel has no memory left for it (queues count against RLIMIT_MEMLOCK as well)"
        }
    }
}

fn unsupported(doing: Doing) -> &'static str {
    match doing {
        Doing::OpenXrcd => "XRC domains: this device has no XRC, use RC connections",
        Doing::OpenQp => "opening TGTs: this device has no XRC",
        Doing::CreateSrq => "this type of SRQ; XRC SRQs need a device with XRC",
        Doing::CreateQp => "this type of QP; XRC QPs need a device with XRC",
        Doing::ResizeCq => "resizing a CQ",
        Doing::ModifySrq => "this change of an SRQ",
        Doing::Register => "this kind of registration",
        Doing::Post => "this operation",
        _ => "this verb",
    }
}

/// Returns the reason why memory cannot be pinned, which is nearly always the limit of the process.
fn memlock() -> &'static str {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a local `rlimit`, which the call fills in.
    let known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
    if known && limit.rlim_cur == libc::RLIM_INFINITY {
        "the memory cannot be pinned although RLIMIT_MEMLOCK is unlimited: the machine is short of \
         memory, or the device's table of regions is full"
    } else {
        "the memory cannot be pinned: registered memory counts against RLIMIT_MEMLOCK, and the limit \
         is too low (`ulimit -l`); raise it, for example `ulimit -l unlimited`, LimitMEMLOCK=infinity \
         in the systemd unit, or memlock in /etc/security/limits.conf"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_explained_by_operation() {
        let register = named(Doing::Register, libc::ENOMEM);
        assert!(register.to_string().contains("RLIMIT_MEMLOCK"), "{register}");
        assert_eq!(register.errno(), libc::ENOMEM);
        assert_eq!(named(Doing::Post, libc::ENOMEM), VerbsError::OutOfResources("the queue is full"));
        assert_eq!(named(Doing::OpenXrcd, libc::EAGAIN), VerbsError::NoSuchDomain);
        let list = named(Doing::List, libc::EACCES);
        assert!(list.to_string().contains("/dev/infiniband"), "{list}");
        assert_eq!(list.errno(), libc::EACCES);
        for errno in [libc::ENODEV, libc::ENOSYS] {
            let none = named(Doing::List, errno);
            assert!(none.to_string().contains("modprobe"), "{none}");
            assert_eq!(none.errno(), libc::ENODEV);
        }
    }

    #[test]
    fn negative_and_positive_errnos_become_errors() {
        assert_eq!(check(Doing::Query, 0), Ok(()));
        assert_eq!(check(Doing::Query, libc::EIO), Err(VerbsError::Gone));
        assert_eq!(check(Doing::Query, -libc::EIO), Err(VerbsError::Gone));
        assert_eq!(check(Doing::Destroy("a QP uses it"), libc::EBUSY), Err(VerbsError::Busy("a QP uses it")));
        assert_eq!(check(Doing::Query, c_int::MIN), Err(VerbsError::Os(c_int::MAX)));
    }
}
