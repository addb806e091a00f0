//! Connections: the rdma_cm endpoints of librdmacm, in event-driven form.
//!
//! A [`CmId`] belongs to one [`CmChannel`] at a time and reports there. Nothing here blocks:
//! `connect`, `accept`, `disconnect` start something whose outcome is an event; only
//! [`ConnectionManager::create_endpoint`] may, and [`ConnectionManager::begin_endpoint`] is its
//! form that does not.
//!
//! ```text
//! active : create_endpoint -> attach(INI) -> connect -> Established | Rejected | Unreachable
//! passive: create_endpoint -> listen -> ConnectRequest(new id) -> attach(TGT) -> accept -> Established
//! either : disconnect, or the peer's -> Disconnected -> TimewaitExit
//!
//! step by step, as librdmacm's programs do it (the program brings its own QP up):
//! active : create_id [-> bind] -> resolve_address -> AddressResolved -> resolve_route -> RouteResolved
//!          -> connect(QP number) -> ConnectResponse -> qp_changes(RTR, RTS) -> establish
//! passive: create_id -> bind -> listen -> ConnectRequest(new id) -> qp_changes(RTR, RTS)
//!          -> accept(QP number) -> Established
//!
//! in port space UDP, which asks for a QP and makes no connection:
//! active : create_id [-> bind] -> resolve_address -> resolve_route -> connect
//!          -> ServiceResolved(QP number, Q_Key) | ServiceRefused | Unreachable
//! passive: create_id -> bind -> listen -> ConnectRequest(new id) -> accept(QP number, Q_Key)
//! ```

use crate::channel::is_readable;
use crate::{QpModify, QpNumber, QpState, QpType, QueuePair, VerbsError};
use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

/// Which services a port number is looked up in (`rdma_port_space`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PortSpace {
    /// RC, 0x0106.
    Tcp,
    /// Questions for a QP number and Q_Key (SIDR), 0x0111: no connection comes of them.
    Udp,
    /// Any type, XRC included, 0x013f (contract J1).
    Ib,
}

impl PortSpace {
    /// All that there are.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Udp, Self::Ib];

    /// The prefix of the service id, above the 16 bits of the port.
    #[must_use]
    pub const fn prefix(self) -> u64 {
        match self {
            Self::Tcp => 0x0106,
            Self::Udp => 0x0111,
            Self::Ib => 0x013f,
        }
    }
}

/// Which end of a connection an endpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointSide {
    /// It connects.
    Active {
        /// To here.
        remote: SocketAddr,
        /// From this address; chosen by the route when `None`.
        source: Option<IpAddr>,
    },
    /// It listens here. Port 0 picks a free one; an unspecified address listens on all.
    Passive {
        /// Where.
        local: SocketAddr,
    },
}

/// What an endpoint is made with (`rdma_create_ep`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointRequest {
    /// Active or passive.
    pub side: EndpointSide,
    /// Port space; XRC needs [`PortSpace::Ib`].
    pub port_space: PortSpace,
    /// Type of its QPs: `XrcIni` for active XRC, `XrcTgt` for passive XRC.
    pub qp_type: QpType,
}

/// Parameters of a connection (`rdma_conn_param`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectParameters {
    /// Up to 56 bytes in a request, 196 in an answer; 180 and 136 in [`PortSpace::Udp`].
    pub private_data: Vec<u8>,
    /// READs and atomics this side serves at once.
    pub responder_resources: u8,
    /// READs and atomics this side has outstanding.
    pub initiator_depth: u8,
    /// Transport retries, 0 to 7.
    pub retry_count: u8,
    /// RNR retries, 0 to 7.
    pub rnr_retry_count: u8,
    /// Local ACK timeout of the connecting side's QP: 4.096 us times 2 to this, 1 to 31. Travels
    /// in the request (contract rocev2 12.2); ignored when accepting.
    pub ack_timeout: u8,
    /// Towards the device: the QP of an endpoint that has none attached; the program brings it up
    /// itself ([`CmId::qp_changes`]). In events: the peer's QP.
    pub qp_number: Option<QpNumber>,
    /// The QP has an SRQ; XRC says so always (contract J5).
    pub srq: bool,
    /// In [`PortSpace::Udp`] alone: the Q_Key of the answering side's QP.
    pub q_key: u32,
}

