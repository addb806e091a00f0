//! The list of devices.

use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device, verbs_device};
use crate::border::{Errno, Out, guarded, object};
use std::ffi::{c_char, c_int, c_void};
use std::io::{self, Write as _};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use trunkline_softrdma::device::SoftProvider;
use trunkline_verbs::{Provider, VerbsError};

/// The C structure of the device. It is never freed, because programs keep pointers to it after they free the list.
struct Known {
    device: Box<verbs_device>,
    guid: u64,
}

// SAFETY: neither C nor this library writes the structure after its creation, and its pointers are null,
// except `ops`, which points to a static.
unsafe impl Send for Known {}
// SAFETY: neither C nor this library writes the structure after its creation, so shared reads do not race.
unsafe impl Sync for Known {}

/// Target of `verbs_device.ops`. Providers' libraries compare its address with their own tables and do not read it.
static PROVIDER_OPS: [usize; 32] = [0; 32];

fn copy_text<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field.iter_mut().zip(text.bytes().take(N - 1)) {
        *to = from.cast_signed();
    }
    field
}

fn known() -> Result<&'static Known, Errno> {
    static KNOWN: OnceLock<Known> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return Ok(known);
    }
    let info = SoftProvider.devices()?.into_iter().next().ok_or(VerbsError::NoDevice)?;
    let device = Box::new(verbs_device {
        device: ibv_device {
            _dummy1: None,
            _dummy2: None,
            node_type: IBV_NODE_CA.cast_signed(),
            transport_type: IBV_TRANSPORT_IB.cast_signed(),
            name: copy_text(&info.name),
            dev_name: copy_text("uverbs0"),
            dev_path: copy_text("/sys/class/infiniband_verbs/uverbs0"),
            ibdev_path: copy_text(&format!("/sys/class/infiniband/{}", info.name)),
        },
        ops: PROVIDER_OPS.as_ptr().cast(),
        refcount: 1,
        entry: [null_mut::<c_void>(); 2],
        sysfs: null_mut(),
        core_support: 0,
    });
    Ok(KNOWN.get_or_init(|| Known { device, guid: info.guid }))
}

/// Returns the C structure of the process's only device.
///
/// # Errors
/// Returns the provider's error for its list of devices.
pub(crate) fn the_device() -> Result<*mut ibv_device, Errno> {
    let known = known()?;
    Ok((&raw const known.device.device).cast_mut())
}

/// Returns true if the device exists and has not been removed.
fn is_there() -> Result<bool, Errno> {
    Ok(!SoftProvider.devices()?.is_empty())
}

/// A device list, which ends with null.
type List = [*mut ibv_device; 2];

/// `ibv_get_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    object(|| {
        // SAFETY: as `ibv_get_device_list(3)` requires, the program passes memory for the number, or null.
        let count = unsafe { Out::optional(num_devices) };
        let list: List = match is_there().and_then(|there| Ok((there, the_device()?))) {
            Ok((true, device)) => [device, null_mut()],
            Ok((false, _)) | Err(Errno(libc::ENODEV)) => [null_mut(); 2],
            Err(errno) => {
                let _unwritten = writeln!(
                    io::stderr(),
                    "trunkline0: no device: error {}; see the TRUNKLINE_ variables",
                    errno.0
                );
                [null_mut(); 2]
            }
        };
        if let Some(count) = count {
            count.write(c_int::from(!list[0].is_null()));
        }
        Ok(Box::into_raw(Box::new(list)).cast())
    })
}

/// `ibv_free_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    guarded((), || {
        if !list.is_null() {
            // SAFETY: `ibv_get_device_list` allocated the list as a `List`, and
            // `ibv_free_device_list(3)` ends its use.
            drop(unsafe { Box::from_raw(list.cast::<List>()) });
        }
    });
}

/// `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null();
    }
    // SAFETY: as `ibv_get_device_name(3)` requires, the program passes a device of the list.
    // Devices are never freed.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index(3)`: returns 0, the index of the only device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    0
}

/// `ibv_get_device_guid(3)`, in network order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    guarded(0, || known().map_or(0, |known| known.guid.to_be()))
}

/// `ibv_import_device(3)`: `EOPNOTSUPP`, because this device has no descriptor that could be imported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut crate::abi::ibv_context {
    object(|| Err(Errno::EOPNOTSUPP))
}
