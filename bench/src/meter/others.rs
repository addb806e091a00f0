//! Load on the machine from other programs during a run.
//!
//! A compiler that runs during a measurement can slow it down more than the measured change does. All repetitions slow
//! down alike, so statistics over the repetitions cannot detect it.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// Number of cores used by other programs above which they may be the cause of a change.
pub(crate) const BUSY_CORES: f64 = 0.15;
/// Clock ticks per second in `/proc`. The value is the same on all Linux versions since 2.6.
const TICKS: f64 = 100.0;

/// A point in time, and the CPU time used before it.
#[derive(Debug)]
pub(crate) struct Others {
    began: Instant,
    ticks: Option<u64>,
}

impl Others {
    pub(crate) fn watch() -> Self {
        Self { began: Instant::now(), ticks: ticks() }
    }

    /// Returns the average number of cores used by other programs since the start, including time stolen by the host.
    /// Returns `None` if the operating system does not report it.
    pub(crate) fn cores(&self) -> Option<f64> {
        let ticks = ticks()?.saturating_sub(self.ticks?);
        #[expect(clippy::cast_precision_loss, reason = "ticks of a run")]
        let used_s = ticks as f64 / TICKS;
        let cores = used_s / self.began.elapsed().as_secs_f64().max(1.0 / TICKS);
        Some((cores * 1e3).round() / 1e3)
    }
}

/// Returns the ticks of all CPUs, minus the ticks of this process and its descendants.
fn ticks() -> Option<u64> {
    let all = used(&fs::read_to_string("/proc/stat").ok()?)?;
    let processes = fs::read_dir("/proc").ok()?.flatten().filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        // The process may have exited since the folder was listed.
        process(&fs::read_to_string(entry.path().join("stat")).ok()?).map(|process| (number, process))
    });
    Some(all.saturating_sub(of_family(&processes.collect(), std::process::id())))
}

/// Sums user, nice, system and steal in the first line of `/proc/stat`. Interrupts are excluded, because they include
/// interrupts caused by the benchmark's packets.
fn used(stat: &str) -> Option<u64> {
    let mut numbers =
        stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace().map(|text| text.parse::<u64>().ok());
    let (user, nice, system) = (numbers.next()??, numbers.next()??, numbers.next()??);
    // Skip idle, iowait and two kinds of interrupts.
    Some(user + nice + system + numbers.nth(4)??)
}

/// Parent and ticks of a process. The ticks include those of child processes that have exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Process {
    parent: u32,
    ticks: u64,
}

fn process(stat: &str) -> Option<Process> {
    // The name is in parentheses and may contain any characters.
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = fields.get(11..15)?.iter().map(|text| text.parse::<u64>().ok()).sum::<Option<u64>>()?;
    Some(Process { parent: fields.get(1)?.parse().ok()?, ticks })
}

fn of_family(processes: &BTreeMap<u32, Process>, first: u32) -> u64 {
    let (mut ticks, mut open) = (0, vec![first]);
    while let Some(number) = open.pop() {
        ticks += processes.get(&number).map_or(0, |process| process.ticks);
        open.extend(
            processes.iter().filter(|(_, process)| process.parent == number).map(|(child, _)| *child),
        );
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_files_are_parsed() {
        assert_eq!(used("cpu  100 20 3 4000 50 600 700 8 0 0\ncpu0 1 1 1\n"), Some(131));
        assert_eq!(used("cpu 1 2"), None);
        let stat = "7 (a) b (c) S 3 7 3 0 -1 4194304 125 0 0 0 10 20 30 40 20 0 1 0";
        assert_eq!(process(stat), Some(Process { parent: 3, ticks: 100 }));
        assert_eq!(process("7 (a"), None);
    }

    #[test]
    fn load_counts_only_processes_of_given_family() {
        let all = [(1, 0, 1000), (5, 1, 1), (6, 5, 20), (7, 6, 300), (8, 1, 5000)];
        let all = all.map(|(number, parent, ticks)| (number, Process { parent, ticks }));
        assert_eq!(of_family(&BTreeMap::from(all), 5), 321);
    }

    #[test]
    fn load_of_other_programs_is_measurable() {
        assert!(Others::watch().cores().is_some_and(|cores| cores >= 0.0));
    }
}