/// The Q_Key of QPs whose program names none (`RDMA_UDP_QKEY`).
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
            srq: false,
            q_key: UDP_Q_KEY,
        }
    }
}

/// What can be set on an endpoint before it connects or listens (`rdma_set_option`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CmOption {
    /// Traffic class of the connection's packets (`RDMA_OPTION_ID_TOS`).
    TypeOfService(u8),
    /// Other endpoints may be bound to the same port, as long as one of them listens at most
    /// (`RDMA_OPTION_ID_REUSEADDR`).
    ReuseAddress(bool),
    /// A listener at `::` is not asked by IPv4 peers (`RDMA_OPTION_ID_AFONLY`).
    AddressFamilyOnly(bool),
    /// Instead of [`ConnectParameters::ack_timeout`] (`RDMA_OPTION_ID_ACK_TIMEOUT`, contract J12).
    AckTimeout(u8),
}

/// Why a connection was rejected (contract rocev2 9.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RejectReason(pub u16);

impl RejectReason {
    /// No such QP.
    pub const NO_QP: Self = Self(1);
    /// Out of resources.
    pub const NO_RESOURCES: Self = Self(3);
    /// The peer gave up waiting.
    pub const TIMEOUT: Self = Self(4);
    /// The request is of an unsupported kind.
    pub const UNSUPPORTED: Self = Self(5);
    /// The message is about a connection that the peer does not have.
    pub const INVALID_COMM_ID: Self = Self(6);
    /// Nobody listens there.
    pub const INVALID_SERVICE_ID: Self = Self(8);
    /// Neither RC nor XRC.
    pub const INVALID_TRANSPORT_TYPE: Self = Self(9);
    /// Left-over of an earlier connection.
    pub const STALE_CONNECTION: Self = Self(10);
    /// The request names other addresses than it came from or to.
    pub const INVALID_PRIMARY_GID: Self = Self(12);
    /// No path MTU, or one that the peer does not have.
    pub const INVALID_PATH_MTU: Self = Self(26);
    /// The application refused.
    pub const CONSUMER: Self = Self(28);
    /// The application does not support the vendor options that it was offered.
    pub const VENDOR_OPTION: Self = Self(35);
}

/// What a question of [`PortSpace::Udp`] was answered with (`ib_cm_sidr_status`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SidrStatus(pub u8);

impl SidrStatus {
    /// There is a QP.
    pub const SUCCESS: Self = Self(0);
    /// Nobody serves that.
    pub const UNSUPPORTED: Self = Self(1);
    /// The application refused.
    pub const REJECT: Self = Self(2);
}

/// Names an endpoint in events; unique in its device for the life of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CmIdNumber(pub u64);

/// What happened to an endpoint (`rdma_cm_event_type`).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum CmEventKind {
    /// At a listener: somebody asks. `id` is a new endpoint on the listener's channel.
    ConnectRequest {
        /// The new endpoint.
        id: Arc<dyn CmId>,
        /// What the peer offers; counts are as seen from here.
        parameters: ConnectParameters,
    },
    /// `resolve_address` has found the own address and the way.
    AddressResolved,
    /// `resolve_address` has not.
    AddressError(VerbsError),
    /// `resolve_route` is done.
    RouteResolved,
    /// At an active endpoint without an attached QP: the peer accepted. Bring the QP up and call
    /// [`CmId::establish`]; no further event says that the endpoint is connected.
    ConnectResponse {
        /// What the peer answered; counts are as seen from here.
        parameters: ConnectParameters,
    },
    /// Connected.
    Established,
    /// In [`PortSpace::Udp`], at the side that asked: the answer, in place of a connection.
    ServiceResolved {
        /// QP number, Q_Key and private data count.
        parameters: ConnectParameters,
    },
    /// In [`PortSpace::Udp`], at the side that asked: there is none.
    ServiceRefused(SidrStatus),
    /// Something local failed.
    ConnectError,
    /// The peer did not answer.
    Unreachable,
    /// The peer refused.
    Rejected(RejectReason),
    /// Either side disconnected; the attached QP is in ERR.
    Disconnected {
        /// The peer disconnected, or confirmed that we did. `false` when it never confirmed, which
        /// librdmacm reports as status `-ETIMEDOUT`, a minute or more after the call.
        is_answered: bool,
    },
    /// The device goes away.
    DeviceRemoval,
    /// The numbers of the connection may be used again.
    TimewaitExit,
}

