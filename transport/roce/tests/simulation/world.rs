//! The event loop, with nodes, connections, the clock, and the queue of events.

use crate::peer::{Endpoint, INBOX};
use crate::plan::{MS, Plan, US};
use crate::random::Random;
use crate::target::{Checked, Local, Node, Queue, Receive};
use crate::work::{Ends, Flow};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use trunkline_roce::engine::{
    Handled, Requester, RequesterEvent, ResponderEvent, ResponderState, Time, is_request,
};
use trunkline_verbs::{Access, Psn, QpAttributes, QpNumber, QpState, QpType, QueueCapacities, SrqNumber};

/// Time in nanoseconds by which all work must have ended.
const HORIZON: u64 = 120_000 * MS;

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Deliver { to: QpNumber, bytes: Vec<u8> },
    Service { endpoint: usize, expected: u64 },
    Answer { endpoint: usize },
    Post { flow: usize },
    Repost { node: usize, queue: usize, address: usize, length: usize },
    Restart { node: usize },
    TearDown { node: usize },
}

/// Event counts of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) packets: u64,
    pub(crate) retransmits: u64,
    pub(crate) probes: u64,
    pub(crate) timeouts: u64,
    pub(crate) sequence_naks: u64,
    pub(crate) rnr_naks: u64,
    pub(crate) implied_losses: u64,
    pub(crate) duplicates: u64,
    pub(crate) late_placements: u64,
    pub(crate) restarts: u64,
    pub(crate) refusals: u64,
    pub(crate) atomics: u64,
    pub(crate) split_reads: u64,
    pub(crate) joined: u64,
    pub(crate) virtual_ms: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.retransmits += other.retransmits;
        self.probes += other.probes;
        self.timeouts += other.timeouts;
        self.sequence_naks += other.sequence_naks;
        self.rnr_naks += other.rnr_naks;
        self.implied_losses += other.implied_losses;
        self.duplicates += other.duplicates;
        self.late_placements += other.late_placements;
        self.restarts += other.restarts;
        self.refusals += other.refusals;
        self.atomics += other.atomics;
        self.split_reads += other.split_reads;
        self.joined += other.joined;
        self.virtual_ms += other.virtual_ms;
    }
}

pub(crate) struct World {
    plan: Plan,
    random: Random,
    now: u64,
    sequence: u64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    nodes: Vec<Node>,
    endpoints: Vec<Endpoint>,
    flows: Vec<Flow>,
    summary: Summary,
    out: Vec<u8>,
}

impl World {
    /// Creates the world of a seed. Prints its parameters if the seed is replayed.
    pub(crate) fn new(seed: u64, replayed: bool) -> Self {
        let mut random = Random::new(seed);
        let plan = Plan::draw(&mut random);
        if replayed {
            eprintln!("{plan:?}");
        }
        let nodes = (0..plan.nodes).map(|_| Node::default()).collect();
        let mut world = Self {
            random,
            now: 0,
            sequence: 0,
            events: BinaryHeap::new(),
            nodes,
            endpoints: Vec::new(),
            flows: Vec::new(),
            summary: Summary::default(),
            out: Vec::new(),
            plan,
        };
        // Two SRQs per node, shared by all TGTs of the node.
        for node in 0..world.plan.nodes {
            for number in [0x51, 0x52] {
                world.add_queue(node, SrqNumber::new(number));
            }
        }
        for connection in 0..world.plan.connections {
            let a = world.random.index(world.plan.nodes);
            let b = (a + 1 + world.random.index(world.plan.nodes - 1)) % world.plan.nodes;
            let refused = world.plan.refused && connection == 0;
            if world.random.chance(400) {
                world.connect_rc(a, b, refused);
            } else {
                world.connect_xrc(a, b, refused);
            }
        }
        for flow in 0..world.flows.len() {
            world.after(0, Event::Post { flow });
        }
        if let Some((node, when)) = world.plan.restart {
            world.after(when, Event::Restart { node });
        }
        world
    }

    fn add_queue(&mut self, node: usize, number: SrqNumber) -> usize {
        let length = 5 * self.plan.mtu.bytes() as usize;
        let free = (0..self.plan.receives)
            .map(|_| Receive { address: self.nodes[node].allocate(length), length })
            .collect::<VecDeque<_>>();
        self.nodes[node].queues.push(Queue { number, free });
        self.nodes[node].queues.len() - 1
    }

