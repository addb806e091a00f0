//! Memory shared by the members of a host.
//!
//! Owns words that are accessed only as atomics, at checked offsets: the words of a mapped file, or of a heap
//! allocation in a simulation. The registry and the table of shared TGTs are segments. Any process of the
//! user can write to the file, so a value is a hint until it has been checked. All bit patterns are safe to
//! read.
//!
//! Stores go through [`Word32`] and [`Word64`], which drop the stores of a simulated process after it was
//! killed.

use crate::host::HostError;
use crate::host::files::private_file::open_private;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use trunkline_verbs::headroom;

/// Length of the header at the start of a segment, in bytes.
pub(crate) const HEADER: usize = 64;
/// Offset of the format identifier in the header.
const MAGIC: usize = 0;
/// Offset of the segment's length, in bytes, in the header.
const LENGTH: usize = 8;

/// Maximum number of attempts to exchange a word. An attempt fails only because another member has succeeded,
/// or because a simulation has killed this process.
pub(in crate::host) const ATTEMPTS: u32 = 1000;

/// Value of `stores_left` without a limit.
const UNLIMITED: u64 = u64::MAX;

/// A segment as accessed by one member.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Aligned to at least 8 bytes, and valid for `length` bytes as long as `memory` exists.
    start: NonNull<u8>,
    length: usize,
    memory: Memory,
}

#[derive(Debug)]
enum Memory {
    File(Mapping),
    /// Memory shared by the members of a simulated host. Stores take effect while this member's process
    /// lives.
    Heap {
        _words: Arc<HeapWords>,
        life: Arc<Life>,
    },
}

/// A mapped file.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The mapped file, until all of it is allocated. A descriptor through which memory of all members can be
    /// written is closed as soon as possible.
    file: Option<File>,
    /// Path of the file, for errors.
    path: PathBuf,
}

/// The words of a segment that is not a file.
#[derive(Debug)]
pub(crate) struct HeapWords(Box<[AtomicU64]>);

impl HeapWords {
    /// Creates a segment of the given size, filled with zeros.
    pub(in crate::host) fn new(length: usize) -> Self {
        // Zeroed by the allocator, since most of a large table is never touched.
        let words = Box::into_raw(vec![0u64; length.div_ceil(8)].into_boxed_slice());
        // SAFETY: `words` was just released by its box, so this is its only owner; `AtomicU64` has
        // the size, the alignment and the valid values of `u64`.
        Self(unsafe { Box::from_raw(words as *mut [AtomicU64]) })
    }

    /// Returns the length in bytes.
    pub(in crate::host) fn length(&self) -> usize {
        8 * self.0.len()
    }
}

/// State of a simulated process, alive or killed.
#[derive(Debug)]
pub(crate) struct Life {
    is_alive: AtomicBool,
    /// Number of stores to shared memory until the process is killed.
    stores_left: AtomicU64,
}

impl Life {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { is_alive: AtomicBool::new(true), stores_left: AtomicU64::new(UNLIMITED) })
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Relaxed)
    }

    /// Kills the process now.
    pub(crate) fn kill(&self) {
        self.is_alive.store(false, Ordering::Relaxed);
    }

    /// Kills the process after a number of further stores to shared memory.
    pub(crate) fn kill_after_stores(&self, stores: u64) {
        self.stores_left.store(stores, Ordering::Relaxed);
    }

    /// Counts the next `wanted` stores. Returns the number of them that take effect.
    pub(in crate::host) fn permit(&self, wanted: u64) -> u64 {
        if !self.is_alive() {
            return 0;
        }
        let left = self.stores_left.load(Ordering::Relaxed);
        if left == UNLIMITED {
            return wanted;
        }
        self.stores_left.store(left.saturating_sub(wanted), Ordering::Relaxed);
        if left < wanted {
            self.kill();
        }
        left.min(wanted)
    }
}

