//! Feeds arbitrary messages and calls to a machine in any state.

use super::connection::ConnectionState;
use super::{
    Accept, Answer, Ask, CmConfig, CmMachine, Connect, ConnectionId, Event, Listen, Transmit, Transport,
};
use crate::wire::cm::CmMessage;
use crate::wire::{Attribute, MAD_DATA_BYTES, Mad, MadHeader};
use std::net::{IpAddr, Ipv4Addr};
use trunkline_verbs::{AddressOwner, Mtu, OneFlow, PeerHost, PortSpace, Psn, QpNumber, RejectReason};

const US: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 1));
const PEERS: [IpAddr; 2] = [US, IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2))];
const LIMIT: usize = 12;

/// Interprets `data` as calls, messages and the passage of time. Messages are either raw, or messages of the machine itself
/// with some bytes changed, so that they pass the first checks.
///
/// # Panics
/// If a bound of the machine is exceeded, which the fuzzer reports.
pub fn fuzz(data: &[u8]) {
    let mut input = Input { data, at: 0 };
    let mut world = World::new();
    while input.at < data.len() {
        world.step(&mut input);
        world.check();
    }
    world.end();
}

struct Input<'a> {
    data: &'a [u8],
    at: usize,
}

impl Input<'_> {
    /// Takes the next byte; 0 after the end of the data.
    fn byte(&mut self) -> u8 {
        let byte = self.data.get(self.at).copied().unwrap_or(0);
        self.at += 1;
        byte
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let index = usize::from(self.byte());
        from.get(index.checked_rem(from.len())?).copied()
    }

    fn mad(&mut self) -> Mad {
        let attribute = Attribute(0x10 + u16::from(self.byte() % 12));
        let mut data = [0; MAD_DATA_BYTES];
        for byte in &mut data {
            *byte = self.byte();
        }
        Mad { header: MadHeader::cm(u64::from(self.byte()), attribute), data }
    }

    fn corrupt(&mut self, mad: &mut Mad) {
        for _ in 0..self.byte() % 3 {
            let at = usize::from(self.byte()) % MAD_DATA_BYTES;
            mad.data[at] ^= self.byte();
        }
        if self.byte().is_multiple_of(8) {
            mad.header.attribute = Attribute(0x10 + u16::from(self.byte() % 12));
        }
    }
}

struct World {
    now: u64,
    machine: CmMachine,
    ids: Vec<ConnectionId>,
    sent: Vec<Transmit>,
}

