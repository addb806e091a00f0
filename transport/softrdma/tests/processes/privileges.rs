//! Programs that change their user, their root directory or their umask.
//!
//! Each of these settings belongs to a whole process, so the tests start this binary again (`play`).

use crate::common;
use crate::common::host::{Host, listen, open, part};
use crate::common::node::{Node, connect, post};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Uid, chroot, setuid};
use std::fs::{self, File, Permissions};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Input, Process, print_line, same_test};
use trunkline_verbs::{CompletionStatus, Device, QpInit, QpType, SendOperation, XrcdFlags};

const ADDRESSES: [&str; 2] = ["TRUNKLINE_TEST_ADDRESS", "TRUNKLINE_TEST_OTHER_ADDRESS"];

#[test]
fn play() {
    match part().as_deref() {
        Some("setuid") => go_on_after("change the user", || setuid(Uid::from_raw(65534))),
        Some("chroot") => {
            let root = Path::new(&std::env::var("TRUNKLINE_RUNTIME_DIR").unwrap()).with_extension("root");
            fs::create_dir(&root).unwrap();
            go_on_after("change the root", || chroot(&root));
        }
        Some("umask of another user") => match setuid(Uid::from_raw(65534)) {
            Ok(()) => open_under_a_umask(),
            Err(errno) => print_line(&format!("END skipped: this process may not change its user: {errno}")),
        },
        Some("umask") => open_under_a_umask(),
        Some("watch") => watch_after_the_user_has_changed(),
        Some("hold") => hold(),
        Some("hold as another user") => match setuid(Uid::from_raw(65534)) {
            Ok(()) => hold(),
            Err(errno) => print_line(&format!("PORT skipped: this process may not change its user: {errno}")),
        },
        _ => {}
    }
}

fn hold() {
    let (_device, id) = open(SoftOptions::default(), addresses()[0]).unwrap();
    print_line(&format!("PORT {}", id.local_address().port()));
    while Input::open().wait().is_some() {}
}

/// Opens a device under a umask. The kernel ignores permissions for root, but not for other users.
fn open_under_a_umask() {
    umask(Mode::from_bits_truncate(0o277));
    let [one, other] = addresses().map(|address| open(SoftOptions::default(), address).unwrap());
    drop((one, other));
    print_line("END");
}

fn addresses() -> [IpAddr; 2] {
    ADDRESSES.map(|name| std::env::var(name).unwrap().parse().unwrap())
}