// SAFETY: `start` points into memory that `memory` owns or shares and that has no thread affinity; the
// methods of this type access it only through atomics (`word32`, `word64`, `words64`).
unsafe impl Send for Segment {}
// SAFETY: the methods of this type give out shared references to atomics only.
unsafe impl Sync for Segment {}
// SAFETY: a mapping belongs to the process, not to a thread, and `Mapping` itself does not read through
// `start`.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference to a `Mapping` gives access to constant fields only.
unsafe impl Sync for Mapping {}

impl Segment {
    /// Maps the file, and creates it if it does not exist. The caller holds the host's lock. `magic` identifies
    /// the format and its version, and `length` is part of the format. A file of another format is refused. The
    /// first `reserved` bytes are allocated before the mapping is accessed, even in an existing file;
    /// [`Segment::reserve`] allocates more.
    pub(crate) fn open(path: &Path, magic: u64, length: usize, reserved: usize) -> Result<Self, HostError> {
        let failed = |doing| {
            let path = path.to_owned();
            move |source| HostError::Os { doing, path, source }
        };
        let file = open_private(AT_FDCWD, path).map_err(failed("open"))?;
        let wanted = length as u64;
        let found = file.metadata().map_err(failed("examine"))?.len();
        if found == 0 {
            headroom::check_file(wanted)
                .map_err(|cause| HostError::TooLarge { path: path.to_owned(), cause })?;
            file.set_len(wanted).map_err(failed("set the length of"))?;
        } else if found != wanted {
            return Err(HostError::OtherVersion(path.to_owned()));
        }
        headroom::check_shared(length).map_err(|cause| HostError::NoRoom { path: path.to_owned(), cause })?;
        allocate(&file, 0, reserved).map_err(failed(ALLOCATE))?;
        let mut mapping = Mapping::new(&file, path, length).map_err(failed("map"))?;
        if reserved < length {
            mapping.file = Some(file);
        }
        let segment = Self { start: mapping.start, length, memory: Memory::File(mapping) };
        if segment.has_format(magic) { Ok(segment) } else { Err(HostError::OtherVersion(path.to_owned())) }
    }

    /// Creates the view of a simulated host's segment, for the process with this life.
    pub(in crate::host) fn simulated(words: Arc<HeapWords>, life: Arc<Life>, magic: u64) -> Option<Self> {
        let start = NonNull::from(&*words.0).cast();
        let segment = Self { start, length: words.length(), memory: Memory::Heap { _words: words, life } };
        segment.has_format(magic).then_some(segment)
    }

    /// Writes the format of a new segment, or checks the format of an existing one.
    fn has_format(&self, magic: u64) -> bool {
        let length = self.length as u64;
        if self.word64(MAGIC).load(Ordering::Acquire) == 0 {
            // The segment is new, or its creator died before this line, so the rest has not been written.
            self.word64(LENGTH).store(length, Ordering::Relaxed);
            self.word64(MAGIC).store(magic, Ordering::Release);
        }
        self.word64(MAGIC).load(Ordering::Acquire) == magic
            && self.word64(LENGTH).load(Ordering::Relaxed) == length
    }

    /// Allocates a part of the segment in the file system, unless it is already allocated. An access to a page for
    /// which the file system lacks room would kill the process.
    pub(in crate::host) fn reserve(&self, start: usize, length: usize) -> Result<(), HostError> {
        let Memory::File(mapping) = &self.memory else { return Ok(()) };
        let Some(file) = &mapping.file else { return Ok(()) };
        allocate(file, start, length).map_err(|source| {
            let path = mapping.path.clone();
            HostError::Os { doing: ALLOCATE, path, source }
        })
    }