impl World {
    fn new() -> Self {
        let config = CmConfig {
            connections: LIMIT,
            half_open: LIMIT / 2,
            half_open_per_host: LIMIT / 3,
            answers: LIMIT / 3,
            ..CmConfig::new(7, 11)
        };
        let mut machine = CmMachine::new(config);
        let (xrc, any) = (Some(Transport::Xrc), None);
        for (port_space, port, transport) in
            [(PortSpace::Ib, 1, xrc), (PortSpace::Ib, 2, any), (PortSpace::Udp, 1, any)]
        {
            let listen = Listen {
                address: Ipv4Addr::UNSPECIFIED.into(),
                is_family_only: false,
                port_space,
                port,
                transport,
                backlog: 3,
            };
            // The ports are free in a new machine.
            let _ = machine.listen(&listen);
        }
        Self { now: 0, machine, ids: Vec::new(), sent: Vec::new() }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 => {
                let mad = input.mad();
                let from = input.pick(&PEERS).unwrap_or(US);
                self.machine.handle_mad(self.now, from, US, &mad);
            }
            // The machine owns both addresses, so it receives its own messages.
            1..=3 => {
                if let Some(Transmit { mut from, to, mut mad, ports: _ }) = input.pick(&self.sent) {
                    if input.byte().is_multiple_of(4) {
                        input.corrupt(&mut mad);
                        from = input.pick(&PEERS).unwrap_or(from);
                    }
                    self.machine.handle_mad(self.now, from, to, &mad);
                }
            }
            4 => self.connect(input),
            5 | 6 => {
                if let Some(id) = input.pick(&self.ids) {
                    self.call(input, id);
                }
            }
            _ => {
                self.now += u64::from(input.byte()) << (input.byte() % 32);
                self.machine.handle_timeout(self.now);
            }
        }
        self.drain();
    }

    fn connect(&mut self, input: &mut Input<'_>) {
        let remote = input.pick(&PEERS).unwrap_or(US);
        if input.byte().is_multiple_of(3) {
            let remote = (remote, u16::from(input.byte() % 3)).into();
            // `ask` fails when the table is full.
            if let Ok(id) = self
                .machine
                .ask(self.now, &Ask { local: (US, 9).into(), remote, retry_refused: true, private: &[] })
            {
                self.ids.push(id);
            }
            return;
        }
        let connect = Connect {
            local: (US, 9).into(),
            remote: (remote, u16::from(input.byte() % 3)).into(),
            port_space: PortSpace::Ib,
            transport: if input.byte().is_multiple_of(2) { Transport::Rc } else { Transport::Xrc },
            qpn: QpNumber::new(u32::from(input.byte())),
            starting_psn: Psn::new(1),
            mtu: Mtu::Mtu1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: input.byte(),
            flow_control: false,
            traffic_class: 0,
            srq: false,
            ports: trunkline_verbs::UdpPorts::new(4791),
            retry_refused: true,
            one_flow: if input.byte().is_multiple_of(2) { OneFlow::No } else { OneFlow::Try },
            private: &[],
        };
        // `connect` fails when the table is full, which the fuzzer may test, too.
        if let Ok(id) = self.machine.connect(self.now, &connect) {
            self.ids.push(id);
        }
    }

    fn call(&mut self, input: &mut Input<'_>, id: ConnectionId) {
        let machine = &mut self.machine;
        let qpn = QpNumber::new(u32::from(input.byte()));
        let accept = Accept {
            qpn,
            starting_psn: Psn::new(2),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry: 7,
            flow_control: false,
            srq: false,
            private: &[],
        };
        // Any call is allowed at any time; one that does not fit the state returns an error.
        match input.byte() % 8 {
            6 => drop(machine.answer(self.now, id, &Answer { qpn, qkey: 1, private: &[] })),
            7 => drop(machine.decline(self.now, id, &[])),
            0 => drop(machine.accept(self.now, id, &accept)),
            1 => drop(machine.reject(self.now, id, RejectReason::CONSUMER, &[])),
            2 => drop(machine.confirm(id)),
            3 => drop(machine.disconnect(self.now, id, &[])),
            4 => machine.release(self.now, id),
            _ => machine.communication_established(qpn),
        }
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.machine.poll_transmit() {
            let reparsed = CmMessage::parse(&transmit.mad);
            assert_eq!(reparsed.mad(transmit.mad.header.transaction), transmit.mad);
            self.sent.push(transmit);
        }
        while let Some(event) = self.machine.poll_event() {
            if let Event::ConnectRequest(id, _) | Event::ServiceRequest(id, _) = event {
                self.ids.push(id);
            }
        }
        let excess = self.sent.len().saturating_sub(16);
        self.sent.drain(..excess);
        let machine = &self.machine;
        self.ids.retain(|id| machine.has_connection(id.0));
    }

    fn check(&self) {
        let (table, questions) = (&self.machine.table, &self.machine.questions);
        assert!(table.len() + questions.len() <= LIMIT);
        assert!(table.half_open_total() + questions.undecided_total() <= LIMIT / 2);
        let of_host = |host| table.half_open_of(host) + questions.undecided_of(host);
        let hosts = PEERS.map(|peer| PeerHost::new(peer, AddressOwner::OtherHost));
        assert!(hosts.into_iter().all(|host| of_host(host) <= LIMIT / 3));
        table.check();
        questions.check();
    }

    /// Ends the run. Without further messages, all connections end, except established ones.
    fn end(&mut self) {
        while let Some(at) = self.machine.next_timeout() {
            self.now = self.now.max(at);
            self.machine.handle_timeout(self.now);
            self.drain();
            self.check();
        }
        assert!(self.machine.table.states().all(|state| *state == ConnectionState::Established));
        assert_eq!(self.machine.questions.len(), 0);
    }
}
