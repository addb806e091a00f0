//! Checks that read /proc and /sys. Files that cannot be read are skipped.

use super::{Finding, Host};
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use trunkline_softrdma::link::{RECEIVE_BUFFER_BYTES, SEND_BUFFER_BYTES};
use trunkline_verbs::host_memory;

/// All checks of this module.
pub(super) const CHECKS: &[fn(&Host) -> Vec<Finding>] = &[
    rdma_devices,
    kernel_modules,
    locked_memory,
    descriptors,
    memory,
    cpus,
    cpu_quota,
    idle_states,
    socket_buffers,
    mtus,
    reverse_paths,
];

/// Number of descriptors of a node without sessions, rounded up.
const NODE_DESCRIPTORS: u64 = 64;
/// Number of descriptors of a session with another process on the host.
const SESSION_DESCRIPTORS: u64 = 3;
/// Usual soft limit on descriptors.
const USUAL_DESCRIPTORS: u64 = 1024;
/// Size of the buffers that a poller registers at its start, in bytes. See docs/book/src/operate/memory.md.
const REGISTERED_AT_START: u64 = 23_000_000;
/// Size of the buffers that a poller registers for many peers, in bytes. See docs/book/src/operate/memory.md.
const REGISTERED_AT_MOST: u64 = 149_000_000;
/// Private memory of a node with default settings in a small program, in bytes. See docs/book/src/reference/budgets.md.
const MEMORY_AT_START: u64 = 39 << 20;
/// Sum of the default budgets, in bytes. See "The memory ceiling" in docs/book/src/reference/budgets.md.
const MEMORY_CEILING: u64 = 4_666_000_000;
/// Interface MTU below which a packet carries less than 1024 bytes. See docs/book/src/operate/networks.md.
const SMALL_MTU: u64 = 1120;

const DEVICES: &str = "sys/class/infiniband";

/// Checks the kernel's RDMA devices, as listed in sysfs.
fn rdma_devices(host: &Host) -> Vec<Finding> {
    let finding = |name: &String| {
        let folder = format!("{DEVICES}/{name}");
        let firmware = host.text(format!("{folder}/fw_ver")).filter(|version| !version.is_empty());
        let mut seen = vec![format!("firmware {}", firmware.as_deref().unwrap_or("unknown"))];
        let (mut is_active, mut has_gid) = (false, false);
        for port in host.names(format!("{folder}/ports")) {
            let folder = format!("{folder}/ports/{port}");
            let state = host.text(format!("{folder}/state")).unwrap_or_default();
            is_active |= state.ends_with("ACTIVE");
            seen.push(format!("port {port} is {}", state.rsplit(' ').next().unwrap_or_default()));
            for index in host.names(format!("{folder}/gid_attrs/types")) {
                let kind = host.text(format!("{folder}/gid_attrs/types/{index}"));
                if kind.is_some_and(|kind| kind == "RoCE v2") {
                    let gid = host.text(format!("{folder}/gids/{index}")).unwrap_or_default();
                    let Ok(gid) = gid.parse::<Ipv6Addr>() else { continue };
                    has_gid |= !gid.is_unspecified() && !gid.is_unicast_link_local();
                    seen.push(format!("GID {index} is {}", gid.to_canonical()));
                }
            }
        }
        let (subject, seen) = (format!("RDMA device {name}"), seen.join(", "));
        if !cfg!(feature = "rdma-core") {
            let seen = format!("{seen}; this build does not use RDMA devices");
            Finding::warning(subject, seen, "build with --features rdma-core")
        } else if !is_active {
            Finding::warning(subject, seen, "set its network interface up, and check the link (ip link)")
        } else if !has_gid {
            let remedy = "give its network interface an IP address that is not link-local";
            Finding::warning(subject, format!("{seen}; no RoCE v2 GID that fits"), remedy)
        } else {
            Finding::ok(subject, seen)
        }
    };
    host.names(DEVICES).iter().map(finding).collect()
}

