//! One of several processes at an address: it connects to each of the others, over RC and over XRC, sends to
//! all of them and checks the messages that it receives.
//!
//! ```text
//! output       READY rc-port xrc-port, or IN-USE reason and no more | HALF | DONE | AGAIN-DONE | ENDED counters
//! input        PEERS rc-port xrc-port ... | AGAIN rc-port xrc-port ... | QUIT
//! ```

use crate::common::node::{BOUND, Node};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_testkit::{Input, NextLine, print_line};
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CmIdNumber, Completion, CompletionOpcode, CompletionStatus,
    ConnectParameters, Device, EndpointRequest, EndpointSide, PortSpace, QpInit, QpModify, QpNumber, QpType,
    QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
    VerbsError,
};

/// Length of the longest message in bytes, which takes several packets.
const ROOM: usize = 8192;
/// Number of receives of an RC QP. The SRQ has [`SRQ_DEPTH`].
const DEPTH: usize = 32;
const SRQ_DEPTH: usize = 256;
/// Number of outstanding messages of a QP, small enough that RNR is rare.
const WINDOW: u32 = 16;

/// Parameters that the test passes to a process.
pub(crate) struct Orders {
    pub(crate) index: usize,
    pub(crate) members: usize,
    pub(crate) address: IpAddr,
    pub(crate) messages: u32,
    /// Member that will be killed or stopped. Its silence is not a failure.
    pub(crate) victim: Option<usize>,
}

impl Orders {
    pub(crate) const VARIABLE: &str = "TRUNKLINE_TEST_ONE_ADDRESS";

    pub(crate) fn to_text(&self) -> String {
        let victim = self.victim.map_or(-1, |victim| i64::try_from(victim).unwrap());
        let Self { index, members, address, messages, .. } = self;
        format!("{index} {members} {address} {messages} {victim}")
    }

    pub(crate) fn from_text(text: &str) -> Self {
        let mut words = text.split(' ');
        let mut next = || words.next().unwrap();
        Self {
            index: next().parse().unwrap(),
            members: next().parse().unwrap(),
            address: next().parse().unwrap(),
            messages: next().parse().unwrap(),
            victim: next().parse().ok(),
        }
    }
}

/// The sending connection to a peer.
struct SendConnection {
    peer: usize,
    qp: Arc<dyn QueuePair>,
    /// The SRQ number from the peer's reply.
    srq: Option<SrqNumber>,
    sent: u32,
    acknowledged: u32,
    total: u32,
    failed: bool,
    /// True if the peer is dead, so failures are expected.
    excused: bool,
    id: Option<Arc<dyn CmId>>,
}

/// The receiving connection from a peer.
struct ReceiveConnection {
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
    senders: Vec<SendConnection>,
    by_id: BTreeMap<CmIdNumber, usize>,
    receivers: BTreeMap<QpNumber, ReceiveConnection>,
    /// Next free slot of memory for receives of RC QPs. The slots for sends follow those for receives.
    next_place: usize,
    send_places: usize,
    received: u32,
    /// True once all messages were sent and received. A process that exits then flushes the receives of the
    /// others.
    is_over: bool,
}

/// Runs the process until its input ends.
pub(crate) fn run(orders: Orders) {
    let commands = Input::open();
    let options = SoftOptions {
        addresses: vec![orders.address],
        // These tests are about traffic through the holder of port 4791.
        path: PathChoice::Udp,
        ..SoftOptions::default()
    };
    // Each pair is connected twice, over RC and XRC.
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
        senders: Vec::new(),
        by_id: BTreeMap::new(),
        receivers: BTreeMap::new(),
        next_place: 1 + SRQ_DEPTH,
        send_places,
        received: 0,
        is_over: false,
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
        // Another process may have replaced the victim by now.
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
    // Waits for the end of the input, so that all have reported before the first exits.
    member.wait_for(&commands, |_| None::<()>);
}

