//! Several processes at one address: each is reached, whoever holds port 4791, and whoever dies.
//!
//! The test starts itself again as the processes.

mod member;

use crate::common;
use crate::common::host::Host;
use crate::common::node::{Node, post};
use member::Orders;
use nix::sys::signal::Signal;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_roce::pcap::{Datagram, PcapReader};
use trunkline_roce::wire::icrc;
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{Process, same_test};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CompletionStatus, ConnectParameters, Device, EndpointRequest,
    EndpointSide, PortSpace, QpType, QueuePair, SendOperation,
};

/// How long anything may take on a loaded machine.
const BOUND: Duration = Duration::from_secs(120);

/// A process of the group. Without the variable, a test of its own that has nothing to do.
#[test]
fn member() {
    let Ok(text) = std::env::var(Orders::VARIABLE) else { return };
    member::run(Orders::from_text(&text));
}

/// Processes at one address, the first of which holds port 4791.
struct Group {
    orders: Orders,
    processes: Vec<Process>,
    /// Where each listens.
    ports: Vec<String>,
    /// Their runtime directory; removed at the end, after the processes.
    host: Host,
}

impl Group {
    fn start(address: IpAddr, messages: u32, victim: Option<usize>, faults: &str) -> Self {
        Self::start_if_free(address, messages, victim, faults)
            .unwrap_or_else(|why| panic!("{address}: {why}"))
    }

    /// As [`Self::start`]; the reason when a program outside the group holds port 4791 of the address.
    fn start_if_free(
        address: IpAddr,
        messages: u32,
        victim: Option<usize>,
        faults: &str,
    ) -> Result<Self, String> {
        let host = Host::new();
        let orders = Orders { index: 0, members: 3, address, messages, victim, faults: faults.to_owned() };
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

    /// Starts a process. Returns where it listens, or why it cannot.
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

    /// Starts another process in the place of the first, which has died, and joins it to the others.
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

    /// Waits until all that are left are done, lets them connect anew, and ends them.
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

    /// Ends all that are left. Answers what they counted.
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
    let mut group = Group::start(common::address(), 300, None, "");
    let counters = group.finish(true);
    // The holder handed on; the others got what they got from it, and nobody took anything over.
    assert!(counted(&counters[0], "relayed_to") > 0, "{counters:?}");
    for line in &counters[1..] {
        assert!(counted(line, "relayed_from") > 0, "{counters:?}");
        assert_eq!((counted(line, "took"), counted(line, "nonsense")), (0, 0), "{counters:?}");
    }
}

#[test]
fn with_faults_too() {
    let faults = "drop=0.02,duplicate=0.02,reorder=0.02,corrupt=0.01,seed=11";
    Group::start(common::address(), 150, None, faults).finish(true);
}

fn the_holder_dies(faults: &str) {
    let mut group = Group::start(common::address(), 400, Some(0), faults);
    let holder = group.processes.remove(0);
    for process in &mut group.processes {
        process.pick("HALF").unwrap();
    }
    holder.signal(Signal::SIGKILL);
    let killed = Instant::now();
    let taken = loop {
        if group.processes.iter_mut().any(|process| process.picked("TOOK").is_some()) {
            break killed.elapsed();
        }
        assert!(killed.elapsed() < BOUND, "nobody took over");
        std::thread::sleep(Duration::from_micros(200));
    };
    // 100 ms of a machine that does nothing else.
    assert!(taken < Duration::from_secs(2), "{taken:?}");
    println!("port 4791 was taken over after {taken:?}");
    let counters = group.finish(true);
    assert_eq!(counters.iter().map(|line| counted(line, "took")).sum::<u64>(), 1, "{counters:?}");
}

#[test]
fn when_the_holder_dies_under_load_the_others_lose_nothing() {
    the_holder_dies("");
}

#[test]
fn when_the_holder_dies_under_load_and_faults_the_others_lose_nothing() {
    the_holder_dies("drop=0.01,duplicate=0.01,reorder=0.01,seed=5");
}

/// The one that comes has the place of the dead one, so that connection messages for the dead reach it.
#[test]
fn another_process_takes_the_place_of_a_dead_one() {
    let mut group = Group::start(common::address(), 200, Some(0), "");
    let holder = group.processes.remove(0);
    for process in &mut group.processes {
        process.pick("HALF").unwrap();
    }
    holder.signal(Signal::SIGKILL);
    group.replace_the_first();
    group.end();
}

#[test]
fn a_holder_that_stands_still_does_not_hold_up_those_that_know_each_other() {
    let mut group = Group::start(common::address(), 400, Some(0), "");
    for process in &mut group.processes {
        process.pick("HALF").unwrap();
    }
    let holder = group.processes.remove(0);
    holder.signal(Signal::SIGSTOP);
    group.finish(false);
}

#[test]
fn ipv6_loopback_serves_several_processes_too() {
    let address: IpAddr = "::1".parse().unwrap();
    // Other tests and programs of this machine may hold the port. Nothing but the group's own attempt can
    // tell: a probe would be out of date at once, and in the way of others meanwhile.
    match Group::start_if_free(address, 100, None, "") {
        Ok(mut group) => drop(group.finish(true)),
        Err(why) if why.starts_with("IN-USE ") => eprintln!("SKIPPED: [::1]:4791: {why}"),
        Err(why) => panic!("{why}"),
    }
}

/// Devices of this process that share a runtime directory of their own.
fn devices(host: &Host, addresses: &[IpAddr], count: usize) -> Vec<Node> {
    let options = SoftOptions {
        addresses: addresses.to_vec(),
        runtime_directory: Some(host.runtime()),
        ..SoftOptions::default()
    };
    (0..count).map(|_| Node::open(options.clone(), 1 << 16)).collect()
}

fn cm_event(channel: &dyn CmChannel) -> CmEvent {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(event) = channel.next_event() {
            return event;
        }
        assert!(Instant::now() < until, "no event");
        std::thread::yield_now();
    }
}

