//! System calls for areas that the standard library lacks.
//!
//! Contains all `unsafe` code for memory that members hand to each other, and for its descriptors. Called by
//! `area` and by the sockets of `members`. A mapping belongs to the process that created it. A forked child does
//! not have the mapping (see [`Fork`]), and must not access or unmap other memory at its address.

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use trunkline_verbs::Memory;
use trunkline_verbs::descriptors::{above_stdio, lift};

/// Seals of an area's file. They fix the file's length, and allow changes to its bytes only through the creator's
/// existing mapping.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_FUTURE_WRITE;
/// Size of the page that holds the word of [`Fork`].
const PAGE: usize = 4096;
/// Unit in which the system reports the memory of a file, in bytes.
const BLOCK: u64 = 512;

/// Detects that this process is a forked child, in which the word reads as 0.
#[derive(Debug)]
pub(in crate::host) struct Fork {
    page: NonNull<u8>,
}

// SAFETY: the page belongs to the process, and is accessed only through `word`, as an atomic.
unsafe impl Send for Fork {}
// SAFETY: as above.
unsafe impl Sync for Fork {}

impl Fork {
    pub(in crate::host) fn new() -> io::Result<Self> {
        let fork = Self { page: map(None, PAGE, libc::PROT_READ | libc::PROT_WRITE)? };
        advise(fork.page, PAGE, libc::MADV_WIPEONFORK)?;
        fork.word().store(1, Ordering::Relaxed);
        Ok(fork)
    }

    /// Returns true if this is the process that created the value.
    pub(in crate::host) fn is_own_process(&self) -> bool {
        self.word().load(Ordering::Relaxed) == 1
    }

    /// Makes this process count as a forked child.
    #[cfg(test)]
    pub(in crate::host) fn pretend_child(&self) {
        self.word().store(0, Ordering::Relaxed);
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `new` mapped the page, which is aligned and stays mapped, in children too, until this is dropped.
        unsafe { AtomicU64::from_ptr(self.page.as_ptr().cast()) }
    }
}

impl Drop for Fork {
    fn drop(&mut self) {
        // SAFETY: `new` mapped this page, and it is unmapped only here.
        unsafe { libc::munmap(self.page.as_ptr().cast(), PAGE) };
    }
}

/// A mapped file of an area.
#[derive(Debug)]
pub(in crate::host) struct Mapping {
    /// Lent only while this mapping lives.
    memory: Arc<Memory>,
    start: NonNull<u8>,
    length: usize,
    fork: Arc<Fork>,
}

