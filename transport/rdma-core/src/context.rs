//! The `ibv_context` of a device: always librdmacm's own.
//!
//! Owns one of librdmacm's references to a device. Connections live on librdmacm's context, and
//! objects of two contexts do not fit together; and a kernel that wants to take a device away waits
//! until each context of it is closed, which librdmacm does when its last reference is given back.
//! So nothing here opens a context of its own. librdmacm has one context per device and process: all
//! that this process opens of a device share it, and with it the descriptor of its events.

use crate::async_events::{AsyncEvents, EventQueue};
use crate::diagnosis;
use crate::error::{Doing, last, last_errno, named};
use rdma_sys::{
    ibv_context, ibv_device, ibv_free_device_list, ibv_get_device_guid, ibv_get_device_list,
    ibv_get_device_name, rdma_free_devices, rdma_get_devices,
};
use std::ffi::{CStr, c_int};
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use trunkline_verbs::{AsyncSubject, DeviceInfo, VerbsError};

/// The contexts in use, because librdmacm's are global to the process.
static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

/// A device's context, kept open.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ibv_context>,
    /// A list of librdmacm's with this device alone: the reference itself.
    _list: DeviceList,
    name: String,
    guid: u64,
    events: AsyncEvents,
}

// SAFETY: a context may be used from any thread; libibverbs locks inside, and what this type changes
// itself is behind locks.
unsafe impl Send for Context {}
// SAFETY: as for Send.
unsafe impl Sync for Context {}

impl Context {
    /// The context of the device of a name.
    ///
    /// # Errors
    /// [`VerbsError::NoDevice`] when there is none of that name; what librdmacm answered.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        let list = DeviceList::new()?.only(name).map_err(|error| diagnosis::of_device(name, error))?;
        let raw = list.contexts().next().ok_or(VerbsError::NoDevice)?;
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(|context| context.raw == raw) {
            return Ok(shared);
        }
        // SAFETY: the list keeps the context open.
        let (guid, events) = unsafe { (guid_of((*raw.as_ptr()).device), (*raw.as_ptr()).async_fd) };
        unblock(events)?;
        let events = AsyncEvents::default();
        let context = Arc::new(Self { raw, _list: list, name: name.to_owned(), guid, events });
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// The C object, open as long as this value lives.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// The device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The device's node GUID.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// Whose the asynchronous events are.
    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// Whether the kernel has taken the device away: libibverbs lists it no more.
    fn is_removed(&self) -> bool {
        // SAFETY: the context is open.
        let device = unsafe { (*self.raw.as_ptr()).device };
        let mut count: c_int = 0;
        // SAFETY: the count is ours to be written.
        let Some(list) = NonNull::new(unsafe { ibv_get_device_list(&raw mut count) }) else { return false };
        // A device has one address as long as somebody holds it, as the context does.
        // SAFETY: libibverbs has written as many devices as it says.
        let is_listed = (0..usize::try_from(count).unwrap_or(0))
            .any(|index| std::ptr::eq(unsafe { list.add(index).read() }, device));
        // SAFETY: the list is used no more.
        unsafe { ibv_free_device_list(list.as_ptr()) };
        !is_listed
    }

    /// Gives the kernel its files back, so that it may finish the removal, for which it waits until
    /// they are closed. librdmacm closes a context only when it next looks at the list of devices and
    /// finds another one there, so with the only device it never would. Its numbers stay taken, by a
    /// file that holds nothing, so that whenever librdmacm does close them nobody else is hit.
    fn let_kernel_go(&self) {
        // SAFETY: the context is open.
        let files = unsafe { [(*self.raw.as_ptr()).async_fd, (*self.raw.as_ptr()).cmd_fd] };
        let Ok(nothing) = File::open("/dev/null") else { return };
        for file in files {
            // SAFETY: the number belongs to the context, which nobody uses any more: this is its last
            // user here, and the device is gone for any other.
            if unsafe { libc::dup3(nothing.as_raw_fd(), file, libc::O_CLOEXEC) } < 0 {
                let error = std::io::Error::last_os_error();
                tracing::warn!(device = self.name, %error, "the removed device stays open");
            }
        }
    }

    /// The descriptor of the asynchronous events.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is open as long as the context, which the list keeps open.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_removed() {
            self.let_kernel_go();
        }
    }
}

/// One opening of a device. The objects made through it know it, because those of two openings do
/// not fit together, as those of two processes do not.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Where the events of its objects wait. Before the context, which they lean on.
    pub(crate) events: Arc<EventQueue>,
    /// The context, which openings of one device share.
    pub(crate) context: Arc<Context>,
}

impl Opened {
    /// Opens the device of a name.
    pub(crate) fn new(name: &str) -> Result<Arc<Self>, VerbsError> {
        let context = Context::open(name)?;
        let events = context.events().open_queue(context.events_fd())?;
        Ok(Arc::new(Self { events, context }))
    }