/// An event of an endpoint.
#[derive(Debug, Clone)]
pub struct CmEvent {
    /// Whose.
    pub id: CmIdNumber,
    /// What.
    pub kind: CmEventKind,
    /// The peer's private data, of the field's full size.
    pub private_data: Vec<u8>,
}

/// Where endpoints report.
pub trait CmChannel: Any + AsFd + Send + Sync + Debug {
    /// Takes one event, if there is one now; the descriptor is readable while there are any.
    fn next_event(&self) -> Option<CmEvent>;

    /// Whether the descriptor is readable now. A simulation asks, where a thread would sleep on it.
    fn has_event(&self) -> bool {
        is_readable(self.as_fd())
    }
}

/// An endpoint. Dropping the last `Arc` destroys it; its QP is left alone.
pub trait CmId: Any + Send + Sync + Debug {
    /// Its name in events.
    fn number(&self) -> CmIdNumber;

    /// Its own address; the port is known once it listens or connects.
    fn local_address(&self) -> SocketAddr;

    /// The peer's address; that of the CM header for a passive one.
    fn peer_address(&self) -> Option<SocketAddr>;

    /// Gives it the QP that the connection is for, and moves the QP to INIT.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when it has one, or the type does not fit.
    fn attach(&self, qp: Arc<dyn QueuePair>) -> Result<(), VerbsError>;

    /// Takes the QP away again, once connected: `disconnect` and the peer's disconnect no
    /// longer touch it.
    fn detach(&self) -> Option<Arc<dyn QueuePair>>;

    /// Binds it to an own address. Port 0 picks a free one.
    ///
    /// # Errors
    /// [`VerbsError::AddressInUse`], [`VerbsError::AddressNotAvailable`], and
    /// [`VerbsError::Invalid`] when it is bound.
    fn bind(&self, local: SocketAddr) -> Result<(), VerbsError>;

    /// Finds the own address for a peer, `source` if that is given and the endpoint is not bound;
    /// completes with [`CmEventKind::AddressResolved`] or [`CmEventKind::AddressError`].
    ///
    /// # Errors
    /// As `bind`, and [`VerbsError::Os`] where the host knows no route to the peer.
    fn resolve_address(&self, source: Option<SocketAddr>, remote: SocketAddr) -> Result<(), VerbsError>;

