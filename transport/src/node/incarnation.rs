//! One incarnation of a node's device, with all objects created on it.
//!
//! A node outlives its device. The objects end with the device, and the next incarnation creates new ones. Parts that
//! live as long as the node (drivers, pools, budgets) are in [`crate::node::shared::NodeShared`]. The node opens the
//! first incarnation. After that, pollers and the CM machine own its parts. They must drop the parts when the
//! incarnation ends, because the kernel removes a device only after all objects on it are destroyed.
#![forbid(unsafe_code)]

use crate::buffer::{ReceiveSlots, SendSlots};
use crate::node::options::{NodeOptions, ProviderChoice};
use crate::poller::crossings::{self, Crossings};
use crate::provider::connections::{self, ConnectionKind, Connections};
use crate::provider::{self, Chosen, SOFTWARE};
use crate::wire::handshake::HANDSHAKE_FRAME;
use crate::wire::{BATCH, SLOT_BYTES};
use crate::{ClientAddressCause, PollerIndex, StartError, TakenPort};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use trunkline_softrdma::link::{PortOwner, ROCE_PORT_TAKEN};
use trunkline_verbs::{
    CmChannel, CmId, CompletionChannel, CompletionQueue, CqInit, Device, DeviceAttributes, EndpointRequest,
    EndpointSide, IoAddress, PortSpace, ProtectionDomain, SharedReceiveQueue, SrqInit, SrqKind, SrqNumber,
    VerbsError, XrcDomain, XrcdFlags, headroom,
};

/// Number of slots in which a poller builds frames.
pub(crate) const SEND_SLOTS: u32 = 256;
/// Number of completions in a CQ for sends, in addition to the receives.
const SEND_COMPLETIONS: u32 = 2048;
/// Number of slots from which poller 0 sends handshake frames, one per session without a proof.
const HANDSHAKE_SLOTS: u32 = if cfg!(feature = "identity") { 1024 } else { 0 };
/// Maximum number of connection requests that wait to be handled.
const BACKLOG: u32 = 256;

/// Parts of the device that the CM machine and the handle of the node use.
#[derive(Debug)]
pub(crate) struct DeviceShared {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) intake: Intake,
    /// CQ of each poller, for the poller's INIs.
    pub(crate) cqs: Vec<Arc<dyn CompletionQueue>>,
    /// SRQ number of each poller, meaningful only over XRC.
    pub(crate) srqs: Vec<SrqNumber>,
    /// Family of the device.
    pub(crate) provider: &'static str,
    /// Reason for the choice of the device.
    pub(crate) why: String,
    pub(crate) connections: ConnectionKind,
    /// Reason for the choice of the connections.
    pub(crate) connections_why: String,
    /// Maximum depth of the SRQs.
    pub(crate) deepest_srq: u32,
}

/// Receive queues of the QPs that receive from peers.
#[derive(Debug)]
pub(crate) enum Intake {
    /// Any XRC SRQ of the domain.
    Xrc(Arc<dyn XrcDomain>),
    /// A basic SRQ per poller.
    Rc(Vec<Arc<dyn SharedReceiveQueue>>),
}

/// One poller's part of the device.
#[derive(Debug)]
pub(crate) struct PollerDevice {
    pub(crate) channel: Arc<dyn CompletionChannel>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) srq: Arc<dyn SharedReceiveQueue>,
    pub(crate) sends: SendSlots,
    pub(crate) receives: ReceiveSlots,
    pub(crate) crossings: Crossings,
    /// Slots for handshake frames; `None` for pollers other than 0, and without handshakes.
    #[cfg(feature = "identity")]
    pub(crate) handshakes: Option<SendSlots>,
    /// Number of receives to keep posted, and the maximum depth of the SRQ.
    pub(crate) depth: u32,
    pub(crate) depth_limit: u32,
}

/// An opened device, with everything that the pollers need from it.
pub(crate) struct Opened {
    pub(crate) shared: DeviceShared,
    /// Parts by poller.
    pub(crate) pollers: Vec<PollerDevice>,
    /// Addresses that the node listens on.
    pub(crate) listen: Vec<SocketAddr>,
}

