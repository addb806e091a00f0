//! The list of devices.

use super::objects::{hand_out, take_back};
use crate::abi::{IBV_NODE_CA, IBV_TRANSPORT_IB, ibv_device, verbs_device};
use crate::border::{Errno, guarded, object};
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;
use trunkline_softrdma::device::SoftProvider;
use trunkline_verbs::{Provider, VerbsError};

/// The device as C sees it. Programs keep pointers to it beyond the list they got it from, so it
/// stays.
struct Known {
    device: Box<verbs_device>,
    guid: u64,
}

// SAFETY: after it was made it is only read, by C as by us; its pointers are null but for `ops`,
// which points to a static.
unsafe impl Send for Known {}
// SAFETY: as for Send.
unsafe impl Sync for Known {}

/// What stands in `verbs_device.ops`: providers' libraries compare the address with that of their
/// own table and look no further.
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

/// The one device, as C holds it.
///
/// # Errors
/// What the provider answered when it was asked for its devices.
pub(crate) fn the_device() -> Result<*mut ibv_device, Errno> {
    let known = known()?;
    Ok((&raw const known.device.device).cast_mut())
}

/// Whether there is a device now: it may have been taken away.
fn is_there() -> Result<bool, Errno> {
    Ok(!SoftProvider.devices()?.is_empty())
}

/// The list with its terminator, as it was allocated.
type List = [*mut ibv_device; 2];

/// `ibv_get_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device {
    object(|| {
        let list: List = match is_there().and_then(|there| Ok((there, the_device()?))) {
            Ok((true, device)) => [device, null_mut()],
            Ok((false, _)) | Err(Errno(libc::ENODEV)) => [null_mut(); 2],
            Err(errno) => {
                eprintln!("trunkline0: no device: error {}; see the TRUNKLINE_ variables", errno.0);
                [null_mut(); 2]
            }
        };
        if !num_devices.is_null() {
            // SAFETY: the caller's pointer, not null.
            unsafe { *num_devices = c_int::from(!list[0].is_null()) };
        }
        Ok(hand_out(list).cast())
    })
}

/// `ibv_free_device_list(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    guarded((), || {
        if !list.is_null() {
            // SAFETY: the list came from ibv_get_device_list, where it was handed out as a `List`.
            unsafe { take_back::<List>(list.cast()) };
        }
    });
}

/// `ibv_get_device_name(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    if device.is_null() {
        return null();
    }
    // SAFETY: a device of the list; the field is in its place.
    unsafe { (&raw const (*device).name).cast() }
}

/// `ibv_get_device_index(3)`: 0, the index of the one device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_index(_device: *mut ibv_device) -> c_int {
    0
}

/// `ibv_get_device_guid(3)`, in network order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_guid(_device: *mut ibv_device) -> u64 {
    guarded(0, || known().map_or(0, |known| known.guid.to_be()))
}

/// Takes no further users: the process's one device cannot be imported, since no descriptor
/// stands for it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_import_device(_cmd_fd: c_int) -> *mut crate::abi::ibv_context {
    object(|| Err(Errno::EOPNOTSUPP))
}
