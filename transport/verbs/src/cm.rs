//! Event-driven connection management with endpoints as in librdmacm.
//!
//! A [`CmId`] belongs to one [`CmChannel`] at a time, which receives its events. `connect`, `accept` and `disconnect` start
//! an operation whose outcome is an event. Only [`ConnectionManager::create_endpoint`] may block;
//! [`ConnectionManager::begin_endpoint`] is its non-blocking form.
//!
//! ```text
//! active : create_endpoint -> attach(INI) -> connect -> Established | Rejected | Unreachable
//! passive: create_endpoint -> listen -> ConnectRequest(new id) -> attach(TGT) -> accept -> Established
//! either : disconnect, or a DREQ from the peer -> Disconnected -> TimewaitExit
//!
//! step by step, as programs use librdmacm (the program moves its QP to RTS itself):
//! active : create_id [-> bind] -> resolve_address -> AddressResolved -> resolve_route -> RouteResolved
//!          -> connect(QP number) -> ConnectResponse -> qp_changes(RTR, RTS) -> establish
//! passive: create_id -> bind -> listen -> ConnectRequest(new id) -> qp_changes(RTR, RTS)
//!          -> accept(QP number) -> Established
//!
//! in port space UDP, which resolves a QP and creates no connection:
//! active : create_id [-> bind] -> resolve_address -> resolve_route -> connect
//!          -> ServiceResolved(QP number, Q_Key) | ServiceRefused | Unreachable
//! passive: create_id -> bind -> listen -> ConnectRequest(new id) -> accept(QP number, Q_Key)
//! ```

use crate::channel::is_readable;
use crate::{Mtu, QpModify, QpNumber, QpState, QpType, QueuePair, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

/// The namespace of a port number (`rdma_port_space`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// RC, 0x0106.
    Tcp,
    /// SIDR, 0x0111. It resolves a QP number and a Q_Key without a connection.
    Udp,
    /// Any QP type including XRC, 0x013f (contract J1).
    Ib,
}

impl PortSpace {
    /// All port spaces.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Ib];

    /// Returns the prefix of the port space's service ids. The lowest 16 bits of a service id are the port.
    #[must_use]
    pub const fn prefix(self) -> u64 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }
}

/// Role of an endpoint in its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointSide {
    /// Initiates the connection.
    Active {
        /// Address and port of the listener.
        remote: SocketAddr,
        /// The local address; `None` if the route determines it.
        source: Option<IpAddr>,
    },
    /// Listens.
    Passive {
        /// Local address and port. Port 0 selects a free port, and an unspecified address stands for all addresses.
        local: SocketAddr,
    },
}

/// The parameters for creating an endpoint (`rdma_create_ep`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointRequest {
    /// Active or passive.
    pub side: EndpointSide,
    /// The port space. XRC requires [`PortSpace::Ib`].
    pub port_space: PortSpace,
    /// The type of the endpoint's QPs: `XrcIni` for active XRC, `XrcTgt` for passive XRC.
    pub qp_type: QpType,
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectParameters {
    /// Private data, at most 56 bytes in a request and 196 in a reply, or 180 and 136 in [`PortSpace::Udp`].
    pub private_data: Vec<u8>,
    /// Maximum number of READs and atomics that this side accepts at a time.
    pub responder_resources: u8,
    /// Maximum number of READs and atomics that this side has outstanding.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7.
    pub rnr_retry_count: u8,
    /// Exponent n of the local ACK timeout of the active side's QP, 4.096 us * 2^n, from 1 to 31 (contract rocev2 12.2).
    /// Ignored when accepting.
    pub ack_timeout: u8,
    /// In events, the peer's QP. In calls, the program's own QP if none is attached to the endpoint; the program then moves
    /// this QP to RTS itself ([`CmId::qp_changes`]).
    pub qp_number: Option<QpNumber>,
    /// True if end-to-end flow control is available. The value is only reported to the peer's program.
    pub flow_control: bool,
    /// True if the QP has an SRQ; always set for XRC (contract J5).
    pub srq: bool,
    /// Q_Key of the passive side's QP, in [`PortSpace::Udp`] only.
    pub q_key: u32,
}

/// The Q_Key of a QP whose program does not choose one (`RDMA_UDP_QKEY`).
pub const UDP_Q_KEY: u32 = 0x0123_4567;

impl Default for ConnectParameters {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            ack_timeout: 19,
            qp_number: None,
            flow_control: false,
            srq: false,
            q_key: UDP_Q_KEY,
        }
    }
}

