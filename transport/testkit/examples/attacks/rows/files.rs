//! Attacks on the runtime directory: a full file system, and folders left by ended namespaces.

use super::flooded::nothing_lost;
use crate::forge::{Forger, paced};
use crate::honest::{Setup, mount_namespace, network_namespace};
use crate::{Outcome, Plan};
use std::fs::File;
use std::io::{ErrorKind, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime};
use trunkline_roce::wire::{Opcode, Packet, ROCE_PORT};
use trunkline_testkit::{Claims, Folder, Random, fresh_ip};
use trunkline_verbs::{Psn, QpNumber};

/// Number of packets to random QPs.
const PACKETS: u64 = 2000;
/// Sizes of the file systems on which a node is started, in MiB. The first is too small for a registry. The second is large
/// enough until it is filled.
const SIZES_MIB: [u32; 2] = [1, 16];

/// Runs a node on a full file system in a separate mount namespace, and starts another node there.
pub(crate) fn full_disk(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let Some(()) = mount_namespace()? else {
        findings.skip("no user and mount namespaces are permitted here");
        return Ok(());
    };
    for size_mib in SIZES_MIB {
        let folder = Folder::new()?;
        let runtime = folder.join("small");
        std::fs::create_dir(&runtime)?;
        let options = format!("size={size_mib}m,mode=0700");
        let mut mount = std::process::Command::new("mount");
        if !mount.args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(&runtime).status()?.success() {
            findings.skip("no tmpfs can be mounted here");
            return Ok(());
        }
        let outcome = on_small(plan, findings, &folder, &runtime, size_mib);
        let _gone = std::process::Command::new("umount").arg("--lazy").arg(&runtime).status()?;
        outcome?;
    }
    Ok(())
}

fn on_small(
    plan: &Plan,
    findings: &mut Claims,
    folder: &Folder,
    runtime: &Path,
    size_mib: u32,
) -> Outcome<()> {
    let setup = |folder| Setup::new(folder, plan).runtime(runtime);
    let name = |claim: &str| format!("{size_mib}-mib-{claim}");
    let server = setup(folder);
    let attempt = server.attempt()?;
    if !attempt.serves {
        findings.claim(attempt.is_refused_clearly(), &name("refused-clearly"), &attempt.to_string());
        return Ok(());
    }
    drop(attempt);
    let mut server = server.start()?;
    let mut client = setup(folder).start()?;
    client.first(server.address)?;
    client.load(server.address)?;
    fill(&runtime.join("ballast"))?;
    let before = client.tally()?;
    random_qps(server.address)?;
    std::thread::sleep(Duration::from_secs(1));
    let status = server.process.wait(Duration::ZERO);
    findings.claim(status.is_none(), &name("server-lives"), &format!("{status:?}"));
    if status.is_some() {
        return Ok(());
    }
    nothing_lost(findings, &before, &client.tally()?);
    let joining = setup(folder).attempt()?;
    let is_clear = joining.serves || joining.is_refused_clearly();
    findings.claim(is_clear, &name("joins-or-is-refused"), &joining.to_string());
    Ok(())
}

/// Writes until the file system is full.
fn fill(path: &Path) -> Outcome<()> {
    let mut file = File::create(path)?;
    for piece in [1 << 16, 512, 1] {
        loop {
            match file.write_all(&vec![7; piece]) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::StorageFull => break,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Sends packets to unknown QPs. The node looks up each number in the tables that members share.
fn random_qps(server: SocketAddr) -> Outcome<()> {
    let mut random = Random::from_entropy();
    let mut forger = Forger::at(fresh_ip().into())?;
    paced(PACKETS, Duration::from_secs(1), |_| {
        let number = QpNumber::new(u32::try_from(random.next() & 0xff_ffff)?);
        let mut packet = Vec::new();
        Packet::new(Opcode(0x04), number, Psn::new(1), b"12345678").emit(&mut packet);
        forger.send(&packet, SocketAddr::new(server.ip(), ROCE_PORT))
    })?;
    Ok(())
}

/// Kills nodes in separate network namespaces, and then starts another node.
pub(crate) fn namespaces(plan: &Plan, findings: &mut Claims) -> Outcome<()> {
    let folder = Folder::new()?;
    let runtime = folder.join("runtime");
    if !network_namespace(&["true"])?.status()?.success() {
        findings.skip("no network namespaces are permitted here");
        return Ok(());
    }
    for _ in 0..3 {
        let prefix = network_namespace(&[])?;
        let words: Vec<&str> = std::iter::once(prefix.get_program())
            .chain(prefix.get_args())
            .filter_map(|word| word.to_str())
            .collect();
        // The node is killed and therefore leaves its files behind.
        Setup::new(&folder, plan).within(&words).start()?.process.kill()?;
    }
    // A folder is removed only an hour after the last process started in it.
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 3600);
    for entry in std::fs::read_dir(&runtime)? {
        File::options().write(true).open(entry?.path().join("lock"))?.set_modified(long_ago)?;
    }
    let count = || -> Outcome<usize> { Ok(std::fs::read_dir(&runtime)?.count()) };
    let before = count()?;
    let _node = Setup::new(&folder, plan).start()?;
    let measured = format!("{before} folders before a node was started, {} after", count()?);
    findings.claim(before == 3 && count()? == 1, "are-removed", &measured);
    Ok(())
}
