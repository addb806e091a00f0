//! Processes of one host that share the registry in the runtime directory.
//!
//! The tests start this binary again for each further process (`play`).

use crate::common;
use crate::common::host::{Host, count_files, part};
use std::collections::HashSet;
use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use trunkline_softrdma::device::{HostError, OpenError, SoftDevice, SoftOptions};
use trunkline_testkit::{Input, Process, print_line, same_test};
use trunkline_verbs::{
    CmId, CqInit, Device, PortSpace, QpInit, QpType, QueuePair, SharedReceiveQueue, SrqInit, SrqKind,
    VerbsError, XrcDomain, XrcdFlags,
};

const FILE: &str = "TRUNKLINE_TEST_FILE";
const LOCAL: &str = "TRUNKLINE_TEST_LOCAL";
/// Number of times that each process of a race tries to create the domain.
const TRIES: usize = 5_000;
const BOTH: XrcdFlags = XrcdFlags::CREATE.union(XrcdFlags::EXCLUSIVE);

/// Entry point of a further process. Does nothing unless a part is set.
#[test]
fn play() {
    let Some(part) = part() else { return };
    let options = SoftOptions { addresses: vec![common::address()], ..from_env() };
    let device = SoftDevice::open(options).unwrap();
    let input = Input::open();
    print_line("READY");
    while input.wait().is_some() {
        match part.as_str() {
            "churn" => churn(&device),
            "race" => print_line(&format!("MADE {}", race(&*device, Path::new(&variable(FILE))))),
            "numbers" => {
                let objects = make_objects(&*device);
                print_line(&format!("NUMBERS {:?}", numbers(&objects)));
                std::mem::forget(objects);
            }
            "bind" => {
                let bound = bind(&device, variable(LOCAL).parse().unwrap()).unwrap();
                print_line(&format!("BOUND {}", bound.local_address()));
                std::mem::forget(bound);
            }
            other => panic!("no such part: {other}"),
        }
    }
}

/// Tries to create the domain [`TRIES`] times. Returns the number of successful attempts.
fn race(device: &dyn Device, path: &Path) -> usize {
    let witness = path.with_extension("witness");
    let mut made = 0;
    for _ in 0..TRIES {
        match open(device, path, BOTH) {
            Ok(domain) => {
                made += 1;
                File::create_new(&witness).expect("two processes have made one domain");
                std::fs::remove_file(&witness).unwrap();
                domain.close().unwrap();
            }
            Err(error) => assert_eq!(error.errno(), 22),
        }
    }
    made
}

/// Makes all kinds of changes to the registry until it is killed.
fn churn(device: &Arc<SoftDevice>) {
    for round in 0_u64.. {
        let domain = open(&**device, Path::new(&variable(FILE)), XrcdFlags::CREATE).unwrap();
        let bound = bind(device, variable(LOCAL).parse().unwrap()).unwrap();
        let other = SoftDevice::open(SoftOptions { addresses: vec![common::address()], ..from_env() });
        make_objects(&*other.unwrap());
        print_line(&format!("ROUND {round}"));
        drop((domain, bound));
    }
}