    /// Returns the 32-bit word at an offset.
    ///
    /// # Panics
    /// Panics if the offset is outside the segment or not a multiple of 4. This process computes offsets from
    /// checked indices, and does not read them from the segment.
    pub(crate) fn word32(&self, offset: usize) -> Word32<'_> {
        assert!(offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= self.length));
        // SAFETY: `start` is valid for `length` bytes and aligned to 8 (the constructors ensure both), and
        // the assertion keeps the word inside and aligned; the memory outlives `self`'s borrow;
        // all members access it as an atomic of this size only.
        let word = unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) };
        Word32 { word, life: self.life() }
    }

    /// Returns the 64-bit word at an offset.
    ///
    /// # Panics
    /// Panics if the offset is outside the segment or not a multiple of 8.
    pub(crate) fn word64(&self, offset: usize) -> Word64<'_> {
        Word64 { word: &self.words64(offset, 1)[0], life: self.life() }
    }

    /// Returns `count` 64-bit words, starting at an offset. Stores to them must be permitted by
    /// [`Segment::permit`].
    ///
    /// # Panics
    /// Panics if a word is outside the segment, or the offset is not a multiple of 8.
    pub(crate) fn words64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count.checked_mul(8);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        assert!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= self.length));
        // SAFETY: `start` is valid for `length` bytes and aligned to 8 (the constructors ensure both), and
        // the assertion keeps the words inside and aligned; the memory outlives `self`'s borrow; atomics
        // have the layout of their words, and all members access these as atomics of this size only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// Returns how many of the next `stores` stores take effect. The result is less than `stores` only if a simulation
    /// kills this process.
    pub(in crate::host) fn permit(&self, stores: usize) -> usize {
        let permitted = |life: &Life| usize::try_from(life.permit(stores as u64)).unwrap_or(stores);
        self.life().map_or(stores, permitted)
    }

    /// Copies words out of the segment, one by one, so that a concurrent writer may tear the copy.
    pub(crate) fn read(&self, offset: usize, into: &mut [u64]) {
        for (index, word) in into.iter_mut().enumerate() {
            *word = self.word64(offset + 8 * index).load(Ordering::Relaxed);
        }
    }

    /// Copies words into the segment, one by one.
    pub(crate) fn write(&self, offset: usize, from: &[u64]) {
        for (index, word) in from.iter().enumerate() {
            self.word64(offset + 8 * index).store(*word, Ordering::Relaxed);
        }
    }

    fn life(&self) -> Option<&Life> {
        match &self.memory {
            Memory::File(_) => None,
            Memory::Heap { life, .. } => Some(life),
        }
    }
}

/// A word of a segment.
#[derive(Debug)]
pub(crate) struct Word<'a, A> {
    word: &'a A,
    /// Life of the process that stores, in a simulation.
    life: Option<&'a Life>,
}

/// A word of 32 bits.
pub(crate) type Word32<'a> = Word<'a, AtomicU32>;
/// A word of 64 bits.
pub(crate) type Word64<'a> = Word<'a, AtomicU64>;

impl<A> Word<'_, A> {
    fn may_store(&self) -> bool {
        self.life.is_none_or(|life| life.permit(1) == 1)
    }
}

impl Word32<'_> {
    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.word.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        if self.may_store() {
            self.word.store(value, order);
        }
    }
}

impl<'a> Word64<'a> {
    pub(crate) fn load(&self, order: Ordering) -> u64 {
        self.word.load(order)
    }

    pub(crate) fn store(&self, value: u64, order: Ordering) {
        if self.may_store() {
            self.word.store(value, order);
        }
    }

    /// Exchanges the word as [`AtomicU64::compare_exchange`] does. Fails if this process was killed.
    pub(crate) fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        if self.may_store() {
            self.word.compare_exchange(current, new, success, failure)
        } else {
            Err(self.word.load(failure))
        }
    }

    pub(crate) fn fetch_add(&self, value: u64, order: Ordering) -> u64 {
        if self.may_store() { self.word.fetch_add(value, order) } else { self.word.load(Ordering::Relaxed) }
    }

    pub(crate) fn fetch_or(&self, value: u64, order: Ordering) {
        if self.may_store() {
            self.word.fetch_or(value, order);
        }
    }

    pub(crate) fn fetch_and(&self, value: u64, order: Ordering) {
        if self.may_store() {
            self.word.fetch_and(value, order);
        }
    }

    pub(crate) fn fetch_max(&self, value: u64, order: Ordering) {
        if self.may_store() {
            self.word.fetch_max(value, order);
        }
    }

    /// Returns the word itself, for reading.
    pub(in crate::host) fn get(self) -> &'a AtomicU64 {
        self.word
    }
}

