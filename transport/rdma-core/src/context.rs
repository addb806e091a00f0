//! A device's `ibv_context`, which is always the one that librdmacm opened.
//!
//! Connections use librdmacm's context, and objects of different contexts cannot be combined. The kernel completes the
//! removal of a device only when all its contexts are closed, and librdmacm closes a context when its last reference is
//! released. This crate therefore holds a reference and does not open another context. librdmacm has one context per device
//! and process. All openings of a device in this process share this context and its event descriptor.

use crate::async_events::{AsyncEvents, EventQueue};
use crate::diagnosis;
use crate::error::{Doing, last, last_errno, named};
use crate::handle::Live;
use crate::listing::{guid_of, name_of};
use rdma_sys::{ibv_context, ibv_free_device_list, ibv_get_device_list, rdma_free_devices, rdma_get_devices};
use std::ffi::c_int;
use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use trunkline_verbs::descriptors::HeldStdio;
use trunkline_verbs::{AsyncSubject, VerbsError};

/// The contexts in use. They are global to the process, as in librdmacm.
static OPEN: Mutex<Vec<Weak<Context>>> = Mutex::new(Vec::new());

/// A device's context, which is kept open by this value.
#[derive(Debug)]
pub(crate) struct Context {
    raw: NonNull<ibv_context>,
    /// A librdmacm list that contains only this device and holds the reference to it.
    _list: DeviceList,
    name: String,
    guid: u64,
    events: AsyncEvents,
}

// SAFETY: libibverbs lets any thread use a context and has internal locks; locks guard the fields that this
// type changes.
unsafe impl Send for Context {}
// SAFETY: libibverbs allows concurrent use of a context, and locks guard the fields that this type changes.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the device with the given name.
    ///
    /// # Errors
    /// Returns [`VerbsError::NoDevice`] if the name is unknown, or librdmacm's error.
    pub(crate) fn open(name: &str) -> Result<Arc<Self>, VerbsError> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|context| context.strong_count() > 0);
        let list = DeviceList::new()?.only(name).map_err(|error| diagnosis::of_device(name, error))?;
        let raw = list.contexts().next().ok_or(VerbsError::NoDevice)?;
        if let Some(shared) = open.iter().filter_map(Weak::upgrade).find(|context| context.raw == raw) {
            return Ok(shared);
        }
        // SAFETY: the list keeps the context open, and the context its device.
        let (guid, events) = unsafe { (guid_of((*raw.as_ptr()).device), (*raw.as_ptr()).async_fd) };
        unblock(events)?;
        let events = AsyncEvents::default();
        let context = Arc::new(Self { raw, _list: list, name: name.to_owned(), guid, events });
        open.push(Arc::downgrade(&context));
        Ok(context)
    }

    /// Returns the C object, which is open while this value exists.
    pub(crate) fn live(&self) -> Live<'_, ibv_context> {
        // SAFETY: the list keeps the context open, and is dropped with this value.
        unsafe { Live::new(self.raw) }
    }

    /// Like [`Self::live`], but returns a pointer for C functions.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.raw.as_ptr()
    }

    /// Returns the device's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device's node GUID.
    pub(crate) fn guid(&self) -> u64 {
        self.guid
    }

    /// Returns the asynchronous events of the context.
    pub(crate) fn events(&self) -> &AsyncEvents {
        &self.events
    }

    /// Returns true if the kernel has removed the device. libibverbs then no longer lists it.
    fn is_removed(&self) -> bool {
        // SAFETY: the list keeps the context open.
        let device = unsafe { (*self.raw.as_ptr()).device };
        let mut count: c_int = 0;
        // SAFETY: the count is local.
        let Some(list) = NonNull::new(unsafe { ibv_get_device_list(&raw mut count) }) else { return false };
        // A device keeps its address while a context holds it, as this context does. SAFETY: libibverbs returns as many
        // devices as it counts.
        let is_listed = (0..usize::try_from(count).unwrap_or(0))
            .any(|index| std::ptr::eq(unsafe { list.add(index).read() }, device));
        // SAFETY: the list is not used after this.
        unsafe { ibv_free_device_list(list.as_ptr()) };
        !is_listed
    }

    /// Closes the kernel's files of a removed device, because the kernel does not complete the removal before they are
    /// closed. librdmacm would close the context only when it rereads the device list and finds another device, so it never
    /// closes the context of the only device. The descriptors remain open on `/dev/null`. Otherwise, librdmacm would later
    /// close unrelated files.
    fn release_files(&self) {
        // SAFETY: the list keeps the context open.
        let files = unsafe { [(*self.raw.as_ptr()).async_fd, (*self.raw.as_ptr()).cmd_fd] };
        let Ok(nothing) = File::open("/dev/null") else { return };
        for file in files {
            // SAFETY: the descriptor belongs to the context. This value is its last user in this process,
            // and the device is removed.
            if unsafe { libc::dup3(nothing.as_raw_fd(), file, libc::O_CLOEXEC) } < 0 {
                let error = std::io::Error::last_os_error();
                tracing::warn!(device = self.name, %error, "removed device not closed");
            }
        }
    }

    /// Returns the descriptor of the asynchronous events.
    pub(crate) fn events_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the list keeps the context open, and the descriptor is open as long as the context.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).async_fd) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_removed() {
            self.release_files();
        }
    }
}