/// Checks the kernel modules of the RDMA subsystem. A module may be built into the kernel.
fn kernel_modules(host: &Host) -> Vec<Finding> {
    let list = host.text("proc/modules").unwrap_or_default();
    let has = |name: &str| {
        list.lines().any(|line| line.split(' ').next() == Some(name))
            || host.root.join("sys/module").join(name).exists()
    };
    let (present, absent): (Vec<_>, Vec<_>) =
        ["rdma_rxe", "ib_uverbs", "rdma_ucm"].into_iter().partition(|name| has(name));
    let subject = "kernel modules";
    let missing: Vec<_> = absent.into_iter().filter(|name| *name != "rdma_rxe").collect();
    if !host.names(DEVICES).is_empty() && !missing.is_empty() {
        let missing = missing.join(" ");
        let remedy = format!("load them: modprobe -a {missing}");
        return vec![Finding::warning(subject, format!("missing for the RDMA devices: {missing}"), remedy)];
    }
    if present.contains(&"rdma_rxe") && !cfg!(feature = "rdma-core") {
        let seen = "rdma_rxe is loaded, and may hold UDP port 4791 at all addresses";
        let remedy = "unload it (modprobe -r rdma_rxe), set TRUNKLINE_PORT to another port, or build with --features rdma-core";
        return vec![Finding::warning(subject, seen, remedy)];
    }
    let present = if present.is_empty() { "none of RDMA".to_owned() } else { present.join(", ") };
    vec![Finding::ok(subject, present)]
}

/// Returns a soft limit of this process. `Some(None)` means unlimited.
fn limit(host: &Host, name: &str) -> Option<Option<u64>> {
    let limits = host.text("proc/self/limits")?;
    let value = limits.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?;
    if value == "unlimited" { Some(None) } else { value.parse().ok().map(Some) }
}

fn locked_memory(host: &Host) -> Vec<Finding> {
    let subject = "locked memory (RLIMIT_MEMLOCK)";
    let Some(limit) = limit(host, "Max locked memory") else { return Vec::new() };
    let Some(bytes) = limit else { return vec![Finding::ok(subject, "unlimited")] };
    let seen = format!("{} kB", bytes / 1000);
    let remedy = "ulimit -l unlimited, or LimitMEMLOCK=infinity in the unit";
    if host.names(DEVICES).is_empty() || !cfg!(feature = "rdma-core") {
        let for_nics =
            if bytes < REGISTERED_AT_MOST { format!("; for a NIC: {remedy}") } else { String::new() };
        return vec![Finding::ok(subject, format!("{seen}; the software device locks none{for_nics}"))];
    }
    vec![if bytes < REGISTERED_AT_START {
        Finding::failure(subject, format!("{seen}; a poller registers 23 MB at its start on a NIC"), remedy)
    } else if bytes < REGISTERED_AT_MOST {
        Finding::warning(subject, format!("{seen}; a poller registers up to 149 MB on a NIC"), remedy)
    } else {
        Finding::ok(subject, seen)
    }]
}

fn descriptors(host: &Host) -> Vec<Finding> {
    let subject = "descriptors (RLIMIT_NOFILE)";
    let Some(limit) = limit(host, "Max open files") else { return Vec::new() };
    let Some(limit) = limit else { return vec![Finding::ok(subject, "unlimited")] };
    let sessions = limit.saturating_sub(NODE_DESCRIPTORS) / SESSION_DESCRIPTORS;
    let seen = format!("{limit}, enough for a node and {sessions} sessions with processes of this host");
    let remedy = "raise ulimit -n, or LimitNOFILE= in the unit, to 4096";
    vec![if limit < NODE_DESCRIPTORS {
        Finding::failure(subject, format!("{limit}; a node needs up to {NODE_DESCRIPTORS}"), remedy)
    } else if limit < USUAL_DESCRIPTORS {
        Finding::warning(subject, seen, remedy)
    } else {
        Finding::ok(subject, seen)
    }]
}

/// Compares the memory limits of the machine and of the control groups with the default budgets.
fn memory(host: &Host) -> Vec<Finding> {
    let memory = host_memory::read_below(&host.root);
    let (Some(free), Some(whole)) = (memory.free, memory.whole) else { return Vec::new() };
    let mib = |bytes: u64| bytes >> 20;
    let seen = format!("{} has {} MiB with swap, {} MiB free", whole.of, mib(whole.bytes), mib(free.bytes));
    vec![if free.bytes < MEMORY_AT_START {
        let seen = format!("{seen}; a node takes {} MiB at its start", mib(MEMORY_AT_START));
        Finding::failure("memory", seen, "raise the limit (MemoryMax=, memory.max), or end other programs")
    } else if memory.exceeded_by(MEMORY_CEILING).is_some() {
        let seen = format!("{seen}; peers can make a node use up to {} MiB", mib(MEMORY_CEILING));
        Finding::warning("memory", seen, host_memory::REMEDY)
    } else {
        Finding::ok("memory", seen)
    }]
}