impl Mapping {
    /// Maps a file that is `length` bytes long.
    fn new(file: &File, path: &Path, length: usize) -> io::Result<Self> {
        // SAFETY: a new shared mapping at an address chosen by the kernel does not alias memory in use. The
        // caller has checked or set the file's length.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { start, length, file: None, path: path.to_owned() })
    }
}

/// Name of the operation that fails when the file system is full, for errors.
const ALLOCATE: &str = "allocate";

/// Allocates a part of a file in the file system. The content does not change, even if other members write at
/// the same time.
fn allocate(file: &File, start: usize, length: usize) -> io::Result<()> {
    let offset = |bytes: usize| libc::off_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput);
    match fallocate(file, FallocateFlags::empty(), offset(start)?, offset(length)?) {
        // The file system cannot allocate. Do not use glibc's replacement, which would overwrite concurrent
        // stores of other members.
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created this mapping, of this length, and it is unmapped only here; words that the
        // owning `Segment` lends out do not outlive it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use trunkline_testkit::Folder;

    #[test]
    fn two_mappings_see_same_words() {
        let folder = Folder::new().unwrap();
        let path = folder.join("a");
        let one = Segment::open(&path, 7, 4096, 4096).unwrap();
        let two = Segment::open(&path, 7, 4096, 4096).unwrap();
        one.word32(HEADER + 4).store(5, Ordering::Release);
        assert_eq!(two.word32(HEADER + 4).load(Ordering::Acquire), 5);
        one.write(HEADER + 64, &[1, 2, 3]);
        let mut read = [0; 3];
        two.read(HEADER + 64, &mut read);
        assert_eq!(read, [1, 2, 3]);
    }

    #[test]
    fn reserved_space_is_allocated_in_any_file() {
        let folder = Folder::new().unwrap();
        let path = folder.join("a");
        let sparse = File::create(&path).unwrap();
        sparse.set_len(1 << 20).unwrap();
        let allocated = || sparse.metadata().unwrap().blocks() * 512;
        let segment = Segment::open(&path, 7, 1 << 20, 8192).unwrap();
        // A file system without sparse files has allocated everything already.
        if allocated() == 1 << 20 {
            return;
        }
        assert!((8192..65536).contains(&allocated()), "{}", allocated());
        segment.word64(1 << 19).store(5, Ordering::Relaxed);
        segment.reserve(1 << 19, 1 << 18).unwrap();
        assert!(allocated() >= 8192 + (1 << 18), "{}", allocated());
        assert_eq!(segment.word64(1 << 19).load(Ordering::Relaxed), 5, "what is there stays");
    }

    #[test]
    fn another_format_is_refused() {
        let folder = Folder::new().unwrap();
        let path = folder.join("a");
        drop(Segment::open(&path, 7, 4096, 4096).unwrap());
        for (magic, length) in [(8, 4096), (7, 8192)] {
            let error = Segment::open(&path, magic, length, length).unwrap_err();
            assert!(matches!(error, HostError::OtherVersion(_)), "{error}");
        }
        let link = folder.join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Segment::open(&link, 7, 4096, 4096).is_err(), "a symbolic link");
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn words_outside_are_refused() {
        let folder = Folder::new().unwrap();
        let segment = Segment::open(&folder.join("a"), 7, 4096, 4096).unwrap();
        segment.word32(4096);
    }
}