impl Member {
    /// Works until a wanted command arrives; `None` at the end of the input.
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
                // The device makes progress whether or not this process polls.
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// Closes the connections to the victim. From then on no member may be silent.
    fn forget_the_victim(&mut self) {
        let Some(victim) = self.orders.victim.take() else { return };
        for sender in self.senders.iter_mut().filter(|sender| sender.peer == victim) {
            sender.excused = true;
            // This sends a DREQ, which the process that has replaced the victim receives.
            sender.id = None;
        }
        for receiver in self.receivers.values_mut().filter(|receiver| receiver.peer == victim) {
            receiver.excused = true;
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
                // 4.096 us * 2^14 = 67 ms.
                let parameters =
                    ConnectParameters { private_data, ack_timeout: 14, ..ConnectParameters::default() };
                id.connect(&parameters).unwrap();
                self.by_id.insert(id.number(), self.senders.len());
                let total = self.orders.messages;
                let sender = SendConnection {
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
                self.senders.push(sender);
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

    /// Sends all messages and receives all messages of the others. With `reports_half` it prints HALF after
    /// half of them and returns only after that: the test waits for that line before it kills the victim. A
    /// victim that is slow to accept would otherwise be excused before this member has connected to it.
    fn exchange(&mut self, commands: &Input, reports_half: bool) {
        self.is_over = false;
        let mut has_reported_half = !reports_half;
        let others = u32::try_from(self.orders.members - 1).unwrap();
        let all = 2 * others * self.orders.messages;
        let mut until = Instant::now() + 3 * BOUND;
        while !(has_reported_half && self.is_finished()) {
            let busy = self.step();
            if busy {
                until = Instant::now() + 3 * BOUND;
            } else {
                std::thread::yield_now();
            }
            let knows_all = self.senders.iter().all(|sender| sender.acknowledged > 0);
            if !has_reported_half && knows_all && self.received >= all / 2 {
                has_reported_half = true;
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

    fn is_excused(&self, sender: &SendConnection) -> bool {
        sender.excused || self.is_victim(sender.peer)
    }

    fn is_finished(&self) -> bool {
        let sent = |sender: &SendConnection| sender.acknowledged == sender.total || self.is_excused(sender);
        let total = self.orders.messages;
        let arrived = |receiver: &&ReceiveConnection| {
            receiver.next == total && !receiver.excused && !self.is_victim(receiver.peer)
        };
        let wanted = self.senders.iter().filter(|sender| !self.is_excused(sender)).count();
        self.senders.iter().all(sent) && self.receivers.values().filter(arrived).count() >= wanted
    }

    fn report(&self) -> String {
        let out: Vec<_> = self
            .senders
            .iter()
            .map(|sender| (sender.peer, sender.sent, sender.acknowledged, sender.failed))
            .collect();
        let within: Vec<_> = self.receivers.values().map(|receiver| (receiver.peer, receiver.next)).collect();
        let counters: Vec<_> =
            self.node.device_counters().into_iter().filter(|counter| counter.value > 0).collect();
        format!("out {out:?} in {within:?} {counters:#?}")
    }

    /// Does one round of work. Returns true if there was any.
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
        for index in 0..self.senders.len() {
            busy |= self.send(index);
        }
        busy || count > 0
    }

    fn handle(&mut self, event: CmEvent) {
        match event.kind {
            CmEventKind::ConnectRequest { id, parameters } => self.accept(id, &parameters.private_data),
            CmEventKind::Established => {
                let Some(index) = self.by_id.get(&event.id) else { return };
                let bytes: [u8; 4] = event.private_data[..4].try_into().unwrap();
                self.senders[*index].srq = Some(SrqNumber::new(u32::from_be_bytes(bytes)));
            }
            CmEventKind::TimewaitExit | CmEventKind::Disconnected { .. } => {}
            other => {
                let sender = self.by_id.get(&event.id).map(|index| &self.senders[*index]);
                let excused = sender.is_none_or(|sender| self.is_excused(sender));
                assert!(excused, "{}: {other:?}, {}", self.orders.index, self.report());
            }
        }
    }

    fn accept(&mut self, id: Arc<dyn CmId>, private_data: &[u8]) {
        let (peer, is_xrc) = (usize::from(private_data[0]), private_data[1] == 1);
        let qp = if is_xrc { self.node.qp(QpType::XrcTgt) } else { self.rc() };
        id.attach(Arc::clone(&qp)).unwrap();
        let receiver =
            ReceiveConnection { peer, qp: Arc::clone(&qp), next: 0, excused: false, _id: Arc::clone(&id) };
        if !is_xrc {
            for _ in 0..DEPTH {
                self.repost(&*qp, self.next_place);
                self.next_place += 1;
            }
        }
        self.receivers.insert(qp.number(), receiver);
        let srq = self.node.srq.number().unwrap();
        let private_data = srq.get().to_be_bytes().to_vec();
        id.accept(&ConnectParameters { private_data, ..ConnectParameters::default() }).unwrap();
        // The connection manager sets a timer of 655 ms (contract J12).
        qp.modify(&QpModify { min_rnr_timer: Some(8), ..QpModify::default() }).unwrap();
    }

    fn repost(&self, qp: &dyn QueuePair, place: usize) {
        let scatter = [self.node.sge(place * ROOM, u32::try_from(ROOM).unwrap())];
        qp.post_receive(&[ReceiveRequest { wr_id: place as u64, scatter: &scatter }]).unwrap();
    }

    /// Checks a message: it must be the next of its sender, and complete.
    fn take(&mut self, completion: &Completion) {
        let place = usize::try_from(completion.wr_id).unwrap();
        let receiver = self.receivers.get_mut(&completion.qp_number).expect("a QP of ours");
        assert_eq!(completion.immediate, receiver.next, "from {}", receiver.peer);
        let expected = message(receiver.peer, self.orders.index, receiver.next);
        assert_eq!(completion.byte_length as usize, expected.len());
        let mut bytes = vec![0; expected.len()];
        self.node.memory.read(place * ROOM, &mut bytes).unwrap();
        assert!(bytes == expected, "message {} of {} is not what was sent", receiver.next, receiver.peer);
        receiver.next += 1;
        self.received += 1;
        if place <= SRQ_DEPTH {
            self.node.receive(place as u64, place * ROOM, u32::try_from(ROOM).unwrap());
        } else {
            let qp = Arc::clone(&receiver.qp);
            self.repost(&*qp, place);
        }
    }

    fn sent(&mut self, completion: &Completion) {
        if self.is_over && completion.status == CompletionStatus::WorkRequestFlushed {
            return;
        }
        let Some(sender) = self.senders.iter_mut().find(|sender| sender.qp.number() == completion.qp_number)
        else {
            let receiver = &self.receivers[&completion.qp_number];
            assert!(
                receiver.excused || self.is_victim(receiver.peer),
                "{}: {completion:?}",
                self.orders.index
            );
            return;
        };
        if completion.status == CompletionStatus::Success {
            assert_eq!(completion.wr_id, u64::from(sender.acknowledged));
            sender.acknowledged += 1;
        } else {
            sender.failed = true;
            let (peer, excused) = (sender.peer, sender.excused || self.orders.victim == Some(sender.peer));
            assert!(excused, "{}: {completion:?} to {peer}, {}", self.orders.index, self.report());
        }
    }

    fn send(&mut self, index: usize) -> bool {
        let me = self.orders.index;
        let node = &self.node;
        let sender = &mut self.senders[index];
        let Some(srq) = sender.srq.filter(|_| !sender.failed) else { return false };
        let mut busy = false;
        while sender.sent < sender.total && sender.sent - sender.acknowledged < WINDOW {
            let bytes = message(me, sender.peer, sender.sent);
            // The buffer must not change before the acknowledgement, so each connection has its own slots.
            let place = index * WINDOW as usize + (sender.sent % WINDOW) as usize;
            let at = (self.send_places + place) * ROOM;
            node.memory.write(at, &bytes).unwrap();
            let gather = [node.sge(at, u32::try_from(bytes.len()).unwrap())];
            let request = SendRequest {
                wr_id: u64::from(sender.sent),
                operation: SendOperation::SendWithImmediate(sender.sent),
                data: SendData::Gather(&gather),
                flags: SendFlags::SIGNALED,
                remote_srq: srq,
            };
            if sender.qp.post_send(&[request]).is_err() {
                sender.failed = true;
                break;
            }
            sender.sent += 1;
            busy = true;
        }
        busy
    }
}

/// Returns the content of message `number` from member `from` to member `to`.
fn message(from: usize, to: usize, number: u32) -> Vec<u8> {
    let length = [40, 1000, 3000, 6001][number as usize % 4] + from;
    let seed = number.wrapping_mul(0x9e37_79b9) ^ u32::try_from(from * 16 + to).unwrap();
    (0..length)
        .map(|at| seed.wrapping_add(u32::try_from(at).unwrap().wrapping_mul(31)).to_le_bytes()[1])
        .collect()
}
