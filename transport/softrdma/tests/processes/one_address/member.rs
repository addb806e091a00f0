//! One process of several at an address: it connects to each of the others, over RC and over XRC,
//! sends to all and checks what comes.
//!
//! ```text
//! it says      READY rc-port xrc-port, or IN-USE reason and no more | HALF | TOOK micros | DONE | AGAIN-DONE | ENDED counters
//! it is told   PEERS rc-port xrc-port ... | AGAIN rc-port xrc-port ... | QUIT
//! ```

use crate::common::node::{BOUND, Node};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::SoftOptions;
use trunkline_testkit::{Input, NextLine, print_line};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, Completion, CompletionOpcode, CompletionStatus,
    ConnectParameters, Device, EndpointRequest, EndpointSide, PortSpace, QpInit, QpModify, QpNumber, QpType,
    QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
    VerbsError,
};

/// Bytes of the longest message, of several packets.
const ROOM: usize = 8192;
/// Receives of an RC QP; the SRQ has [`SRQ_DEPTH`].
const DEPTH: usize = 32;
const SRQ_DEPTH: usize = 256;
/// Messages on the way from one QP; so that RNR is rare.
const WINDOW: u32 = 16;

/// What the test says to a process that it starts.
pub(crate) struct Orders {
    pub(crate) index: usize,
    pub(crate) members: usize,
    pub(crate) address: IpAddr,
    pub(crate) messages: u32,
    /// The member that will be killed or stopped: its silence is no failure.
    pub(crate) victim: Option<usize>,
    pub(crate) faults: String,
}

impl Orders {
    pub(crate) const VARIABLE: &str = "TRUNKLINE_TEST_ONE_ADDRESS";

    pub(crate) fn to_text(&self) -> String {
        let victim = self.victim.map_or(-1, |victim| i64::try_from(victim).unwrap());
        let Self { index, members, address, messages, faults, .. } = self;
        format!("{index} {members} {address} {messages} {victim} {faults}")
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let mut words = text.splitn(6, ' ');
        let mut next = || words.next().unwrap();
        Self {
            index: next().parse().unwrap(),
            members: next().parse().unwrap(),
            address: next().parse().unwrap(),
            messages: next().parse().unwrap(),
            victim: next().parse().ok(),
            faults: next().to_owned(),
        }
    }
}

/// A way to a peer.
struct Outlet {
    peer: usize,
    qp: Arc<dyn QueuePair>,
    /// What the peer said when it accepted.
    srq: Option<SrqNumber>,
    sent: u32,
    acknowledged: u32,
    total: u32,
    failed: bool,
    /// Its peer is dead.
    excused: bool,
    id: Option<Arc<dyn CmId>>,
}

/// A way from a peer.
struct Inlet {
    peer: usize,
    qp: Arc<dyn QueuePair>,
    next: u32,
    excused: bool,
    _id: Arc<dyn CmId>,
}

struct Member {
    orders: Orders,
    node: Node,
    events: Arc<dyn CmChannel>,
    outlets: Vec<Outlet>,
    by_id: HashMap<CmIdNumber, usize>,
    inlets: HashMap<QpNumber, Inlet>,
    /// Places in memory: for receives of RC QPs to come, and where those for sends begin.
    next_place: usize,
    send_places: usize,
    received: u32,
    said_took: bool,
    /// All is sent and received; who leaves now flushes the receives of the others.
    is_over: bool,
    started: Instant,
}