/// An option of an endpoint, set before it connects or listens (`rdma_set_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmOption {
    /// Traffic class of the connection's packets (`RDMA_OPTION_ID_TOS`).
    TypeOfService(u8),
    /// True if other endpoints may bind to the same port, as long as at most one of them listens
    /// (`RDMA_OPTION_ID_REUSEADDR`).
    ReuseAddress(bool),
    /// True if a listener at `::` refuses IPv4 peers (`RDMA_OPTION_ID_AFONLY`).
    AddressFamilyOnly(bool),
    /// Overrides [`ConnectParameters::ack_timeout`], with the same encoding (`RDMA_OPTION_ID_ACK_TIMEOUT`, contract J12).
    AckTimeout(u8),
    /// UDP ports of the connection. Hardware supports only 4791.
    UdpPorts(UdpPorts),
    /// One pair of UDP ports for all packets of the connection. Software devices only.
    OneFlow(OneFlow),
    /// If true, a request that is reported as undeliverable is repeated for 525 ms instead of failing immediately, because
    /// the peer may be starting. Software devices only.
    RetryRefused(bool),
    /// Upper bound on the path MTU in the request. Software devices only.
    PathMtu(Mtu),
}

/// Use of one pair of UDP ports by all packets of a connection, so that a firewall or an address translator on the
/// connecting side treats the peer's packets as replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OneFlow {
    /// Each side sends from any of its ports to the receiving port of the other device.
    #[default]
    No,
    /// One flow is requested in every second transmission of the connection request, starting with the second. The peer
    /// rejects the connection, and reports which form of the request arrived.
    Try,
    /// One flow is requested in all transmissions of the connection request.
    Yes,
}

/// UDP ports of a connection between software devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UdpPorts {
    /// Source port of packets to the peer, if the connection uses one flow; `None` for any port.
    pub own: Option<u16>,
    /// Destination port of packets to the peer.
    pub peer: u16,
    /// Addresses that the ICRC covers if an address translator rewrites the packets' addresses. Set only on the side that
    /// accepted a one-flow connection, or that dials back in one.
    pub view: Option<PeerView>,
}

impl UdpPorts {
    /// Value of [`Self::own`] that stands for any source port except the device's receiving port.
    pub const OTHER: u16 = 0;

    /// Returns the ports of packets to port `peer`, with any source port.
    #[must_use]
    pub const fn new(peer: u16) -> Self {
        Self { own: None, peer, view: None }
    }
}

/// Addresses and UDP ports of a connection's packets as seen by its peer, which is behind an address translator. They are
/// never used as destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerView {
    /// Address and port of this side.
    pub own: SocketAddr,
    /// The peer's address and port.
    pub peer: SocketAddr,
}

/// Reason why a connection was rejected (contract rocev2 9.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No such QP.
    pub const NO_QP: Self = Self(1);
    /// Out of resources.
    pub const NO_RESOURCES: Self = Self(3);
    /// The peer timed out.
    pub const TIMEOUT: Self = Self(4);
    /// The kind of request is not supported.
    pub const UNSUPPORTED: Self = Self(5);
    /// The message names a connection that does not exist at the peer.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// The service id has no listener.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// The transport is neither RC nor XRC.
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    /// The peer still has an earlier connection of the same QP.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The addresses in the request differ from the addresses of its packet.
    pub const INVALID_PRIMARY_GID: Self = Self(12);
    /// The path MTU is invalid, or the peer does not support it.
    pub const INVALID_PATH_MTU: Self = Self(26);
    /// The application refused.
    pub const CONSUMER: Self = Self(28);
    /// The application does not support the offered vendor options.
    pub const VENDOR_OPTION: Self = Self(35);
}

/// Reason why a connection request was not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum UnreachableCause {
    /// No answer arrived in time.
    NoAnswer,
    /// The UDP port of the peer's device is closed.
    Port,
    /// The peer's host or network has no route, or the host does not respond on its link.
    Host,
    /// A firewall refuses the packets.
    Prohibited,
}

/// The result of resolving a service in [`PortSpace::Udp`] (`ib_cm_sidr_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// A QP serves the service.
    pub const SUCCESS: Self = Self(0);
    /// The service is not supported.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application refused.
    pub const REJECT: Self = Self(2);
}

/// Number of an endpoint in events. It is unique on its device for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmIdNumber(pub u64);

/// Converts an IPv4-mapped IPv6 address, such as `::ffff:127.0.0.1`, to IPv4. Other addresses are returned
/// unchanged.
#[must_use]
pub fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        v4 @ IpAddr::V4(_) => SocketAddr::new(v4, address.port()),
        IpAddr::V6(_) => address,
    }
}

