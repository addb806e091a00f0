//! Processes that have run out of descriptors, or of room in the runtime directory.
//!
//! The tests start this binary again (`play`), since a limit applies to a whole process.

use crate::common;
use crate::common::host::{Host, open, part};
use crate::common::node::BOUND;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::{Uid, geteuid, setuid};
use std::fs::File;
use std::io::Write;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::Hub;
use trunkline_testkit::{Input, Process, on_small_file_system, print_line, same_test, wait_until};
use trunkline_verbs::{Device, QpInit, QpType, XrcDomain, XrcdFlags};

const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";

#[test]
fn play() {
    match part().as_deref() {
        Some("full") => hold_while_full(),
        Some("open") => open_within_each_limit(),
        Some("no room") => open_without_room(),
        Some("room for one") => share_without_room(),
        Some("small files") => open_with_small_files(),
        Some("small capture") => capture_into_a_small_file(),
        Some("no threads") => open_without_threads(),
        _ => {}
    }
}

fn start(host: &Host, part: &str, address: IpAddr) -> Process {
    host.start(part, &mut same_test(module_path!(), "play"), &[(ADDRESS, &address.to_string())])
}

fn address() -> IpAddr {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

fn limit(descriptors: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, hard).unwrap();
}

/// Opens an address. Between "fill" and "free", the process cannot open further descriptors.
fn hold_while_full() {
    let _held = open(SoftOptions::default(), address()).unwrap();
    let input = Input::open();
    print_line("READY");
    while let Some(line) = input.wait() {
        match line.trim() {
            "fill" => {
                limit(3);
                print_line("FILL");
            }
            "free" => {
                limit(256);
                print_line("FREE");
            }
            other => panic!("no such command: {other}"),
        }
    }
}

/// Opens a device under each limit on descriptors, from none free to more than enough.
fn open_within_each_limit() {
    let mut served = 0;
    for descriptors in 3..64 {
        limit(descriptors);
        match open(SoftOptions::default(), address()) {
            Ok(_both) => served += 1,
            Err(error) => {
                assert_eq!(served, 0, "more than another time did not suffice: {error}");
                let limit = format!("limited to {descriptors} (`ulimit -n`)");
                assert!(error.contains(&limit), "{error}");
                print_line(&format!("REFUSED {descriptors}: {error}"));
            }
        }
    }
    print_line(&format!("SERVED {served}"));
}

/// Opens a device in a runtime directory that is too small for a registry, with and without an existing sparse
/// registry.
fn open_without_room() {
    let refused = || {
        let error = open(SoftOptions::default(), address()).expect_err("there is no room");
        assert!(error.contains("make room") && error.contains("TRUNKLINE_RUNTIME_DIR"), "{error}");
        error
    };
    print_line(&format!("REFUSED {}", refused()));
    let found = std::fs::read_dir(std::env::var("TRUNKLINE_RUNTIME_DIR").unwrap()).unwrap().next();
    let registry = found.unwrap().unwrap().path().join("registry");
    assert!(registry.metadata().unwrap().len() > 1 << 20, "its maker found no room to allocate it");
    fill();
    print_line(&format!("REFUSED {}", refused()));
    print_line("END");
}

/// Fills the file system of the runtime directory.
fn fill() -> PathBuf {
    let path = Path::new(&std::env::var("TRUNKLINE_RUNTIME_DIR").unwrap()).join("filler");
    let mut file = File::create(&path).unwrap();
    for bytes in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; bytes]).is_ok() {}
    }
    path
}

/// Shares TGTs, and receives packets for unknown QPs, while the runtime directory is full.
fn share_without_room() {
    let (device, _listening) = open(SoftOptions::default(), address()).unwrap();
    let domain = |file| device.open_xrcd(file, XrcdFlags::CREATE).unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let (shared, private) = (domain(Some(file.as_fd())), domain(None));
    let target = |xrcd: &Arc<dyn XrcDomain>| {
        device.create_qp(QpInit { xrcd: Some(Arc::clone(xrcd)), ..QpInit::new(QpType::XrcTgt) })
    };
    let full = fill();
    let error = target(&shared).expect_err("there is no room for it");
    assert_eq!(error.errno(), 28, "{error}");
    target(&private).unwrap();
    print_line(&format!("REFUSED {error}"));
    let dropped = || -> u64 {
        let counters = device.counters();
        counters.iter().filter(|counter| counter.name.starts_with("drop")).map(|counter| counter.value).sum()
    };
    let before = dropped();
    let socket = UdpSocket::bind(SocketAddr::new(address(), 0)).unwrap();
    for number in (0..1 << 24).step_by(9973).map(u32::to_be_bytes) {
        let mut packet = [0; 32];
        packet[5..8].copy_from_slice(&number[1..]);
        socket.send_to(&packet, SocketAddr::new(address(), 4791)).unwrap();
    }
    wait_until("the packets to be dropped", BOUND, || (dropped() > before + 100).then_some(()));
    std::fs::remove_file(full).unwrap();
    target(&shared).unwrap();
    print_line("END");
}

fn limit_files(bytes: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, bytes, hard).unwrap();
}

/// Opens a device under limits on file size, from none to more than enough.
fn open_with_small_files() {
    let mut refused = 0;
    for bytes in (0..30).step_by(2).map(|bit| 1 << bit) {
        limit_files(bytes);
        match open(SoftOptions::default(), address()) {
            Ok(_both) => print_line("SERVED"),
            Err(error) => {
                assert!(error.contains("ulimit -f") && error.contains(&bytes.to_string()), "{error}");
                refused += 1;
            }
        }
    }
    print_line(&format!("REFUSED {refused}"));
}

