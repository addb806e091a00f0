//! Peers that are built directly on verbs and can send arbitrary frames, and forged connection requests.
//!
//! This module encodes the private data of requests independently, so that tests with these peers also check the layout of
//! the handshake.

use crate::Random;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_roce::cm::{CmConfig, CmMachine, Connect, Transport};
use trunkline_roce::wire::Mad;
use trunkline_verbs::{
    CmChannel, CmEventKind, CmId, CmIdNumber, CompletionQueue, ConnectParameters, CqInit, Device,
    EndpointRequest, EndpointSide, Mtu, OneFlow, PortSpace, PostError, ProtectionDomain, Psn, QpInit,
    QpNumber, QpType, QueueCapacities, QueuePair, SendData, SendFlags, SendOperation, SendRequest, SrqNumber,
    VerbsError,
};

/// Rejection reason that is accompanied by a cookie.
const UNPROVEN: u8 = 11;

/// Private data of a node's request for its first session.
#[derive(Debug, Clone)]
pub struct Hello {
    /// Port of the node's listener.
    pub port: u16,
    /// Number that identifies the incarnation of the node.
    pub epoch: u64,
    /// True for RC connections.
    pub is_rc: bool,
    /// The only version of the session protocol that the node speaks.
    pub version: u8,
    /// Index of the poller that dials.
    pub poller: u16,
    /// Number of pollers of the node.
    pub pollers: u16,
    /// True if a handshake precedes the session.
    pub has_handshake: bool,
    /// Cookie from the refusal of an earlier request; zeros in the first request.
    pub cookie: [u8; 16],
}

impl Hello {
    /// Returns the first request of a node with one poller and XRC connections.
    #[must_use]
    pub const fn new(port: u16, epoch: u64) -> Self {
        Self {
            port,
            epoch,
            is_rc: false,
            version: 5,
            poller: 0,
            pollers: 1,
            has_handshake: false,
            cookie: [0; 16],
        }
    }

    /// Returns the cookie in the private data of a rejection, if it contains one.
    #[must_use]
    pub fn cookie_in(refusal: &[u8]) -> Option<[u8; 16]> {
        let is_unproven = refusal.starts_with(b"TRNK") && *refusal.get(5)? == UNPROVEN;
        is_unproven.then(|| refusal.get(8..24)?.try_into().ok()).flatten()
    }

    /// Encodes the private data.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = b"TRNK".to_vec();
        bytes.extend([self.version, u8::from(self.has_handshake)]);
        bytes.extend(self.port.to_be_bytes());
        bytes.extend(self.epoch.to_be_bytes());
        bytes.extend(1_u32.to_be_bytes());
        bytes.extend([0; 12]);
        bytes.extend(self.poller.to_be_bytes());
        bytes.extend(self.pollers.to_be_bytes());
        // The kind of connections and the lowest supported version. Version 2 does not define the second field.
        bytes.extend([if self.is_rc { 2 } else { 1 }, self.version]);
        bytes.extend(self.cookie);
        // Zero stands for the default UDP port.
        bytes.extend([0; 2]);
        bytes
    }

    /// Builds the REQ that a device at the claimed address would send. Returns the REQ and its comm id.
    ///
    /// # Panics
    /// Panics if the addresses are of different families.
    pub fn request(&self, claimed: IpAddr, victim: SocketAddr, random: &mut Random) -> (u32, Mad) {
        let number = |random: &mut Random| u32::try_from(random.next() >> 40).expect("24 bits");
        let mut device = CmMachine::new(CmConfig::new(random.next() | 1, random.next() | 1));
        let connect = Connect {
            local: SocketAddr::new(claimed, self.port),
            remote: victim,
            port_space: PortSpace::Ib,
            transport: if self.is_rc { Transport::Rc } else { Transport::Xrc },
            qpn: QpNumber::new(number(random) | 2),
            starting_psn: Psn::new(number(random)),
            mtu: Mtu::Mtu1024,
            responder_resources: 0,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 15,
            flow_control: false,
            traffic_class: 0,
            srq: true,
            ports: trunkline_verbs::UdpPorts::new(4791),
            one_flow: OneFlow::No,
            retry_refused: false,
            private: &self.to_bytes(),
        };
        let id = device.connect(0, &connect).expect("addresses of one family").0;
        (id, device.poll_transmit().expect("a request leaves at once").mad)
    }
}

/// A connecting endpoint and its QP.
type Dialled = (Arc<dyn CmId>, Arc<dyn QueuePair>);

/// A device at one address that dials nodes.
#[derive(Debug)]
pub struct HandMadePeer {
    /// Device of the peer.
    pub device: Arc<dyn Device>,
    /// The device's address.
    pub host: IpAddr,
    /// Event channel for the endpoints of dialled connections.
    pub channel: Arc<dyn CmChannel>,
    /// CQ of the peer's QPs.
    pub cq: Arc<dyn CompletionQueue>,
    /// Protection domain of the peer's QPs.
    pub pd: Arc<dyn ProtectionDomain>,
}