/// Opens the device that the options select, and creates the parts of all pollers. Without an address to
/// listen on, the node is a client, whose address is chosen here.
///
/// # Errors
/// Returns the cause and its remedy.
pub(crate) fn open(options: &NodeOptions, listen: &[SocketAddr]) -> Result<Opened, StartError> {
    let Chosen { device, provider, why, listen } = provider::open(options, listen)?;
    let pd = device.alloc_pd().map_err(verb("make a protection domain"))?;
    let (kind, connections_why) =
        connections::choose(options.connections.unwrap_or_default(), device.attributes())?;
    tracing::info!(
        device = device.attributes().name,
        connections = %kind,
        cause = connections_why,
        "device opened"
    );
    let xrcd = match kind {
        ConnectionKind::Xrc => {
            Some(device.open_xrcd(None, XrcdFlags::CREATE).map_err(verb("open an XRC domain"))?)
        }
        ConnectionKind::Rc => None,
    };
    // Over RC each SRQ is divided among all pollers, and each part must be large enough for use.
    let depth = options
        .srq_depth
        .max(crossings::least_depth(kind, options.pollers))
        .min(device.attributes().max_srq_wr);
    let crossings = Crossings::bytes_of_node(kind, options.pollers, depth);
    // A poller allocates its slots and the stack of its thread.
    let slots = usize::try_from(receive_slots(depth).saturating_add(SEND_SLOTS)).unwrap_or(usize::MAX);
    let poller = slots.saturating_mul(SLOT_BYTES).saturating_add(headroom::STACK);
    let pollers = usize::from(options.pollers).saturating_mul(poller);
    let handshakes = usize::try_from(handshake_slots(options, 0)).unwrap_or(usize::MAX);
    let handshakes = handshakes.saturating_mul(HANDSHAKE_FRAME);
    headroom::check(pollers.saturating_add(crossings).saturating_add(handshakes))
        .map_err(|cause| StartError::NoRoom { doing: "make pollers and their buffers", cause })?;
    let depth_limit = depth_limit(options, depth, device.attributes());
    let pollers = (0..)
        .zip(Crossings::of_node(kind, options.pollers, depth))
        .map(|(index, crossings)| {
            let start = || IoAddress::from_random(options.runtime.random());
            let depths = (depth, depth_limit);
            poller_device(
                PollerIndex(index),
                depths.0,
                depths.1,
                handshake_slots(options, index),
                &device,
                &pd,
                xrcd.as_ref(),
                crossings,
                start,
            )
        })
        .collect::<Result<Vec<_>, _>>()?;
    let basic = || pollers.iter().map(|poller| Arc::clone(&poller.srq)).collect();
    let number = |poller: &PollerDevice| match kind {
        ConnectionKind::Xrc => poller.srq.number(),
        ConnectionKind::Rc => Ok(SrqNumber::new(0)),
    };
    let srqs = pollers.iter().map(number).collect::<Result<Vec<_>, _>>();
    let shared = DeviceShared {
        cqs: pollers.iter().map(|poller| Arc::clone(&poller.cq)).collect(),
        srqs: srqs.map_err(verb("read the number of an SRQ"))?,
        device,
        pd,
        intake: xrcd.map_or_else(|| Intake::Rc(basic()), Intake::Xrc),
        provider,
        why,
        connections: kind,
        connections_why,
        deepest_srq: if crossings::homes(kind, options.pollers) == 1 { depth_limit } else { depth },
    };
    Ok(Opened { shared, pollers, listen })
}

/// Returns the options for opening a device again. The address family and the kind of connections stay the
/// same, even if other devices are found, because the node's peers depend on them.
pub(crate) fn again(mut options: NodeOptions, device: &DeviceShared) -> NodeOptions {
    let soft = device.provider == SOFTWARE;
    options.provider = Some(if soft { ProviderChoice::Soft } else { ProviderChoice::Require });
    options.connections = Some(match device.connections {
        ConnectionKind::Xrc => Connections::Xrc,
        ConnectionKind::Rc => Connections::Rc,
    });
    options
}

/// Connection manager objects on the device, for the CM machine.
pub(crate) struct Listening {
    /// Channel to which all endpoints report.
    pub(crate) channel: Arc<dyn CmChannel>,
    pub(crate) listeners: Vec<Arc<dyn CmId>>,
}

/// Returns the error for an address on which listening failed. If another program holds the RoCE port there, the error
/// names the program.
fn not_listening(
    device: &dyn Device,
    options: &NodeOptions,
    address: SocketAddr,
    cause: VerbsError,
) -> StartError {
    let is_port = matches!(cause, VerbsError::AddressInUse(why) if why == ROCE_PORT_TAKEN);
    let owner = || {
        let addresses = if address.ip().is_unspecified() {
            own_addresses(device, address.ip())
        } else {
            vec![address.ip()]
        };
        let port = options.udp_port();
        addresses.into_iter().find_map(|own| Some((own, PortOwner::find(SocketAddr::new(own, port))?)))
    };
    let is_of_client = options.listens_on().is_empty();
    let taken = is_port.then(owner).flatten();
    let taken = taken.map(|(at, owner)| Box::new(TakenPort::new(at, owner, is_of_client)));
    if is_of_client {
        let address = address.ip();
        let is_named = options.software().addresses.contains(&address);
        let cause = taken.map_or(ClientAddressCause::Device(cause), ClientAddressCause::Taken);
        return StartError::ClientAddress { address, is_named, cause };
    }
    match taken {
        Some(cause) => StartError::PortTaken { address, cause },
        None => StartError::Listen { address, cause },
    }
}

/// Returns the device's addresses that an unspecified address covers.
fn own_addresses(device: &dyn Device, unspecified: IpAddr) -> Vec<IpAddr> {
    let of_family = |address: &IpAddr| address.is_ipv4() == unspecified.is_ipv4();
    device.gid_table().into_iter().map(|entry| entry.gid.ip()).filter(of_family).collect()
}

