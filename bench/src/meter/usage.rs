//! CPU time, context switches and memory of a client and its server at a fixed call rate.
//!
//! The client is this process. The calling thread sleeps until the scheduled start of a call, makes the call and waits
//! for the reply.

use nix::time::clock_getcpuclockid;
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use std::fs;
use std::thread;
use std::time::{Duration, Instant};

/// Duration of the warm-up before a measurement. The call rate is the same, and idle threads fall asleep during it.
const SETTLE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// User and system CPU seconds per second.
    pub(crate) cpu: f64,
    /// Voluntary and involuntary context switches of all threads, per second.
    pub(crate) switches_per_s: f64,
    pub(crate) resident_bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Usage {
    pub(crate) calls_per_s: f64,
    pub(crate) client: Side,
    pub(crate) server: Side,
}

struct Counters {
    cpu: Duration,
    switches: u64,
}

/// Measures both processes while this thread makes calls.
///
/// # Errors
/// Returns an error if a call fails or a process does not exist.
pub(crate) fn measure(
    server: u32,
    rate: f64,
    time: Duration,
    mut call: impl FnMut() -> Result<(), String>,
) -> Result<Usage, String> {
    let processes = [std::process::id(), server];
    make_calls(rate, SETTLE, &mut call)?;
    let [client, server] = processes.map(Counters::of);
    let (before, began) = ([client?, server?], Instant::now());
    let calls = make_calls(rate, time, &mut call)?;
    let elapsed = began.elapsed();
    let [client, server] =
        [0, 1].map(|at| Counters::of(processes[at])?.since(&before[at], elapsed, processes[at]));
    Ok(Usage { calls_per_s: f64::from(calls) / elapsed.as_secs_f64(), client: client?, server: server? })
}

/// Makes calls at a fixed rate, and returns their number. A late call does not delay the schedule of later calls.
fn make_calls(
    rate: f64,
    time: Duration,
    call: &mut impl FnMut() -> Result<(), String>,
) -> Result<u32, String> {
    let began = Instant::now();
    let mut calls = 0;
    loop {
        let next = if rate > 0.0 { Duration::from_secs_f64(f64::from(calls) / rate).min(time) } else { time };
        thread::sleep(next.saturating_sub(began.elapsed()));
        if next == time || began.elapsed() >= time {
            return Ok(calls);
        }
        call()?;
        calls += 1;
    }
}

impl Counters {
    fn of(process: u32) -> Result<Self, String> {
        let failed = |error: &dyn std::fmt::Display| format!("cannot measure process {process}: {error}");
        let pid = i32::try_from(process).map_err(|error| failed(&error))?;
        let clock = clock_getcpuclockid(Pid::from_raw(pid)).map_err(|error| failed(&error))?;
        let cpu = clock.now().map_err(|error| failed(&error))?;
        let threads = fs::read_dir(format!("/proc/{process}/task")).map_err(|error| failed(&error))?;
        // A thread may have exited since the folder was listed.
        let statuses =
            threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
        Ok(Self { cpu: cpu.into(), switches: statuses.map(|status| switches(&status)).sum() })
    }

    #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^52")]
    fn since(&self, before: &Self, elapsed: Duration, process: u32) -> Result<Side, String> {
        let status =
            fs::read_to_string(format!("/proc/{process}/status")).map_err(|error| error.to_string())?;
        Ok(Side {
            cpu: self.cpu.saturating_sub(before.cpu).as_secs_f64() / elapsed.as_secs_f64(),
            switches_per_s: self.switches.saturating_sub(before.switches) as f64 / elapsed.as_secs_f64(),
            resident_bytes: field(&status, "VmRSS:").unwrap_or_default() << 10,
        })
    }
}

fn switches(status: &str) -> u64 {
    let names = ["voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
    names.iter().filter_map(|name| field(status, name)).sum()
}

fn field(status: &str, name: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    value.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voluntary_and_involuntary_switches_are_counted() {
        let status =
            "Name:\tx\nVmRSS:\t     120 kB\nvoluntary_ctxt_switches:\t40\nnonvoluntary_ctxt_switches:\t2\n";
        assert_eq!((switches(status), field(status, "VmRSS:")), (42, Some(120)));
    }

    #[test]
    fn processor_time_of_other_process_is_counted() {
        let mut child = std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        // Repeat many times, because the loop may have to wait for a core.
        let used = (0..6000).any(|_| {
            thread::sleep(Duration::from_millis(10));
            Counters::of(child.id()).unwrap().cpu > Duration::from_millis(20)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(used);
        assert!(Counters::of(child.id()).is_err(), "it has ended");
    }

    #[test]
    fn calls_are_made_at_their_rate() {
        let mut calls = 0;
        let mut call = || {
            calls += 1;
            Ok(())
        };
        assert_eq!(make_calls(0.0, Duration::from_millis(1), &mut call), Ok(0));
        let made = make_calls(1000.0, Duration::from_millis(50), &mut call).unwrap();
        assert!((1..=50).contains(&made) && made == calls, "{made}");
    }
}
