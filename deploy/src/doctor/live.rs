//! Checks of the running host: environment, device, runtime directory, UDP ports, and calls.
//!
//! The checks that make calls start nodes in a temporary runtime directory, which does not affect other nodes. These
//! nodes bind the UDP port of devices only at addresses where the port is free.

use super::{Finding, Host, HostAddress, Severity};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access, geteuid};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use trunkline::device::{PathChoice, ProviderChoice};
use trunkline::health::{HealthClient, HealthReporter};
use trunkline::{Node, StartError, block_on};
use trunkline_softrdma::device::{
    HostError, OpenError, SoftOptions, existing_folder, list_devices, runtime_directory,
};
use trunkline_softrdma::link::{Owner, PortOwner, ROCE_PORT, check_capture};
use trunkline_transport::{NodeOptions, host_has, preview_device};

/// The checks of this module that do not bind a port.
pub(super) const CHECKS: &[fn(&Host) -> Vec<Finding>] = &[
    environment,
    device,
    directory_of_environment,
    addresses,
    ports,
    #[cfg(feature = "rdma-core")]
    nics,
];
/// The checks that make calls between nodes.
pub(super) const CALLS: &[fn(&Host) -> Vec<Finding>] = &[loopback_calls, own_address_calls];

/// Time limit of the first call, which opens the connections.
const PATIENCE: Duration = Duration::from_secs(5);
/// Number of calls from which the median time is computed.
const CALLS_TIMED: usize = 100;
/// Prefix of the names of temporary runtime directories.
const FOLDER_PREFIX: &str = "trunkline-doctor-";
/// Age above which an unlocked temporary runtime directory counts as abandoned.
const TIME_TO_LOCK: Duration = Duration::from_secs(60);
/// Size of the runtime directory, in bytes. See docs/book/src/operate/processes.md.
const DIRECTORY_BYTES: u64 = 3 << 20;
/// Remedy for a runtime directory that cannot be used.
const OTHER_DIRECTORY: &str = "name another directory in TRUNKLINE_RUNTIME_DIR";

impl Host {
    /// Returns a description of this host.
    pub(super) fn this() -> io::Result<Self> {
        let (up, down): (Vec<_>, Vec<_>) =
            getifaddrs()?.partition(|entry| entry.flags.contains(InterfaceFlags::IFF_UP));
        let address = |entry: InterfaceAddress| {
            let address = entry.address?;
            let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
            let ip = v4.or_else(|| Some(address.as_sockaddr_in6()?.ip().into()))?;
            let has_carrier = entry.flags.contains(InterfaceFlags::IFF_RUNNING);
            Some(HostAddress { interface: entry.interface_name, ip, has_carrier })
        };
        let [addresses, down] = [up, down].map(|entries| entries.into_iter().filter_map(address).collect());
        Ok(Self { root: PathBuf::from("/"), addresses, down })
    }

    /// Returns the addresses that a device can have, which are all except link-local addresses.
    fn usable(&self) -> BTreeSet<IpAddr> {
        self.addresses.iter().map(|at| at.ip).filter(|ip| !is_link_local(*ip)).collect()
    }
}

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

/// Checks the environment variables that nodes read.
fn environment(_: &Host) -> Vec<Finding> {
    let subject = "environment";
    let options = match (NodeOptions::new().or_from_env(), SoftOptions::from_env()) {
        (Err(error), _) => {
            return vec![Finding::failure(subject, error.to_string(), "correct or unset the variable")];
        }
        (_, Err(error)) => {
            return vec![Finding::failure(subject, error.to_string(), "correct or unset the variable")];
        }
        (Ok(_), Ok(options)) => options,
    };
    if let Some(path) = options.capture
        && let Err(source) = check_capture(&path)
    {
        let text = OpenError::Capture { path, source }.to_string();
        let (seen, remedy) = text.rsplit_once("; ").unwrap_or((&text, "name another file in TRUNKLINE_PCAP"));
        return vec![Finding::failure(subject, seen, remedy)];
    }
    let missing: Vec<_> =
        options.addresses.iter().filter(|ip| !host_has(**ip)).map(ToString::to_string).collect();
    if !missing.is_empty() {
        let seen = format!("TRUNKLINE_ADDRESS names {}, which no interface has", missing.join(", "));
        let remedy =
            "name addresses that `ip addr` lists, or add them (ip addr add ADDRESS/PREFIX dev INTERFACE)";
        return vec![Finding::failure(subject, seen, remedy)];
    }
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let set: BTreeSet<_> = names.filter(|name| name.starts_with("TRUNKLINE_")).collect();
    let set = set.into_iter().collect::<Vec<_>>().join(", ");
    vec![Finding::ok(subject, if set.is_empty() { "no variable is set".to_owned() } else { set })]
}