/// One opening of a device. An object belongs to its opening. Objects of two openings cannot be combined, as if they
/// belonged to two processes.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Events of the opening's objects. They are dropped before the context, because they use its descriptor.
    pub(crate) events: Arc<EventQueue>,
    /// The context, which is shared by all openings of the device.
    pub(crate) context: Arc<Context>,
}

impl Opened {
    /// Opens the device with the given name.
    pub(crate) fn new(name: &str) -> Result<Arc<Self>, VerbsError> {
        let context = Context::open(name)?;
        let events = context.events().open_queue(context.events_fd())?;
        Ok(Arc::new(Self { events, context }))
    }

    /// Creates an object with `make`, and delivers the object's events to this opening.
    pub(crate) fn enter<T>(
        &self,
        make: impl FnOnce() -> Result<(NonNull<T>, AsyncSubject), VerbsError>,
    ) -> Result<NonNull<T>, VerbsError> {
        self.context.events().enter(&self.events, make)
    }

    /// Destroys an object created in [`Self::enter`]. `destroy` returns 0 on success.
    pub(crate) fn leave<T>(&self, object: *mut T, destroy: impl FnOnce(*mut T) -> c_int) -> c_int {
        self.context.events().leave(object, destroy)
    }

    /// Returns the context, which is open while this value exists.
    pub(crate) fn live(&self) -> Live<'_, ibv_context> {
        self.context.live()
    }

    /// Like [`Self::live`], but returns a pointer for C functions.
    pub(crate) fn raw(&self) -> *mut ibv_context {
        self.context.raw()
    }
}

/// Makes a libibverbs descriptor non-blocking, as the man pages of libibverbs permit.
pub(crate) fn unblock(descriptor: RawFd) -> Result<(), VerbsError> {
    // SAFETY: fcntl with these commands accesses no memory; the caller's object keeps the descriptor open.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    // SAFETY: fcntl with these commands accesses no memory; the caller's object keeps the descriptor open.
    if flags < 0 || unsafe { libc::fcntl(descriptor, libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(VerbsError::Os(last_errno()));
    }
    Ok(())
}

/// A list from `rdma_get_devices`. It keeps the devices in it open.
#[derive(Debug)]
struct DeviceList(NonNull<*mut ibv_context>);

impl DeviceList {
    fn new() -> Result<Self, VerbsError> {
        let mut count = 0;
        let _held = HeldStdio::take()?;
        // SAFETY: the count is local.
        let list = unsafe { rdma_get_devices(&raw mut count) };
        match NonNull::new(list) {
            Some(list) => Ok(Self(list)),
            None => Err(diagnosis::of(last(Doing::List))),
        }
    }

    fn contexts(&self) -> impl Iterator<Item = NonNull<ibv_context>> {
        // SAFETY: librdmacm's lists end with a null pointer, at which the iterator stops.
        (0..).map_while(|index| NonNull::new(unsafe { self.0.add(index).read() }))
    }

    /// Releases all devices except the device with the given name.
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
        // librdmacm frees a list with `free`, so a list from `calloc` is valid. SAFETY: `calloc` takes two numbers, and its
        // result is checked.
        let rest = unsafe { libc::calloc(others.len() + 1, size_of::<*mut ibv_context>()) };
        let Some(rest) = NonNull::new(rest.cast::<*mut ibv_context>()) else {
            return Err(named(Doing::Allocate, libc::ENOMEM));
        };
        for (index, context) in others.iter().enumerate() {
            // SAFETY: the block has room for all other contexts and for the null pointer after them.
            unsafe { rest.add(index).write(context.as_ptr()) };
        }
        // SAFETY: librdmacm's list has at least two contexts, so both elements are inside of it.
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
        // SAFETY: the list is librdmacm's, or has the same form, and is not used after this.
        unsafe { rdma_free_devices(self.0.as_ptr()) };
    }
}
