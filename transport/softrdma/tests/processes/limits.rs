//! Processes that have run out of descriptors.
//!
//! The tests start this binary again (`play`), since a limit is that of a whole process.

use crate::common;
use crate::common::host::{Host, part};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{Input, Process, print_line, same_test, wait_until};
use trunkline_verbs::{CmId, Device, PortSpace, QpType, VerbsError};

const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";

#[test]
fn play() {
    match part().as_deref() {
        Some("full") => hold_while_full(),
        Some("open") => open_within_each_limit(),
        _ => {}
    }
}

fn start(host: &Host, part: &str, address: IpAddr) -> Process {
    host.start(part, &mut same_test(module_path!(), "play"), &[(ADDRESS, &address.to_string())])
}

fn address() -> IpAddr {
    std::env::var(ADDRESS).unwrap().parse().unwrap()
}

/// Opens a device, and the address at it: its port is bound, or the holder of the port watched.
fn open(options: SoftOptions, address: IpAddr) -> Result<(Arc<SoftDevice>, Arc<dyn CmId>), String> {
    let options = SoftOptions { addresses: vec![address], ..options };
    let device = SoftDevice::open(options).map_err(|error| error.to_string())?;
    let bound = listen(&device, address).map_err(|error| error.to_string())?;
    Ok((device, bound))
}

fn listen(device: &Arc<SoftDevice>, address: IpAddr) -> Result<Arc<dyn CmId>, VerbsError> {
    let manager = device.connection_manager();
    let channel = manager.create_channel()?;
    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel)?;
    id.bind(SocketAddr::new(address, 0))?;
    id.listen(1).map(|()| id)
}

fn limit(descriptors: u64) {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, descriptors, hard).unwrap();
}

/// Opens an address, and gets no further descriptor from "fill" to "free".
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

/// Opens a device under each limit from none left to more than enough.
fn open_within_each_limit() {
    let mut served = 0;
    for descriptors in 3..64 {
        limit(descriptors);
        match open(SoftOptions::default(), address()) {
            Ok(_both) => served += 1,
            Err(error) => {
                assert_eq!(served, 0, "more than another time did not suffice: {error}");
                print_line(&format!("REFUSED {descriptors}: {error}"));
            }
        }
    }
    print_line(&format!("SERVED {served}"));
}

/// The processor time that all threads of a process have used.
fn processor_time(process: u32) -> Duration {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let times = tasks.map(|task| {
        let text = std::fs::read_to_string(task.unwrap().path().join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    });
    Duration::from_nanos(times.sum())
}

fn descriptors(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

#[test]
fn a_connection_that_waits_at_the_descriptor_limit_costs_no_processor_time() {
    let (host, address) = (Host::new(), common::address());
    let mut holder = start(&host, "full", address);
    holder.after("READY").unwrap();
    holder.ask("fill").unwrap();
    let full = descriptors(holder.id());
    // Its connection with the holder waits.
    let _member = open(host.options(), address).unwrap();
    let before = processor_time(holder.id());
    std::thread::sleep(Duration::from_millis(500));
    let used = processor_time(holder.id()) - before;
    assert!(used < Duration::from_millis(50), "{used:?} of 500 ms");
    assert_eq!(descriptors(holder.id()), full);
    holder.ask("free").unwrap();
    wait_until("the connection to be accepted", Duration::from_secs(10), || {
        (descriptors(holder.id()) > full).then_some(())
    });
}

#[test]
fn a_member_without_descriptors_uses_no_processor_time_and_does_not_take_the_holder_for_dead() {
    let (host, address) = (Host::new(), common::address());
    // Here the other process is the one that has to connect.
    let first = open(host.options(), address).unwrap();
    let mut member = start(&host, "full", address);
    member.after("READY").unwrap();
    member.ask("fill").unwrap();
    let full = descriptors(member.id());
    let before = processor_time(member.id());
    drop(first);
    let _successor = open(host.options(), address).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let used = processor_time(member.id()) - before;
    assert!(used < Duration::from_millis(50), "{used:?} of 500 ms");
    assert!(descriptors(member.id()) < full, "the connection with the first holder has ended");
    member.ask("free").unwrap();
    wait_until("the new holder to be watched", Duration::from_secs(10), || {
        (descriptors(member.id()) >= full).then_some(())
    });
}

#[test]
fn under_any_limit_a_device_opens_or_says_what_is_missing() {
    let (host, address) = (Host::new(), common::address());
    let mut process = start(&host, "open", address);
    let served: usize = process.after("SERVED ").unwrap().parse().unwrap();
    assert!(served > 0);
    process.finish().unwrap();
}
