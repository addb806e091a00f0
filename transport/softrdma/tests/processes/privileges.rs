//! Programs that change their user, their root directory or their umask.
//!
//! All of these are a whole process's, so the tests start this binary again (`play`).

use crate::common;
use crate::common::host::{Host, part};
use nix::sys::stat::{Mode, umask};
use nix::unistd::{Uid, chroot, setuid};
use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{print_line, same_test};
use trunkline_verbs::{CmId, Device, PortSpace, QpInit, QpType, VerbsError, XrcdFlags};

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
        Some("umask") => {
            umask(Mode::from_bits_truncate(0o277));
            let [one, other] = addresses().map(|address| open(address).unwrap());
            drop((one, other));
            print_line("END");
        }
        _ => {}
    }
}

fn addresses() -> [IpAddr; 2] {
    ADDRESSES.map(|name| std::env::var(name).unwrap().parse().unwrap())
}

fn open(address: IpAddr) -> Result<(Arc<SoftDevice>, Arc<dyn CmId>), String> {
    let options = SoftOptions { addresses: vec![address], ..SoftOptions::default() };
    let device = SoftDevice::open(options).map_err(|error| error.to_string())?;
    let id = listen(&device, address).map_err(|error| error.to_string())?;
    Ok((device, id))
}

fn listen(device: &Arc<SoftDevice>, address: IpAddr) -> Result<Arc<dyn CmId>, VerbsError> {
    let manager = device.connection_manager();
    let channel = manager.create_channel()?;
    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel)?;
    id.bind(SocketAddr::new(address, 0))?;
    id.listen(1).map(|()| id)
}

/// Opens a device, gives up what the process may do, and makes what a new session needs.
fn go_on_after<T>(doing: &str, give_up: impl FnOnce() -> nix::Result<T>) {
    let [address, _] = addresses();
    let (device, first) = open(address).unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    if let Err(errno) = give_up() {
        print_line(&format!("END skipped: this process may not {doing}: {errno}"));
        return;
    }
    let second = listen(&device, address).unwrap();
    let domain = device.open_xrcd(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
    let target = QpInit { xrcd: Some(domain), ..QpInit::new(QpType::XrcTgt) };
    drop(device.create_qp(target).unwrap());
    drop((first, second));
    print_line("END");
}

fn run(host: &Host, part: &str) {
    let addresses = ADDRESSES.map(|name| (name, common::address().to_string()));
    let variables = [0, 1].map(|index| (addresses[index].0, addresses[index].1.as_str()));
    let mut process = host.start(part, &mut same_test(module_path!(), "play"), &variables);
    println!("{part}: {}", process.after("END").unwrap());
    process.finish().unwrap();
}

#[test]
fn sessions_are_made_after_the_user_has_changed() {
    run(&Host::new(), "setuid");
}

#[test]
fn sessions_are_made_after_the_root_has_changed() {
    run(&Host::new(), "chroot");
}

#[test]
fn a_umask_closes_no_file_to_its_own_user() {
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