/// The process. Ends when its input does.
pub(crate) fn run(orders: Orders) {
    let commands = Input::open();
    let options = SoftOptions {
        addresses: vec![orders.address],
        faults: Some(orders.faults.as_str())
            .filter(|text| !text.is_empty())
            .map(|text| text.parse().unwrap()),
        ..SoftOptions::default()
    };
    // Twice connected, over RC and XRC.
    let send_places = 1 + SRQ_DEPTH + 2 * DEPTH * orders.members;
    let node = Node::open(options, ROOM * (send_places + 4 * WINDOW as usize * orders.members));
    for place in 1..=SRQ_DEPTH {
        node.receive(place as u64, place * ROOM, u32::try_from(ROOM).unwrap());
    }
    let manager = node.device.connection_manager();
    let events = manager.create_channel().unwrap();
    let listen = |qp_type| {
        let side = EndpointSide::Passive { local: SocketAddr::new(orders.address, 0) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let listener = manager.create_endpoint(&request, &events)?;
        listener.listen(16)?;
        Ok(listener)
    };
    let listeners = match [listen(QpType::Rc), listen(QpType::XrcTgt)] {
        [Ok(rc), Ok(xrc)] => [rc, xrc],
        [Err(VerbsError::AddressInUse(why)), _] => return print_line(&format!("IN-USE {why}")),
        others => panic!("{others:?}"),
    };
    let [rc, xrc] = [0, 1].map(|index: usize| listeners[index].local_address().port());
    let mut member = Member {
        orders,
        node,
        events,
        outlets: Vec::new(),
        by_id: HashMap::new(),
        inlets: HashMap::new(),
        next_place: 1 + SRQ_DEPTH,
        send_places,
        received: 0,
        said_took: false,
        is_over: false,
        started: Instant::now(),
    };
    print_line(&format!("READY {rc} {xrc}"));
    let peers = member.wait_for(&commands, |command| command.strip_prefix("PEERS ").map(str::to_owned));
    let Some(peers) = peers else { return };
    member.connect_all(&peers, None);
    member.exchange(&commands, true);
    print_line("DONE");
    let again = |command: &str| {
        let ports = command.strip_prefix("AGAIN ").map(|ports| Some(ports.to_owned()));
        ports.or((command == "QUIT").then_some(None))
    };
    if let Some(Some(ports)) = member.wait_for(&commands, again) {
        // In place of the victim there may be another process now.
        let dead = member.orders.victim.filter(|_| ports == peers);
        member.forget_the_victim();
        member.connect_all(&ports, dead);
        print_line("ON");
        member.exchange(&commands, false);
        print_line("AGAIN-DONE");
        member.wait_for(&commands, |command| (command == "QUIT").then_some(()));
    }
    let counter = |name| member.node.counter(name);
    print_line(&format!(
        "ENDED relayed_to={} relayed_from={} took={} nonsense={}",
        counter("relayed_to_members"),
        counter("relayed_from_members"),
        counter("port_taken_over"),
        counter("drop_relayed_nonsense"),
    ));
    // Until its input ends, so that all have counted before the first leaves.
    member.wait_for(&commands, |_| None::<()>);
}

impl Member {
    /// Goes on working until a command comes that is wanted; `None` when no more can come.
    fn wait_for<T>(&mut self, commands: &Input, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        loop {
            match commands.next_line() {
                NextLine::Line(command) => {
                    if let Some(found) = wanted(&command) {
                        return Some(found);
                    }
                }
                NextLine::NotYet => {}
                NextLine::End => return None,
            }
            if !self.step() {
                // Whether it polls or not, the card works.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// The ways to the victim are closed; from now on nobody's silence is excused.
    fn forget_the_victim(&mut self) {
        let Some(victim) = self.orders.victim.take() else { return };
        for outlet in self.outlets.iter_mut().filter(|outlet| outlet.peer == victim) {
            outlet.excused = true;
            // Says goodbye to whoever has the place of the dead one now.
            outlet.id = None;
        }
        for inlet in self.inlets.values_mut().filter(|inlet| inlet.peer == victim) {
            inlet.excused = true;
        }
    }

    fn connect_all(&mut self, ports: &str, without: Option<usize>) {
        let ports: Vec<u16> = ports.split(' ').map(|port| port.parse().unwrap()).collect();
        for peer in
            (0..self.orders.members).filter(|peer| *peer != self.orders.index && Some(*peer) != without)
        {
            for (kind, qp_type) in [(0, QpType::Rc), (1, QpType::XrcIni)] {
                let remote = SocketAddr::new(self.orders.address, ports[2 * peer + kind]);
                let side = EndpointSide::Active { remote, source: None };
                let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
                let id =
                    self.node.device.connection_manager().create_endpoint(&request, &self.events).unwrap();
                let qp = if kind == 0 { self.rc() } else { self.node.qp(qp_type) };
                id.attach(Arc::clone(&qp)).unwrap();
                let index = u8::try_from(self.orders.index).unwrap();
                let private_data = vec![index, u8::try_from(kind).unwrap()];
                // 67 ms.
                let parameters =
                    ConnectParameters { private_data, ack_timeout: 14, ..ConnectParameters::default() };
                id.connect(&parameters).unwrap();
                self.by_id.insert(id.number(), self.outlets.len());
                let total = self.orders.messages;
                let outlet = Outlet {
                    peer,
                    qp,
                    srq: None,
                    sent: 0,
                    acknowledged: 0,
                    total,
                    failed: false,
                    excused: false,
                    id: Some(id),
                };
                self.outlets.push(outlet);
            }
        }
    }

    fn rc(&self) -> Arc<dyn QueuePair> {
        let capacities = QueueCapacities {
            max_send_wr: 64,
            max_send_sge: 1,
            max_receive_wr: u32::try_from(DEPTH).unwrap(),
            max_receive_sge: 1,
            ..QueueCapacities::default()
        };
        let node = &self.node;
        let init = QpInit {
            pd: Some(Arc::clone(&node.pd)),
            send_cq: Some(Arc::clone(&node.cq)),
            receive_cq: Some(Arc::clone(&node.cq)),
            capacities,
            ..QpInit::new(QpType::Rc)
        };
        node.device.create_qp(init).unwrap()
    }

    /// Sends everything, and receives everything that others send. With `says_half` it reports HALF on the
    /// way, and ends only after that: the test waits for it before it kills the victim. A victim that is
    /// slow to accept would otherwise be excused before this member knows it.
    fn exchange(&mut self, commands: &Input, says_half: bool) {
        self.is_over = false;
        let mut said_half = !says_half;
        let others = u32::try_from(self.orders.members - 1).unwrap();
        let all = 2 * others * self.orders.messages;
        let mut until = Instant::now() + 3 * BOUND;
        while !(said_half && self.is_finished()) {
            let busy = self.step();
            if busy {
                until = Instant::now() + 3 * BOUND;
            } else {
                std::thread::yield_now();
            }
            let knows_all = self.outlets.iter().all(|outlet| outlet.acknowledged > 0);
            if !said_half && knows_all && self.received >= all / 2 {
                said_half = true;
                print_line("HALF");
            }
            if Instant::now() > until {
                panic!("{}: {}", self.orders.index, self.report());
            }
            assert_ne!(commands.next_line(), NextLine::End, "the test has ended");
        }
        self.is_over = true;
    }

    fn is_victim(&self, peer: usize) -> bool {
        self.orders.victim == Some(peer)
    }

    fn is_excused(&self, outlet: &Outlet) -> bool {
        outlet.excused || self.is_victim(outlet.peer)
    }

    fn is_finished(&self) -> bool {
        let sent = |outlet: &Outlet| outlet.acknowledged == outlet.total || self.is_excused(outlet);
        let total = self.orders.messages;
        let arrived = |inlet: &&Inlet| inlet.next == total && !inlet.excused && !self.is_victim(inlet.peer);
        let wanted = self.outlets.iter().filter(|outlet| !self.is_excused(outlet)).count();
        self.outlets.iter().all(sent) && self.inlets.values().filter(arrived).count() >= wanted
    }

    fn report(&self) -> String {
        let out: Vec<_> = self
            .outlets
            .iter()
            .map(|outlet| (outlet.peer, outlet.sent, outlet.acknowledged, outlet.failed))
            .collect();
        let within: Vec<_> = self.inlets.values().map(|inlet| (inlet.peer, inlet.next)).collect();
        let counters: Vec<_> =
            self.node.device_counters().into_iter().filter(|counter| counter.value > 0).collect();
        format!("out {out:?} in {within:?} {counters:#?}")
    }

    /// Does what there is to do; whether there was anything.
    fn step(&mut self) -> bool {
        let mut busy = false;
        while let Some(event) = self.events.next_event() {
            self.handle(event);
            busy = true;
        }
        let mut some = [Completion::default(); 32];
        let count = self.node.cq.poll(&mut some);
        for completion in &some[..count] {
            if completion.opcode == CompletionOpcode::Receive
                && completion.status == CompletionStatus::Success
            {
                self.take(completion);
            } else {
                self.sent(completion);
            }
        }
        for index in 0..self.outlets.len() {
            busy |= self.send(index);
        }
        if !self.said_took && self.node.counter("port_taken_over") > 0 {
            self.said_took = true;
            print_line(&format!("TOOK {}", self.started.elapsed().as_micros()));
        }
        busy || count > 0
    }

    fn handle(&mut self, event: CmEvent) {
        match event.kind {
            CmEventKind::ConnectRequest { id, parameters } => self.accept(id, &parameters.private_data),
            CmEventKind::Established => {
                let Some(index) = self.by_id.get(&event.id) else { return };
                let bytes: [u8; 4] = event.private_data[..4].try_into().unwrap();
                self.outlets[*index].srq = Some(SrqNumber::new(u32::from_be_bytes(bytes)));
            }
            CmEventKind::TimewaitExit | CmEventKind::Disconnected { .. } => {}
            other => {
                let outlet = self.by_id.get(&event.id).map(|index| &self.outlets[*index]);
                let excused = outlet.is_none_or(|outlet| self.is_excused(outlet));
                assert!(excused, "{}: {other:?}, {}", self.orders.index, self.report());
            }
        }
    }

    fn accept(&mut self, id: Arc<dyn CmId>, private_data: &[u8]) {
        let (peer, is_xrc) = (usize::from(private_data[0]), private_data[1] == 1);
        let qp = if is_xrc { self.node.qp(QpType::XrcTgt) } else { self.rc() };
        id.attach(Arc::clone(&qp)).unwrap();
        let inlet = Inlet { peer, qp: Arc::clone(&qp), next: 0, excused: false, _id: Arc::clone(&id) };
        if !is_xrc {
            for _ in 0..DEPTH {
                self.repost(&*qp, self.next_place);
                self.next_place += 1;
            }
        }
        self.inlets.insert(qp.number(), inlet);
        let srq = self.node.srq.number().unwrap();
        let private_data = srq.get().to_be_bytes().to_vec();
        id.accept(&ConnectParameters { private_data, ..ConnectParameters::default() }).unwrap();
        // The connection manager leaves 655 ms there (contract J12).
        qp.modify(&QpModify { min_rnr_timer: Some(8), ..QpModify::default() }).unwrap();
    }

    fn repost(&self, qp: &dyn QueuePair, place: usize) {
        let scatter = [self.node.sge(place * ROOM, u32::try_from(ROOM).unwrap())];
        qp.post_receive(&[ReceiveRequest { wr_id: place as u64, scatter: &scatter }]).unwrap();
    }

    /// A message: it must be the next of its sender, and whole.
    fn take(&mut self, completion: &Completion) {
        let place = usize::try_from(completion.wr_id).unwrap();
        let inlet = self.inlets.get_mut(&completion.qp_number).expect("a QP of ours");
        assert_eq!(completion.immediate, inlet.next, "from {}", inlet.peer);
        let expected = message(inlet.peer, self.orders.index, inlet.next);
        assert_eq!(completion.byte_length as usize, expected.len());
        let mut bytes = vec![0; expected.len()];
        self.node.memory.read(place * ROOM, &mut bytes).unwrap();
        assert!(bytes == expected, "message {} of {} is not what was sent", inlet.next, inlet.peer);
        inlet.next += 1;
        self.received += 1;
        if place <= SRQ_DEPTH {
            self.node.receive(place as u64, place * ROOM, u32::try_from(ROOM).unwrap());
        } else {
            let qp = Arc::clone(&inlet.qp);
            self.repost(&*qp, place);
        }
    }

    fn sent(&mut self, completion: &Completion) {
        if self.is_over && completion.status == CompletionStatus::WorkRequestFlushed {
            return;
        }
        let Some(outlet) = self.outlets.iter_mut().find(|outlet| outlet.qp.number() == completion.qp_number)
        else {
            let inlet = &self.inlets[&completion.qp_number];
            assert!(inlet.excused || self.is_victim(inlet.peer), "{}: {completion:?}", self.orders.index);
            return;
        };
        if completion.status == CompletionStatus::Success {
            assert_eq!(completion.wr_id, u64::from(outlet.acknowledged));
            outlet.acknowledged += 1;
        } else {
            outlet.failed = true;
            let (peer, excused) = (outlet.peer, outlet.excused || self.orders.victim == Some(outlet.peer));
            assert!(excused, "{}: {completion:?} to {peer}, {}", self.orders.index, self.report());
        }
    }

    fn send(&mut self, index: usize) -> bool {
        let me = self.orders.index;
        let node = &self.node;
        let outlet = &mut self.outlets[index];
        let Some(srq) = outlet.srq.filter(|_| !outlet.failed) else { return false };
        let mut busy = false;
        while outlet.sent < outlet.total && outlet.sent - outlet.acknowledged < WINDOW {
            let bytes = message(me, outlet.peer, outlet.sent);
            // Not to be touched before it is acknowledged: each outlet has places of its own.
            let place = index * WINDOW as usize + (outlet.sent % WINDOW) as usize;
            let at = (self.send_places + place) * ROOM;
            node.memory.write(at, &bytes).unwrap();
            let gather = [node.sge(at, u32::try_from(bytes.len()).unwrap())];
            let request = SendRequest {
                wr_id: u64::from(outlet.sent),
                operation: SendOperation::SendWithImmediate(outlet.sent),
                data: SendData::Gather(&gather),
                flags: SendFlags::SIGNALED,
                remote_srq: srq,
            };
            if outlet.qp.post_send(&[request]).is_err() {
                outlet.failed = true;
                break;
            }
            outlet.sent += 1;
            busy = true;
        }
        busy
    }
}

/// What member `from` sends to member `to` as its message `number`.
fn message(from: usize, to: usize, number: u32) -> Vec<u8> {
    let length = [40, 1000, 3000, 6001][number as usize % 4] + from;
    let seed = number.wrapping_mul(0x9e37_79b9) ^ u32::try_from(from * 16 + to).unwrap();
    (0..length)
        .map(|at| seed.wrapping_add(u32::try_from(at).unwrap().wrapping_mul(31)).to_le_bytes()[1])
        .collect()
}
