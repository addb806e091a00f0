//! Memory that one member writes and another member reads.
//!
//! Owns the creation, hand-over and mapping of areas. Each member writes only its own areas. A mapped area of
//! another member cannot be written, grown or shrunk. It may contain any values at any time: copies out of it
//! may tear, and must be checked. In a simulation an area is heap memory, and the stores of a killed process
//! are dropped, even in the middle of a copy.
#![forbid(unsafe_code)]

use super::area_ffi::{self, Fork, Mapping};
use super::segment::Life;
use crate::host::Host;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use trunkline_verbs::{Memory, MemoryError, headroom};

/// Creates the areas of a process, and maps areas of other processes.
#[derive(Debug, Clone)]
pub(crate) struct Areas(AreaSource);

#[derive(Debug, Clone)]
enum AreaSource {
    Mapped(Arc<Fork>),
    Simulated(Arc<Life>),
}

/// An area in transit to another member.
#[derive(Debug)]
pub(crate) enum AreaHandle {
    /// A descriptor of its memory.
    Descriptor(OwnedFd),
    /// The memory itself, in a simulation.
    Memory(Arc<Memory>),
}

impl PartialEq for AreaHandle {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Descriptor(one), Self::Descriptor(other)) => one.as_raw_fd() == other.as_raw_fd(),
            (Self::Memory(one), Self::Memory(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl Eq for AreaHandle {}

#[derive(Debug)]
enum Bytes {
    Mapped(Mapping),
    Simulated(Arc<Memory>),
}

impl Bytes {
    fn memory(&self) -> &Memory {
        match self {
            Self::Mapped(mapping) => mapping.memory(),
            Self::Simulated(memory) => memory,
        }
    }
}

/// An area of this member. Offsets are chosen by this process, and not read from shared memory.
#[derive(Debug)]
pub(crate) struct OwnArea {
    bytes: Bytes,
    /// The life of the storing process, in a simulation.
    life: Option<Arc<Life>>,
}

/// Another member's area.
#[derive(Debug)]
pub(crate) struct MappedArea {
    bytes: Bytes,
}

impl Areas {
    /// Creates the allocator of areas for a member of this host.
    ///
    /// # Errors
    /// Returns a description of the feature that the system lacks.
    pub(crate) fn new(host: &Host) -> Result<Self, &'static str> {
        match host.life() {
            Some(life) => Ok(Self(AreaSource::Simulated(Arc::clone(life)))),
            None => {
                let fork = Fork::new().map_err(|error| area_ffi::reason(&error))?;
                Ok(Self(AreaSource::Mapped(Arc::new(fork))))
            }
        }
    }

    /// Returns true in the process that created this value. The areas are not mapped in a forked child.
    pub(crate) fn is_own_process(&self) -> bool {
        match &self.0 {
            AreaSource::Mapped(fork) => fork.is_own_process(),
            AreaSource::Simulated(_) => true,
        }
    }

    /// Makes the areas behave as in a forked child.
    #[cfg(test)]
    pub(crate) fn pretend_child(&self) {
        if let AreaSource::Mapped(fork) = &self.0 {
            fork.pretend_child();
        }
    }

    /// Creates an area of zeros, and the handle for another member to map it.
    ///
    /// # Errors
    /// Returns a description of the missing resource, or of the limit of this process.
    pub(crate) fn make(&self, length: usize) -> Result<(OwnArea, AreaHandle), &'static str> {
        has_room(length)?;
        match &self.0 {
            AreaSource::Mapped(fork) => {
                headroom::check_file(length as u64)
                    .map_err(|_| "a limit on the size of files (ulimit -f) leaves no room to share memory")?;
                let (mapping, file) =
                    Mapping::make(length, fork).map_err(|error| area_ffi::reason(&error))?;
                Ok((OwnArea { bytes: Bytes::Mapped(mapping), life: None }, AreaHandle::Descriptor(file)))
            }
            AreaSource::Simulated(life) => {
                let memory = Memory::zeroed(length).map_err(|_| "no memory is left to share")?;
                let bytes = Bytes::Simulated(Arc::clone(&memory));
                Ok((OwnArea { bytes, life: Some(Arc::clone(life)) }, AreaHandle::Memory(memory)))
            }
        }
    }

    /// Maps another member's area.
    ///
    /// # Errors
    /// Fails if the area has another length, is not sealed or does not have memory reserved, or if the system or a
    /// limit of this process does not allow the mapping.
    pub(crate) fn map(&self, handle: AreaHandle, length: usize) -> Result<MappedArea, &'static str> {
        has_room(length)?;
        let bytes = match (handle, &self.0) {
            (AreaHandle::Descriptor(file), AreaSource::Mapped(fork)) => {
                let mapped = Mapping::read_only(file, length, fork);
                Bytes::Mapped(mapped.map_err(|error| match error.kind() {
                    io::ErrorKind::InvalidData => {
                        "its shared memory is not sealed, not reserved, or of another size"
                    }
                    _ => area_ffi::reason(&error),
                })?)
            }
            (AreaHandle::Memory(memory), AreaSource::Simulated(_)) if memory.len() == length => {
                Bytes::Simulated(memory)
            }
            _ => return Err("its shared memory is of another kind"),
        };
        Ok(MappedArea { bytes })
    }
}

fn has_room(length: usize) -> Result<(), &'static str> {
    headroom::check_shared(length).map_err(|_| "a limit on the address space leaves no room to share memory")
}