/// Checks the device that a client gets in this environment.
fn device(_: &Host) -> Vec<Finding> {
    // The check of the environment reports this error.
    let Ok(options) = NodeOptions::new().allow_unauthenticated(true).or_from_env() else { return Vec::new() };
    vec![match preview_device(&options, &[]) {
        Ok(why) => Finding::ok("device of a node", why),
        Err(reason) => {
            let remedy = "remove the cause, or set TRUNKLINE_PROVIDER=auto for the software device";
            Finding::failure("device of a node", reason.to_string(), remedy)
        }
    }]
}

fn directory_of_environment(_: &Host) -> Vec<Finding> {
    vec![directory(None)]
}

/// Checks the runtime directory as a starting node does: its mode and owner, the permission to write, and the registry.
/// Then checks the free space. `None` selects the default of the environment.
fn directory(named: Option<&Path>) -> Finding {
    let subject = "runtime directory";
    let writable = |path: &Path| access(path, AccessFlags::W_OK | AccessFlags::X_OK);
    let usable = runtime_directory(named).and_then(|path| {
        writable(&path).map_err(|errno| HostError::Os {
            doing: "write to",
            path: path.clone(),
            source: errno.into(),
        })?;
        // Listing the devices joins the registry of this network namespace, if there is one.
        list_devices(named).map(|_| path)
    });
    let (path, existing, state) = match usable {
        Ok(path) => {
            let state = fs::metadata(&path).map_or(String::new(), |found| {
                format!(", mode {:04o}, user {}", found.mode() & 0o7777, found.uid())
            });
            (path.clone(), path, state)
        }
        Err(HostError::Absent { path, .. }) => {
            // Trunkline creates the directory, but not its parent.
            let parent = path.parent().unwrap_or(Path::new("/")).to_owned();
            if let Err(error) = writable(&parent) {
                let seen = format!("{path:?} cannot be created in {parent:?}: {}", error.desc());
                let remedy = match error {
                    Errno::ENOENT => format!("create the parent, or {OTHER_DIRECTORY}"),
                    Errno::EACCES => format!("allow this user to write to the parent, or {OTHER_DIRECTORY}"),
                    _ => OTHER_DIRECTORY.to_owned(),
                };
                return Finding::failure(subject, seen, remedy);
            }
            (path, parent, ", created by the first node".to_owned())
        }
        Err(error) => {
            let separator = match error {
                HostError::Unsafe { .. } | HostError::OtherVersion(_) => ": ",
                _ => "; ",
            };
            let text = error.to_string();
            let (seen, remedy) = text.rsplit_once(separator).unwrap_or((&text, OTHER_DIRECTORY));
            return Finding::failure(subject, seen, remedy);
        }
    };
    let Ok(system) = statvfs(&existing) else {
        return Finding::ok(subject, format!("{path:?}{state}"));
    };
    let free = system.blocks_available().saturating_mul(system.fragment_size());
    let seen = format!("{path:?}{state}, {} MiB free", free >> 20);
    let allocated = existing_folder(named).ok().flatten().map_or(0, |folder| allocated_bytes(&folder));
    // `DIRECTORY_BYTES` is also rounded up.
    let needed = DIRECTORY_BYTES.saturating_sub(allocated.next_multiple_of(1 << 20));
    if free < needed {
        let seen = format!("{seen}; it takes {} MiB more", needed >> 20);
        return Finding::failure(subject, seen, format!("make room, or {OTHER_DIRECTORY}"));
    }
    Finding::ok(subject, seen)
}