fn from_env() -> SoftOptions {
    SoftOptions::from_env().unwrap()
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

fn open(device: &dyn Device, path: &Path, flags: XrcdFlags) -> Result<Arc<dyn XrcDomain>, VerbsError> {
    let file = File::open(path).unwrap();
    device.open_xrcd(Some(file.as_fd()), flags)
}

type Objects = Vec<(Arc<dyn QueuePair>, Arc<dyn SharedReceiveQueue>)>;

fn make_objects(device: &dyn Device) -> Objects {
    let pd = device.alloc_pd().unwrap();
    let cq = device.create_cq(CqInit { capacity_cqe: 16, ..CqInit::default() }).unwrap();
    let xrcd = device.open_xrcd(None, XrcdFlags::empty()).unwrap();
    let make = |_| {
        let init = QpInit {
            pd: Some(Arc::clone(&pd)),
            send_cq: Some(Arc::clone(&cq)),
            ..QpInit::new(QpType::XrcIni)
        };
        let qp = device.create_qp(init).unwrap();
        let kind = SrqKind::Xrc { xrcd: Arc::clone(&xrcd), cq: Arc::clone(&cq) };
        let srq = device
            .create_srq(SrqInit { pd: Arc::clone(&pd), max_wr: 1, max_sge: 1, kind, context: 0 })
            .unwrap();
        (qp, srq)
    };
    (0..100).map(make).collect()
}

fn numbers(objects: &Objects) -> Vec<u32> {
    objects.iter().flat_map(|(qp, srq)| [qp.number().get(), srq.number().unwrap().get()]).collect()
}

fn bind(device: &Arc<SoftDevice>, local: SocketAddr) -> Result<Arc<dyn CmId>, VerbsError> {
    let manager = device.connection_manager();
    let channel = manager.create_channel()?;
    let id = manager.create_id(PortSpace::Tcp, QpType::Rc, &channel)?;
    id.bind(local).map(|()| id)
}

fn start_all(count: usize, part: &str, host: &Host, variables: &[(&str, &str)]) -> Vec<Process> {
    let mut processes: Vec<_> =
        (0..count).map(|_| host.start(part, &mut same_test(module_path!(), "play"), variables)).collect();
    for process in &mut processes {
        process.after("READY").unwrap();
    }
    for process in &mut processes {
        process.tell("go").unwrap();
    }
    processes
}

#[test]
fn a4_domain_never_has_two_creators_at_a_time() {
    let host = Host::new();
    let path = host.path("domain");
    File::create(&path).unwrap();
    let mut processes = start_all(8, "race", &host, &[(FILE, path.to_str().unwrap())]);
    let made = processes.iter_mut().map(|process| process.after("MADE ").unwrap().parse::<usize>().unwrap());
    assert!(made.sum::<usize>() >= 8);
}

#[test]
fn numbers_are_unique_across_16_processes() {
    let host = Host::new();
    let mut processes = start_all(16, "numbers", &host, &[]);
    let mut seen = HashSet::new();
    for process in &mut processes {
        let numbers = process.after("NUMBERS [").unwrap();
        for number in numbers.trim_end_matches(']').split(", ") {
            let number: u32 = number.parse().unwrap();
            assert!((2..0x00ff_ffff).contains(&number));
            assert!(seen.insert(number), "{number} was given twice");
        }
    }
    assert_eq!(seen.len(), 16 * 200);
    // The numbers of dead processes are not reused soon.
    processes.iter_mut().for_each(|process| process.kill().unwrap());
    let device = SoftDevice::open(host.options()).unwrap();
    assert!(numbers(&make_objects(&*device)).into_iter().all(|number| seen.insert(number)));
}

#[test]
fn cm_port_belongs_to_one_process() {
    let host = Host::new();
    let address = common::address();
    let fixed = SocketAddr::new(address, 7471).to_string();
    let mut process = start_all(1, "bind", &host, &[(LOCAL, &fixed)]).remove(0);
    process.after("BOUND ").unwrap();
    let device = SoftDevice::open(SoftOptions { addresses: vec![address], ..host.options() }).unwrap();
    let error = bind(&device, fixed.parse().unwrap()).unwrap_err();
    assert_eq!(error.errno(), VerbsError::AddressInUse("").errno(), "{error}");
    bind(&device, SocketAddr::new(address, 7472)).unwrap();
    process.kill().unwrap();
    bind(&device, fixed.parse().unwrap()).unwrap();

    let any = SocketAddr::new(address, 0).to_string();
    let mut processes = start_all(8, "bind", &host, &[(LOCAL, &any)]);
    let bound: HashSet<_> = processes.iter_mut().map(|process| process.after("BOUND ").unwrap()).collect();
    assert_eq!(bound.len(), 8, "{bound:?}");
}

#[test]
fn process_killed_at_any_point_leaves_no_state() {
    let host = Host::new();
    let path = host.path("domain");
    File::create(&path).unwrap();
    let address = common::address();
    let fixed = SocketAddr::new(address, 7473);
    let variables = [(FILE, path.to_str().unwrap()), (LOCAL, &fixed.to_string())];
    let device = SoftDevice::open(SoftOptions { addresses: vec![address], ..host.options() }).unwrap();
    for rounds in 0..24 {
        let mut process = start_all(1, "churn", &host, &variables).remove(0);
        for _ in 0..=rounds % 3 {
            process.after("ROUND ").unwrap();
        }
        // The process may be at any point of a change, with or without the lock.
        (0..rounds * 1_000).for_each(|_| std::hint::spin_loop());
        process.kill().unwrap();
        open(&*device, &path, BOTH).expect("the domain died with its holder").close().unwrap();
        bind(&device, fixed).expect("the port is free again");
        SoftDevice::open(host.options()).expect("the registry is whole");
    }
    let places = count_files(&host.namespace_directory(), "slot-");
    assert!(places <= 10, "{places} files for four devices at a time: the dead are not swept");
}

#[test]
fn members_before_and_after_removal_of_registry_are_separate() {
    let host = Host::new();
    let path = host.path("domain");
    File::create(&path).unwrap();
    let before = SoftDevice::open(host.options()).unwrap();
    let _held = open(&*before, &path, BOTH).unwrap();
    std::fs::remove_file(host.namespace_directory().join("registry")).unwrap();
    let after = SoftDevice::open(host.options()).unwrap();
    let _other = open(&*after, &path, BOTH).unwrap();
    make_objects(&*before);
    make_objects(&*after);
    assert_eq!(open(&*before, &path, BOTH).unwrap_err().errno(), 22);
}

#[test]
fn registry_of_another_version_is_refused() {
    let host = Host::new();
    drop(SoftDevice::open(host.options()).unwrap());
    let registry = host.namespace_directory().join("registry");
    for content in [&b"another version of it"[..], b""] {
        std::fs::write(&registry, content).unwrap();
        let opened = SoftDevice::open(host.options());
        if content.is_empty() {
            opened.unwrap();
        } else {
            let error = opened.unwrap_err();
            assert!(matches!(error, OpenError::Host(HostError::OtherVersion(_))), "{error}");
        }
    }
}