    fn add_endpoint(&mut self, node: usize) -> usize {
        // QP numbers are unique and differ from the index in the table.
        let number = 0x11 + 7 * u32::try_from(self.endpoints.len()).expect("few");
        self.endpoints.push(Endpoint::new(node, QpNumber::new(number)));
        self.endpoints.len() - 1
    }

    fn first_psn(&mut self) -> Psn {
        let random = self.random.between_u32(0, 0xff_ffff);
        Psn::new(if self.plan.near_wrap { 0xff_ffff - random % 40 } else { random })
    }

    fn connect_xrc(&mut self, a: usize, b: usize, refused: bool) {
        let (ini, tgt) = (self.add_endpoint(a), self.add_endpoint(b));
        let psn = self.first_psn();
        self.add_flow(ini, tgt, &[SrqNumber::new(0x51), SrqNumber::new(0x52)], refused);
        self.start(ini, tgt, QpType::XrcIni, psn, Psn::new(1));
        self.start(tgt, ini, QpType::XrcTgt, Psn::new(2), psn);
    }

    fn connect_rc(&mut self, a: usize, b: usize, refused: bool) {
        let (one, two) = (self.add_endpoint(a), self.add_endpoint(b));
        let (psn_one, psn_two) = (self.first_psn(), self.first_psn());
        for end in [one, two] {
            let node = self.endpoints[end].node;
            // RC queues have no number that a packet could contain.
            let queue = self.add_queue(node, SrqNumber::new(0xff_0000 + u32::try_from(end).expect("few")));
            self.endpoints[end].own_queue = Some(queue);
        }
        self.add_flow(one, two, &[SrqNumber::new(0)], refused);
        self.add_flow(two, one, &[SrqNumber::new(0)], false);
        self.start(one, two, QpType::Rc, psn_one, psn_two);
        self.start(two, one, QpType::Rc, psn_two, psn_one);
    }

    fn add_flow(&mut self, from: usize, to: usize, srqs: &[SrqNumber], refused: bool) {
        let (source, destination) = (self.endpoints[from].node, self.endpoints[to].node);
        let ends = Ends { source, destination, endpoint: from, srqs, refused };
        let flow = Flow::draw(&mut self.random, &self.plan, &mut self.nodes, &ends);
        self.endpoints[from].outgoing = Some(self.flows.len());
        self.endpoints[to].incoming = Some(self.flows.len());
        self.flows.push(flow);
    }

    /// Moves an endpoint through INIT and RTR to RTS.
    fn start(&mut self, end: usize, peer: usize, qp_type: QpType, sq_psn: Psn, rq_psn: Psn) {
        let mut attributes = QpAttributes {
            state: QpState::Init,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
            path_mtu: self.plan.mtu,
            destination_qp: self.endpoints[peer].number,
            sq_psn,
            rq_psn,
            max_rd_atomic: self.plan.max_rd_atomic,
            max_dest_rd_atomic: self.plan.max_dest_rd_atomic,
            min_rnr_timer: self.plan.min_rnr_timer,
            // 4.096 us * 2^14 = 67 ms.
            timeout: 14,
            retry_count: self.plan.retry_count,
            rnr_retry: 7,
            ..QpAttributes::new(qp_type)
        };
        let capacities = QueueCapacities {
            max_send_wr: self.random.between_u32(1, 32),
            max_send_sge: 6,
            max_inline_data: 64,
            ..QueueCapacities::default()
        };
        let number = self.endpoints[end].number;
        let mut requester = (qp_type != QpType::XrcTgt)
            .then(|| Requester::new(number, qp_type, capacities, false, self.plan.tuning));
        let mut responder = (qp_type != QpType::XrcIni).then(|| ResponderState::new(number));
        for state in [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend] {
            attributes.state = state;
            if let Some(requester) = &mut requester {
                requester.modify(&attributes);
            }
            if let Some(responder) = &mut responder {
                responder.modify(&attributes);
            }
        }
        self.endpoints[end].requester = requester;
        self.endpoints[end].responder = responder;
    }