/// Returns an address at which this listener can be reached. For a listener on all addresses of the device, this is one
/// of them.
pub(crate) fn reachable_at(shared: &DeviceShared, listening: &Listening) -> Option<SocketAddr> {
    let at = listening.listeners.first()?.local_address();
    if !at.ip().is_unspecified() {
        return Some(at);
    }
    let manager = shared.device.connection_manager();
    let is_open = |own: &IpAddr| {
        let request = EndpointRequest {
            side: EndpointSide::Passive { local: SocketAddr::new(*own, 0) },
            port_space: PortSpace::Ib,
            qp_type: shared.connections.receiving(),
        };
        let endpoint = manager.create_endpoint(&request, &listening.channel);
        endpoint.and_then(|endpoint| endpoint.listen(1)).is_ok()
    };
    let own = own_addresses(shared.device.as_ref(), at.ip()).into_iter().find(is_open);
    Some(own.map_or(at, |own| SocketAddr::new(own, at.port())))
}

/// Creates endpoints that listen at the addresses.
///
/// # Errors
/// Returns the address on which listening failed, and the reason.
pub(crate) fn listen(
    shared: &DeviceShared,
    options: &NodeOptions,
    addresses: &[SocketAddr],
) -> Result<Listening, StartError> {
    let manager = shared.device.connection_manager();
    let channel = manager.create_channel().map_err(verb("make an event channel"))?;
    let listen = |&address: &SocketAddr| {
        let request = EndpointRequest {
            side: EndpointSide::Passive { local: address },
            port_space: PortSpace::Ib,
            qp_type: shared.connections.receiving(),
        };
        manager
            .create_endpoint(&request, &channel)
            .and_then(|listener| listener.listen(BACKLOG).map(|()| listener))
            .map_err(|cause| not_listening(shared.device.as_ref(), options, address, cause))
    };
    let listeners = addresses.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
    Ok(Listening { channel, listeners })
}

fn poller_device(
    index: PollerIndex,
    depth: u32,
    depth_limit: u32,
    handshakes: u32,
    device: &Arc<dyn Device>,
    pd: &Arc<dyn ProtectionDomain>,
    xrcd: Option<&Arc<dyn XrcDomain>>,
    crossings: Crossings,
    start: impl Fn() -> IoAddress,
) -> Result<PollerDevice, StartError> {
    let channel = device.create_completion_channel().map_err(verb("make a completion channel"))?;
    let cq = device
        .create_cq(CqInit {
            capacity_cqe: (depth_limit + SEND_COMPLETIONS + handshakes).min(device.attributes().max_cqe),
            channel: Some(Arc::clone(&channel)),
            context: u64::from(index.0),
            group: u32::from(index.0),
        })
        .map_err(verb("make a CQ"))?;
    let srq = device
        .create_srq(SrqInit {
            pd: Arc::clone(pd),
            kind: xrcd
                .map_or(SrqKind::Basic, |xrcd| SrqKind::Xrc { xrcd: Arc::clone(xrcd), cq: Arc::clone(&cq) }),
            max_wr: depth_limit,
            max_sge: 1,
            context: u64::from(index.0),
        })
        .map_err(verb("make an SRQ"))?;
    let mut receives = ReceiveSlots::new(SLOT_BYTES);
    receives.extend(pd.as_ref(), receive_slots(depth), start()).map_err(verb("register receive buffers"))?;
    let sends = SendSlots::new(pd.as_ref(), SEND_SLOTS, SLOT_BYTES, start())
        .map_err(verb("register send buffers"))?;
    #[cfg(feature = "identity")]
    let handshakes = (handshakes > 0)
        .then(|| SendSlots::new(pd.as_ref(), handshakes, HANDSHAKE_FRAME, start()))
        .transpose()
        .map_err(verb("register buffers of handshakes"))?;
    // Receives are posted before a peer can connect.
    receives.post(srq.as_ref(), usize::try_from(depth).unwrap_or(usize::MAX));
    Ok(PollerDevice {
        channel,
        cq,
        srq,
        sends,
        receives,
        crossings,
        #[cfg(feature = "identity")]
        handshakes,
        depth,
        depth_limit,
    })
}

/// Returns the number of receive slots of a poller with an SRQ of this depth.
pub(crate) fn receive_slots(depth: u32) -> u32 {
    2 * depth + 2 * u32::try_from(BATCH).unwrap_or(u32::MAX)
}

/// Returns the number of a poller's slots for handshake frames.
fn handshake_slots(options: &NodeOptions, poller: u16) -> u32 {
    if options.has_handshakes() && poller == 0 { HANDSHAKE_SLOTS } else { 0 }
}

/// Returns the maximum depth of an SRQ. The CQ limits it because it must also hold the completion of each receive.
fn depth_limit(options: &NodeOptions, depth: u32, device: &DeviceAttributes) -> u32 {
    let of_cq = device.max_cqe.saturating_sub(SEND_COMPLETIONS + handshake_slots(options, 0));
    options.deepest_srq().min(device.max_srq_wr).min(of_cq).max(depth)
}

fn verb(doing: &'static str) -> impl Fn(VerbsError) -> StartError {
    move |cause| StartError::Verb { doing, cause }
}
