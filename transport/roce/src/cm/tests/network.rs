use super::*;
use crate::wire::Attribute;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use trunkline_verbs::{Mtu, PortSpace, Psn, QpNumber, RejectReason};

pub(super) const PORT: u16 = 7471;
/// Indices of the two nodes.
pub(super) const A: usize = 0;
pub(super) const B: usize = 1;

pub(super) const fn milliseconds(count: u64) -> u64 {
    count * 1_000_000
}

pub(super) const fn address(node: usize) -> IpAddr {
    IpAddr::V4(if node == A { Ipv4Addr::new(10, 0, 0, 1) } else { Ipv4Addr::new(10, 0, 0, 2) })
}

/// Fate of a message, as the delays in nanoseconds after which its copies arrive. The arguments are the sending node, the
/// kind of message, and the number of messages of that kind that the node has sent before.
pub(super) type Fate = Box<dyn FnMut(usize, Attribute, u32) -> Vec<u64>>;

/// A machine and the program on top of it.
pub(super) struct Node {
    pub(super) machine: CmMachine,
    pub(super) events: Vec<Event>,
    /// True if requests are accepted as soon as they are reported.
    pub(super) accepts: bool,
    /// True if replies are confirmed as soon as they are reported.
    pub(super) confirms: bool,
    pub(super) mtu: Mtu,
    pub(super) sent: Vec<Attribute>,
    next_qpn: u32,
}

pub(super) struct Network {
    pub(super) now: u64,
    pub(super) nodes: [Node; 2],
    fate: Fate,
    on_the_way: BTreeMap<(u64, u64), Transmit>,
    serial: u64,
}

pub(super) fn config(node: usize) -> CmConfig {
    let seed = u64::try_from(node).unwrap();
    CmConfig::new(0xabc0 + seed, 77 + seed)
}

pub(super) fn connect_to(node: usize, transport: Transport, qpn: u32) -> Connect<'static> {
    Connect {
        local: SocketAddr::new(address(1 - node), 999),
        remote: SocketAddr::new(address(node), PORT),
        port_space: if transport == Transport::Xrc { PortSpace::Ib } else { PortSpace::Tcp },
        transport,
        qpn: QpNumber::new(qpn),
        starting_psn: Psn::new(0x11),
        mtu: Mtu::Mtu2048,
        responder_resources: 3,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry: 4,
        ack_timeout: 14,
        flow_control: true,
        traffic_class: 0x68,
        srq: false,
        ports: trunkline_verbs::UdpPorts::new(4791),
        one_flow: trunkline_verbs::OneFlow::No,
        retry_refused: false,
        private: b"hello",
    }
}

pub(super) const fn accept_with(qpn: u32) -> Accept<'static> {
    Accept {
        qpn: QpNumber::new(qpn),
        starting_psn: Psn::new(0x22),
        responder_resources: 7,
        initiator_depth: 9,
        rnr_retry: 2,
        flow_control: false,
        srq: false,
        private: b"welcome",
    }
}

pub(super) fn question_to(node: usize) -> Ask<'static> {
    Ask {
        local: SocketAddr::new(address(1 - node), 999),
        remote: SocketAddr::new(address(node), PORT),
        retry_refused: false,
        private: b"hello",
    }
}

pub(super) const fn answer_with(qpn: u32) -> Answer<'static> {
    Answer { qpn: QpNumber::new(qpn), qkey: 0x0bad_cafe, private: b"welcome" }
}

impl Node {
    fn new(node: usize) -> Self {
        Self {
            machine: CmMachine::new(config(node)),
            events: Vec::new(),
            accepts: true,
            confirms: true,
            mtu: Mtu::Mtu4096,
            sent: Vec::new(),
            next_qpn: 0x100,
        }
    }

    pub(super) fn listen(&mut self, transport: Transport, backlog: u32) -> ListenerId {
        let port_space = if transport == Transport::Xrc { PortSpace::Ib } else { PortSpace::Tcp };
        let listen = Listen {
            is_family_only: false,
            address: Ipv4Addr::UNSPECIFIED.into(),
            port_space,
            port: PORT,
            transport: Some(transport),
            backlog,
        };
        self.machine.listen(&listen).unwrap().0
    }

    pub(super) fn listen_for_questions(&mut self, backlog: u32) -> ListenerId {
        let listen = Listen {
            is_family_only: false,
            address: Ipv4Addr::UNSPECIFIED.into(),
            port_space: PortSpace::Udp,
            port: PORT,
            transport: None,
            backlog,
        };
        self.machine.listen(&listen).unwrap().0
    }

    /// Reacts to an event as a program does.
    fn react(&mut self, now: u64, event: &Event) {
        match event {
            Event::ConnectRequest(id, request) if self.mtu < request.peer.mtu => {
                let _ = self.machine.refuse_mtu(*id, self.mtu);
            }
            Event::ConnectRequest(id, _) if self.accepts => {
                self.next_qpn += 1;
                // The peer may have withdrawn the request in the meantime.
                let _ = self.machine.accept(now, *id, &accept_with(self.next_qpn));
            }
            Event::ServiceRequest(id, _) if self.accepts => {
                self.next_qpn += 1;
                let _ = self.machine.answer(now, *id, &answer_with(self.next_qpn));
            }
            Event::Reply(id, _) if self.confirms => {
                let _ = self.machine.confirm(*id);
            }
            _ => {}
        }
    }