/// Returns the disk space of the files in a folder.
fn allocated_bytes(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

/// Reports the addresses at which nodes can be reached.
fn addresses(host: &Host) -> Vec<Finding> {
    let (loopback, other): (Vec<_>, Vec<_>) = host.usable().into_iter().partition(IpAddr::is_loopback);
    let mut findings = Vec::new();
    if loopback.is_empty() {
        let remedy = "ip link set lo up";
        findings.push(Finding::failure("loopback", "the interface lo is down or has no address", remedy));
    }
    let list = other.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let is_usable = |at: &&HostAddress| !at.ip.is_loopback() && !is_link_local(at.ip);
    let seen = "loopback only: nodes are not reached by other hosts";
    findings.push(match host.down.iter().find(is_usable) {
        _ if !list.is_empty() => Finding::ok("addresses", list),
        Some(HostAddress { interface, ip, .. }) => Finding::warning(
            "addresses",
            format!("{seen}; {interface}, which has {ip}, is down"),
            format!("ip link set {interface} up"),
        ),
        None => {
            let remedy = "give an interface that is up an address (ip addr add ADDRESS/PREFIX dev INTERFACE)";
            Finding::warning("addresses", seen, remedy)
        }
    });
    let mut silent = BTreeMap::<_, Vec<_>>::new();
    for at in host.addresses.iter().filter(|at| !at.has_carrier && other.contains(&at.ip)) {
        silent.entry(&at.interface).or_default().push(at.ip.to_string());
    }
    findings.extend(silent.into_iter().map(|(interface, ips)| {
        let seen = format!("{interface} has no carrier: other hosts do not reach {}", ips.join(", "));
        let remedy = format!("connect it, or set its other end up (ip link show {interface})");
        Finding::warning("carrier", seen, remedy)
    }));
    findings
}

/// Returns the UDP port of devices in this environment.
fn device_port() -> u16 {
    // The check of the environment reports invalid settings.
    SoftOptions::from_env().map_or(ROCE_PORT, |options| options.receiving_port())
}

/// Checks the UDP port of devices at each address.
fn ports(host: &Host) -> Vec<Finding> {
    let own = runtime_directory(None).map(|path| fs::canonicalize(&path).unwrap_or(path)).ok();
    let at = |ip| SocketAddr::new(ip, device_port());
    let check = |ip| {
        // Duplicate address detection refuses an IPv6 address that another host has.
        if let Err(error) = UdpSocket::bind((ip, 0)) {
            let remedy = "`ip address` shows its state; with `dadfailed`, another host has the address";
            return Finding::failure(
                format!("address {ip}"),
                format!("no socket can be bound: {error}"),
                remedy,
            );
        }
        port(at(ip), PortOwner::find(at(ip)), own.as_deref())
    };
    host.usable().into_iter().map(check).collect()
}

/// Reports the state of a port at an address. `own` is the runtime directory of this user and environment.
fn port(at: SocketAddr, owner: Option<PortOwner>, own: Option<&Path>) -> Finding {
    let subject = format!("UDP port {} at {}", at.port(), at.ip());
    let Some(owner) = owner else { return Finding::ok(subject, "free") };
    let held = format!("held by {owner}");
    match &owner.who {
        Owner::Process { pid, .. } if PortOwner::stopped_at(at) == Some(*pid) => Finding::failure(
            subject,
            format!("{held}, which is stopped: nothing reaches this address"),
            format!("kill -CONT {pid}, or end it"),
        ),
        Owner::Process { pid, runtime_directory: Some(directory), .. }
            if !directory.is_emptied && Some(&*directory.path) == own =>
        {
            Finding::ok(
                subject,
                format!("held by node {pid} of this runtime directory, which further nodes share"),
            )
        }
        Owner::Kernel if cfg!(feature = "rdma-core") => {
            Finding::ok(subject, format!("{held}: nodes use its RDMA device"))
        }
        Owner::Kernel => Finding::failure(
            subject,
            held,
            "unload it (modprobe -r rdma_rxe), set TRUNKLINE_PORT to another port, or build with --features rdma-core",
        ),
        _ => Finding::failure(
            subject,
            format!("{held}: no node of this user can listen there"),
            owner.remedy(false),
        ),
    }
}

/// Checks RDMA devices by opening them through libibverbs.
#[cfg(feature = "rdma-core")]
fn nics(_: &Host) -> Vec<Finding> {
    use trunkline_verbs::{DeviceCapabilities, GidKind, Provider as _};
    let provider = trunkline_rdma_core::RdmaCore;
    // If there are no devices, the finding about the node's device gives the reason.
    let Ok(devices) = provider.devices() else { return Vec::new() };
    let finding = |name: String| {
        let subject = format!("RDMA device {name}, opened");
        let device = match provider.open(&name) {
            Ok(device) => device,
            Err(error) => {
                let remedy = "allow this user to read and write the files of /dev/infiniband";
                return Finding::warning(subject, error.to_string(), remedy);
            }
        };
        let attributes = device.attributes();
        let xrc = match attributes.capabilities.contains(DeviceCapabilities::XRC) {
            true => "XRC",
            false => "no XRC, so nodes use RC",
        };
        let mut seen = vec![xrc.to_owned()];
        for number in 1..=attributes.ports {
            if let Ok(port) = device.port(number) {
                let mtu = port.active_mtu.bytes();
                seen.push(format!("port {number} is {:?} with an MTU of {mtu}", port.state));
            }
        }
        let gids = device.gid_table().into_iter().filter(|entry| entry.kind == GidKind::RoceV2);
        seen.extend(gids.map(|entry| format!("GID {} is {}", entry.index, entry.gid.ip())));
        Finding::ok(subject, seen.join(", "))
    };
    devices.into_iter().map(|info| finding(info.name)).collect()
}

/// A temporary runtime directory, which is locked while it is in use and removed when dropped.
struct Folder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    fn new() -> io::Result<Self> {
        Self::remove_abandoned();
        // The name is unpredictable, so that other users cannot create the directory first.
        let number = RandomState::new().hash_one(std::process::id());
        let path = std::env::temp_dir().join(format!("{FOLDER_PREFIX}{number:016x}"));
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { _lock: Self::lock(&path)?, path })
    }

    fn lock(path: &Path) -> io::Result<Flock<File>> {
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let folder = File::options().read(true).custom_flags(flags.bits()).open(path)?;
        Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
    }

    /// Removes the directories of processes that were killed by a signal.
    fn remove_abandoned() {
        for entry in fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
            let path = entry.path();
            if !entry.file_name().as_bytes().starts_with(FOLDER_PREFIX.as_bytes()) {
                continue;
            }
            let Ok(locked) = Self::lock(&path) else { continue };
            let is_abandoned = locked.metadata().is_ok_and(|folder| {
                let age = folder.modified().ok().and_then(|at| at.elapsed().ok());
                folder.uid() == geteuid().as_raw() && age.is_some_and(|age| age > TIME_TO_LOCK)
            });
            if is_abandoned {
                let _left = fs::remove_dir_all(&path);
            }
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _left = fs::remove_dir_all(&self.path);
    }
}

