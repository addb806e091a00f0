//! A peer that builds the connection manager's messages itself, and the device that receives them.

use crate::common::node::{BOUND, Node};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use trunkline_roce::wire::cm::{
    AddressHeader, Answered, CmMessage, Dreq, Ids, Mra, Path, Rej, Rep, Req, ServiceId, TransportType,
};
use trunkline_roce::wire::{
    ICRC_LENGTH, IpUdp, MAD_BYTES, Mad, Opcode, Packet, QP1, ROCE_PORT, icrc, mad_packet,
};
use trunkline_softrdma::device::{LinkChoice, SoftOptions};
use trunkline_softrdma::link::{Hub, InProcessLink, Link, ReceiveBatch, SendBatch};
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, Completion, Device, EndpointRequest, EndpointSide, Gid, PKEY_DEFAULT,
    PortSpace, Psn, QpNumber, QpType, QueuePair, RejectReason, Time,
};

/// Port of the listener.
pub(super) const PORT: u16 = 7;

/// The effect of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Took {
    /// The program got a connection request.
    Taken,
    /// No visible effect, while the program takes no events.
    Unseen,
    /// A connection was established.
    Established,
    /// These counters increased, and no others.
    Counted(Vec<String>),
}

impl Took {
    pub(super) fn counted(names: &[&str]) -> Self {
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        Self::Counted(names)
    }
}

pub(super) struct Asker {
    pub(super) node: Node,
    channel: Arc<dyn CmChannel>,
    _listener: Arc<dyn CmId>,
    /// Requests that the program has not answered.
    requests: Vec<Arc<dyn CmId>>,
    /// True while the program takes no events.
    is_away: bool,
    /// Connection that the node requests from us.
    asking: Option<(Arc<dyn CmId>, Arc<dyn QueuePair>)>,
    link: InProcessLink,
    address: IpAddr,
    /// Source port of its packets.
    pub(super) port: u16,
    next: u32,
    /// Messages in answer to the last one sent.
    pub(super) answers: Vec<CmMessage>,
}

/// Change that invalidates a packet, and the counter that shows it.
type Spoiled = (fn(&mut Packet<'_>), &'static str);

pub(super) const SPOILED: &[Spoiled] = &[
    (|packet| packet.bth.pkey = 0x1234, "drop_wrong_pkey"),
    (|packet| packet.bth.destination = QpNumber::new(0), "drop_unknown_qp"),
    (|packet| packet.bth.version = 1, "drop_malformed"),
    (|packet| packet.bth.opcode = Opcode(0x7f), "drop_malformed"),
    (|packet| packet.bth.opcode = Opcode(0x04), "drop_bad_mad"),
    (
        |packet| {
            packet.deth = packet.deth.map(|mut deth| {
                deth.qkey ^= 1;
                deth
            })
        },
        "drop_bad_mad",
    ),
];

/// Wraps a message in a MAD.
pub(super) fn cm(message: CmMessage) -> Mad {
    message.mad(7)
}

pub(super) fn ids(local_id: u32, remote_id: u32) -> Ids {
    Ids { local_id, remote_id, private: [0; 224] }
}

pub(super) fn dreq(local_id: u32, remote_id: u32, qpn: u32) -> CmMessage {
    CmMessage::Dreq(Dreq { local_id, remote_id, qpn: QpNumber::new(qpn), reserved_11: 0, private: [0; 220] })
}

pub(super) fn rej(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Rej(Rej {
        local_id,
        remote_id,
        answered: Answered::OTHER,
        reserved_8: 0,
        info_length: 0,
        reserved_9: false,
        reason: RejectReason::TIMEOUT,
        info: [0; 72],
        private: [0; 148],
    })
}

pub(super) fn mra(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id,
        remote_id,
        answered: Answered::REP,
        reserved_8: 0,
        service_timeout: 31,
        reserved_9: 0,
        private: [0; 222],
    })
}

/// Builds a valid REQ with ids of this number.
pub(super) fn request_of(number: u32, from: IpAddr, to: IpAddr) -> Req {
    let mut private = [0; 92];
    AddressHeader::new(SocketAddr::new(from, 0x4321), to).emit(&mut private);
    Req {
        local_id: 0x5000_0000 | number,
        reserved_4: 0,
        vendor_id: 0,
        service_id: ServiceId::new(PortSpace::Ib, PORT),
        ca_guid: 0x5054_00ff_fe00_0001,
        reserved_24: 0,
        qkey: 0,
        qpn: QpNumber::new(number),
        responder_resources: 0,
        eecn: 0,
        initiator_depth: 4,
        remote_eecn: 0,
        remote_timeout: 20,
        transport: TransportType::XRC,
        flow_control: false,
        starting_psn: Psn::new(99),
        local_timeout: 20,
        retry_count: 0,
        pkey: PKEY_DEFAULT,
        mtu: 3,
        rdc_exists: false,
        rnr_retry: 0,
        max_cm_retries: 15,
        srq: false,
        primary: Path {
            local_lid: 0xffff,
            remote_lid: 0xffff,
            local_gid: Gid::from(from),
            remote_gid: Gid::from(to),
            hop_limit: 64,
            ack_timeout: 14,
            ..Path::default()
        },
        alternate: Path::default(),
        private,
    }
}