impl OwnArea {
    /// Stores a word, with release ordering.
    pub(crate) fn store(&self, offset: usize, value: u64) {
        if self.permit(1) == 1 {
            let stored = self.bytes.memory().atomic(offset, |word| word.store(value, Ordering::Release));
            debug_assert_eq!(stored, Ok(()), "own offsets are inside");
        }
    }

    /// Copies bytes into the area.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        // In a simulation, each word is a separate store.
        let permitted = self.permit(bytes.len().div_ceil(8)).saturating_mul(8).min(bytes.len());
        let written = self.bytes.memory().write(offset, &bytes[..permitted]);
        debug_assert_eq!(written, Ok(()), "own offsets are inside");
    }

    /// Copies `length` bytes into the area from offset `at` of another memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is outside the other memory.
    pub(crate) fn copy_in(
        &self,
        offset: usize,
        from: &Memory,
        at: usize,
        length: usize,
    ) -> Result<(), MemoryError> {
        let permitted = self.permit(length.div_ceil(8)).saturating_mul(8).min(length);
        from.copy_to(at, permitted, self.bytes.memory(), offset)
    }

    /// Loads a word, for messages from a member to itself.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.bytes.memory().load(offset).unwrap_or(0)
    }

    /// Copies bytes out of the area, for messages from a member to itself.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let read = self.bytes.memory().read(offset, into);
        debug_assert_eq!(read, Ok(()), "own offsets are inside");
    }

    /// Copies `length` bytes to offset `at` of another memory, for messages from a member to itself.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is outside the other memory.
    pub(crate) fn copy_out(
        &self,
        offset: usize,
        into: &Memory,
        at: usize,
        length: usize,
    ) -> Result<(), MemoryError> {
        self.bytes.memory().copy_to(offset, length, into, at)
    }

    fn permit(&self, stores: usize) -> usize {
        let permitted = |life: &Arc<Life>| usize::try_from(life.permit(stores as u64)).unwrap_or(stores);
        self.life.as_ref().map_or(stores, permitted)
    }
}

impl MappedArea {
    /// Copies `length` bytes to offset `at` of another memory.
    ///
    /// # Errors
    /// [`MemoryError::OutOfBounds`] if the range is outside the other memory.
    pub(crate) fn copy_out(
        &self,
        offset: usize,
        into: &Memory,
        at: usize,
        length: usize,
    ) -> Result<(), MemoryError> {
        self.bytes.memory().copy_to(offset, length, into, at)
    }

    /// Loads a word, with acquire ordering.
    pub(crate) fn load(&self, offset: usize) -> u64 {
        self.bytes.memory().load(offset).unwrap_or(0)
    }

    /// Copies bytes out of the area.
    pub(crate) fn read(&self, offset: usize, into: &mut [u8]) {
        let read = self.bytes.memory().read(offset, into);
        debug_assert_eq!(read, Ok(()), "own offsets are inside");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use trunkline_testkit::Folder;

    fn areas(folder: &Folder) -> Areas {
        Areas::new(&Host::join(Some(&folder.join("run"))).unwrap()).unwrap()
    }

    #[test]
    fn writes_are_visible_to_other_mapping() {
        let folder = Folder::new().unwrap();
        let (one, other) = (areas(&folder), areas(&folder));
        let (own, handle) = one.make(8192).unwrap();
        let peer = other.map(handle, 8192).unwrap();
        own.write(4096, b"hello");
        own.store(8, 77);
        let mut read = [0; 5];
        peer.read(4096, &mut read);
        assert_eq!((&read, peer.load(8)), (b"hello", 77));
    }

    #[test]
    fn only_creator_can_write_or_resize_area() {
        let folder = Folder::new().unwrap();
        let (_own, handle) = areas(&folder).make(8192).unwrap();
        let AreaHandle::Descriptor(file) = handle else { panic!("not a simulation") };
        let file = File::from(file);
        assert!(file.write_at(b"x", 0).is_err());
        assert!(file.set_len(4096).is_err() && file.set_len(1 << 20).is_err());
        assert!(area_ffi::can_map_for_writing(&file, 8192).is_err());
        assert!(area_ffi::can_make_writable(&file, 8192).is_err());
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        if let Ok(opened) = File::options().read(true).write(true).open(path) {
            assert!(opened.write_at(b"x", 0).is_err());
            assert!(area_ffi::can_map_for_writing(&opened, 8192).is_err());
        }
        let mut read = [1];
        file.read_exact_at(&mut read, 0).unwrap();
        assert_eq!(read, [0]);
    }

    #[test]
    fn unsealed_wrongly_sized_or_unreserved_memory_is_refused() {
        let folder = Folder::new().unwrap();
        let areas = areas(&folder);
        let path = folder.join("file");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let file = || AreaHandle::Descriptor(File::open(&path).unwrap().into());
        assert!(areas.map(file(), 8192).is_err_and(|why| why.contains("not sealed")), "a plain file");
        let (_own, handle) = areas.make(4096).unwrap();
        assert!(areas.map(handle, 8192).is_err_and(|why| why.contains("another size")));
        let handle = AreaHandle::Descriptor(area_ffi::without_memory(8192));
        assert!(areas.map(handle, 8192).is_err_and(|why| why.contains("not reserved")), "no page is there");
    }
}