/// Events of an endpoint (`rdma_cm_event_type`).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CmEventKind {
    /// A connection request arrived at a listener. `id` is a new endpoint on the listener's channel.
    ConnectRequest {
        /// The new endpoint.
        id: Arc<dyn CmId>,
        /// The peer's parameters, with both depths already swapped to this side's view.
        parameters: ConnectParameters,
    },
    /// `resolve_address` found the local address and the route.
    AddressResolved,
    /// `resolve_address` failed.
    AddressError(VerbsError),
    /// `resolve_route` completed.
    RouteResolved,
    /// The peer accepted the request of an active endpoint without an attached QP. Move the QP to RTS and call
    /// [`CmId::establish`]; no further event reports that the endpoint is connected.
    ConnectResponse {
        /// The peer's parameters, with both depths already swapped to this side's view.
        parameters: ConnectParameters,
    },
    /// The connection is established.
    Established,
    /// An active endpoint in [`PortSpace::Udp`] resolved its service.
    ServiceResolved {
        /// QP number, Q_Key and private data; the other fields are not used.
        parameters: ConnectParameters,
    },
    /// An active endpoint in [`PortSpace::Udp`] failed to resolve its service.
    ServiceRefused(SidrStatus),
    /// A local operation failed.
    ConnectError,
    /// The peer did not answer.
    Unreachable(UnreachableCause),
    /// The peer refused the request for this reason.
    Rejected(RejectReason),
    /// Either side disconnected; the attached QP is in ERR.
    Disconnected {
        /// True if the peer disconnected or confirmed this side's DREQ. A missing confirmation is reported a minute or more
        /// after the call; librdmacm reports it as status `-ETIMEDOUT`.
        is_answered: bool,
    },
    /// The device is being removed.
    DeviceRemoval,
    /// The QP number and PSNs of the connection may be reused.
    TimewaitExit,
}

/// An event of an endpoint.
#[derive(Debug, Clone)]
pub struct CmEvent {
    /// The endpoint.
    pub id: CmIdNumber,
    /// The kind of event.
    pub kind: CmEventKind,
    /// The peer's private data, padded to the size of the message's field.
    pub private_data: Vec<u8>,
}

/// A queue of events of endpoints (`rdma_event_channel`).
pub trait CmChannel: Any + AsFd + Send + Sync + Debug {
    /// Takes one event, if one is waiting. The descriptor is readable while events are waiting.
    fn next_event(&self) -> Option<CmEvent>;

    /// Returns true if the descriptor is readable now. Simulations call this instead of sleeping on the descriptor.
    fn has_event(&self) -> bool {
        is_readable(self.as_fd())
    }
}

/// An endpoint (`rdma_cm_id`). Dropping the last `Arc` destroys it, but not its QP.
pub trait CmId: Any + Send + Sync + Debug {
    /// Returns the number that identifies the endpoint in events.
    fn number(&self) -> CmIdNumber;

    /// Returns the local address. The port is set once the endpoint listens or connects.
    fn local_address(&self) -> SocketAddr;

    /// Returns the peer's address. On a passive endpoint it is taken from the header of the request.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Returns the effective uid of the peer's process, if the host proves that the process runs as this user in this user
    /// namespace. Call this after the peer's request or reply has arrived. Returns `None` on hardware, for peers on other
    /// hosts or of other users, and without such a proof.
    ///
    /// This makes system calls, so call it once per connection.
    fn local_user(&self) -> Option<u32>;

    /// Returns the UDP ports of the connection, once they are determined; `None` on hardware.
    fn udp_ports(&self) -> Option<UdpPorts> {
        None
    }

    /// Returns the path MTU that the peer requested, if any; `None` on hardware.
    fn asked_mtu(&self) -> Option<Mtu> {
        None
    }

    /// Attaches the QP of the connection and moves it to INIT.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if a QP is attached already, or its type does not match the endpoint.
    fn attach(&self, qp: Arc<dyn QueuePair>) -> Result<(), VerbsError>;

    /// Detaches the QP of an established connection. After that, neither `disconnect` nor the peer's disconnect changes the
    /// QP's state.
    fn detach(&self) -> Option<Arc<dyn QueuePair>>;

    /// Binds the endpoint to a local address. Port 0 selects a free port.
    ///
    /// # Errors
    /// [`VerbsError::AddressInUse`], [`VerbsError::AddressNotAvailable`], and
    /// [`VerbsError::Invalid`] if it is bound already.
    fn bind(&self, local: SocketAddr) -> Result<(), VerbsError>;

    /// Determines the local address for the path to `remote`. An unbound endpoint uses `source`, if given. Completes with
    /// [`CmEventKind::AddressResolved`] or [`CmEventKind::AddressError`].
    ///
    /// # Errors
    /// Same as [`CmId::bind`], and [`VerbsError::Os`] if the host has no route to the peer.
    fn resolve_address(&self, source: Option<SocketAddr>, remote: SocketAddr) -> Result<(), VerbsError>;