/// Opens devices that record datagrams, under a limit on file size that is too small for a capture's header.
fn capture_into_a_small_file() {
    // Creates the files of the host.
    drop(open(SoftOptions::default(), address()).unwrap());
    let capture = Path::new(&std::env::var("TRUNKLINE_RUNTIME_DIR").unwrap()).join("capture");
    limit_files(0);
    let other = SoftOptions { capture: Some(capture.clone()), ..SoftOptions::default() };
    let error = open(other, address()).expect_err("not even the header fits");
    assert!(error.contains("ulimit -f"), "{error}");
    print_line("END");
}

/// Opens a device on an in-process network, as a user who may not start threads.
fn open_without_threads() {
    // Root is exempt from the limit.
    if geteuid().is_root() && setuid(Uid::from_raw(65534)).is_err() {
        print_line("END skipped: this process may not change its user");
        return;
    }
    let (_, hard) = getrlimit(Resource::RLIMIT_NPROC).unwrap();
    setrlimit(Resource::RLIMIT_NPROC, 0, hard).unwrap();
    let options = SoftOptions { link: LinkChoice::InProcess(Hub::new()), ..SoftOptions::default() };
    let error = open(options, address()).expect_err("there is no thread");
    assert!(error.contains("limited to 0 (`ulimit -u`)") && error.contains("pids.max"), "{error}");
    print_line("END");
}

/// Returns the processor time that all threads of a process have used.
fn processor_time(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let times = tasks.filter_map(|task| {
        // A thread may end in the meantime.
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).ok()?;
        text.split(' ').next().unwrap().parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}

/// Waits for a period in which a process does not use processor time, which a busy loop would prevent.
fn wait_until_idle(process: u32) {
    wait_until("a period without processor time", BOUND, || {
        let before = processor_time(process);
        std::thread::sleep(Duration::from_millis(500));
        let used = processor_time(process).checked_sub(before)?;
        (used < Duration::from_millis(50)).then_some(())
    });
}

fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[test]
fn connection_waiting_at_descriptor_limit_does_not_use_processor() {
    let (host, address) = (Host::new(), common::address());
    let mut holder = start(&host, "full", address);
    holder.after("READY").unwrap();
    holder.ask("fill").unwrap();
    let full = descriptors(holder.id());
    // The member's connection with the holder waits.
    let _member = open(host.options(), address).unwrap();
    wait_until_idle(holder.id());
    assert_eq!(descriptors(holder.id()), full);
    holder.ask("free").unwrap();
    wait_until("the connection to be accepted", BOUND, || (descriptors(holder.id()) > full).then_some(()));
}

#[test]
fn member_without_descriptors_does_not_use_processor_or_take_holder_for_dead() {
    let (host, address) = (Host::new(), common::address());
    // Here the other process has to open the connection.
    let first = open(host.options(), address).unwrap();
    let mut member = start(&host, "full", address);
    member.after("READY").unwrap();
    member.ask("fill").unwrap();
    let full = descriptors(member.id());
    drop(first);
    let _successor = open(host.options(), address).unwrap();
    wait_until("the connection with the first holder to end", BOUND, || {
        (descriptors(member.id()) < full).then_some(())
    });
    wait_until_idle(member.id());
    assert!(descriptors(member.id()) < full, "it has not come back");
    member.ask("free").unwrap();
    wait_until("the new holder to be watched", BOUND, || (descriptors(member.id()) >= full).then_some(()));
}

#[test]
fn device_opens_or_names_missing_resource_under_any_limit() {
    let (host, address) = (Host::new(), common::address());
    let mut process = start(&host, "open", address);
    let served: usize = process.after("SERVED ").unwrap().parse().unwrap();
    assert!(served > 0);
    process.finish().unwrap();
}

#[test]
fn file_size_limit_is_named_and_does_not_kill_process() {
    let (host, address) = (Host::new(), common::address());
    let mut process = start(&host, "small files", address);
    process.after("SERVED").unwrap();
    let refused: usize = process.after("REFUSED ").unwrap().parse().unwrap();
    assert!(refused > 0);
    process.finish().unwrap();
}

#[test]
fn capture_beyond_file_size_limit_is_refused() {
    let (host, address) = (Host::new(), common::address());
    let mut process = start(&host, "small capture", address);
    process.after("END").unwrap();
    process.finish().unwrap();
}

#[test]
fn thread_limit_is_named() {
    let (host, address) = (Host::new(), common::address());
    let mut process = start(&host, "no threads", address);
    println!("{}", process.after("END").unwrap());
    process.finish().unwrap();
}

/// Runs a part with a runtime directory on a file system of `kib` KiB. Prints a line if it cannot be mounted.
fn run_on_small_file_system(part: &str, kib: u32) {
    let (host, address) = (Host::new(), common::address().to_string());
    std::fs::create_dir(host.runtime()).unwrap();
    let test = same_test(module_path!(), "play");
    let Some(mut command) = on_small_file_system(&host.runtime(), kib, &test) else {
        println!("skipped: this process may not mount a file system");
        return;
    };
    let mut process = host.start(part, &mut command, &[(ADDRESS, &address)]);
    println!("{}", process.after("REFUSED").unwrap());
    process.after("END").unwrap();
    process.finish().unwrap();
}

#[test]
fn device_without_room_for_registry_is_refused_with_remedy() {
    run_on_small_file_system("no room", 1024);
}

#[test]
fn full_runtime_directory_refuses_only_shared_targets() {
    run_on_small_file_system("room for one", 4096);
}
