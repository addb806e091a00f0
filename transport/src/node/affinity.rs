//! CPUs that the process may use, and placement of a poller on one of them.
#![forbid(unsafe_code)]

use crate::node::options::Pinning;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Returns the CPUs that the process may use, in order. There is at least one.
pub(crate) fn usable_cpus() -> Vec<usize> {
    let all = |set: CpuSet| (0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect();
    let cpus: Vec<usize> = sched_getaffinity(Pid::from_raw(0)).map(all).unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Returns true if pollers have to share CPUs with each other or with the process's other threads.
pub(crate) fn is_oversubscribed(pollers: u16, cpus: usize) -> bool {
    usize::from(pollers) >= cpus
}

/// Returns the CPU that a poller is pinned to, if any.
pub(crate) fn cpu_for(pinning: &Pinning, poller: u16, pollers: u16, cpus: &[usize]) -> Option<usize> {
    match pinning {
        Pinning::Off => None,
        // The first CPU is left to the other threads.
        Pinning::Auto if is_oversubscribed(pollers, cpus.len()) => None,
        Pinning::Auto => cpus.get(usize::from(poller) + 1).copied(),
        Pinning::List(list) => list.get(usize::from(poller)).copied(),
    }
}

/// Pins the calling thread to a CPU.
pub(crate) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if let Err(error) = set.set(cpu).and_then(|()| sched_setaffinity(Pid::from_raw(0), &set)) {
        tracing::warn!(cpu, %error, "poller not pinned to its CPU");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pollers_are_pinned_automatically_only_with_spare_cpu() {
        assert_eq!(cpu_for(&Pinning::Off, 0, 1, &[4, 5]), None);
        assert_eq!(cpu_for(&Pinning::Auto, 0, 2, &[4, 5]), None);
        assert_eq!(cpu_for(&Pinning::Auto, 0, 1, &[4, 5]), Some(5));
        assert_eq!(cpu_for(&Pinning::List(vec![7]), 0, 2, &[4, 5]), Some(7));
        assert_eq!(cpu_for(&Pinning::List(vec![7]), 1, 2, &[4, 5]), None);
        assert!(!usable_cpus().is_empty());
    }
}
