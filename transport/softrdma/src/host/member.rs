//! Members: joining, leaving, and what the dead left.
//!
//! Owns the locks. A member's slot holds its generation while it lives; the generation of a slot
//! never comes again, so a name that was kept too long names nobody.
#![forbid(unsafe_code)]

use super::layout::{self, LAST_GENERATION, LENGTH, MAGIC, SLOTS};
use super::runtime_dir::namespace_folder;
use super::{HostError, Segment};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Names a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MemberId {
    /// Its place in the registry.
    pub(crate) slot: u16,
    /// Which of those that had the place, from 1.
    pub(crate) generation: u32,
}

impl MemberId {
    /// As one word; never 0.
    pub(crate) fn pack(self) -> u64 {
        u64::from(self.generation) << 16 | u64::from(self.slot)
    }

    /// The opposite of [`MemberId::pack`]; `None` for a word that it cannot have given.
    #[allow(clippy::cast_possible_truncation, reason = "the low 16 bits are the slot")]
    pub(crate) fn unpack(word: u64) -> Option<Self> {
        let slot = word as u16;
        let generation = u32::try_from(word >> 16).ok().filter(|generation| *generation != 0)?;
        (usize::from(slot) < SLOTS).then_some(Self { slot, generation })
    }
}

/// One member's view of the host. Dropping it leaves.
#[derive(Debug)]
pub(crate) struct Host {
    folder: PathBuf,
    pub(super) registry: Segment,
    me: MemberId,
    /// Held for life.
    _alive: Flock<File>,
}

/// Holds the host's lock; the kernel frees it if this process dies.
#[derive(Debug)]
pub(super) struct Locked(#[allow(dead_code, reason = "held for its lock")] Flock<File>);

impl Host {
    /// Joins the host: takes a slot. `directory` is the runtime directory; `None` is the
    /// environment's choice.
    pub(crate) fn join(directory: Option<&Path>) -> Result<Arc<Self>, HostError> {
        let folder = namespace_folder(directory)?;
        let locked = lock(&folder)?;
        let registry = Segment::open(&folder.join("registry"), MAGIC, LENGTH)?;
        sweep(&folder, &registry);
        let (alive, me) = take_slot(&folder, &registry)?;
        drop(locked);
        Ok(Arc::new(Self { folder, registry, me, _alive: alive }))
    }

    /// This member.
    pub(crate) fn me(&self) -> MemberId {
        self.me
    }

    /// The folder where the members meet.
    pub(crate) fn directory(&self) -> &Path {
        &self.folder
    }

    /// The member in a slot, as far as is known without a system call.
    pub(crate) fn current(&self, slot: u16) -> Option<MemberId> {
        current(&self.registry, slot)
    }

    /// Whether a member is in its slot, as far as is known without a system call: one that died
    /// a moment ago may still be.
    pub(crate) fn is_member(&self, member: MemberId) -> bool {
        self.current(member.slot) == Some(member)
    }

    /// Whether a member lives: whether somebody holds its lock.
    pub(crate) fn is_alive(&self, member: MemberId) -> bool {
        member == self.me || (self.is_member(member) && holds_lock(&self.folder, member.slot))
    }

    /// Frees what dead members left.
    pub(crate) fn sweep(&self) -> Result<(), HostError> {
        let _locked = self.lock()?;
        sweep(&self.folder, &self.registry);
        Ok(())
    }

    /// Takes the lock around slow changes.
    pub(super) fn lock(&self) -> Result<Locked, HostError> {
        lock(&self.folder)
    }

    /// Whether the registry that newcomers find is this one: somebody may have removed the file.
    pub(crate) fn is_current(&self) -> bool {
        let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
        let there = std::fs::metadata(self.folder.join("registry")).map(inode).ok();
        there.is_some() && there == self.registry.file().metadata().map(inode).ok()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let Ok(_locked) = self.lock() else { return };
        free(&self.registry, self.me);
    }
}

fn open(path: &Path) -> Result<File, HostError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| HostError::Os { doing: "open", path: path.to_owned(), source })
}

fn lock(folder: &Path) -> Result<Locked, HostError> {
    let path = folder.join("lock");
    let mut file = open(&path)?;
    loop {
        match Flock::lock(file, FlockArg::LockExclusive) {
            Ok(held) => return Ok(Locked(held)),
            Err((again, nix::errno::Errno::EINTR)) => file = again,
            Err((_, errno)) => {
                return Err(HostError::Os { doing: "lock", path, source: io::Error::from(errno) });
            }
        }
    }
}