// SAFETY: a mapping belongs to the process, not to a thread, and nothing is read through `start` here.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference gives access to `memory` only, which is `Sync`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a file of zeros, maps it, and seals it. Its memory is allocated, so accesses cannot fail.
    pub(in crate::host) fn make(length: usize, fork: &Arc<Fork>) -> io::Result<(Self, OwnedFd)> {
        let file = File::from(above_stdio(memory_file)?);
        let end = libc::off_t::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?;
        file.set_len(length as u64)?;
        fallocate(&file, FallocateFlags::empty(), 0, end).map_err(io::Error::from)?;
        let mapping = Self::of(&file, length, libc::PROT_READ | libc::PROT_WRITE, fork)?;
        // SAFETY: the call takes no pointers.
        if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok((mapping, file.into()))
    }

    /// Maps another process's file for reading. Fails unless the file has this length, is sealed, and has all
    /// of its memory allocated. Its creator then cannot shrink it, and accesses cannot fail for lack of a
    /// page (SIGBUS).
    pub(in crate::host) fn read_only(file: OwnedFd, length: usize, fork: &Arc<Fork>) -> io::Result<Self> {
        let file = File::from(file);
        // SAFETY: the call takes no pointers.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        let metadata = file.metadata()?;
        let is_whole = metadata.len() == length as u64 && metadata.blocks() * BLOCK >= length as u64;
        if seals < 0 || seals & SEALS != SEALS || !is_whole {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Self::of(&file, length, libc::PROT_READ, fork)
    }

    fn of(file: &File, length: usize, protection: i32, fork: &Arc<Fork>) -> io::Result<Self> {
        let start = map(Some(file), length, protection)?;
        // SAFETY: the range is mapped until this value is dropped, and `memory` is lent for no longer. The mapping is
        // shared with another process, whose accesses come from its own `Memory`, or from any code at all, which the
        // copies of `Memory` allow for. `MappedArea`, the only owner of a mapping that cannot be written, only reads.
        let memory = unsafe { Memory::from_raw_parts(start, length) };
        let mapping = Self { memory, start, length, fork: Arc::clone(fork) };
        advise(start, length, libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Returns the bytes of the area. Must not be used in a forked child.
    pub(in crate::host) fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.fork.is_own_process() {
            // SAFETY: `of` created this mapping, of this length, in this process, and it is unmapped only
            // here.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
        }
    }
}

/// Creates an empty file in memory.
fn memory_file() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a string with its final zero, which the kernel only reads.
    let file = unsafe { libc::memfd_create(c"trunkline".as_ptr(), flags) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above has just created the descriptor, which is not shared.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// Creates a shared mapping of a file, or a private one of zeros.
fn map(file: Option<&File>, length: usize, protection: i32) -> io::Result<NonNull<u8>> {
    let (kind, file) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    // SAFETY: a new mapping at an address chosen by the kernel does not alias memory in use.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, kind, file, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

fn advise(start: NonNull<u8>, length: usize, advice: i32) -> io::Result<()> {
    // SAFETY: the caller has mapped the range and owns it.
    match unsafe { libc::madvise(start.as_ptr().cast(), length, advice) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Receives a message, and the first descriptor that came with it, if any. The kernel does not create others.
pub(in crate::host) fn receive(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
) -> io::Result<(usize, Option<OwnedFd>)> {
    /// Control buffer for a header with one descriptor and padding, aligned like the header.
    #[repr(align(8))]
    struct Control([u8; 24]);
    let mut control = Control([0; 24]);
    let mut part = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: all zeros is a valid `msghdr`, with null pointers and lengths of 0.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // Exclude the padding. Otherwise the kernel would put a second descriptor there, which would not be
    // closed.
    message.msg_controllen = with_one_descriptor();
    // SAFETY: the message's pointers refer to live buffers of the lengths next to them, which are not borrowed
    // elsewhere.
    let received = unsafe {
        libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC)
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // A descriptor that cannot be moved above the standard streams is lost, for example at the limit on open
    // files. The connection continues.
    Ok((received, first_descriptor(&message).and_then(|made| lift(made).ok())))
}

/// Returns the length of a control header with one descriptor, in bytes.
fn with_one_descriptor() -> usize {
    // SAFETY: the call only computes a length.
    (unsafe { libc::CMSG_LEN(4) }) as usize
}

/// Returns the descriptor in a control buffer that the kernel has filled.
fn first_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    // SAFETY: the kernel has filled `message`, whose control buffer is live.
    let header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: the header is null, or inside the control buffer and whole.
    let header = unsafe { header.as_ref() }?;
    if header.cmsg_level != libc::SOL_SOCKET
        || header.cmsg_type != libc::SCM_RIGHTS
        || header.cmsg_len < with_one_descriptor()
    {
        return None;
    }
    // SAFETY: the header is followed by at least one descriptor, as its length shows.
    let descriptor = unsafe { libc::CMSG_DATA(header).cast::<i32>().read_unaligned() };
    // SAFETY: the kernel has just created the descriptor for this message, and it is not shared.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Describes an error from the creation or mapping of an area.
pub(in crate::host) fn reason(error: &io::Error) -> &'static str {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EMFILE | Errno::ENFILE) => "no descriptor is left for shared memory",
        Some(Errno::ENOMEM | Errno::ENOSPC) => "no memory is left to share",
        _ => "the system refuses to share memory",
    }
}

/// Creates a sealed file of this length without memory. For tests.
#[cfg(test)]
pub(in crate::host) fn without_memory(length: u64) -> OwnedFd {
    let file = File::from(memory_file().unwrap());
    file.set_len(length).unwrap();
    // SAFETY: the call takes no pointers.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS | libc::F_SEAL_SEAL) }, 0);
    file.into()
}

/// Fails if a file cannot be mapped for writing. For tests.
#[cfg(test)]
pub(in crate::host) fn can_map_for_writing(file: &File, length: usize) -> io::Result<()> {
    let start = map(Some(file), length, libc::PROT_READ | libc::PROT_WRITE)?;
    // SAFETY: `map` has just mapped this range, and there are no references to it.
    unsafe { libc::munmap(start.as_ptr().cast(), length) };
    Ok(())
}

/// Fails if a mapping for reading cannot be made writable. For tests.
#[cfg(test)]
pub(in crate::host) fn can_make_writable(file: &File, length: usize) -> io::Result<()> {
    let start = map(Some(file), length, libc::PROT_READ)?;
    let writable = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the first line has mapped the range, and there are no references to it.
    let changed = Errno::result(unsafe { libc::mprotect(start.as_ptr().cast(), length, writable) });
    // SAFETY: as above; the range is no longer used.
    unsafe { libc::munmap(start.as_ptr().cast(), length) };
    Ok(changed.map(drop)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, setrlimit};
    use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
    use std::io::{IoSlice, Read};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use trunkline_testkit::runs_alone;

    /// The only free descriptor number is 0, standard input, which a received descriptor must not keep.
    #[test]
    fn message_arrives_without_descriptor_if_no_number_is_free() {
        if !runs_alone(module_path!(), "message_arrives_without_descriptor_if_no_number_is_free") {
            return;
        }
        let (sender, receiver) = UnixStream::pair().unwrap();
        let (witness, mut end) = UnixStream::pair().unwrap();
        let rights = [witness.as_raw_fd()];
        sendmsg::<()>(
            sender.as_raw_fd(),
            &[IoSlice::new(b"x")],
            &[ControlMessage::ScmRights(&rights)],
            MsgFlags::empty(),
            None,
        )
        .unwrap();
        drop(witness);
        nix::unistd::close(0).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 1, 1).unwrap();
        let (length, descriptor) = receive(receiver.as_fd(), &mut [0; 8]).unwrap();
        assert_eq!((length, descriptor.is_none()), (1, true));
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0, "a copy is still open");
    }

    #[test]
    fn receive_leaves_only_taken_descriptor_open() {
        let (sender, receiver) = UnixStream::pair().unwrap();
        // The end of this stream shows that all copies of the other descriptor are closed.
        let (witness, mut end) = UnixStream::pair().unwrap();
        let sent = [witness.as_raw_fd(), witness.as_raw_fd(), witness.as_raw_fd()];
        for count in 1..=3 {
            let rights = [ControlMessage::ScmRights(&sent[..count])];
            sendmsg::<()>(sender.as_raw_fd(), &[IoSlice::new(b"x")], &rights, MsgFlags::empty(), None)
                .unwrap();
            let mut into = [0; 8];
            let (length, descriptor) = receive(receiver.as_fd(), &mut into).unwrap();
            assert_eq!((length, descriptor.is_some()), (1, true));
        }
        drop(witness);
        assert_eq!(end.read(&mut [0; 1]).unwrap(), 0, "a copy is still open");
    }
}