    fn after(&mut self, delay: u64, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + delay, self.sequence, event)));
    }

    /// Schedules service of the endpoint at `when`, unless it is scheduled earlier.
    fn serve_at(&mut self, endpoint: usize, when: u64) {
        let when = when.max(self.now);
        if self.endpoints[endpoint].service_at.is_none_or(|planned| when < planned) {
            self.endpoints[endpoint].service_at = Some(when);
            self.after(when - self.now, Event::Service { endpoint, expected: when });
        }
    }

    fn serve_soon(&mut self, endpoint: usize) {
        let delay = self.random.below(20 * US);
        self.serve_at(endpoint, self.now + delay);
    }

    pub(crate) fn run(mut self) -> Summary {
        while let Some(Reverse((when, _, event))) = self.events.pop() {
            self.now = when;
            assert!(when < HORIZON, "not over after two minutes: {:?}", self.unfinished());
            self.happen(event);
        }
        assert!(self.flows.iter().all(Flow::is_over), "stuck: {:?}", self.unfinished());
        for endpoint in &self.endpoints {
            if let Some(requester) = endpoint.requester.as_ref().filter(|_| !endpoint.gone) {
                assert_eq!(requester.outstanding(), 0, "requests stuck: {:?}", self.unfinished());
            }
        }
        for flow in &mut self.flows {
            flow.check_end(&mut self.nodes);
        }
        self.summarise()
    }

    fn unfinished(&self) -> Vec<(usize, usize, usize)> {
        self.flows.iter().map(|flow| (flow.ops.len(), flow.posted, flow.executed)).collect()
    }

    fn summarise(mut self) -> Summary {
        let summary = &mut self.summary;
        for endpoint in &self.endpoints {
            if let Some(requester) = &endpoint.requester {
                let counters = requester.counters();
                summary.packets += counters.packets;
                summary.retransmits += counters.retransmits;
                summary.probes += counters.probes;
                summary.timeouts += counters.timeouts;
                summary.implied_losses += counters.implied_losses;
            }
            if let Some(responder) = &endpoint.responder {
                let counters = responder.counters();
                summary.sequence_naks += counters.sequence_naks;
                summary.rnr_naks += counters.rnr_naks;
                summary.duplicates += counters.duplicates;
                summary.refusals += counters.fatal_naks;
            }
        }
        summary.atomics = self.flows.iter().map(|flow| flow.atomics).sum();
        summary.split_reads = self.flows.iter().map(|flow| flow.split_reads).sum();
        summary.virtual_ms = self.now / MS;
        *summary
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Deliver { to, bytes } => self.deliver(to, bytes),
            Event::Service { endpoint, expected } => {
                // A service that was rescheduled to an earlier time is no longer valid.
                if self.endpoints[endpoint].service_at == Some(expected) {
                    self.endpoints[endpoint].service_at = None;
                    self.serve(endpoint);
                }
            }
            Event::Answer { endpoint } => self.answer(endpoint),
            Event::Post { flow } => self.post(flow),
            Event::Repost { node, queue, address, length } => {
                if let Some(queue) = self.nodes[node].queues.get_mut(queue) {
                    queue.free.push_back(Receive { address, length });
                }
            }
            Event::Restart { node } => self.restart(node),
            Event::TearDown { node } => self.tear_down(node),
        }
    }

    fn deliver(&mut self, to: QpNumber, bytes: Vec<u8>) {
        let Some(index) = self.endpoints.iter().position(|end| end.number == to && !end.gone) else { return };
        let packet = self.plan.parse(&bytes);
        let request = is_request(packet.bth.opcode);
        let end = &mut self.endpoints[index];
        let inbox = if request { &mut end.requests } else { &mut end.responses };
        if inbox.len() < INBOX {
            inbox.push_back(bytes);
        }
        self.serve_soon(index);
    }

    fn post(&mut self, flow: usize) {
        let endpoint = self.flows[flow].endpoint;
        if self.flows[flow].source_gone || self.endpoints[endpoint].gone {
            return;
        }
        let burst = self.random.between(1, 8);
        let requester = self.endpoints[endpoint].requester.as_mut().expect("a flow's source sends");
        for _ in 0..burst {
            if !self.flows[flow].post_next(|request| requester.post(request).is_ok()) {
                break;
            }
        }
        self.serve_soon(endpoint);
        if self.flows[flow].posted < self.flows[flow].ops.len() {
            let delay = self.random.below(200 * US);
            self.after(delay, Event::Post { flow });
        }
    }

    /// Restarts a node, which loses all state. Its QP numbers are never reused.
    fn restart(&mut self, node: usize) {
        self.summary.restarts += 1;
        for end in self.endpoints.iter_mut().filter(|end| end.node == node) {
            end.gone = true;
        }
        for flow in &mut self.flows {
            flow.source_gone |= flow.source == node;
            flow.destination_gone |= flow.destination == node;
        }
        self.nodes[node].queues.clear();
        self.nodes[node].memory.fill(0);
        let delay = self.random.between(5 * MS, 100 * MS);
        self.after(delay, Event::TearDown { node });
    }

    /// Destroys the responders at other nodes that receive from a restarted node. These nodes have detected the restart.
    /// This releases the receives of incomplete messages.
    fn tear_down(&mut self, gone: usize) {
        for index in 0..self.endpoints.len() {
            let end = &mut self.endpoints[index];
            if end.gone || end.incoming.is_none_or(|flow| self.flows[flow].source != gone) {
                continue;
            }
            Self::fail_whole(end.responder.as_mut());
            end.deferred = None;
            let held = end.holding.take();
            self.nodes[end.node].used.extend(held);
            self.serve_soon(index);
        }
    }

    /// Handles incoming packets, timers and outgoing packets of one endpoint.
    fn serve(&mut self, index: usize) {
        let node = self.endpoints[index].node;
        if self.endpoints[index].gone {
            return;
        }
        if self.random.chance(self.plan.pause_per_mille) {
            self.nodes[node].paused_until = self.now + self.random.below(30 * MS);
        }
        if self.now < self.nodes[node].paused_until {
            let until = self.nodes[node].paused_until;
            self.serve_at(index, until);
            return;
        }
        self.take_requests(index);
        self.take_responses(index);
        let more = self.emit(index);
        self.collect(index);
        let end = &self.endpoints[index];
        if more {
            self.serve_soon(index);
        } else if let Some(Time(when)) = end.requester.as_ref().and_then(Requester::next_timeout) {
            self.serve_at(index, when);
        }
    }

    /// Calls `act` with the responder half of an endpoint and its target.
    fn with_target<R>(
        &mut self,
        index: usize,
        late: bool,
        late_read: bool,
        act: impl FnOnce(&mut ResponderState, &mut Checked<'_>, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        let end = &mut self.endpoints[index];
        let responder = end.responder.as_mut()?;
        let mut target = Checked {
            node: &mut self.nodes[end.node],
            flow: &mut self.flows[end.incoming?],
            own_queue: end.own_queue,
            holding: &mut end.holding,
            deferred: &mut end.deferred,
            late,
            late_read,
            asked_later: &mut self.summary.late_placements,
        };
        Some(act(responder, &mut target, &mut self.out))
    }

    fn take_requests(&mut self, index: usize) {
        while let Some(bytes) = self.endpoints[index].requests.pop_front() {
            let late = self.random.chance(self.plan.late_per_mille);
            let packet = self.plan.parse(&bytes);
            let joined = self.plan.joined_per_mille > 0;
            let handled = self.with_target(index, late, false, |responder, target, _| {
                if joined {
                    responder.handle_joined(&packet, target)
                } else {
                    responder.handle_request(&packet, target)
                }
            });
            match handled {
                Some(Handled::Waiting) => {
                    let delay = self.random.below(3 * MS);
                    self.after(delay, Event::Answer { endpoint: index });
                }
                Some(Handled::Busy) => {
                    self.endpoints[index].requests.push_front(bytes);
                    return;
                }
                _ => {}
            }
        }
    }

    fn answer(&mut self, index: usize) {
        if self.endpoints[index].gone {
            return;
        }
        let Some(deferred) = self.endpoints[index].deferred.take() else { return };
        self.with_target(index, false, false, |responder, target, _| {
            responder.answer(deferred.carry_out(target));
        });
        self.serve_soon(index);
    }

    fn take_responses(&mut self, index: usize) {
        let end = &mut self.endpoints[index];
        let Some(requester) = &mut end.requester else { return };
        let now = Time(self.now);
        let mut memory = Local(&mut self.nodes[end.node].memory);
        for bytes in end.responses.drain(..) {
            let packet = self.plan.parse(&bytes);
            if self.plan.joined_per_mille > 0 {
                requester.handle_joined(now, &packet, &mut memory);
            } else {
                requester.handle_response(now, &packet, &mut memory);
            }
        }
        requester.handle_timeout(now);
    }

    /// Sends the packets that may be sent now, at most a burst. Returns true if there may be more.
    fn emit(&mut self, index: usize) -> bool {
        let burst = self.random.between(1, 40);
        for _ in 0..burst {
            let late_read = self.random.chance(self.plan.late_per_mille);
            let joined = self.random.chance(self.plan.joined_per_mille);
            self.out.clear();
            let sent = self
                .with_target(index, false, late_read, |responder, target, out| {
                    if joined {
                        responder.poll_joined(target, out)
                    } else {
                        responder.poll_transmit(target, out)
                    }
                })
                .flatten();
            if sent.is_none() && !self.emit_request(index, joined) {
                let waiting =
                    self.endpoints[index].responder.as_ref().is_some_and(ResponderState::has_output);
                return waiting;
            }
            let bytes = std::mem::take(&mut self.out);
            let packet = self.plan.parse(&bytes);
            self.summary.joined += u64::from(packet.payload.len() > self.plan.mtu.bytes() as usize);
            let to = packet.bth.destination;
            for delay in self.plan.network.deliveries(&mut self.random) {
                self.after(delay, Event::Deliver { to, bytes: bytes.clone() });
            }
        }
        true
    }

    fn emit_request(&mut self, index: usize, joined: bool) -> bool {
        let end = &mut self.endpoints[index];
        let Some(requester) = &mut end.requester else { return false };
        let memory = Local(&mut self.nodes[end.node].memory);
        let now = Time(self.now);
        let sent = if joined {
            requester.poll_joined(now, &memory, &mut self.out)
        } else {
            requester.poll_transmit(now, &memory, &mut self.out)
        };
        sent.is_some()
    }

    /// Polls completions and events, and schedules the reposting of used receives.
    fn collect(&mut self, index: usize) {
        let node = self.endpoints[index].node;
        let end = &mut self.endpoints[index];
        if let (Some(requester), Some(flow)) = (&mut end.requester, end.outgoing) {
            while let Some(completion) = requester.poll_completion() {
                assert_eq!(completion.qp_number, end.number);
                self.flows[flow].complete(&completion, &mut self.nodes);
            }
            while let Some(event) = requester.poll_event() {
                assert!(matches!(event, RequesterEvent::Failed(_)), "{event:?}");
                Self::fail_whole(end.responder.as_mut());
            }
        }
        let mut failed = false;
        if let Some(responder) = &mut end.responder {
            while let Some(event) = responder.poll_event() {
                match event {
                    ResponderEvent::Failed(code) => {
                        let flow = &self.flows[end.incoming.expect("a responder has a flow")];
                        assert!(self.plan.refused && flow.executed < flow.ops.len(), "NAK {code:?}");
                        failed = true;
                    }
                    ResponderEvent::CommunicationEstablished => panic!("not in RTR"),
                }
            }
        }
        if failed {
            // The whole QP is in ERR, so an RC QP's own sends are flushed.
            if let (Some(requester), Some(flow)) = (&mut end.requester, end.outgoing) {
                let attributes = QpAttributes { state: QpState::Error, ..QpAttributes::new(QpType::Rc) };
                requester.modify(&attributes);
                self.flows[flow].half_failed = true;
                while let Some(completion) = requester.poll_completion() {
                    self.flows[flow].complete(&completion, &mut self.nodes);
                }
            }
            self.serve_soon(index);
        }
        for (queue, receive) in std::mem::take(&mut self.nodes[node].used) {
            let Receive { address, length } = receive;
            self.after(self.plan.repost_ns, Event::Repost { node, queue, address, length });
        }
    }

    /// Moves the responder half of an RC QP to ERR after its requester half has failed.
    fn fail_whole(responder: Option<&mut ResponderState>) {
        if let Some(responder) = responder {
            let attributes = QpAttributes { state: QpState::Error, ..QpAttributes::new(QpType::Rc) };
            responder.modify(&attributes);
        }
    }
}