    /// Finds the route to the peer; completes with [`CmEventKind::RouteResolved`].
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] before the address is resolved.
    fn resolve_route(&self) -> Result<(), VerbsError>;

    /// Sets an option.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a value out of range.
    fn set_option(&self, option: CmOption) -> Result<(), VerbsError>;

    /// What brings a QP of this connection to a state: INIT at any time, RTR and RTS once the
    /// peer has asked or answered (`rdma_init_qp_attr`).
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] too early, and for another state.
    fn qp_changes(&self, state: QpState) -> Result<QpModify, VerbsError>;

    /// Starts to listen, unbound at any port of every address; at most `backlog` requests wait
    /// until they are told.
    ///
    /// # Errors
    /// [`VerbsError::AddressInUse`], [`VerbsError::AddressNotAvailable`].
    fn listen(&self, backlog: u32) -> Result<(), VerbsError>;

    /// Sends the request, once the way to the peer is resolved; an endpoint asks once, whatever the answer.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] in the wrong state or with too much private data.
    fn connect(&self, parameters: &ConnectParameters) -> Result<(), VerbsError>;

    /// Moves the attached QP, if there is one, to RTS and sends the reply.
    ///
    /// # Errors
    /// As `connect`.
    fn accept(&self, parameters: &ConnectParameters) -> Result<(), VerbsError>;

    /// After [`CmEventKind::ConnectResponse`]: the QP is in RTS.
    ///
    /// # Errors
    /// As `connect`.
    fn establish(&self) -> Result<(), VerbsError>;

    /// A packet has arrived at the QP of an accepted connection: equivalent to the peer's RTU
    /// (`rdma_notify` with `IBV_EVENT_COMM_EST`). Does nothing if the RTU has arrived.
    fn communication_established(&self);

    /// Refuses, with up to 148 bytes for the peer, 136 in [`PortSpace::Udp`].
    ///
    /// # Errors
    /// As `connect`.
    fn reject(&self, private_data: &[u8]) -> Result<(), VerbsError> {
        self.reject_for(RejectReason::CONSUMER, private_data)
    }

    /// Refuses for another reason than the application's; in [`PortSpace::Udp`] the peer is not
    /// told which.
    ///
    /// # Errors
    /// As `connect`.
    fn reject_for(&self, reason: RejectReason, private_data: &[u8]) -> Result<(), VerbsError>;

    /// Ends the connection; an attached QP goes to ERR.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] when there is none.
    fn disconnect(&self) -> Result<(), VerbsError>;

    /// Reports to another channel from now on; waiting events move along.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for a channel of another device.
    fn migrate(&self, channel: &Arc<dyn CmChannel>) -> Result<(), VerbsError>;
}

/// Who is told of the outcome of [`ConnectionManager::begin_endpoint`].
pub type EndpointDone = Box<dyn FnOnce(Result<Arc<dyn CmId>, VerbsError>) + Send>;

/// Makes endpoints.
pub trait ConnectionManager: Send + Sync + Debug {
    /// Makes a channel.
    ///
    /// # Errors
    /// What the operating system answered when it was asked for a descriptor.
    fn create_channel(&self) -> Result<Arc<dyn CmChannel>, VerbsError>;

    /// Makes an endpoint that is neither bound nor resolved. Its QPs are of the type: `XrcIni` if it
    /// is to connect by XRC, `XrcTgt` if it is to listen for XRC. One of [`PortSpace::Udp`] has no
    /// QP, and is made with `Rc`.
    ///
    /// # Errors
    /// [`VerbsError::Invalid`] for XRC outside [`PortSpace::Ib`], or a channel of another device;
    /// [`VerbsError::NotSupported`] where the provider does not serve the port space.
    fn create_id(
        &self,
        port_space: PortSpace,
        qp_type: QpType,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError>;

    /// Makes an endpoint: resolved when active, bound when passive. May block while addresses
    /// and routes are resolved (hardware: up to 2 s + 2 s).
    ///
    /// # Errors
    /// [`VerbsError::AddressNotAvailable`] when no port of the device has the address,
    /// [`VerbsError::Invalid`] for XRC outside [`PortSpace::Ib`].
    fn create_endpoint(
        &self,
        request: &EndpointRequest,
        channel: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError>;

    /// As [`ConnectionManager::create_endpoint`], but never blocks: `done` is called with the
    /// outcome, once, in any thread, now or later. What it is given may outlive the caller's
    /// interest; dropping it destroys the endpoint.
    ///
    /// A provider whose `create_endpoint` waits for the network must override this.
    fn begin_endpoint(&self, request: EndpointRequest, channel: &Arc<dyn CmChannel>, done: EndpointDone) {
        done(self.create_endpoint(&request, channel));
    }
}