impl Asker {
    /// Creates a device with an XRC listener of this backlog, and its peer.
    pub(super) fn new(backlog: u32) -> Self {
        let hub = Hub::new();
        let link = LinkChoice::InProcess(Arc::clone(&hub));
        let node = Node::open(SoftOptions { link, ..crate::common::udp() }, 4096);
        let manager = node.device.connection_manager();
        let channel = manager.create_channel().unwrap();
        let side = EndpointSide::Passive { local: SocketAddr::new(node.address, PORT) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcTgt };
        let listener = manager.create_endpoint(&request, &channel).unwrap();
        listener.listen(backlog).unwrap();
        let address = crate::common::address();
        let mut link = hub.link().unwrap();
        link.open(address).unwrap();
        let (requests, answers) = (Vec::new(), Vec::new());
        Self {
            node,
            channel,
            _listener: listener,
            requests,
            is_away: false,
            asking: None,
            link,
            address,
            port: ROCE_PORT,
            next: 0x100,
            answers,
        }
    }

    /// Builds a valid REQ with new ids.
    pub(super) fn request(&mut self) -> Req {
        self.next += 1;
        request_of(self.next, self.address, self.node.address)
    }

    /// Builds a valid REP to a REQ of the node.
    pub(super) fn reply(&mut self, req: &Req) -> Rep {
        self.next += 1;
        Rep {
            local_id: 0x6000_0000 | self.next,
            remote_id: req.local_id,
            qkey: 0,
            qpn: QpNumber::new(0),
            vendor_15: 0,
            eecn: self.next,
            vendor_19: 0,
            starting_psn: Psn::new(5),
            vendor_23: 0,
            responder_resources: 4,
            initiator_depth: 0,
            ack_delay: 12,
            failover: 0,
            flow_control: false,
            rnr_retry: 7,
            srq: true,
            reserved_27: 0,
            ca_guid: 0x5054_00ff_fe00_0001,
            private: [0; 196],
        }
    }

    /// Makes the node request a connection. Returns its REQ.
    pub(super) fn asked(&mut self) -> Req {
        self.asking = Some(self.node.ask(SocketAddr::new(self.address, PORT), &self.channel));
        let until = Instant::now() + BOUND;
        loop {
            self.work();
            self.take_answers();
            let req = self.answers.iter().find_map(|answer| match answer {
                CmMessage::Req(req) => Some(*req),
                _ => None,
            });
            if let Some(req) = req {
                return req;
            }
            assert!(Instant::now() < until, "the node never asked");
        }
    }

    /// Ends the node's connection to us and consumes all of its messages.
    pub(super) fn hang_up(&mut self) {
        self.asking = None;
        self.work();
        self.take_answers();
        while self.channel.next_event().is_some() {}
    }

    /// Makes a connection that the node has accepted and that we have not confirmed. Returns the REQ and the
    /// node's id.
    pub(super) fn half_made(&mut self) -> (Req, u32) {
        let req = self.request();
        assert_eq!(self.send(CmMessage::Req(req)), Took::Taken);
        let id = self.requests.pop().unwrap();
        let tgt = self.node.accept(&*id);
        self.asking = Some((id, tgt));
        self.work();
        self.take_answers();
        // DREQs of earlier connections may arrive again.
        let rep = self.answers.iter().find_map(|answer| match answer {
            CmMessage::Rep(rep) => Some(rep.local_id),
            _ => None,
        });
        (req, rep.unwrap_or_else(|| panic!("{:?}", self.answers)))
    }

    /// Returns the id of a connection that the program has not answered, taken from an MRA.
    pub(super) fn newest_connection(&mut self, req: &Req) -> u32 {
        assert_eq!(self.send(CmMessage::Req(*req)), Took::counted(&["cm_duplicate"]));
        let mra = self.answers.iter().find_map(|answer| match answer {
            CmMessage::Mra(mra) => Some(mra.local_id),
            _ => None,
        });
        mra.unwrap_or_else(|| panic!("{:?}", self.answers))
    }

    /// Makes the program take no events until it comes back.
    pub(super) fn leave(&mut self) {
        self.is_away = true;
    }

    /// Makes the program take the connection requests that arrived meanwhile. Returns their number.
    pub(super) fn come_back(&mut self) -> usize {
        self.is_away = false;
        let before = self.requests.len();
        while let Some(event) = self.channel.next_event() {
            let CmEventKind::ConnectRequest { id, .. } = event.kind else { panic!("{event:?}") };
            self.requests.push(id);
        }
        self.requests.len() - before
    }

    /// Makes the program refuse the connection requests.
    pub(super) fn refuse_requests(&mut self) {
        for request in self.requests.drain(..) {
            request.reject(b"").unwrap();
        }
        self.work();
        self.take_answers();
    }