/// Two nodes in this process, one of which calls the other.
struct Pair {
    provider: ProviderChoice,
    path: PathChoice,
    addresses: [IpAddr; 2],
}

impl Pair {
    /// Calls the server. Returns the time until the first reply, and the median time of the following calls.
    ///
    /// # Errors
    /// The cause, and its remedy if it is not in the network.
    fn call(&self, folder: &Folder) -> Result<(Duration, Duration), (String, Option<&'static str>)> {
        let node = |ip: IpAddr| {
            let device = SoftOptions {
                addresses: vec![ip],
                path: self.path,
                udp_port: NonZeroU16::new(device_port()),
                runtime_directory: Some(folder.path.clone()),
                ..SoftOptions::default()
            };
            let options =
                NodeOptions::new().provider(self.provider).device(device).allow_unauthenticated(true);
            Node::builder().transport(options).listen(SocketAddr::new(ip, 0)).grace(Duration::ZERO)
        };
        let [server, client] = self.addresses;
        let not_started = |error: StartError| {
            (
                error.to_string(),
                Some("remove the cause on this host, such as a limit or a missing permission"),
            )
        };
        let began = Instant::now();
        let server = node(server).health(&HealthReporter::new()).start().map_err(not_started)?;
        let client = node(client).start().map_err(not_started)?;
        let mut channel = client.channel(server.local_address());
        channel.set_timeout(PATIENCE);
        let health = HealthClient::new(channel);
        let call = || block_on(health.check(String::new())).map_err(|status| (status.to_string(), None));
        call()?;
        let set_up = began.elapsed();
        let mut times = Vec::with_capacity(CALLS_TIMED);
        for _ in 0..CALLS_TIMED {
            let began = Instant::now();
            call()?;
            times.push(began.elapsed());
        }
        times.sort();
        Ok((set_up, times[CALLS_TIMED / 2]))
    }