    pub(super) fn names(&self, id: ConnectionId) -> Vec<&'static str> {
        self.events.iter().filter(|event| event.connection() == id).map(name).collect()
    }

    pub(super) fn requests(&self) -> Vec<ConnectionId> {
        let ids = self.events.iter().map(|event| match event {
            Event::ConnectRequest(id, _) | Event::ServiceRequest(id, _) => Some(*id),
            _ => None,
        });
        ids.flatten().collect()
    }

    pub(super) fn is_established(&self, id: ConnectionId) -> bool {
        self.names(id).last() == Some(&"Established")
    }

    pub(super) fn rejection(&self, id: ConnectionId) -> Option<RejectReason> {
        self.events.iter().find_map(|event| match event {
            Event::Rejected(of, reason, _) if *of == id => Some(*reason),
            _ => None,
        })
    }
}

const fn name(event: &Event) -> &'static str {
    match event {
        Event::ConnectRequest(..) => "ConnectRequest",
        Event::Reply(..) => "Reply",
        Event::Established(..) => "Established",
        Event::Rejected(..) => "Rejected",
        Event::Unreachable(..) => "Unreachable",
        Event::Disconnected { .. } => "Disconnected",
        Event::TimewaitExit(..) => "TimewaitExit",
        Event::ServiceRequest(..) => "ServiceRequest",
        Event::ServiceReply { .. } => "ServiceReply",
        Event::ServiceRefused(..) => "ServiceRefused",
    }
}

impl Network {
    /// Creates a network in which B listens for both transports and for SIDR requests. Every message takes a
    /// millisecond.
    pub(super) fn new() -> Self {
        Self::with_fate(Box::new(|_, _, _| vec![milliseconds(1)]))
    }

    pub(super) fn with_fate(fate: Fate) -> Self {
        let mut nodes = [Node::new(A), Node::new(B)];
        nodes[B].listen(Transport::Rc, 16);
        nodes[B].listen(Transport::Xrc, 16);
        nodes[B].listen_for_questions(16);
        Self { now: 0, nodes, fate, on_the_way: BTreeMap::new(), serial: 0 }
    }

    /// Creates a network that loses the first `count` messages of a kind.
    pub(super) fn losing(lost: Attribute, count: u32) -> Self {
        Self::with_fate(Box::new(move |_, attribute, before| {
            if attribute == lost && before < count { vec![] } else { vec![milliseconds(1)] }
        }))
    }

    pub(super) fn set_fate(&mut self, fate: Fate) {
        self.fate = fate;
    }

    /// Replaces a node's process by another process at the same address, with the same GUID.
    pub(super) fn restart(&mut self, node: usize, seed: u64) {
        self.nodes[node] = Node::new(node);
        self.nodes[node].machine = CmMachine::new(CmConfig { seed, ..config(node) });
        if node == B {
            self.nodes[B].listen(Transport::Rc, 16);
            self.nodes[B].listen(Transport::Xrc, 16);
        }
    }

    pub(super) fn connect(&mut self, transport: Transport, qpn: u32) -> ConnectionId {
        let now = self.now;
        let id = self.nodes[A].machine.connect(now, &connect_to(B, transport, qpn)).unwrap();
        self.drain();
        id
    }

    pub(super) fn ask(&mut self) -> ConnectionId {
        let now = self.now;
        let id = self.nodes[A].machine.ask(now, &question_to(B)).unwrap();
        self.drain();
        id
    }

    /// Lets `span` nanoseconds pass.
    pub(super) fn run(&mut self, span: u64) {
        let end = self.now + span;
        self.drain();
        while let Some(at) = self.next_step().filter(|at| *at <= end) {
            self.now = self.now.max(at);
            let now = self.now;
            while let Some(entry) = self.on_the_way.first_entry().filter(|entry| entry.key().0 <= now) {
                let transmit = entry.remove();
                let node = if transmit.to == address(A) { A } else { B };
                self.nodes[node].machine.handle_mad(now, transmit.from, transmit.to, &transmit.mad);
                self.drain();
            }
            for node in &mut self.nodes {
                node.machine.handle_timeout(now);
            }
            self.drain();
        }
        self.now = end;
    }

    /// Runs for a bounded time, until no message is in transit and only established connections are left.
    pub(super) fn settle(&mut self) {
        self.run(milliseconds(200_000));
        assert!(self.next_step().is_none(), "still busy: {:?}", self.next_step());
        for node in &self.nodes {
            node.machine.table.check();
            node.machine.questions.check();
        }
    }

    /// Handles messages and events after calls of the program.
    pub(super) fn drain(&mut self) {
        for index in [A, B] {
            let node = &mut self.nodes[index];
            loop {
                let event = node.machine.poll_event();
                if let Some(event) = event {
                    node.react(self.now, &event);
                    node.events.push(event);
                    continue;
                }
                let Some(transmit) = node.machine.poll_transmit() else { break };
                let attribute = transmit.mad.header.attribute;
                let before = node.sent.iter().filter(|sent| **sent == attribute).count();
                node.sent.push(attribute);
                for delay in (self.fate)(index, attribute, u32::try_from(before).unwrap()) {
                    self.serial += 1;
                    self.on_the_way.insert((self.now + delay, self.serial), transmit);
                }
            }
        }
    }

    fn next_step(&self) -> Option<u64> {
        let arrival = self.on_the_way.keys().next().map(|(at, _)| *at);
        let timeouts = self.nodes.iter().filter_map(|node| node.machine.next_timeout());
        timeouts.chain(arrival).min()
    }
}
