//! Joining and leaving a host, and freeing the slots of dead members.
//!
//! Owns the words of the slots. A member's slot holds the member's generation while the member lives. Generations are
//! not reused, so a stale identifier does not match any member.
#![forbid(unsafe_code)]

use super::files::folder_lock::{FolderLock, Locked, is_in_place};
use super::files::private_file::open_private;
use super::files::runtime_dir::namespace_folder;
use super::files::slot_locks::{Marks, REGISTRY, SLOT, holds_lock};
use super::files::tidy;
use super::memory::segment::{ATTEMPTS, Life};
use super::memory::simulated::HostMemory;
use super::registry::layout::{self, LAST_DOMAIN, LAST_GENERATION, LENGTH, MAGIC, MemberId, SLOTS};
use super::registry::numbering::Numbering;
use super::{HostError, Segment};
use nix::fcntl::{Flock, FlockArg};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;
use trunkline_machine::Runtime;
use trunkline_roce::wire::ROCE_PORT;

/// Access of one member to the host. Dropping it ends the membership.
#[derive(Debug)]
pub(crate) struct Host {
    presence: Presence,
    pub(super) registry: Segment,
    pub(super) numbering: Numbering,
    me: MemberId,
    /// UDP port at which this member's device receives.
    udp_port: u16,
}

/// The folder or memory shared by the members, and the lock or object that shows that this member lives.
#[derive(Debug)]
enum Presence {
    Folder {
        lock: FolderLock,
        process: u32,
        /// Lock on the slot, held while the member exists. A forked child does not unlock it, since that
        /// would also unlock it for the parent (contract A15).
        alive: Option<Flock<File>>,
        marks: Marks,
    },
    Memory {
        memory: Arc<HostMemory>,
        life: Arc<Life>,
    },
}

impl Host {
    /// Joins the host by taking a slot. `directory` is the runtime directory; `None` takes it from the
    /// environment.
    pub(crate) fn join(directory: Option<&Path>) -> Result<Arc<Self>, HostError> {
        Self::join_with(directory, ROCE_PORT)
    }

