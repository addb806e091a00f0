//! Members: joining, leaving, and what the dead left.
//!
//! Owns the locks. A member's slot holds its generation while it lives; the generation of a slot
//! never comes again, so a name that was kept too long names nobody.
#![forbid(unsafe_code)]

use super::layout::{self, LAST_DOMAIN, LAST_GENERATION, LENGTH, MAGIC, SLOTS};
use super::runtime_dir::namespace_folder;
use super::{HostError, Segment, tidy};
use nix::fcntl::{Flock, FlockArg};
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

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
    process: u32,
    /// Held for life, and left to the kernel after a fork: letting it go would let it go for the
    /// parent too (contract A15).
    alive: Option<Flock<File>>,
}

/// Holds the host's lock; the kernel frees it if this process dies.
#[derive(Debug)]
pub(super) struct Locked(Flock<File>);

impl Host {
    /// Joins the host: takes a slot. `directory` is the runtime directory; `None` is the
    /// environment's choice.
    pub(crate) fn join(directory: Option<&Path>) -> Result<Arc<Self>, HostError> {
        let (folder, locked) = enter(directory)?;
        let registry = Segment::open(&folder.join("registry"), MAGIC, LENGTH)?;
        registry.reserve().map_err(|source| HostError::Os {
            doing: "make room for",
            path: folder.join("registry"),
            source,
        })?;
        let last_domain = registry.word64(LAST_DOMAIN);
        if last_domain.load(Ordering::Relaxed) == 0 {
            // So that a registry made after this one was removed gives other numbers.
            last_domain.store(random() >> 8 | 1 << 32, Ordering::Relaxed);
        }
        sweep(&folder, &registry);
        let (alive, me) = take_slot(&folder, &registry)?;
        drop(locked);
        tidy::remove_unused(&folder);
        let process = std::process::id();
        Ok(Arc::new(Self { folder, registry, me, process, alive: Some(alive) }))
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

    /// Whether a member lives: whether somebody holds its lock. One that does not leaves its slot.
    pub(crate) fn is_alive(&self, member: MemberId) -> bool {
        member == self.me || (self.is_member(member) && lives(&self.folder, &self.registry, member))
    }

    /// Frees what dead members left.
    pub(crate) fn sweep(&self) {
        sweep(&self.folder, &self.registry);
    }

    /// Whether this is the process that joined, not a child that it forked.
    fn is_own_process(&self) -> bool {
        self.process == std::process::id()
    }

    /// Takes the lock around slow changes.
    pub(super) fn lock(&self) -> Result<Locked, HostError> {
        lock(&self.folder)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.is_own_process() {
            // Everything of a member is void without its slot.
            vacate(&self.registry, self.me);
        } else {
            std::mem::forget(self.alive.take());
        }
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

/// Finds the folder and takes its lock, which may be removed as unused in between.
fn enter(directory: Option<&Path>) -> Result<(PathBuf, Locked), HostError> {
    let mut tries = 0;
    loop {
        let folder = namespace_folder(directory)?;
        match lock(&folder) {
            Ok(locked) => {
                // Whoever looks for unused folders sees by it that this one is not.
                let _refused = locked.0.set_modified(SystemTime::now());
                return Ok((folder, locked));
            }
            Err(HostError::Os { source, .. }) if source.kind() == io::ErrorKind::NotFound && tries < 3 => {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

/// Takes the lock of a folder unless somebody holds it.
pub(super) fn try_lock(folder: &Path) -> Option<Locked> {
    Flock::lock(open(&folder.join("lock")).ok()?, FlockArg::LockExclusiveNonblock).ok().map(Locked)
}

/// Whether a member lives in a folder that is locked; also when that cannot be found out.
pub(super) fn any_lives(folder: &Path) -> bool {
    let path = folder.join("registry");
    if !path.exists() {
        return true;
    }
    let Ok(registry) = Segment::open(&path, MAGIC, LENGTH) else { return true };
    sweep(folder, &registry);
    (0..SLOTS).any(|slot| current(&registry, u16::try_from(slot).unwrap_or(u16::MAX)).is_some())
}

fn lock(folder: &Path) -> Result<Locked, HostError> {
    let path = folder.join("lock");
    loop {
        let mut file = open(&path)?;
        let held = loop {
            match Flock::lock(file, FlockArg::LockExclusive) {
                Ok(held) => break held,
                Err((again, nix::errno::Errno::EINTR)) => file = again,
                Err((_, errno)) => {
                    return Err(HostError::Os { doing: "lock", path, source: io::Error::from(errno) });
                }
            }
        };
        // Somebody may have removed the file meanwhile: then others hold another one.
        if is_at(&held, &path) {
            return Ok(Locked(held));
        }
    }
}

/// Whether the file is the one that others find at the path.
fn is_at(file: &File, path: &Path) -> bool {
    let inode = |found: std::fs::Metadata| (found.dev(), found.ino());
    let there = std::fs::metadata(path).map(inode).ok();
    there.is_some() && there == file.metadata().map(inode).ok()
}

fn slot_path(folder: &Path, slot: u16) -> PathBuf {
    folder.join(format!("slot-{slot}"))
}

/// Whether somebody holds the lock of a slot. When that cannot be found out, as when a cleaner of
/// old files took the file away, nobody is declared dead.
fn holds_lock(folder: &Path, slot: u16) -> bool {
    match OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(slot_path(folder, slot)) {
        Ok(file) => Flock::lock(file, FlockArg::LockSharedNonblock).is_err(),
        Err(_) => true,
    }
}

/// Whether a member lives; its slot is empty afterwards when it does not.
fn lives(folder: &Path, registry: &Segment, member: MemberId) -> bool {
    let lives = holds_lock(folder, member.slot);
    if !lives {
        vacate(registry, member);
    }
    lives
}

/// Empties the slot, unless another has it meanwhile: the word changes after the slot's lock was
/// taken and before it is let go.
fn vacate(registry: &Segment, member: MemberId) {
    let word = registry.word64(layout::slot(member.slot));
    let own = u64::from(member.generation);
    let _other = word.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
}

fn random() -> u64 {
    RandomState::new().hash_one(std::process::id())
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
        // A registry that is damaged there, or 2^32 members later: hardly one that was in use.
        let generation = next.unwrap_or_else(|| u32::try_from(random() >> 33).unwrap_or(0) | 1);
        last.store(u64::from(generation), Ordering::Relaxed);
        registry.word64(layout::slot(slot)).store(u64::from(generation), Ordering::Release);
        return Ok((alive, MemberId { slot, generation }));
    }
    Err(HostError::Full("members (opened devices)"))
}

/// Empties the slots of members whose lock nobody holds.
fn sweep(folder: &Path, registry: &Segment) {
    for slot in 0..SLOTS {
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        if let Some(member) = current(registry, slot) {
            lives(folder, registry, member);
        }
    }
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
    }

    #[test]
    fn what_a_dead_member_left_is_swept() {
        let folder = Folder::new("sweep");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        // As if a member in slot 9 had died without a word.
        std::fs::write(one.directory().join("slot-9"), "").unwrap();
        one.registry.word64(layout::slot(9)).store(77, Ordering::Release);
        let dead = MemberId { slot: 9, generation: 77 };
        assert!(one.is_member(dead));
        one.sweep();
        assert!(!one.is_member(dead));
        assert!(one.is_alive(one.me()) && one.is_member(one.me()), "the living stay");
        one.registry.word64(layout::slot(9)).store(77, Ordering::Release);
        assert!(!one.is_alive(dead));
        assert!(!one.is_member(dead), "who is seen dead leaves");
    }

    #[test]
    fn a_full_host_says_so() {
        let folder = Folder::new("full");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        for slot in 0..1024 {
            let word = one.registry.word64(layout::slot(slot));
            let _own = word.compare_exchange(0, 99, Ordering::AcqRel, Ordering::Relaxed);
        }
        let text = Host::join(Some(&root)).unwrap_err().to_string();
        assert!(text.contains("no more members") && text.contains("end programs"), "{text}");
        // Locks that nobody holds make room.
        std::fs::write(one.directory().join("slot-1023"), "").unwrap();
        assert_eq!(Host::join(Some(&root)).unwrap().me().slot, 1023);
    }

    #[test]
    fn garbage_in_the_slots_is_survived() {
        let folder = Folder::new("slots");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        for (offset, garbage) in [(LAST_GENERATION, u64::MAX), (layout::slot(1), u64::MAX)] {
            one.registry.word64(offset).store(garbage, Ordering::Relaxed);
        }
        let two = Host::join(Some(&root)).unwrap();
        assert!(one.is_alive(two.me()) && two.is_alive(one.me()));
        assert_eq!(one.current(1024), None, "no such slot");
    }

    #[test]
    fn a_child_after_a_fork_closes_but_does_not_leave() {
        let folder = Folder::new("fork");
        let root = folder.path().join("run");
        let one = Host::join(Some(&root)).unwrap();
        let mut two = Host::join(Some(&root)).unwrap();
        let member = two.me();
        Arc::get_mut(&mut two).unwrap().process ^= 1;
        let claim = two.claim_service(7, [127, 0, 0, 1].into(), false).unwrap();
        assert_eq!(one.service_owner(7, [127, 0, 0, 1].into()), Some(member));
        drop(claim);
        assert_eq!(one.service_owner(7, [127, 0, 0, 1].into()), None, "what it closes is closed");
        drop(two);
        assert!(one.is_alive(member), "its lock is the parent's, too");
        one.sweep();
        assert!(one.is_member(member));
    }

    #[test]
    fn a_removed_lock_file_is_made_again() {
        let folder = Folder::new("lock");
        let host = Host::join(Some(&folder.path().join("run"))).unwrap();
        let before = host.lock().unwrap();
        std::fs::remove_file(host.directory().join("lock")).unwrap();
        let after = host.lock().unwrap();
        drop((before, after));
        host.lock().unwrap();
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
