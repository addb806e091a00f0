//! Several processes at one address: each is reachable, whichever holds port 4791 and whichever dies.
//!
//! The test starts itself again as the processes.

mod member;

use crate::common;
use crate::common::host::Host;
use crate::common::node::{Node, exchange, join, join_at};
use member::Orders;
use nix::sys::signal::Signal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use trunkline_roce::pcap::{Datagram, PcapReader};
use trunkline_roce::wire::icrc;
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_testkit::{Process, same_test};

/// Time limit of every wait, for a loaded machine.
const BOUND: Duration = Duration::from_secs(120);

/// Entry point of a process of the group. Without the variable it is a test that does nothing.
#[test]
fn member() {
    let Ok(text) = std::env::var(Orders::VARIABLE) else { return };
    member::run(Orders::from_text(&text));
}

/// Processes at one address, the first of which holds port 4791.
struct Group {
    orders: Orders,
    processes: Vec<Process>,
    /// Ports on which each process listens.
    ports: Vec<String>,
    /// Runtime directory of the processes; removed at the end, after them.
    host: Host,
}

impl Group {
    fn start(address: IpAddr, messages: u32, victim: Option<usize>) -> Self {
        Self::start_if_free(address, messages, victim).unwrap_or_else(|why| panic!("{address}: {why}"))
    }

    /// Like [`Self::start`], but returns the reason if a program outside the group holds port 4791 of the
    /// address.
    fn start_if_free(address: IpAddr, messages: u32, victim: Option<usize>) -> Result<Self, String> {
        let host = Host::new();
        let orders = Orders { index: 0, members: 3, address, messages, victim };
        let mut group = Self { orders, processes: Vec::new(), ports: Vec::new(), host };
        for index in 0..group.orders.members {
            // In this order, so that the first is the holder.
            let (process, ports) = group.process(index)?;
            group.processes.push(process);
            group.ports.push(ports);
        }
        let ports = group.ports.join(" ");
        for process in &mut group.processes {
            process.tell(&format!("PEERS {ports}")).unwrap();
        }
        Ok(group)
    }

    /// Starts a process. Returns its ports, or the reason why it cannot listen.
    fn process(&mut self, index: usize) -> Result<(Process, String), String> {
        self.orders.index = index;
        let mut command = same_test(module_path!(), "member");
        command
            .env(Orders::VARIABLE, self.orders.to_text())
            .env("TRUNKLINE_RUNTIME_DIR", self.host.runtime());
        let mut process = Process::start(format!("member {index}"), &mut command).unwrap().with_bound(BOUND);
        let is_start = |line: &str| line.starts_with("READY ") || line.starts_with("IN-USE ");
        let line = process.find(BOUND, is_start).ok_or("it neither listens nor reports why not")?;
        let ports = line.strip_prefix("READY ").ok_or_else(|| line.clone())?;
        Ok((process, ports.to_owned()))
    }

    /// Starts another process to replace the first, which has died, and connects it to the others.
    fn replace_the_first(&mut self) {
        for process in &mut self.processes {
            process.pick("DONE").unwrap();
        }
        self.orders.victim = None;
        let (mut process, ports) = self.process(0).unwrap();
        self.ports[0] = ports;
        let ports = self.ports.join(" ");
        for process in &mut self.processes {
            process.tell(&format!("AGAIN {ports}")).unwrap();
        }
        for process in &mut self.processes {
            process.pick("ON").unwrap();
        }
        process.tell(&format!("PEERS {ports}")).unwrap();
        process.pick("DONE").unwrap();
        self.processes.push(process);
        for process in &mut self.processes[..2] {
            process.pick("AGAIN-DONE").unwrap();
        }
    }

    /// Waits until all remaining processes are done, makes them connect again, and ends them.
    fn finish(&mut self, again: bool) -> Vec<String> {
        for process in &mut self.processes {
            process.pick("DONE").unwrap();
        }
        if again {
            let command = format!("AGAIN {}", self.ports.join(" "));
            for process in &mut self.processes {
                process.tell(&command).unwrap();
            }
            for process in &mut self.processes {
                process.pick("AGAIN-DONE").unwrap();
            }
        }
        self.end()
    }

    /// Ends all remaining processes and returns their counters.
    fn end(&mut self) -> Vec<String> {
        let mut counters = Vec::new();
        for process in &mut self.processes {
            process.tell("QUIT").unwrap();
            counters.push(process.pick("ENDED ").unwrap());
        }
        for process in std::mem::take(&mut self.processes) {
            process.finish().unwrap();
        }
        counters
    }
}

fn counted(line: &str, name: &str) -> u64 {
    let start = format!("{name}=");
    line.split(' ').find_map(|word| word.strip_prefix(&start)).unwrap().parse().unwrap()
}

#[test]
fn three_processes_talk_all_to_all_and_connect_again() {
    let mut group = Group::start(common::address(), 300, None);
    let counters = group.finish(true);
    // The holder forwarded datagrams and the others received them; no process took the port over.
    assert!(counted(&counters[0], "relayed_to") > 0, "{counters:?}");
    for line in &counters[1..] {
        assert!(counted(line, "relayed_from") > 0, "{counters:?}");
        assert_eq!((counted(line, "took"), counted(line, "nonsense")), (0, 0), "{counters:?}");
    }
}