    /// Joins the host for a device that receives at this UDP port. See [`Host::join`].
    pub(crate) fn join_with(directory: Option<&Path>, udp_port: u16) -> Result<Arc<Self>, HostError> {
        let mut tries = 0;
        loop {
            match Self::join_folder(&namespace_folder(directory)?) {
                // Another process removed the unused folder after it was found.
                Err(HostError::Os { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && tries < 3 =>
                {
                    tries += 1;
                }
                joined => {
                    let mut joined = joined?;
                    joined.udp_port = udp_port;
                    return Ok(Arc::new(joined));
                }
            }
        }
    }

    fn join_folder(path: &Path) -> Result<Self, HostError> {
        let lock = FolderLock::open(path)?;
        let locked = lock.lock()?;
        let failed = |source| HostError::Os { doing: "open", path: path.to_owned(), source };
        is_in_place(&lock, &locked).map_err(failed)?;
        // The modification time shows `tidy` that this folder is in use.
        #[expect(clippy::disallowed_methods, reason = "compared with times of the file system")]
        let _refused = locked.file().map(|file| file.set_modified(SystemTime::now()));
        lock.remove_replaced();
        let registry = Segment::open(&path.join(REGISTRY), MAGIC, LENGTH, LENGTH)?;
        choose_first_domain(&registry, random);
        let marks = Marks::open(path)?;
        let numbering = Numbering::of(&registry, random);
        sweep(&registry, |member| holds_lock(lock.directory(), member.slot, Some(&marks)));
        // Another member may hold a slot's lock for a moment to check whether the slot's owner lives. Try the next slot
        // then.
        let take =
            |slot| {
                let name = format!("{SLOT}{slot}");
                let file = open_private(lock.directory(), Path::new(&name))
                    .map_err(|source| HostError::Os { doing: "open", path: path.join(&name), source })?;
                let taken = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok();
                if taken.is_some() {
                    marks.set(slot).map_err(|source| HostError::Os {
                        doing: "lock",
                        path: path.join(REGISTRY),
                        source,
                    })?;
                }
                Ok(taken)
            };
        let (alive, me) = take_slot(&registry, take, random)?;
        drop(locked);
        tidy::remove_unused(path, random());
        let presence = Presence::Folder { lock, process: std::process::id(), alive: Some(alive), marks };
        Ok(Self { presence, registry, numbering, me, udp_port: ROCE_PORT })
    }

    /// Joins a simulated host. The member belongs to the process with this life.
    pub(crate) fn in_memory(
        memory: &Arc<HostMemory>,
        life: &Arc<Life>,
        udp_port: u16,
    ) -> Result<Arc<Self>, HostError> {
        let words = memory.segment("registry", LENGTH)?;
        let registry = Segment::simulated(words, Arc::clone(life), MAGIC)
            .ok_or_else(|| HostError::OtherVersion(PathBuf::from("registry")))?;
        let random = || memory.random();
        choose_first_domain(&registry, random);
        let numbering = Numbering::of(&registry, random);
        sweep(&registry, |member| memory.lives(member));
        let ((), me) = take_slot(&registry, |_slot| Ok(Some(())), random)?;
        memory.enter(me, life);
        let presence = Presence::Memory { memory: Arc::clone(memory), life: Arc::clone(life) };
        Ok(Arc::new(Self { presence, registry, numbering, me, udp_port }))
    }

    /// Returns the UDP port at which this member's device receives.
    pub(crate) fn udp_port(&self) -> u16 {
        self.udp_port
    }

    pub(crate) fn me(&self) -> MemberId {
        self.me
    }

    /// Returns the folder that the members share; `None` on a simulated host.
    pub(crate) fn directory(&self) -> Option<&Path> {
        match &self.presence {
            Presence::Folder { lock, .. } => Some(lock.path()),
            Presence::Memory { .. } => None,
        }
    }

    /// Returns the memory of a simulated host; `None` on a real one.
    pub(super) fn memory(&self) -> Option<&Arc<HostMemory>> {
        match &self.presence {
            Presence::Folder { .. } => None,
            Presence::Memory { memory, .. } => Some(memory),
        }
    }

    /// Returns the life of this process in a simulation; `None` on a real host.
    pub(super) fn life(&self) -> Option<&Arc<Life>> {
        match &self.presence {
            Presence::Folder { .. } => None,
            Presence::Memory { life, .. } => Some(life),
        }
    }

    /// Opens a segment of the host by name. Its first `reserved` bytes are allocated.
    pub(super) fn segment(
        &self,
        _locked: &Locked<'_>,
        name: &'static str,
        magic: u64,
        [length, reserved]: [usize; 2],
    ) -> Result<Segment, HostError> {
        match &self.presence {
            Presence::Folder { lock, .. } => Segment::open(&lock.path().join(name), magic, length, reserved),
            Presence::Memory { memory, life } => {
                let segment = Segment::simulated(memory.segment(name, length)?, Arc::clone(life), magic);
                segment.ok_or_else(|| HostError::OtherVersion(PathBuf::from(name)))
            }
        }
    }

    /// Returns an unpredictable number. In a simulation it comes from the seeded source.
    pub(super) fn random(&self) -> u64 {
        self.memory().map_or_else(random, |memory| memory.random())
    }

    /// Returns the member in a slot, without a system call. The member may be dead.
    pub(crate) fn current(&self, slot: u16) -> Option<MemberId> {
        current(&self.registry, slot)
    }

    /// Returns true if a member is in its slot, or may have been in it earlier.
    pub(super) fn has_joined(&self, member: MemberId) -> bool {
        let last = self.registry.word64(LAST_GENERATION).load(Ordering::Acquire);
        match self.current(member.slot) {
            Some(current) => member.generation <= current.generation,
            None => usize::from(member.slot) < SLOTS && u64::from(member.generation) <= last,
        }
    }

    /// Returns true if a member is in its slot, without a system call. The member may be dead.
    pub(crate) fn is_member(&self, member: MemberId) -> bool {
        self.current(member.slot) == Some(member)
    }

    /// Returns true if a member lives, which means that its lock is held. Frees the slot of a dead member.
    pub(crate) fn is_alive(&self, member: MemberId) -> bool {
        member == self.me
            || (self.is_member(member) && lives(&self.registry, member, |member| self.is_held(member)))
    }

    /// Frees the slots of dead members.
    pub(crate) fn sweep(&self) {
        sweep(&self.registry, |member| self.is_held(member));
    }

    /// Returns true if this process joined the host; false in a forked child.
    pub(crate) fn is_own_process(&self) -> bool {
        match &self.presence {
            Presence::Folder { process, .. } => *process == std::process::id(),
            Presence::Memory { .. } => true,
        }
    }

    /// Takes the lock that protects slow changes.
    pub(super) fn lock(&self) -> Result<Locked<'_>, HostError> {
        match &self.presence {
            Presence::Folder { lock, .. } if self.is_own_process() => lock.lock(),
            Presence::Folder { lock, .. } => lock.lock_anew(),
            Presence::Memory { .. } => Ok(Locked::simulated()),
        }
    }

    /// Returns true if the lock has not been replaced since it was taken. A member that replaced it may have
    /// changed the registry.
    pub(super) fn is_locked(&self, locked: &Locked<'_>) -> bool {
        match &self.presence {
            Presence::Folder { lock, .. } => locked.file().is_none_or(|file| lock.is_current(file)),
            Presence::Memory { .. } => true,
        }
    }

    /// Returns true if the slot lock of a member is held.
    fn is_held(&self, member: MemberId) -> bool {
        match &self.presence {
            Presence::Folder { lock, marks, .. } => holds_lock(lock.directory(), member.slot, Some(marks)),
            Presence::Memory { memory, .. } => memory.lives(member),
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let is_own = self.is_own_process();
        if is_own {
            // Records of this member are void once its slot is empty.
            vacate(&self.registry, self.me);
        }
        match &mut self.presence {
            Presence::Folder { alive, .. } if !is_own => std::mem::forget(alive.take()),
            Presence::Folder { marks, .. } => marks.clear(self.me.slot),
            Presence::Memory { memory, .. } => memory.leave(self.me),
        }
    }
}

/// Returns true if a member lives, which means that its slot is held. Otherwise empties the slot.
fn lives(registry: &Segment, member: MemberId, is_held: impl Fn(MemberId) -> bool) -> bool {
    let lives = is_held(member);
    if !lives {
        vacate(registry, member);
    }
    lives
}

/// Empties a slot unless another member has taken it. The word changes only while the slot's lock is held.
fn vacate(registry: &Segment, member: MemberId) {
    let word = registry.word64(layout::slot(member.slot));
    let own = u64::from(member.generation);
    let _other = word.compare_exchange(own, 0, Ordering::AcqRel, Ordering::Relaxed);
}

fn random() -> u64 {
    Runtime::threads().random()
}

fn current(registry: &Segment, slot: u16) -> Option<MemberId> {
    if usize::from(slot) >= SLOTS {
        return None;
    }
    let generation = u32::try_from(registry.word64(layout::slot(slot)).load(Ordering::Acquire)).ok()?;
    (generation != 0).then_some(MemberId { slot, generation })
}

/// Chooses a random number for the first domain, so that a registry created after this one was removed
/// assigns other numbers.
fn choose_first_domain(registry: &Segment, random: impl Fn() -> u64) {
    let last_domain = registry.word64(LAST_DOMAIN);
    if last_domain.load(Ordering::Relaxed) == 0 {
        last_domain.store(random() >> 8 | 1 << 32, Ordering::Relaxed);
    }
}

/// Takes the first free slot that `take` accepts. The caller holds the lock, and has freed the slots of dead
/// members.
fn take_slot<T>(
    registry: &Segment,
    take: impl Fn(u16) -> Result<Option<T>, HostError>,
    random: impl Fn() -> u64,
) -> Result<(T, MemberId), HostError> {
    for slot in 0..SLOTS {
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        if current(registry, slot).is_some() {
            continue;
        }
        let Some(taken) = take(slot)? else { continue };
        let next = |last: u64| {
            let next = u32::try_from(last).ok().and_then(|last| last.checked_add(1));
            // The word is damaged, or 2^32 members have joined. Continue with a random generation, which is
            // unlikely to be in use.
            next.unwrap_or_else(|| u32::try_from(random() >> 33).unwrap_or(0) | 1)
        };
        let word = registry.word64(LAST_GENERATION);
        let mut last = word.load(Ordering::Relaxed);
        let mut generation = next(last);
        for _ in 0..ATTEMPTS {
            match word.compare_exchange(last, generation.into(), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(other) => (last, generation) = (other, next(other)),
            }
        }
        registry.word64(layout::slot(slot)).store(u64::from(generation), Ordering::Release);
        return Ok((taken, MemberId { slot, generation }));
    }
    Err(HostError::Full("members (opened devices)"))
}

/// Empties the slots whose locks are not held.
fn sweep(registry: &Segment, is_held: impl Fn(MemberId) -> bool) {
    for slot in 0..SLOTS {
        let slot = u16::try_from(slot).unwrap_or(u16::MAX);
        if let Some(member) = current(registry, slot) {
            lives(registry, member, &is_held);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::testing::hosts;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::time::Duration;
    use trunkline_testkit::Folder;

    #[test]
    fn slots_are_reused_with_new_generations() {
        let (folder, [one, two]) = hosts();
        let root = folder.join("run");
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
        assert!(!one.is_alive(gone), "its identifier matches no member");
    }

    #[test]
    fn slots_of_dead_members_are_swept() {
        let (_folder, [one]) = hosts();
        // Set up slot 9 as a killed member leaves it.
        std::fs::write(one.directory().unwrap().join("slot-9"), "").unwrap();
        one.registry.word64(layout::slot(9)).store(77, Ordering::Release);
        let dead = MemberId { slot: 9, generation: 77 };
        assert!(one.is_member(dead));
        one.sweep();
        assert!(!one.is_member(dead));
        assert!(one.is_alive(one.me()) && one.is_member(one.me()), "the living stay");
        one.registry.word64(layout::slot(9)).store(77, Ordering::Release);
        assert!(!one.is_alive(dead));
        assert!(!one.is_member(dead), "a member found dead leaves its slot");
    }

    #[test]
    fn full_host_is_reported_with_remedy() {
        let (folder, [one]) = hosts();
        let root = folder.join("run");
        let marks = Marks::open(one.directory().unwrap()).unwrap();
        for slot in 0..1024 {
            marks.set(slot).unwrap();
            let word = one.registry.word64(layout::slot(slot));
            let _own = word.compare_exchange(0, 99, Ordering::AcqRel, Ordering::Relaxed);
        }
        let text = Host::join(Some(&root)).unwrap_err().to_string();
        assert!(text.contains("no more members") && text.contains("end programs"), "{text}");
        // The slots whose locks are not held are free again.
        std::fs::write(one.directory().unwrap().join("slot-1023"), "").unwrap();
        assert_eq!(Host::join(Some(&root)).unwrap().me().slot, 1023);
    }

    #[test]
    fn garbage_in_slots_does_not_prevent_join() {
        let (folder, [one]) = hosts();
        let root = folder.join("run");
        for (offset, garbage) in [(LAST_GENERATION, u64::MAX), (layout::slot(1), u64::MAX)] {
            one.registry.word64(offset).store(garbage, Ordering::Relaxed);
        }
        let two = Host::join(Some(&root)).unwrap();
        assert!(one.is_alive(two.me()) && two.is_alive(one.me()));
        assert_eq!(one.current(1024), None, "no such slot");
    }

    #[test]
    fn member_dropped_in_forked_child_stays_registered() {
        let (_folder, [one, mut two]) = hosts();
        let member = two.me();
        let Presence::Folder { process, .. } = &mut Arc::get_mut(&mut two).unwrap().presence else {
            panic!()
        };
        *process ^= 1;
        let claim = two.claim_service(7, [127, 0, 0, 1].into(), false).unwrap();
        assert_eq!(one.service_owner(7, [127, 0, 0, 1].into()), Some(member));
        drop(claim);
        assert_eq!(one.service_owner(7, [127, 0, 0, 1].into()), None, "what it closes is closed");
        drop(two);
        assert!(one.is_alive(member), "the parent still holds its lock");
        one.sweep();
        assert!(one.is_member(member));
    }

    #[test]
    fn removed_lock_file_is_recreated() {
        let (_folder, [host, other]) = hosts();
        let before = host.lock().unwrap();
        std::fs::remove_file(host.directory().unwrap().join("lock")).unwrap();
        let after = other.lock().unwrap();
        drop((before, after));
        host.lock().unwrap();
        assert!(host.directory().unwrap().join("lock").exists());
    }

    #[test]
    fn lock_of_stopped_holder_is_replaced() {
        let (folder, [host, stopped]) = hosts();
        let root = folder.join("run");
        let replaced = |host: &Host| {
            let names = std::fs::read_dir(host.directory().unwrap()).unwrap();
            names
                .filter(|name| name.as_ref().unwrap().file_name().to_string_lossy().starts_with("lock."))
                .count()
        };
        let kept = stopped.lock().unwrap();
        let (taken, waits) = mpsc::channel();
        let other = Arc::clone(&host);
        #[expect(clippy::disallowed_methods, reason = "without the change it never returns")]
        std::thread::spawn(move || {
            let locked = other.lock().unwrap();
            taken.send(other.is_locked(&locked)).unwrap();
        });
        assert!(waits.recv_timeout(Duration::from_secs(60)).expect("it waits for the stopped holder"));
        assert!(!stopped.is_locked(&kept), "once it continues, it repeats its change");
        let third = Host::join(Some(&root)).unwrap();
        assert_eq!(replaced(&third), 1, "it belongs to the stopped process");
        drop(kept);
        let locked = stopped.lock().unwrap();
        assert!(stopped.is_locked(&locked));
        drop(locked);
        let _fourth = Host::join(Some(&root)).unwrap();
        assert_eq!(replaced(&third), 0);
    }

    #[test]
    fn lock_is_taken_after_its_path_is_renamed() {
        let folder = Folder::new().unwrap();
        let [root, hidden] = ["run", "hidden"].map(|name| folder.join(name));
        let [host, other] = [(); 2].map(|()| Host::join(Some(&root)).unwrap());
        std::fs::rename(&root, &hidden).unwrap();
        drop(host.lock().unwrap());
        drop(host.lock().unwrap());
        assert!(host.is_alive(other.me()));
        let gone = other.me();
        drop(other);
        host.registry.word64(layout::slot(gone.slot)).store(u64::from(gone.generation), Ordering::Release);
        assert!(!host.is_alive(gone), "its slot is found without the path too");
    }

    #[test]
    fn member_lock_excludes_concurrent_threads() {
        let (_folder, [host]) = hosts();
        let inside = AtomicBool::new(false);
        #[expect(clippy::disallowed_methods, reason = "real threads")]
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let locked = host.lock().unwrap();
                        assert!(!inside.swap(true, Ordering::AcqRel));
                        inside.store(false, Ordering::Release);
                        drop(locked);
                    }
                });
            }
        });
    }
}