    fn finding(&self, subject: String, remedy: &str) -> Finding {
        let folder = match Folder::new() {
            Ok(folder) => folder,
            Err(error) => {
                let seen = format!("no temporary directory in {:?}: {error}", std::env::temp_dir());
                return Finding::failure(
                    subject,
                    seen,
                    "name a directory that this user can write to in TMPDIR",
                );
            }
        };
        match self.call(&folder) {
            Ok((set_up, call)) => {
                let (set_up, call) = (set_up.as_millis(), call.as_micros());
                Finding::ok(subject, format!("{set_up} ms until the first reply, then {call} us per call"))
            }
            Err((cause, of_host)) => Finding::failure(subject, cause, of_host.unwrap_or(remedy)),
        }
    }
}

/// Checks calls between loopback addresses, through UDP sockets and through shared memory.
fn loopback_calls(_: &Host) -> Vec<Finding> {
    let [a, b, c, ..] = RandomState::new().hash_one(0).to_le_bytes();
    // Other processes are unlikely to use these addresses. A host without IPv4 has only ::1.
    let v4 = |last| IpAddr::from(Ipv4Addr::new(127, a.clamp(1, 254), b, last));
    let last = c.clamp(2, 253);
    let mut addresses = [v4(last), v4(last + 1)];
    if !host_has(addresses[0]) {
        addresses = [Ipv6Addr::LOCALHOST.into(); 2];
    }
    let udp_remedy = format!(
        "a firewall of this host drops UDP port {}: let it through in the input and output chains, on the loopback and from clients \
         (docs/book/src/operate/networks.md); nft list ruleset, or iptables -L, shows the rules",
        device_port()
    );
    let paths = [
        (PathChoice::Udp, "by UDP", &*udp_remedy),
        (
            PathChoice::Shm,
            "by shared memory",
            "allow memfd_create and Unix sockets: seccomp, RestrictAddressFamilies=",
        ),
    ];
    let call = |(path, how, remedy): (_, &str, _)| {
        let pair = Pair { provider: ProviderChoice::Soft, path, addresses };
        pair.finding(format!("loopback call {how}"), remedy)
    };
    let mut found = Vec::new();
    for path in paths {
        found.push(call(path));
        if found.iter().any(|finding| finding.severity == Severity::Failure) {
            // Connections over shared memory are also set up over UDP, so the second check would fail for the same
            // reason.
            break;
        }
    }
    found
}

