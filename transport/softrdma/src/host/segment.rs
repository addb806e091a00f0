//! Memory shared by the members of a host.
//!
//! Owns a mapped file: words that are reached as atomics only, by offsets that are checked. The
//! registry and the table of shared targets lie in such files. Whoever has the user's rights can
//! write there, so what is read is taken for hints until it was checked; any bit pattern is safe.

use super::HostError;
use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Bytes at the start that belong to the segment itself.
pub(crate) const HEADER: usize = 64;
/// Offset of the format's name within the header.
const MAGIC: usize = 0;
/// Offset of the length in bytes.
const LENGTH: usize = 8;

/// A mapped file.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    length: usize,
    /// What is mapped.
    file: File,
}

// SAFETY: the mapping has no thread affinity, and it is reached through atomics only.
unsafe impl Send for Segment {}
// SAFETY: as for Send.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps the file, which is made when it is not there. The caller holds the host's lock.
    /// `magic` names the format, version included: another format is refused, and `length` is
    /// part of it.
    pub(crate) fn open(path: &Path, magic: u64, length: usize) -> Result<Self, HostError> {
        let failed = |doing| {
            let path = path.to_owned();
            move |source| HostError::Os { doing, path, source }
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
            .open(path)
            .map_err(failed("open"))?;
        let wanted = length as u64;
        let found = file.metadata().map_err(failed("examine"))?.len();
        if found == 0 {
            file.set_len(wanted).map_err(failed("make room in"))?;
        } else if found != wanted {
            return Err(HostError::OtherVersion(path.to_owned()));
        }
        // SAFETY: a new shared mapping at an address of the kernel's choice, of a file that was
        // just seen to be as long.
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
            return Err(failed("map")(io::Error::last_os_error()));
        }
        let start =
            NonNull::new(start.cast::<u8>()).ok_or_else(|| HostError::OtherVersion(path.to_owned()))?;
        let segment = Self { start, length, file };
        if found == 0 || segment.word64(MAGIC).load(Ordering::Acquire) == 0 {
            // New, or its maker died before this line: nothing else was written yet.
            segment.word64(LENGTH).store(wanted, Ordering::Relaxed);
            segment.word64(MAGIC).store(magic, Ordering::Release);
        }
        let same = segment.word64(MAGIC).load(Ordering::Acquire) == magic
            && segment.word64(LENGTH).load(Ordering::Relaxed) == wanted;
        if same { Ok(segment) } else { Err(HostError::OtherVersion(path.to_owned())) }
    }

    /// Makes sure that the file system has room for all of it: touching a page that it has no
    /// room for would kill the process.
    pub(crate) fn reserve(&self) -> io::Result<()> {
        let length = libc::off_t::try_from(self.length).unwrap_or(libc::off_t::MAX);
        match nix::fcntl::posix_fallocate(&self.file, 0, length) {
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::EINVAL) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// The 32-bit word at an offset.
    ///
    /// # Panics
    /// When the offset is outside or no multiple of 4: offsets are computed by this process from
    /// indices that it has checked, never read from the segment.
    pub(crate) fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4) && offset.checked_add(4).is_some_and(|end| end <= self.length));
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, since mappings start
        // at a page; everybody reaches the words as atomics only.
        unsafe { AtomicU32::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The 64-bit word at an offset.
    ///
    /// # Panics
    /// As [`Segment::word32`], with multiples of 8.
    pub(crate) fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset.checked_add(8).is_some_and(|end| end <= self.length));
        // SAFETY: as in `word32`.
        unsafe { AtomicU64::from_ptr(self.start.as_ptr().add(offset).cast()) }
    }

    /// The 64-bit words from an offset on.
    ///
    /// # Panics
    /// As [`Segment::word64`], when the first or the last is outside.
    pub(crate) fn words64(&self, offset: usize, count: usize) -> &[AtomicU64] {
        let bytes = count.checked_mul(8);
        let end = bytes.and_then(|bytes| offset.checked_add(bytes));
        assert!(offset.is_multiple_of(8) && end.is_some_and(|end| end <= self.length));
        // SAFETY: inside the mapping, which lives as long as `self`; aligned, since mappings start
        // at a page; atomics have the layout of their words, and everybody reaches these words as
        // atomics only.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().add(offset).cast(), count) }
    }

    /// Copies words out, one by one: a copy may be torn by somebody who writes at the same time.
    pub(crate) fn read(&self, offset: usize, into: &mut [u64]) {
        for (index, word) in into.iter_mut().enumerate() {
            *word = self.word64(offset + 8 * index).load(Ordering::Relaxed);
        }
    }

    /// Copies words in, one by one.
    pub(crate) fn write(&self, offset: usize, from: &[u64]) {
        for (index, word) in from.iter().enumerate() {
            self.word64(offset + 8 * index).store(*word, Ordering::Relaxed);
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `open`, of this length; nothing borrowed from it outlives
        // `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn two_mappings_see_the_same_words() {
        let folder = Folder::new("segment");
        let path = folder.path().join("a");
        let one = Segment::open(&path, 7, 4096).unwrap();
        let two = Segment::open(&path, 7, 4096).unwrap();
        one.word32(HEADER + 4).store(5, Ordering::Release);
        assert_eq!(two.word32(HEADER + 4).load(Ordering::Acquire), 5);
        one.write(HEADER + 64, &[1, 2, 3]);
        let mut read = [0; 3];
        two.read(HEADER + 64, &mut read);
        assert_eq!(read, [1, 2, 3]);
    }

    #[test]
    fn another_format_is_refused() {
        let folder = Folder::new("format");
        let path = folder.path().join("a");
        drop(Segment::open(&path, 7, 4096).unwrap());
        for (magic, length) in [(8, 4096), (7, 8192)] {
            let error = Segment::open(&path, magic, length).unwrap_err();
            assert!(matches!(error, HostError::OtherVersion(_)), "{error}");
        }
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(Segment::open(&link, 7, 4096).is_err(), "a symbolic link");
    }

    #[test]
    #[should_panic(expected = "offset")]
    fn words_outside_are_refused() {
        let folder = Folder::new("outside");
        let segment = Segment::open(&folder.path().join("a"), 7, 4096).unwrap();
        segment.word32(4096);
    }
}
