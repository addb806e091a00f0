//! Limits of the operating system on descriptors, memory and threads.

use crate::honest::{ANOTHER, Setup, open_to_all, runtime_of_another};
use crate::{Outcome, Plan};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use trunkline_testkit::{Claims, Folder};

/// Interval over which processor use is measured.
const OVER: Duration = Duration::from_secs(2);
/// Ticks per second of the processor times in /proc.
const TICKS: u64 = 100;
/// Maximum processor use of an idle node, in percent of one processor.
const IDLE_PERCENT: u64 = 30;

/// Makes another member of the host connect to a process that has no free descriptors.
pub(crate) fn descriptors(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let holder = Setup::new(&folder, plan);
    let mut server = holder.start()?;
    let id = server.process.id();
    let limit = |soft: usize| -> Outcome<()> {
        let status = Command::new("prlimit")
            .args(["--pid", &id.to_string(), &format!("--nofile={soft}:")])
            .status()?;
        if status.success() { Ok(()) } else { Err("prlimit failed".into()) }
    };
    // The process keeps its open descriptors but can open no others.
    limit(3)?;
    // The member has the same address, so it connects to the process that holds port 4791.
    let mut member = holder.sibling().spawn()?;
    let joined = member.find(Duration::from_secs(3), |line| line.starts_with("READY")).is_some();
    let busy = share_percent(id)?;
    let measured = format!("{busy} % of a processor; the other member is up: {joined}");
    findings.claim(busy <= IDLE_PERCENT, "no-spin", &measured);
    limit(1024)?;
    let mut client = Setup::new(&folder, plan).start()?;
    let took = client.first(server.address)?;
    findings.claim(
        server.process.wait(Duration::ZERO).is_none(),
        "recovers",
        &format!("a call took {took} us"),
    );
    findings.note("log-lines", &server.logged("open files")?.to_string());
    Ok(())
}

/// Returns the processor use of a process, in percent of one processor.
fn share_percent(id: u32) -> Outcome<u64> {
    let ticks = || -> Outcome<u64> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat"))?;
        let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect::<Vec<_>>();
        Ok(fields[11].parse::<u64>()? + fields[12].parse::<u64>()?)
    };
    let (before, start) = (ticks()?, Instant::now());
    std::thread::sleep(OVER);
    let used = (ticks()? - before) * 1000 / TICKS;
    Ok(used * 100 / u64::try_from(start.elapsed().as_millis())?)
}

/// Starts nodes for which the system refuses a resource.
pub(crate) fn at_start(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let is_root = nix::unistd::geteuid().is_root();
    let mut cases: Vec<(String, Vec<String>)> = Vec::new();
    for count in [4, 6, 8, 10, 12, 14, 16, 20, 24] {
        cases.push((format!("descriptors-{count}"), vec![format!("--nofile={count}")]));
    }
    for size_mib in [32_u64, 64, 128, 256] {
        cases.push((format!("memory-{size_mib}-mib"), vec![format!("--as={}", size_mib << 20)]));
    }
    for (name, limits) in cases {
        let folder = Folder::new()?;
        let mut prefix = vec!["prlimit"];
        prefix.extend(limits.iter().map(String::as_str));
        judge(findings, &name, &Setup::new(&folder, plan).within(&prefix))?;
    }
    super::address_space::judge(plan, findings)?;
    if !is_root {
        // The limit applies to the number of all threads of the user, so 1 permits no further thread.
        let folder = Folder::new()?;
        judge(findings, "threads", &Setup::new(&folder, plan).within(&["prlimit", "--nproc=1"]))?;
        return Ok(());
    }
    let runtime = runtime_of_another()?;
    threads_of_another(plan, runtime.path(), findings)
}

/// Checks the limit on threads as another user, because it does not apply to root. A user without processes may have one
/// thread, the main thread.
fn threads_of_another(plan: &Plan, runtime: &Path, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    open_to_all(&folder)?;
    let setup = || Setup::new(&folder, plan).runtime(runtime);
    // If the node does not serve without the limit either, another cause prevents it.
    if !setup().within(&ANOTHER).attempt()?.serves {
        findings.skip("threads are not limited: another user cannot run this program, or reach its folders");
        return Ok(());
    }
    let limited = [&ANOTHER[..], &["prlimit", "--nproc=1"]].concat();
    judge(findings, "threads", &setup().within(&limited))
}

/// Checks that a node serves or ends with an error. It must not be killed by a signal, end silently, or run in a busy loop.
fn judge(findings: &mut Claims, name: &str, setup: &Setup) -> Outcome<()> {
    let attempt = setup.attempt()?;
    if attempt.serves {
        let busy = share_percent(attempt.process.id())?;
        findings.claim(busy <= IDLE_PERCENT, name, &format!("serves, {busy} % of a processor"));
    } else {
        findings.claim(attempt.is_refused_clearly(), name, &attempt.to_string());
    }
    Ok(())
}