/// Returns the number of CPUs in a list such as `0-3,8`.
fn cpus_of(list: &str) -> Option<u64> {
    list.split(',').try_fold(0u64, |sum, part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

/// Returns the number of CPUs that this process may use.
fn allowed_cpus(host: &Host) -> Option<u64> {
    let status = host.text("proc/self/status")?;
    cpus_of(status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?.trim())
}

fn cpus(host: &Host) -> Vec<Finding> {
    let Some(cpus) = allowed_cpus(host) else { return Vec::new() };
    vec![if cpus < 2 {
        let remedy = "allow more CPUs: AllowedCPUs=, cpuset.cpus, taskset";
        Finding::warning(
            "CPUs",
            "1; a poller shares it with all other threads, and yields at each turn",
            remedy,
        )
    } else {
        Finding::ok("CPUs", format!("{cpus}"))
    }]
}

/// Reports the smallest CPU quota of this process's control group and its ancestors.
fn cpu_quota(host: &Host) -> Vec<Finding> {
    let quota = |group: &host_memory::ControlGroup| {
        let number = |file: &str| host.number(group.folder.join(file));
        let (quota, period) = if group.is_unified {
            let text = host.text(group.folder.join("cpu.max"))?;
            let (quota, period) = text.split_once(' ')?;
            (quota.parse().ok()?, period.parse().ok()?)
        } else {
            // A quota of -1 means unlimited. It does not parse as an unsigned number, so the result is `None`.
            (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?)
        };
        (period > 0).then(|| quota as f64 / period as f64)
    };
    let groups = host_memory::control_groups(&host.root, "cpu");
    let Some(quota) = groups.iter().filter_map(quota).min_by(f64::total_cmp) else {
        return vec![Finding::ok("CPU quota", "none")];
    };
    let seen = format!("{quota:.2} CPUs");
    vec![if allowed_cpus(host).is_some_and(|cpus| quota < cpus as f64) {
        let seen = format!("{seen}; the kernel stops all threads until the next period once it is used up");
        Finding::warning("CPU quota", seen, "remove it or raise it: CPUQuota=, cpu.max")
    } else {
        Finding::ok("CPU quota", seen)
    }]
}

/// Reports idle states and the frequency governor, without a remedy. Waking from a deep idle state delays a call.
fn idle_states(host: &Host) -> Vec<Finding> {
    let cpu = "sys/devices/system/cpu/cpu0";
    let governor = host.text(format!("{cpu}/cpufreq/scaling_governor"));
    let states = host.names(format!("{cpu}/cpuidle")).into_iter().filter_map(|state| {
        let folder = format!("{cpu}/cpuidle/{state}");
        Some((host.number(format!("{folder}/latency"))?, host.text(format!("{folder}/name"))?))
    });
    let idle = states.max().map_or("no idle states are visible".to_owned(), |(latency_us, name)| {
        format!("waking from the deepest idle state, {name}, takes {latency_us} us")
    });
    let governor = governor.map_or("no governor is visible".to_owned(), |name| format!("governor {name}"));
    vec![Finding::ok("CPU idle states", format!("{idle}, {governor}"))]
}

/// Compares the limits on socket buffers with the sizes that the software device requests.
fn socket_buffers(host: &Host) -> Vec<Finding> {
    let asked = [
        (
            "rmem_max",
            "receive",
            u64::from(RECEIVE_BUFFER_BYTES.unsigned_abs()),
            "bursts are dropped and sent again",
        ),
        ("wmem_max", "send", SEND_BUFFER_BYTES as u64, "batches wait longer"),
    ];
    let finding = |(name, direction, wanted, effect): (&str, &str, u64, &str)| {
        let limit = host.number(format!("proc/sys/net/core/{name}"))?;
        let (subject, seen) =
            (format!("UDP {direction} buffer"), format!("net.core.{name} is {limit} bytes"));
        if limit >= wanted {
            return Some(Finding::ok(subject, seen));
        }
        let seen = format!("{seen}, the software device asks for {wanted}: {effect}");
        Some(Finding::warning(subject, seen, format!("sysctl -w net.core.{name}={wanted}")))
    };
    asked.into_iter().filter_map(finding).collect()
}

fn mtus(host: &Host) -> Vec<Finding> {
    let interfaces: BTreeMap<_, _> = host.addresses.iter().map(|at| (&at.interface, ())).collect();
    let finding = |interface: &String| {
        let mtu = host.number(format!("sys/class/net/{interface}/mtu"))?;
        let (subject, seen) = (format!("MTU of {interface}"), format!("{mtu} bytes"));
        if mtu >= SMALL_MTU {
            return Some(Finding::ok(subject, seen));
        }
        let seen = format!("{seen}; a packet carries at most 512 bytes of a message");
        Some(Finding::warning(
            subject,
            seen,
            format!("ip link set {interface} mtu 1500, if the network carries it"),
        ))
    };
    interfaces.into_keys().filter_map(finding).collect()
}

/// Reports strict reverse path filters on hosts whose replies may leave through another interface or address. For each
/// interface, the kernel applies the larger of its value and the value of `all`: 1 is strict, 2 is loose.
fn reverse_paths(host: &Host) -> Vec<Finding> {
    let mut counts: BTreeMap<&String, usize> = BTreeMap::new();
    for at in host.addresses.iter().filter(|at| at.ip.is_ipv4() && !at.ip.is_loopback()) {
        *counts.entry(&at.interface).or_default() += 1;
    }
    let value = |name: &str| host.number(format!("proc/sys/net/ipv4/conf/{name}/rp_filter"));
    let are_several = counts.len() > 1;
    let finding = |(interface, count): (&String, usize)| {
        let is_strict = value(interface)?.max(value("all").unwrap_or(0)) == 1;
        let subject = format!("rp_filter of {interface}");
        if !is_strict || (count < 2 && !are_several) {
            return Some(Finding::ok(
                subject,
                if is_strict { "strict, with one address" } else { "not strict" },
            ));
        }
        let seen = "strict, and the host has several addresses: packets that arrive at another interface than replies leave by are dropped";
        Some(Finding::warning(subject, seen, format!("sysctl -w net.ipv4.conf.{interface}.rp_filter=2")))
    };
    counts.into_iter().filter_map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{HostAddress, Severity};
    use trunkline_testkit::Folder;

    /// Returns a host whose files have no faults, except the files in `planted`.
    fn host(folder: &Folder, planted: &[(&str, &str)]) -> Host {
        let sound = [
            (
                "proc/self/limits",
                "Limit  Soft Limit\nMax open files  1024  4096  files\nMax locked memory  8000000  8000000  bytes\n",
            ),
            ("proc/self/status", "Cpus_allowed_list:\t0-3\n"),
            ("proc/self/cgroup", "0::/a/b\n"),
            ("proc/meminfo", "MemTotal: 8000000 kB\nMemAvailable: 7000000 kB\n"),
            ("proc/modules", "xfs 1 0 - Live 0x0\n"),
            ("proc/sys/net/core/rmem_max", "8388608\n"),
            ("proc/sys/net/core/wmem_max", "4194304\n"),
            ("proc/sys/net/ipv4/conf/all/rp_filter", "0\n"),
            ("proc/sys/net/ipv4/conf/eth0/rp_filter", "2\n"),
            ("sys/class/net/eth0/mtu", "1500\n"),
        ];
        for (path, text) in sound.iter().chain(planted) {
            let path = folder.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let at =
            |ip: &str| HostAddress { interface: "eth0".into(), ip: ip.parse().unwrap(), has_carrier: true };
        let addresses = vec![at("10.0.0.1"), at("10.0.0.2")];
        Host { root: folder.path().to_owned(), addresses, down: Vec::new() }
    }

    fn findings(planted: &[(&str, &str)]) -> Vec<Finding> {
        let folder = Folder::new().unwrap();
        let host = host(&folder, planted);
        CHECKS.iter().flat_map(|check| check(&host)).collect()
    }

    #[test]
    fn host_without_faults_has_only_ok_findings() {
        let found = findings(&[]);
        assert!(found.iter().all(|found| found.severity == Severity::Ok), "{found:?}");
        assert_eq!(found.len(), 11, "{found:?}");
    }

    #[test]
    fn each_planted_fault_is_found_alone_with_remedy() {
        let limits =
            |files: &str| format!("Max open files {files} 4096 files\nMax locked memory unlimited\n");
        let small_memory = "MemTotal: 2000000 kB\nMemAvailable: 1000000 kB\n";
        for (path, text, subject, severity) in [
            ("proc/self/limits", &*limits("40"), "descriptors", Severity::Failure),
            ("proc/self/limits", &*limits("512"), "descriptors", Severity::Warning),
            ("proc/self/status", "Cpus_allowed_list:\t2\n", "CPUs", Severity::Warning),
            ("proc/meminfo", small_memory, "memory", Severity::Warning),
            ("sys/fs/cgroup/a/memory.max", "20000000\n", "memory", Severity::Failure),
            ("sys/fs/cgroup/a/cpu.max", "150000 100000\n", "CPU quota", Severity::Warning),
            ("proc/sys/net/core/rmem_max", "212992\n", "UDP receive buffer", Severity::Warning),
            ("proc/sys/net/core/wmem_max", "212992\n", "UDP send buffer", Severity::Warning),
            ("proc/sys/net/ipv4/conf/eth0/rp_filter", "1\n", "rp_filter of eth0", Severity::Warning),
            ("sys/class/net/eth0/mtu", "576\n", "MTU of eth0", Severity::Warning),
        ] {
            let faults: Vec<_> =
                findings(&[(path, text)]).into_iter().filter(|found| found.severity > Severity::Ok).collect();
            assert_eq!(faults.len(), 1, "{path}: {faults:?}");
            assert!(faults[0].subject.starts_with(subject) && faults[0].severity == severity, "{faults:?}");
            assert!(faults[0].remedy.is_some());
        }
    }

    #[test]
    fn quotas_of_version_1_and_of_all_cpus_are_read() {
        let quota = |planted: &[(&str, &str)]| {
            let found = findings(planted).into_iter().find(|found| found.subject == "CPU quota").unwrap();
            (found.severity, found.seen)
        };
        let v1 = |quota| {
            [
                ("proc/self/cgroup", "4:cpu,cpuacct:/a\n0::/\n"),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", quota),
                ("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000"),
            ]
        };
        assert_eq!(quota(&v1("50000")).0, Severity::Warning);
        assert_eq!(quota(&v1("-1")), (Severity::Ok, "none".to_owned()));
        assert_eq!(quota(&[("sys/fs/cgroup/cpu.max", "400000 100000")]).0, Severity::Ok, "four CPUs of four");
        assert_eq!(quota(&[("sys/fs/cgroup/a/b/cpu.max", "max 100000")]), (Severity::Ok, "none".to_owned()));
    }

    #[test]
    fn rdma_devices_are_described_and_kernel_modules_checked() {
        let found = findings(&[
            ("sys/class/infiniband/rxe0/fw_ver", "16.1\n"),
            ("sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/class/infiniband/rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a00:0001\n"),
            ("sys/class/infiniband/rxe0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("sys/module/ib_uverbs/version", "1"),
        ]);
        let device = found.iter().find(|found| found.subject == "RDMA device rxe0").unwrap();
        assert!(device.seen.starts_with("firmware 16.1, port 1 is ACTIVE, GID 1 is 10.0.0.1"), "{device:?}");
        let is_used = cfg!(feature = "rdma-core");
        assert_eq!(device.severity, if is_used { Severity::Ok } else { Severity::Warning });
        let modules = found.iter().find(|found| found.subject == "kernel modules").unwrap();
        assert!(modules.remedy.as_ref().unwrap().ends_with("modprobe -a rdma_ucm"), "{modules:?}");
    }

    #[test]
    fn memory_ceiling_matches_documents() {
        let budgets = include_str!("../../../docs/book/src/reference/budgets.md");
        assert!(budgets.contains("| sum | | 4,666 MB |") && MEMORY_CEILING == 4_666_000_000);
        assert!(budgets.contains("| private memory | 39 MiB |") && MEMORY_AT_START == 39 << 20);
    }
}