/// The new process gets the slot of the dead one, so it receives connection messages for the dead one.
#[test]
fn a_new_process_can_replace_a_dead_one() {
    let mut group = Group::start(common::address(), 200, Some(0));
    let holder = group.processes.remove(0);
    for process in &mut group.processes {
        process.pick("HALF").unwrap();
    }
    holder.signal(Signal::SIGKILL);
    group.replace_the_first();
    group.end();
}

#[test]
fn a_stopped_holder_does_not_delay_connected_processes() {
    let mut group = Group::start(common::address(), 400, Some(0));
    for process in &mut group.processes {
        process.pick("HALF").unwrap();
    }
    let holder = group.processes.remove(0);
    holder.signal(Signal::SIGSTOP);
    group.finish(false);
}

#[test]
fn several_processes_share_the_ipv6_loopback() {
    let address: IpAddr = "::1".parse().unwrap();
    // Other tests and programs of this machine may hold the port. Only the group's own attempt can find
    // out: a probe would be out of date at once, and would block others meanwhile.
    match Group::start_if_free(address, 100, None) {
        Ok(mut group) => drop(group.finish(true)),
        Err(why) if why.starts_with("IN-USE ") => eprintln!("SKIPPED: [::1]:4791: {why}"),
        Err(why) => panic!("{why}"),
    }
}

/// Opens devices of this process that share a separate runtime directory.
fn devices(host: &Host, addresses: &[IpAddr], count: usize) -> Vec<Node> {
    let options = SoftOptions {
        addresses: addresses.to_vec(),
        runtime_directory: Some(host.runtime()),
        path: PathChoice::Udp,
        ..SoftOptions::default()
    };
    (0..count).map(|_| Node::open(options.clone(), 1 << 16)).collect()
}

#[test]
fn a_holder_whose_program_never_polls_forwards_datagrams() {
    let (host, address) = (Host::new(), common::address());
    let nodes = devices(&host, &[address], 3);
    let channel = nodes[0].cm_channel();
    let _holder = nodes[0].listen(SocketAddr::new(address, 0), &channel).unwrap();
    // From here on the first device is used only to read its counters.
    let joined = join(&nodes[1], &nodes[2]);
    exchange(&*joined.ini, &nodes[1], &nodes[2], 64);
    let handed_on = nodes[0].counter("relayed_to_members");
    // REQ, REP, RTU and the first packet, some of which may be repeated.
    assert!(handed_on >= 4, "{handed_on}");
    for _ in 0..100 {
        exchange(&*joined.ini, &nodes[1], &nodes[2], 64);
    }
    assert!(nodes[0].counter("relayed_to_members") < handed_on + 50, "later ones go straight");
}

#[test]
fn a_capture_of_the_receiver_has_forwarded_datagrams_with_port_4791() {
    let (host, address) = (Host::new(), common::address());
    let holder = devices(&host, &[address], 1).remove(0);
    let file = host.path("capture.pcap");
    let near = devices(&host, &[address], 1).remove(0);
    let far = Node::open(
        SoftOptions {
            addresses: vec![address],
            runtime_directory: Some(host.runtime()),
            capture: Some(file.clone()),
            ..SoftOptions::default()
        },
        1 << 16,
    );
    // Takes port 4791.
    let _held = join(&holder, &holder);
    let joined = join(&near, &far);
    exchange(&*joined.ini, &near, &far, 64);
    // Its endpoints keep the device open, and an open device may still be appending a record.
    drop((joined, far));
    let bytes = std::fs::read(&file).unwrap();
    let _gone = std::fs::remove_file(&file);
    let mut reader = PcapReader::new(&*bytes).unwrap();
    let mut kinds = Vec::new();
    while let Some(frame) = reader.next_frame().unwrap() {
        let datagram = Datagram::from_frame(&frame).unwrap();
        assert!(icrc::check(&datagram.headers, datagram.payload), "as its sender made it");
        let ports = (datagram.headers.source.port(), datagram.headers.destination.port());
        kinds.push((datagram.payload[0], ports));
    }
    const UD_SEND_ONLY: u8 = 0x64;
    const XRC_SEND_ONLY: u8 = 0xa4;
    for opcode in [UD_SEND_ONLY, XRC_SEND_ONLY] {
        let received = kinds.iter().any(|(of, (from, to))| *of == opcode && *from != 4791 && *to == 4791);
        assert!(received, "{opcode:#x} in {kinds:x?}");
    }
}

#[test]
fn a_wildcard_listener_is_reachable_at_every_address_held_by_others() {
    let (host, addresses) = (Host::new(), [common::address(), common::address()]);
    let holder = devices(&host, &addresses, 1).remove(0);
    let held = addresses.map(|address| join_at(&holder, &holder, address, address));
    let nodes = devices(&host, &addresses, 2);
    for to in addresses {
        let joined = join_at(&nodes[0], &nodes[1], Ipv4Addr::UNSPECIFIED.into(), to);
        exchange(&*joined.ini, &nodes[0], &nodes[1], 64);
    }
    assert!(holder.counter("relayed_to_members") >= 8);
    drop(held);
}