/// Connects an INI of `near` to a TGT of `far`, listening at `listening`, by the connection manager.
fn connect_by_cm(
    near: &Node,
    far: &Node,
    listening: IpAddr,
    to: IpAddr,
) -> (Arc<dyn QueuePair>, Vec<Arc<dyn CmId>>) {
    let [near_channel, far_channel] =
        [near, far].map(|node| node.device.connection_manager().create_channel().unwrap());
    let endpoint = |node: &Node, side, qp_type, channel: &Arc<dyn CmChannel>| {
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        node.device.connection_manager().create_endpoint(&request, channel).unwrap()
    };
    let side = EndpointSide::Passive { local: SocketAddr::new(listening, 0) };
    let listener = endpoint(far, side, QpType::XrcTgt, &far_channel);
    listener.listen(4).unwrap();
    let remote = SocketAddr::new(to, listener.local_address().port());
    let id = endpoint(near, EndpointSide::Active { remote, source: None }, QpType::XrcIni, &near_channel);
    let (ini, tgt) = (near.qp(QpType::XrcIni), far.qp(QpType::XrcTgt));
    id.attach(Arc::clone(&ini)).unwrap();
    id.connect(&ConnectParameters { ack_timeout: 14, ..ConnectParameters::default() }).unwrap();
    let event = cm_event(&*far_channel);
    let CmEventKind::ConnectRequest { id: accepted, .. } = event.kind else { panic!("{event:?}") };
    accepted.attach(tgt).unwrap();
    accepted.accept(&ConnectParameters::default()).unwrap();
    let event = cm_event(&*near_channel);
    assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
    (ini, vec![listener, id, accepted])
}

/// Sends a message, both sides polling.
fn send(ini: &dyn QueuePair, near: &Node, far: &Node) {
    far.receive(1, 0, 64);
    post(ini, SendOperation::Send, &[near.sge(0, 64)], &*far.srq);
    assert_eq!(far.completion().status, CompletionStatus::Success);
    assert_eq!(near.completion().status, CompletionStatus::Success);
}

#[test]
fn a_holder_whose_program_never_polls_hands_on() {
    let (host, address) = (Host::new(), common::address());
    let nodes = devices(&host, &[address], 3);
    let channel = nodes[0].device.connection_manager().create_channel().unwrap();
    let side = EndpointSide::Passive { local: SocketAddr::new(address, 0) };
    let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
    let holder = nodes[0].device.connection_manager().create_endpoint(&request, &channel).unwrap();
    holder.listen(1).unwrap();
    // From here on nobody touches the first device but to read its counters.
    let (ini, _ids) = connect_by_cm(&nodes[1], &nodes[2], address, address);
    send(&*ini, &nodes[1], &nodes[2]);
    let handed_on = nodes[0].counter("relayed_to_members");
    // REQ, REP, RTU, the first packet; maybe some repeated.
    assert!(handed_on >= 4, "{handed_on}");
    for _ in 0..100 {
        send(&*ini, &nodes[1], &nodes[2]);
    }
    assert!(nodes[0].counter("relayed_to_members") < handed_on + 50, "later ones go straight");
}

#[test]
fn a_capture_shows_what_was_handed_on_at_its_receiver_with_port_4791() {
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
    let (_held, _ids) = connect_by_cm(&holder, &holder, address, address);
    let (ini, ids) = connect_by_cm(&near, &far, address, address);
    send(&*ini, &near, &far);
    // Its endpoints keep the device open, and an open device may still be appending a record.
    drop((ini, ids, far));
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
fn a_wildcard_listener_is_reached_at_every_address_that_others_hold() {
    let (host, addresses) = (Host::new(), [common::address(), common::address()]);
    let holder = devices(&host, &addresses, 1).remove(0);
    let held = addresses.map(|address| connect_by_cm(&holder, &holder, address, address));
    let nodes = devices(&host, &addresses, 2);
    for to in addresses {
        let (ini, _ids) = connect_by_cm(&nodes[0], &nodes[1], Ipv4Addr::UNSPECIFIED.into(), to);
        send(&*ini, &nodes[0], &nodes[1]);
    }
    assert!(holder.counter("relayed_to_members") >= 8);
    drop(held);
}