impl HandMadePeer {
    /// Creates a peer and the objects that its QPs share.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn new(device: Arc<dyn Device>, host: IpAddr) -> Result<Self, VerbsError> {
        let channel = device.connection_manager().create_channel()?;
        let cq = device.create_cq(CqInit { capacity_cqe: 8192, ..CqInit::default() })?;
        let pd = device.alloc_pd()?;
        Ok(Self { device, host, channel, cq, pd })
    }

    /// Listens on a port, or on any free port if `port` is 0.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn listen(
        &self,
        port: u16,
        qp_type: QpType,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        let side = EndpointSide::Passive { local: SocketAddr::new(self.host, port) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let listener = self.device.connection_manager().create_endpoint(&request, channel)?;
        listener.listen(8)?;
        Ok(listener)
    }

    /// Requests a connection to a node for a new QP.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn dial(&self, node: SocketAddr, hello: &Hello) -> Result<Dialled, VerbsError> {
        let qp_type = if hello.is_rc { QpType::Rc } else { QpType::XrcIni };
        let side = EndpointSide::Active { remote: node, source: Some(self.host) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let id = self.device.connection_manager().create_endpoint(&request, &self.channel)?;
        let qp = self.device.create_qp(QpInit {
            pd: Some(Arc::clone(&self.pd)),
            send_cq: Some(Arc::clone(&self.cq)),
            receive_cq: hello.is_rc.then(|| Arc::clone(&self.cq)),
            capacities: QueueCapacities {
                max_send_wr: 64,
                max_send_sge: 1,
                max_inline_data: 256,
                ..QueueCapacities::default()
            },
            ..QpInit::new(qp_type)
        })?;
        id.attach(Arc::clone(&qp))?;
        id.connect(&ConnectParameters { private_data: hello.to_bytes(), ..ConnectParameters::default() })?;
        Ok((id, qp))
    }
}

/// Returns the first SRQ number in an accepting node's private data.
///
/// # Panics
/// Panics if the private data is too short.
#[must_use]
pub fn first_srq(private_data: &[u8]) -> SrqNumber {
    SrqNumber::new(u32::from_be_bytes(private_data[24..28].try_into().expect("four bytes")))
}

/// Posts a frame as a work request with `wr_id` 1.
///
/// # Errors
/// Returns the error of the QP.
pub fn post_frame(qp: &dyn QueuePair, srq: SrqNumber, data: SendData<'_>) -> Result<(), PostError> {
    let flags = SendFlags::SIGNALED;
    qp.post_send(&[SendRequest { wr_id: 1, operation: SendOperation::Send, data, flags, remote_srq: srq }])
}

/// A host that listens on many ports and dials a node from each of them. It returns cookies, but never answers a dial-back.
#[derive(Debug)]
pub struct Crowd {
    peer: HandMadePeer,
    node: SocketAddr,
    version: u8,
    /// Frames that each session sends when it becomes half-open.
    frames: Vec<Vec<u8>>,
    /// Event channel of the listeners. It is never read, so the dial-backs remain unanswered.
    _unread: Arc<dyn CmChannel>,
    _listeners: Vec<Arc<dyn CmId>>,
    dials: HashMap<CmIdNumber, Dial>,
}

#[derive(Debug)]
struct Dial {
    port: u16,
    _id: Arc<dyn CmId>,
    qp: Arc<dyn QueuePair>,
}

/// A node's decision about a dial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// The session is half-open.
    Accepted,
    /// The dial is refused for this reason.
    Refused(u8),
}

impl Crowd {
    /// Number of the first listener's port.
    const FIRST_PORT: u16 = 1000;

    /// Creates a crowd, and dials the node from each port.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn dial(
        peer: HandMadePeer,
        node: SocketAddr,
        ports: u16,
        version: u8,
        frames: Vec<Vec<u8>>,
    ) -> Result<Self, VerbsError> {
        let unread = peer.device.connection_manager().create_channel()?;
        let ports = Self::FIRST_PORT..Self::FIRST_PORT + ports;
        let listen = |port| peer.listen(port, QpType::XrcTgt, &unread);
        let listeners = ports.clone().map(listen).collect::<Result<_, _>>()?;
        let dials = HashMap::new();
        let mut crowd = Self { peer, node, version, frames, _unread: unread, _listeners: listeners, dials };
        for port in ports {
            crowd.ask(port, [0; 16])?;
        }
        Ok(crowd)
    }

    fn ask(&mut self, port: u16, cookie: [u8; 16]) -> Result<(), VerbsError> {
        let hello = Hello { version: self.version, cookie, ..Hello::new(port, port.into()) };
        let (id, qp) = self.peer.dial(self.node, &hello)?;
        self.dials.insert(id.number(), Dial { port, _id: id, qp });
        Ok(())
    }

    /// Returns the next decision, or `None` if none has arrived. After an acceptance, sends the session's frames.
    ///
    /// # Errors
    /// Returns the error of the device.
    pub fn next_decision(&mut self) -> Result<Option<Decision>, VerbsError> {
        while let Some(event) = self.peer.channel.next_event() {
            match event.kind {
                CmEventKind::Established => {
                    let srq = first_srq(&event.private_data);
                    for frame in &self.frames {
                        // The node may already have ended the session.
                        let _ = post_frame(&*self.dials[&event.id].qp, srq, SendData::Inline(frame));
                    }
                    return Ok(Some(Decision::Accepted));
                }
                CmEventKind::Rejected(_) => {
                    let Some(dial) = self.dials.remove(&event.id) else { continue };
                    match Hello::cookie_in(&event.private_data) {
                        Some(cookie) => self.ask(dial.port, cookie)?,
                        None => return Ok(Some(Decision::Refused(event.private_data[5]))),
                    }
                }
                _ => {}
            }
        }
        Ok(None)
    }
}