fn slot_path(folder: &Path, slot: u16) -> PathBuf {
    folder.join(format!("slot-{slot}"))
}

/// Whether somebody holds the lock of a slot. When that cannot be found out, nobody is declared
/// dead.
fn holds_lock(folder: &Path, slot: u16) -> bool {
    match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(slot_path(folder, slot)) {
        Ok(file) => Flock::lock(file, FlockArg::LockSharedNonblock).is_err(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    }
}

fn current(registry: &Segment, slot: u16) -> Option<MemberId> {
    if usize::from(slot) >= SLOTS {
        return None;
    }
    let generation = u32::try_from(registry.word64(layout::slot(slot)).load(Ordering::Acquire)).ok()?;
    (generation != 0).then_some(MemberId { slot, generation })
}

/// Takes the first slot that nobody holds. The caller holds the lock and has swept.
fn take_slot(folder: &Path, registry: &Segment) -> Result<(Flock<File>, MemberId), HostError> {
    for slot in 0..SLOTS {
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        if current(registry, slot).is_some() {
            continue;
        }
        // Who asks whether somebody lives holds this lock for a moment: then the next slot does.
        let Ok(alive) = Flock::lock(open(&slot_path(folder, slot))?, FlockArg::LockExclusiveNonblock) else {
            continue;
        };
        let last = registry.word64(LAST_GENERATION);
        let next = u32::try_from(last.load(Ordering::Relaxed)).ok().and_then(|last| last.checked_add(1));
        let generation = next.unwrap_or(1);
        last.store(u64::from(generation), Ordering::Relaxed);
        registry.word64(layout::slot(slot)).store(u64::from(generation), Ordering::Release);
        return Ok((alive, MemberId { slot, generation }));
    }
    Err(HostError::Full("members (opened devices)"))
}

/// Frees what members left whose lock nobody holds. The caller holds the lock.
fn sweep(folder: &Path, registry: &Segment) {
    for slot in 0..SLOTS {
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        if let Some(member) = current(registry, slot)
            && !holds_lock(folder, slot)
        {
            free(registry, member);
        }
    }
}

/// Frees everything of a member, its slot last: who dies in the middle leaves the rest to the
/// next sweep. The caller holds the lock.
fn free(registry: &Segment, member: MemberId) {
    super::numbers::free(registry, member);
    registry.word64(layout::slot(member.slot)).store(0, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::super::testing::Folder;
    use super::*;

    #[test]
    fn members_come_and_go() {
        let folder = Folder::new("members");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        let two = Host::join(Some(&root)).unwrap();
        assert_ne!(one.me(), two.me());
        assert!(one.is_alive(two.me()) && two.is_alive(one.me()));
        assert_eq!(one.current(two.me().slot), Some(two.me()));
        let gone = two.me();
        drop(two);
        assert!(!one.is_alive(gone));
        assert_eq!(one.current(gone.slot), None);
        let three = Host::join(Some(&root)).unwrap();
        assert_eq!(three.me().slot, gone.slot, "slots are used again");
        assert_ne!(three.me().generation, gone.generation);
        assert!(!one.is_alive(gone), "an old name names nobody");
        assert!(one.is_current());
        std::fs::remove_file(one.directory().join("registry")).unwrap();
        assert!(!one.is_current());
    }

    #[test]
    fn what_a_dead_member_left_is_swept() {
        let folder = Folder::new("sweep");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        // As if a member in slot 9 had died without a word.
        one.registry.word64(layout::slot(9)).store(77, Ordering::Release);
        let dead = MemberId { slot: 9, generation: 77 };
        assert!(one.is_member(dead));
        assert!(!one.is_alive(dead));
        one.sweep().unwrap();
        assert!(!one.is_member(dead));
        assert!(one.is_alive(one.me()), "the living stay");
    }

    #[test]
    fn any_word_is_a_member_or_none() {
        let member = MemberId { slot: 1023, generation: u32::MAX };
        assert_eq!(MemberId::unpack(member.pack()), Some(member));
        assert_eq!(MemberId::unpack(0), None);
        assert_eq!(MemberId::unpack(5), None, "no generation");
        assert_eq!(MemberId::unpack(1 << 16 | 1024), None, "no such slot");
        assert_eq!(MemberId::unpack(u64::MAX), None);
    }
}