/// Checks calls at an address of the host other than loopback, on the software device and on the RDMA device with this
/// address.
fn own_address_calls(host: &Host) -> Vec<Finding> {
    let mut own: Vec<_> = host.usable().into_iter().filter(|ip| !ip.is_loopback()).collect();
    let soft_subject = "call at an own address";
    let udp_port = device_port();
    let remedy = format!(
        "a firewall of this host drops UDP port {udp_port}: let it through in the input and output chains, between the host's own addresses and \
         from clients (docs/book/src/operate/networks.md); nft list ruleset, or iptables -L, shows the rules"
    );
    let soft = match own.iter().find(|ip| PortOwner::find(SocketAddr::new(**ip, udp_port)).is_none()) {
        Some(&ip) => Pair { provider: ProviderChoice::Soft, path: PathChoice::Udp, addresses: [ip, ip] }
            .finding(format!("{soft_subject}, {ip}"), &remedy),
        None if own.is_empty() => {
            Finding::ok(soft_subject, "skipped: the host has no address beyond the loopback")
        }
        None => Finding::ok(
            soft_subject,
            format!("skipped: UDP port {udp_port} is free at none of the addresses"),
        ),
    };
    let required = NodeOptions::new().provider(ProviderChoice::Require).allow_unauthenticated(true);
    own.retain(|ip| preview_device(&required, &[SocketAddr::new(*ip, 0)]).is_ok());
    let nic = |ip: IpAddr| {
        Pair { provider: ProviderChoice::Require, path: PathChoice::Auto, addresses: [ip, ip] }.finding(
            format!("call on the RDMA device of {ip}"),
            "see docs/book/src/reference/rdma-core.md: locked memory, ports, GIDs",
        )
    };
    [soft].into_iter().chain(own.into_iter().map(nic)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::os::unix::fs::PermissionsExt as _;
    use trunkline_softrdma::link::RuntimeDirectory;

    #[test]
    fn held_port_is_failure_unless_holder_shares_runtime_directory() {
        let at: SocketAddr = "10.0.0.1:4792".parse().unwrap();
        let owner = |who| Some(PortOwner { address: at.ip(), port: at.port(), who });
        let judged = |path: Option<&str>, is_emptied| {
            let runtime_directory = path.map(|path| RuntimeDirectory { path: path.into(), is_emptied });
            let who = Owner::Process { pid: 7, program: "a".into(), runtime_directory };
            port(at, owner(who), Some(Path::new("/run/a"))).severity
        };
        let free = port(at, None, None);
        assert_eq!((free.severity, &*free.subject), (Severity::Ok, "UDP port 4792 at 10.0.0.1"));
        assert_eq!(judged(Some("/run/a"), false), Severity::Ok);
        assert_eq!(judged(Some("/run/a"), true), Severity::Failure);
        assert_eq!(judged(Some("/run/b"), false), Severity::Failure);
        assert_eq!(judged(None, false), Severity::Failure);
        let found = port(at, owner(Owner::Hidden { uid: 5 }), None);
        assert!(found.seen.contains("user 5") && found.remedy.unwrap().contains("another address"));
    }

    #[test]
    fn unusable_runtime_directory_is_failure() {
        let folder = trunkline_testkit::Folder::new().unwrap();
        let absent = directory(Some(&folder.join("run")));
        assert_eq!(absent.severity, Severity::Ok, "{absent:?}");
        assert!(!folder.join("run").exists());
        let orphan = directory(Some(&folder.join("a/b")));
        assert!(orphan.severity == Severity::Failure && orphan.seen.contains("No such file"), "{orphan:?}");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let open = directory(Some(folder.path()));
        assert!(open.severity == Severity::Failure && open.seen.contains("open to other users"), "{open:?}");
        assert!(open.remedy.unwrap().starts_with("run `chmod 700` on it"));
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let found = directory(Some(folder.path()));
        assert!(found.severity == Severity::Ok && found.seen.contains("mode 0700"), "{found:?}");
    }

    /// A node does not start in these directories.
    #[test]
    fn unusable_registry_of_runtime_directory_is_failure() {
        let folder = trunkline_testkit::Folder::new().unwrap();
        let root = folder.join("run");
        let options = SoftOptions { runtime_directory: Some(root.clone()), ..SoftOptions::default() };
        let options = NodeOptions::new().provider(ProviderChoice::Soft).device(options);
        let builder = Node::builder().transport(options.allow_unauthenticated(true));
        drop(builder.listen((trunkline_testkit::fresh_ip(), 0)).start().unwrap());
        let inside = fs::read_dir(&root).unwrap().next().unwrap().unwrap().path();
        assert_eq!(directory(Some(&root)).severity, Severity::Ok);
        let failure = |text: &str, remedy: &str| {
            let found = directory(Some(&root));
            assert!(found.severity == Severity::Failure && found.seen.contains(text), "{found:?}");
            assert!(found.remedy.as_ref().unwrap().contains(remedy), "{found:?}");
        };
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o755)).unwrap();
        failure(&format!("{inside:?} is open to other users"), "`chmod 700`");
        fs::set_permissions(&inside, fs::Permissions::from_mode(0o700)).unwrap();
        fs::write(inside.join("registry"), "damaged").unwrap();
        failure("registry\" was made by another version of Trunkline, or is damaged", "remove it");
    }

    #[test]
    fn allocated_folder_on_full_file_system_is_ok() {
        let test = "allocated_folder_on_full_file_system_is_ok";
        let mount = r#"exec unshare --mount -- sh -c 'mount -t tmpfs -o size=4m,mode=700 none "$TRUNKLINE_RUNTIME_DIR" && exec "$0" "$@"' "$0" "$@""#;
        if !trunkline_testkit::is_in_network_namespace(module_path!(), test, mount) {
            return;
        }
        let node = || {
            let options = NodeOptions::new().provider(ProviderChoice::Soft).allow_unauthenticated(true);
            let builder = Node::builder().transport(options);
            builder.listen((trunkline_testkit::fresh_ip(), 0)).start().unwrap()
        };
        let fill = || {
            let file = runtime_directory(None).unwrap().join("file");
            let mut file = File::options().create(true).append(true).open(file).unwrap();
            io::copy(&mut io::repeat(0), &mut file).unwrap_err()
        };
        let first = node();
        fill();
        let allocated = directory(None);
        assert_eq!(allocated.severity, Severity::Ok, "{allocated:?}");
        drop((node(), first));
        fs::remove_dir_all(existing_folder(None).unwrap().unwrap()).unwrap();
        fill();
        let absent = directory(None);
        assert_eq!(absent.severity, Severity::Failure, "{absent:?}");
        assert!(absent.seen.ends_with("0 MiB free; it takes 3 MiB more"), "{absent:?}");
    }

    #[test]
    fn read_only_runtime_directory_and_parent_are_failures() {
        let test = "read_only_runtime_directory_and_parent_are_failures";
        let mount = r#"exec unshare --mount -- sh -c 'mount -t tmpfs -o ro,mode=700 none "$TRUNKLINE_RUNTIME_DIR" && exec "$0" "$@"' "$0" "$@""#;
        if !trunkline_testkit::is_in_network_namespace(module_path!(), test, mount) {
            return;
        }
        let failure = |found: Finding, text: &str| {
            let remedy = found.remedy.as_deref();
            assert!(found.severity == Severity::Failure && found.seen.contains(text), "{found:?}");
            assert!(remedy.is_some_and(|remedy| remedy.starts_with("name another directory")), "{found:?}");
        };
        failure(directory(None), "cannot write to");
        let path = runtime_directory(None).unwrap();
        failure(directory(Some(&path.join("child"))), "cannot be created in");
        failure(directory(Some(Path::new("/proc/self/environ/x"))), "cannot examine");
    }

    #[test]
    fn interface_with_address_that_is_down_is_named() {
        let test = "interface_with_address_that_is_down_is_named";
        let setup = "ip link add near type veth peer name far && ip address add 10.9.0.1/24 dev near";
        if !trunkline_testkit::is_in_network_namespace(module_path!(), test, setup) {
            return;
        }
        let host = Host::this().unwrap();
        let found = addresses(&host);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (found[0].severity, found[0].remedy.as_deref()),
            (Severity::Warning, Some("ip link set near up"))
        );
        assert!(found[0].seen.contains("near, which has 10.9.0.1, is down"), "{found:?}");
        assert!(!host.usable().contains(&IpAddr::from([10, 9, 0, 1])), "{host:?}");
    }

    #[test]
    fn host_without_addresses_or_carrier_is_reported() {
        let host = |ips: &[&str]| Host {
            root: "/".into(),
            addresses: ips
                .iter()
                .map(|ip| HostAddress {
                    interface: "a".into(),
                    ip: ip.parse().unwrap(),
                    has_carrier: *ip != "fd00::2",
                })
                .collect(),
            down: Vec::new(),
        };
        let severities =
            |ips: &[&str]| addresses(&host(ips)).iter().map(|found| found.severity).collect::<Vec<_>>();
        assert_eq!(severities(&[]), [Severity::Failure, Severity::Warning]);
        assert_eq!(severities(&["127.0.0.1", "fe80::1"]), [Severity::Warning]);
        assert_eq!(severities(&["::1", "fd00::1"]), [Severity::Ok]);
        assert_eq!(severities(&["::1", "fd00::1", "fd00::2"]), [Severity::Ok, Severity::Warning]);
    }
}