    /// Checks that a valid request is accepted and confirmed.
    pub(super) fn still_serves(&mut self) {
        let (req, id) = self.half_made();
        assert_eq!(self.send(CmMessage::Rtu(ids(req.local_id, id))), Took::Established);
    }

    pub(super) fn send(&mut self, message: CmMessage) -> Took {
        self.send_mad(&cm(message))
    }

    pub(super) fn send_mad(&mut self, mad: &Mad) -> Took {
        self.send_payload(&mad.to_bytes())
    }

    /// Sends a datagram to QP 1 with any payload.
    pub(super) fn send_payload(&mut self, payload: &[u8]) -> Took {
        let frame = mad_packet(Psn::new(1), &[0; MAD_BYTES]);
        let pad = u8::try_from(payload.len().next_multiple_of(4) - payload.len()).unwrap();
        let mut packet = Packet { payload, ..frame };
        packet.bth.pad = pad;
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send_packet(bytes)
    }

    pub(super) fn send_spoiled(&mut self, mad: &[u8; MAD_BYTES], spoil: fn(&mut Packet<'_>)) -> Took {
        let mut packet = mad_packet(Psn::new(1), mad);
        spoil(&mut packet);
        let mut bytes = Vec::new();
        packet.emit(&mut bytes);
        self.send_packet(bytes)
    }

    /// Sends only the first bytes of a packet, with a correct ICRC.
    pub(super) fn send_cut(&mut self, mad: &[u8; MAD_BYTES], length: usize) -> Took {
        let mut bytes = Vec::new();
        mad_packet(Psn::new(1), mad).emit(&mut bytes);
        bytes.truncate(length);
        self.send_packet(bytes)
    }

    pub(super) fn packet_length(&self) -> usize {
        mad_packet(Psn::new(1), &[0; MAD_BYTES]).emitted_len()
    }

    fn send_packet(&mut self, mut bytes: Vec<u8>) -> Took {
        let (source, destination) =
            (SocketAddr::new(self.address, self.port), SocketAddr::new(self.node.address, ROCE_PORT));
        icrc::append(&IpUdp::new(source, destination), &mut bytes);
        self.take_answers();
        let before = self.counts();
        let received = self.node.counter("packets_received") + 1;
        let mut batch = SendBatch::new();
        batch.push_with(source, destination, |out| out.extend_from_slice(&bytes));
        self.link.send(&mut batch, Time(0));
        let until = Instant::now() + BOUND;
        while self.node.counter("packets_received") < received {
            assert!(Instant::now() < until, "the device stopped: {:#?}", self.node.device_counters());
            self.work();
        }
        self.take_answers();
        self.what_happened(&before)
    }

    /// Does the device's work on this thread.
    fn work(&self) {
        self.node.cq.poll(&mut [Completion::default()]);
    }

    fn counts(&self) -> BTreeMap<&'static str, u64> {
        let counters = self.node.device_counters();
        let changed = |name: &str| {
            name.starts_with("drop_")
                || name.starts_with("cm_") && !["cm_received", "cm_sent", "cm_retransmitted"].contains(&name)
        };
        counters
            .iter()
            .filter(|counter| changed(counter.name))
            .map(|counter| (counter.name, counter.value))
            .collect()
    }

    fn what_happened(&mut self, before: &BTreeMap<&'static str, u64>) -> Took {
        let mut taken = Vec::new();
        while let Some(event) = if self.is_away { None } else { self.channel.next_event() } {
            match event.kind {
                CmEventKind::ConnectRequest { id, .. } => {
                    self.requests.push(id);
                    taken.push(Took::Taken);
                }
                CmEventKind::Established => taken.push(Took::Established),
                CmEventKind::Disconnected { .. } | CmEventKind::TimewaitExit => {}
                other => panic!("{other:?}"),
            }
        }
        let mut counted = Vec::new();
        for (name, after) in self.counts() {
            for _ in before[name]..after {
                counted.push(name.to_owned());
            }
        }
        match (taken.as_slice(), counted.is_empty()) {
            ([one], true) => one.clone(),
            ([], false) => Took::Counted(counted),
            ([], true) if self.is_away => Took::Unseen,
            other => panic!("not exactly one effect: {other:?}, {counted:?}"),
        }
    }

    fn take_answers(&mut self) {
        self.answers.clear();
        let mut received = ReceiveBatch::new(64);
        while self.link.receive(&mut received) > 0 {
            for datagram in received.iter() {
                // A sender at another address cannot always bind this port there.
                assert_eq!(datagram.destination, SocketAddr::new(self.address, ROCE_PORT));
                let body = &datagram.bytes[..datagram.bytes.len() - ICRC_LENGTH];
                let packet = Packet::parse(body).unwrap();
                assert_eq!(packet.bth.destination, QP1);
                self.answers.push(CmMessage::parse(&Mad::from_packet(&packet).unwrap()));
            }
        }
    }
}