    /// Finds the route to the peer. Completes with [`CmEventKind::RouteResolved`].
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] before the address is resolved.
    fn resolve_route(&self) -> Result<(), VerbsError>;

    /// Sets an option.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a value out of range.
    fn set_option(&self, option: CmOption) -> Result<(), VerbsError>;

    /// Returns the change that moves a QP of this connection to `state`. INIT is available at any time, RTR and RTS after
    /// the peer's request or reply (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for RTR and RTS before the message has arrived, and for other states.
    fn qp_changes(&self, state: QpState) -> Result<QpModify, VerbsError>;

    /// Starts listening. An unbound endpoint listens on a free port of all addresses. At most `backlog` requests wait for
    /// the program.
    ///
    /// # Errors
    /// [`VerbsError::AddressInUse`], [`VerbsError::AddressNotAvailable`].
    fn listen(&self, backlog: u32) -> Result<(), VerbsError>;

    /// Sends the request to the listener. The route must be resolved. An endpoint can connect only once, even if the attempt
    /// fails.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] in the wrong state or with too much private data.
    fn connect(&self, parameters: &ConnectParameters) -> Result<(), VerbsError>;

    /// Accepts the request of the peer. Moves the attached QP, if there is one, to RTS and sends the reply.
    ///
    /// # Errors
    /// Same as [`CmId::connect`].
    fn accept(&self, parameters: &ConnectParameters) -> Result<(), VerbsError>;

    /// Completes the connection after [`CmEventKind::ConnectResponse`] by sending the RTU. The program's QP must be in RTS.
    ///
    /// # Errors
    /// Same as [`CmId::connect`].
    fn establish(&self) -> Result<(), VerbsError>;

    /// Notifies the endpoint that a packet has arrived at the QP of its accepted connection, which is
    /// equivalent to the peer's RTU (`rdma_notify` with `IBV_EVENT_COMM_EST`). Has no effect after the RTU.
    fn communication_established(&self);

    /// Refuses the request of the peer, with at most 148 bytes of private data, or 136 in [`PortSpace::Udp`].
    ///
    /// # Errors
    /// Same as [`CmId::connect`].
    fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.reject_for(RejectReason::CONSUMER, private_data)
    }

    /// Refuses the request of the peer for the given reason. In [`PortSpace::Udp`] the reason is not sent to the peer.
    ///
    /// # Errors
    /// Same as [`CmId::connect`].
    fn reject_for(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), VerbsError>;

    /// Ends the connection; an attached QP goes to ERR.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] if there is no connection.
    fn disconnect(&self) -> Result<(), VerbsError> {
        self.disconnect_with(&[])
    }

    /// Ends the connection as `disconnect` does, with at most 220 bytes of private data. librdmacm does not send private
    /// data.
    ///
    /// # Errors
    /// Same as [`CmId::disconnect`].
    fn disconnect_with(&self, private_data: &[u8]) -> Result<(), VerbsError>;

    /// Moves the endpoint and its waiting events to another channel.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a channel of another device.
    fn migrate(&self, channel: &Arc<dyn CmChannel>) -> Result<(), VerbsError>;
}

/// Callback that receives the outcome of [`ConnectionManager::begin_endpoint`].
pub type EndpointDone = Box<dyn FnOnce(Result<Arc<dyn CmId>, VerbsError>) + Send>;

/// Creates channels and endpoints of a device.
pub trait ConnectionManager: Send + Sync + Debug {
    /// Creates a channel.
    ///
    /// # Errors
    /// The operating system's error if no file descriptor is available.
    fn create_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError>;

    /// Creates an endpoint that is neither bound nor resolved. `qp_type` is the type of its QPs: `XrcIni` to connect with
    /// XRC, `XrcTgt` to listen for XRC, and `Rc` in [`PortSpace::Udp`], where the endpoint has no QP.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for XRC outside [`PortSpace::Ib`], or a channel of another device;
    /// [`VerbsError::NotSupported`] if the provider does not support the port space.
    fn create_id(
        &self,
        port_space: PortSpace,
        qp_type: QpType,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError>;

    /// Creates an endpoint, resolved if active and bound if passive. May block while the address and
    /// the route are resolved (on hardware at most 2 s each).
    ///
    /// # Errors
    /// [`VerbsError::AddressNotAvailable`] if no port of the device has the address,
    /// [`VerbsError::Invalid`] for XRC outside [`PortSpace::Ib`].
    fn create_endpoint(
        &self,
        request: &EndpointRequest,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError>;

    /// Like [`ConnectionManager::create_endpoint`], but never blocks. `done` is called once with the outcome, on any thread,
    /// before or after this function returns. Drop the endpoint to destroy it.
    ///
    /// A provider whose `create_endpoint` waits for the network must override this.
    fn begin_endpoint(&self, request: EndpointRequest, channel: &Arc<dyn CmChannel>, done: EndpointDone) {
        done(self.create_endpoint(&request, channel));
    }
}