    /// Makes an object by `make`, with its events going to this opening.
    pub(crate) fn enter<T>(
        &self,
        make: impl FnOnce() -> Result<(NonNull<T>, AsyncSubject), VerbsError>,
    ) -> Result<NonNull<T>, VerbsError> {
        self.context.events().enter(&self.events, make)
    }

    /// Destroys an object that was made so.
    pub(crate) fn leave<T>(&self, object: *mut T, destroy: impl FnOnce(*mut T) -> c_int) -> c_int {
        self.context.events().leave(object, destroy)
    }

    /// The C object.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.context.raw()
    }
}

/// Makes a descriptor of libibverbs non-blocking, as a caller of it may.
pub(crate) fn unblock(descriptor: RawFd) -> Result<(), VerbsError> {
    // SAFETY: fcntl on a number touches no memory; the callers' objects keep it open.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(VerbsError::Os(last_errno()));
    }
    Ok(())
}

/// A list of `rdma_get_devices`: each device in it stays open for it.
#[derive(Debug)]
struct DeviceList(NonNull<*mut ibv_context>);

impl DeviceList {
    fn new() -> Result<Self, VerbsError> {
        let mut count = 0;
        // SAFETY: the count is ours to be written.
        let list = unsafe { rdma_get_devices(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(Self(list)),
            None => Err(diagnosis::of(last(Doing::List))),
        }
    }

    fn contexts(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        // SAFETY: librdmacm ends its lists by a null pointer, before which the iterator stops.
        (0..).map_while(|index| NonNull::new(unsafe { self.0.add(index).read() }))
    }

    /// Gives back all but the device of a name.
    fn only(self, name: &str) -> Result<Self, VerbsError> {
        let mut kept = None;
        let mut others = Vec::new();
        for context in self.contexts() {
            // SAFETY: the list keeps the context, and so its device, alive.
            let is_it = unsafe { name_of((*context.as_ptr()).device) } == name;
            if is_it && kept.is_none() { kept = Some(context) } else { others.push(context) }
        }
        let Some(kept) = kept else { return Err(VerbsError::NoDevice) };
        if others.is_empty() {
            return Ok(self);
        }
        // librdmacm frees what it gets by `free`, so a list made by `calloc` is as good as its own.
        // SAFETY: calloc with two numbers; the result is looked at.
        let rest = unsafe { libc::calloc(others.len() + 1, size_of::<*mut ibv_context>()) };
        let Some(rest) = NonNull::new(rest.cast::<*mut ibv_context>()) else {
            return Err(named(Doing::Allocate, libc::ENOMEM));
        };
        for (index, context) in others.iter().enumerate() {
            // SAFETY: the block has room for all of them and the null pointer behind them.
            unsafe { rest.add(index).write(context.as_ptr()) };
        }
        // SAFETY: librdmacm's list has at least two contexts, so the second place is inside it.
        unsafe {
            self.0.write(kept.as_ptr());
            self.0.add(1).write(null_mut());
        }
        drop(Self(rest));
        Ok(self)
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list is librdmacm's, or of its form, and is used no more.
        unsafe { rdma_free_devices(self.0.as_ptr()) };
    }
}

/// The devices that libibverbs knows now; opens none, so it needs no rights.
pub(crate) fn devices() -> Result<Vec<DeviceInfo>, VerbsError> {
    let mut count: c_int = 0;
    // SAFETY: the count is ours to be written.
    let list = unsafe { ibv_get_device_list(&raw mut count) };
    let list = NonNull::new(list).ok_or_else(|| last(Doing::List))?;
    let mut devices = Vec::new();
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: libibverbs has written as many devices as it says.
        let device = unsafe { list.add(index).read() };
        // SAFETY: the list keeps its devices alive.
        devices.push(unsafe { DeviceInfo { name: name_of(device), guid: guid_of(device) } });
    }
    // SAFETY: the list is used no more.
    unsafe { ibv_free_device_list(list.as_ptr()) };
    if devices.is_empty() { Err(named(Doing::List, libc::ENODEV)) } else { Ok(devices) }
}

/// # Safety
/// `device` is alive.
pub(crate) unsafe fn name_of(device: *mut ibv_device) -> String {
    // SAFETY: the caller's promise; libibverbs ends the name by a zero.
    unsafe { CStr::from_ptr(ibv_get_device_name(device)) }.to_string_lossy().into_owned()
}

/// # Safety
/// `device` is alive.
unsafe fn guid_of(device: *mut ibv_device) -> u64 {
    // SAFETY: the caller's promise.
    u64::from_be(unsafe { ibv_get_device_guid(device) })
}
