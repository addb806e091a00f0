//! Programs that run with standard streams closed.
//!
//! Closed streams affect the whole process, so the tests start this binary again (`play`).

use crate::common;
use crate::common::host::{Host, part};
use crate::common::node::BOUND;
use nix::fcntl::{FcntlArg, fcntl};
use nix::unistd::{close, write};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{same_test, wait_until};
use trunkline_verbs::{Device, PortSpace, QpInit, QpType, XrcdFlags};

const ADDRESS: &str = "TRUNKLINE_TEST_ADDRESS";
/// Environment variable with the numbers of the closed streams.
const CLOSED: &str = "TRUNKLINE_TEST_CLOSED";
const PRINTED: &[u8] = b"printed by the program\n";

#[test]
fn play() {
    if part().as_deref() == Some("closed") {
        use_device();
    }
}

/// Opens and uses a device while a thread prints.
fn use_device() {
    let address: IpAddr = std::env::var(ADDRESS).unwrap().parse().unwrap();
    let closed = std::env::var(CLOSED).unwrap();
    let streams: [&(dyn AsFd + Sync); 3] = [&io::stdin(), &io::stdout(), &io::stderr()];
    let is_closed = |stream: &&&(dyn AsFd + Sync)| closed.contains(&stream.as_fd().as_raw_fd().to_string());
    for stream in streams.iter().filter(is_closed) {
        close(stream.as_fd().as_raw_fd()).unwrap();
    }
    let print = || {
        for stream in &streams[1..] {
            // The write fails if the stream is closed.
            let _closed = write(stream, PRINTED);
        }
    };
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                print();
            }
        });
        let _end = EndOnDrop(&done);
        for _ in 0..3 {
            open_and_check(address, &|| {
                print();
                for stream in streams.iter().filter(is_closed) {
                    // A placeholder exists only for a moment.
                    wait_until("the stream to be closed", BOUND, || {
                        fcntl(stream.as_fd(), FcntlArg::F_GETFD).err()
                    });
                }
            });
        }
    });
}

/// Ends the printing thread, also after a panic.
struct EndOnDrop<'a>(&'a AtomicBool);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Creates one object of each kind that has a descriptor.
fn open_and_check(address: IpAddr, check: &dyn Fn()) {
    let options = SoftOptions { addresses: vec![address], ..SoftOptions::default() };
    let device = SoftDevice::open(options).unwrap();
    check();
    let manager = device.connection_manager();
    let channel = manager.create_channel().unwrap();
    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel).unwrap();
    id.bind(SocketAddr::new(address, 0)).unwrap();
    id.listen(1).unwrap();
    let completions = device.create_completion_channel().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let domain = device.open_xrcd(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
    drop(file);
    let target = QpInit { xrcd: Some(domain), ..QpInit::new(QpType::XrcTgt) };
    let _target = device.create_qp(target).unwrap();
    check();
    for descriptor in [channel.as_fd(), completions.as_fd()] {
        assert!(descriptor.as_raw_fd() > 2);
    }
}

fn contains(file: &Path, text: &[u8]) -> bool {
    fs::read(file).is_ok_and(|bytes| bytes.windows(text.len()).any(|window| window == text))
}

#[test]
fn descriptors_do_not_take_numbers_of_closed_streams() {
    let (host, address) = (Host::new(), common::address());
    // The other members have connections with this one, and this one has connections with them.
    let _holder = SoftDevice::open(SoftOptions { addresses: vec![address], ..host.options() }).unwrap();
    for closed in ["", "0", "1", "2", "01", "02", "12", "012"] {
        let mut test = same_test(module_path!(), "play");
        test.env("TRUNKLINE_TEST_PART", "closed").env("TRUNKLINE_RUNTIME_DIR", host.runtime());
        test.env(ADDRESS, address.to_string()).env(CLOSED, closed);
        let ended = test.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert!(ended.success(), "closed {closed:?}: {ended}");
        for entry in fs::read_dir(host.namespace_directory()).unwrap() {
            let path = entry.unwrap().path();
            assert!(!contains(&path, PRINTED), "closed {closed:?}: the program printed into {path:?}");
        }
        let other = SoftOptions { addresses: vec![common::address()], ..host.options() };
        drop(SoftDevice::open(other).unwrap());
    }
}
