//! Memory of the machine and of the process's control groups, used to detect settings that require too much memory.
//!
//! Beyond these bounds the kernel kills the process instead of refusing an allocation. [`headroom`](crate::headroom) checks
//! the limits of the process. This module reads /proc and /sys/fs/cgroup; an unreadable value sets no bound.

use std::fs;
use std::path::{Path, PathBuf};

/// Maximum number of control groups that are read, which are the process's own and its ancestors.
const MAX_GROUPS: usize = 64;

/// Value of [`Bound::of`] for memory that a control group limits.
pub const CONTROL_GROUP: &str = "its control group";
/// Remedy for a node that may exceed the available memory.
pub const REMEDY: &str =
    "raise the limit (MemoryMax=, memory.max), or lower the node's budgets: NodeBuilder::memory_limit";

/// An amount of memory, and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bound {
    /// Bytes.
    pub bytes: u64,
    /// Owner of the memory, for error texts.
    pub of: &'static str,
}

/// Memory available to the process. A field is `None` if its value is unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostMemory {
    /// Memory that can still be allocated, including swap.
    pub free: Option<Bound>,
    /// Total memory, including swap.
    pub whole: Option<Bound>,
}

impl HostMemory {
    /// Returns the bound that `bytes` would exceed. The kernel ends a process that exceeds it.
    #[must_use]
    pub fn exceeded_by(&self, bytes: u64) -> Option<Bound> {
        self.whole.filter(|whole| whole.bytes < bytes)
    }

    fn bound(&mut self, of: &'static str, free: u64, whole: u64) {
        let lower = |bound: &mut Option<Bound>, bytes: u64| {
            if bound.is_none_or(|other| bytes < other.bytes) {
                *bound = Some(Bound { bytes, of });
            }
        };
        lower(&mut self.free, free);
        lower(&mut self.whole, whole);
    }
}

/// Reads the memory of the machine and of this process's control groups.
#[must_use]
pub fn read() -> HostMemory {
    read_below(Path::new("/"))
}

/// Like [`read`], with the directory `root` in place of `/`.
#[must_use]
pub fn read_below(root: &Path) -> HostMemory {
    let mut memory = HostMemory::default();
    let text = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    if let Some((free, whole)) = of_machine(&text) {
        memory.bound("the machine", free, whole);
    }
    for group in control_groups(root, "memory") {
        apply(&mut memory, &group);
    }
    memory
}

/// A control group of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ControlGroup {
    /// Directory of the group's files. It may not exist, because in a container the root of the mount is the container's
    /// group.
    pub folder: PathBuf,
    /// True for cgroup version 2, whose files have different names.
    pub is_unified: bool,
}

/// Returns this process's control groups for a controller, and their ancestors. `root` stands for `/`.
#[must_use]
pub fn control_groups(root: &Path, controller: &str) -> Vec<ControlGroup> {
    let mut groups = Vec::new();
    for line in fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default().lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let is_unified = number == "0";
        if !is_unified && !controllers.split(',').any(|name| name == controller) {
            continue;
        }
        let mount = root.join("sys/fs/cgroup").join(if is_unified { "" } else { controller });
        let ancestors = Path::new(path.trim_start_matches('/')).ancestors().take(MAX_GROUPS);
        groups.extend(ancestors.map(|group| ControlGroup { folder: mount.join(group), is_unified }));
    }
    groups
}

/// Returns the free and the total memory in /proc/meminfo, in bytes.
fn of_machine(text: &str) -> Option<(u64, u64)> {
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()
    };
    let sum = |memory: &str, swap: &str| {
        Some(kib(memory)?.saturating_add(kib(swap).unwrap_or(0)).saturating_mul(1024))
    };
    Some((sum("MemAvailable", "SwapFree")?, sum("MemTotal", "SwapTotal")?))
}

fn apply(memory: &mut HostMemory, group: &ControlGroup) {
    let (limit, used) =
        if group.is_unified { ("memory.max", "anon") } else { ("memory.limit_in_bytes", "total_rss") };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let text = |file: &str| fs::read_to_string(group.folder.join(file)).unwrap_or_default();
    // `max` means no limit.
    let Some(most) = number(&text(limit)) else { return };
    // Count only memory that the kernel cannot reclaim.
    let statistics = text("memory.stat");
    let used = statistics.lines().find_map(|line| number(line.strip_prefix(used)?.strip_prefix(' ')?));
    memory.bound(CONTROL_GROUP, most.saturating_sub(used.unwrap_or(0)), most);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory that is removed when the test ends.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("host-memory-{name}-{}", std::process::id()));
            // A killed process with the same pid may have left its directory.
            let _left = fs::remove_dir_all(&root);
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const MACHINE: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 700 kB\nSwapTotal: 50 kB\nSwapFree: 20 kB\n",
    );
    const KIB: u64 = 1024;

    fn memory(of: &'static str, free: u64, whole: u64) -> HostMemory {
        HostMemory { free: Some(Bound { bytes: free, of }), whole: Some(Bound { bytes: whole, of }) }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri isolates files")]
    fn memory_is_bounded_by_machine_without_limited_group() {
        let root = Root::new("machine", &[MACHINE, ("proc/self/cgroup", "0::/a\n9:pids:/\n")]);
        assert_eq!(read_below(&root.0), memory("the machine", 720 * KIB, 1050 * KIB));
        let none = Root::new("none", &[("proc/self/cgroup", "nonsense\n0::\n")]);
        assert_eq!(read_below(&none.0), HostMemory::default());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri isolates files")]
    fn memory_is_bounded_by_tightest_control_group() {
        let root = Root::new(
            "second",
            &[
                MACHINE,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                ("sys/fs/cgroup/a/memory.max", "409600\n"),
                ("sys/fs/cgroup/a/memory.stat", "anonymous 7\nanon 102400\nfile 300000\n"),
            ],
        );
        assert_eq!(read_below(&root.0), memory("its control group", 300 * KIB, 400 * KIB));
        let group = Bound { bytes: 400 * KIB, of: CONTROL_GROUP };
        assert_eq!(read_below(&root.0).exceeded_by(400 * KIB + 1), Some(group));
        assert_eq!(read_below(&root.0).exceeded_by(400 * KIB), None);
        let root = Root::new(
            "first",
            &[
                MACHINE,
                ("proc/self/cgroup", "4:cpu,memory:/gone\n0::/\n"),
                ("sys/fs/cgroup/memory/memory.limit_in_bytes", "204800\n"),
                ("sys/fs/cgroup/memory/memory.stat", "rss 4\ntotal_rss 102400\n"),
            ],
        );
        assert_eq!(read_below(&root.0), memory("its control group", 100 * KIB, 200 * KIB));
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri isolates files")]
    fn free_memory_of_this_machine_is_positive() {
        let HostMemory { free, whole } = read();
        let (free, whole) = (free.unwrap().bytes, whole.unwrap().bytes);
        assert!(0 < free && free <= whole, "{free} of {whole}");
    }
}