/// Opens a device, gives up privileges, and then creates the objects of a new session.
fn go_on_after<T>(doing: &str, give_up: impl FnOnce() -> nix::Result<T>) {
    let [address, _] = addresses();
    let (device, first) = open(SoftOptions::default(), address).unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    if let Err(errno) = give_up() {
        print_line(&format!("END skipped: this process may not {doing}: {errno}"));
        return;
    }
    let second = listen(&device, SocketAddr::new(address, 0)).unwrap();
    let domain = device.open_xrcd(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
    let target = QpInit { xrcd: Some(domain), ..QpInit::new(QpType::XrcTgt) };
    drop(device.create_qp(target).unwrap());
    drop((first, second));
    print_line("END");
}

/// Reports whether a port is free, as a user who may not open the files of the other members.
fn watch_after_the_user_has_changed() {
    let [address, _] = addresses();
    let (device, _first) = open(SoftOptions::default(), address).unwrap();
    let input = Input::open();
    print_line("READY");
    while let Some(line) = input.wait() {
        match line.trim().split_once(' ') {
            None => match setuid(Uid::from_raw(65534)) {
                Ok(()) => print_line("CHANGE done"),
                Err(errno) => print_line(&format!("CHANGE skipped: {errno}")),
            },
            Some((_try, port)) => {
                let bound = listen(&device, SocketAddr::new(address, port.parse().unwrap()));
                print_line(if bound.is_ok() { "TRY free" } else { "TRY taken" });
            }
        }
    }
}

fn start(host: &Host, part: &str, addresses: [IpAddr; 2]) -> Process {
    let addresses = addresses.map(|address| address.to_string());
    let variables = [0, 1].map(|index| (ADDRESSES[index], addresses[index].as_str()));
    host.start(part, &mut same_test(module_path!(), "play"), &variables)
}

fn run(host: &Host, part: &str) {
    let mut process = start(host, part, [(); 2].map(|()| common::address()));
    println!("{part}: {}", process.after("END").unwrap());
    process.finish().unwrap();
}

#[test]
fn sessions_are_created_after_change_of_user() {
    run(&Host::new(), "setuid");
}

#[test]
fn dead_member_is_detected_after_change_of_user() {
    let (host, address) = (Host::new(), common::address());
    let mut watcher = start(&host, "watch", [address; 2]);
    watcher.after("READY").unwrap();
    let mut holder = start(&host, "hold", [address; 2]);
    let port = holder.after("PORT ").unwrap();
    let changed = watcher.ask("change").unwrap();
    if changed.contains("skipped") {
        println!("{changed}");
        return;
    }
    let mut is_free = || watcher.ask(&format!("try {port}")).unwrap().contains("free");
    assert!(!is_free(), "its member lives");
    holder.kill().unwrap();
    assert!(is_free());
}

#[test]
fn holder_with_changed_user_serves_later_members() {
    let (host, address) = (Host::new(), common::address());
    let mut holder = start(&host, "watch", [address; 2]);
    holder.after("READY").unwrap();
    let changed = holder.ask("change").unwrap();
    if changed.contains("skipped") {
        println!("{changed}");
        return;
    }
    let at = |address| SoftOptions { addresses: vec![address], ..host.options() };
    let [near, far] = [common::address(), address].map(|address| Node::open(at(address), 4096));
    let (ini, _tgt) = connect(&near, &far);
    far.receive(1, 0, 64);
    post(&*ini, SendOperation::Send, &[near.sge(0, 64)], &*far.srq);
    let outcomes = [near.completion().status, far.completion().status];
    assert_eq!(outcomes, [CompletionStatus::Success; 2]);
}

#[test]
fn processes_meet_despite_default_directory_of_another_user() {
    let (host, address) = (Host::new(), common::address());
    let parent = host.path("tmp");
    fs::create_dir(&parent).unwrap();
    // Only the user of this process may remove the entry.
    fs::set_permissions(&parent, Permissions::from_mode(0o1777)).unwrap();
    fs::set_permissions(host.path("."), Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(parent.join("trunkline-65534")).unwrap();
    let address = address.to_string();
    let default =
        [("TRUNKLINE_RUNTIME_DIR", ""), ("XDG_RUNTIME_DIR", ""), ("TMPDIR", parent.to_str().unwrap())];
    let variables =
        [default[0], default[1], default[2], (ADDRESSES[0], &*address), (ADDRESSES[1], &*address)];
    let start = || host.start("hold as another user", &mut same_test(module_path!(), "play"), &variables);
    // Two processes can share an address only if they have the same runtime directory.
    let mut holders = [start(), start()];
    for holder in &mut holders {
        println!("port {}", holder.after("PORT ").unwrap());
    }
    drop(holders);
}

#[test]
fn concurrent_processes_share_directory_under_any_umask() {
    for part in ["umask", "umask of another user"] {
        for _ in 0..4 {
            let host = Host::new();
            // The other user creates the runtime directory here.
            fs::set_permissions(host.path("."), Permissions::from_mode(0o777)).unwrap();
            let mut all = [(); 4].map(|()| start(&host, part, [(); 2].map(|()| common::address())));
            for process in &mut all {
                println!("{part}: {}", process.after("END").unwrap());
            }
            for process in all {
                process.finish().unwrap();
            }
        }
    }
}

#[test]
fn sessions_are_created_after_change_of_root() {
    run(&Host::new(), "chroot");
}

#[test]
fn runtime_files_have_private_modes_despite_umask() {
    let host = Host::new();
    run(&host, "umask");
    let directory = host.namespace_directory();
    let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o777;
    assert_eq!([mode(&host.runtime()), mode(&directory)], [0o700; 2]);
    for entry in fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{path:?}");
    }
    drop(SoftDevice::open(SoftOptions { addresses: vec![common::address()], ..host.options() }).unwrap());
}
