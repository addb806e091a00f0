//! The device under test, and common steps of connection tests.
//!
//! The tests run on any device of the kernel, or on the software device through its drop-in libraries
//! (`LD_LIBRARY_PATH=$PWD/target/dropin`). Without a device, each test is skipped with a message, or fails if
//! `TRUNKLINE_REQUIRE_DEVICE` is set.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_rdma_core::RdmaCore;
use trunkline_verbs::{
    CmChannel, CmEvent, CmEventKind, CmId, CompletionQueue, ConnectParameters, CqInit, Device,
    DeviceCapabilities, EndpointRequest, EndpointSide, PortSpace, ProtectionDomain, Provider, QpInit, QpType,
    QueueCapacities, QueuePair, XrcDomain, XrcdFlags,
};

/// Time limit of every wait. It allows for a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// A device with the objects that QPs need.
pub(crate) struct Lab {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) addresses: Vec<IpAddr>,
    pd: Arc<dyn ProtectionDomain>,
    cq: Arc<dyn CompletionQueue>,
    xrcd: Option<Arc<dyn XrcDomain>>,
}

impl Lab {
    /// Opens the first device. Without a device, prints a message and returns `None`.
    pub(crate) fn open() -> Option<Self> {
        let test = std::thread::current().name().unwrap_or("a test").to_owned();
        let devices = RdmaCore.devices().unwrap_or_default();
        let Some(first) = devices.first() else {
            let required = std::env::var_os("TRUNKLINE_REQUIRE_DEVICE").is_some();
            assert!(!required, "TRUNKLINE_REQUIRE_DEVICE is set, and there is no RDMA device");
            eprintln!("skip {test}: no RDMA device (LD_LIBRARY_PATH=$PWD/target/dropin has one)");
            return None;
        };
        let device = RdmaCore.open(&first.name).unwrap();
        let pd = device.alloc_pd().unwrap();
        let cq = device.create_cq(CqInit { capacity_cqe: 64, ..CqInit::default() }).unwrap();
        let has_xrc = device.attributes().capabilities.contains(DeviceCapabilities::XRC);
        let xrcd = has_xrc.then(|| device.open_xrcd(None, XrcdFlags::CREATE).unwrap());
        let gids = device.gid_table();
        let ips = gids.iter().map(|entry| entry.gid.ip());
        let is_routable = |ip: &IpAddr| match ip {
            IpAddr::V4(v4) => !v4.is_link_local(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local(),
        };
        let ips: Vec<IpAddr> = ips.filter(is_routable).collect();
        let of = |wanted: fn(&IpAddr) -> bool| {
            let mut fitting: Vec<IpAddr> = ips.iter().copied().filter(wanted).collect();
            fitting.sort_by_key(|ip| !ip.is_loopback());
            fitting.first().copied()
        };
        let addresses: Vec<IpAddr> =
            [of(IpAddr::is_ipv4), of(IpAddr::is_ipv6)].into_iter().flatten().collect();
        assert!(!addresses.is_empty(), "{} has no address", first.name);
        Some(Self { device, addresses, pd, cq, xrcd })
    }

    /// Returns the connection types that the device supports, as the QP types of the two sides.
    pub(crate) fn types(&self) -> Vec<(QpType, QpType)> {
        let mut types = vec![(QpType::Rc, QpType::Rc)];
        if self.xrcd.is_some() {
            types.push((QpType::XrcIni, QpType::XrcTgt));
        } else {
            eprintln!("skip XRC: the device has none");
        }
        types
    }

    /// Returns a reachable address at which nothing replies. If none is known, prints a message and returns `None`.
    pub(crate) fn nobody(&self) -> Option<(SocketAddr, UdpSocket)> {
        use std::hash::{BuildHasher, RandomState};
        let own = self.addresses[0];
        if !own.is_loopback() || own.is_ipv6() {
            // On other interfaces, the kernel resolves the address first, so the request fails before it is sent.
            eprintln!("skip: no address is known that {own} can reach and at which nothing replies");
            return None;
        }
        let [a, b, c, ..] = RandomState::new().hash_one(own).to_ne_bytes();
        let at = Ipv4Addr::new(127, a | 0x80, b, c.clamp(1, 254));
        // If there is no socket at an address of its own host, the software device refuses requests to it.
        let unread = UdpSocket::bind((at, 4791)).unwrap();
        Some((SocketAddr::from((at, 7471)), unread))
    }

    pub(crate) fn channel(&self) -> Arc<dyn CmChannel> {
        self.device.connection_manager().create_channel().unwrap()
    }

    pub(crate) fn qp(&self, qp_type: QpType) -> Arc<dyn QueuePair> {
        let init = QpInit::new(qp_type);
        let capacities = QueueCapacities {
            max_send_wr: 4,
            max_receive_wr: 4,
            max_send_sge: 1,
            max_receive_sge: 1,
            max_inline_data: 0,
        };
        let (pd, cq) = (Some(Arc::clone(&self.pd)), Some(Arc::clone(&self.cq)));
        self.device
            .create_qp(match qp_type {
                QpType::Rc => QpInit { pd, send_cq: cq.clone(), receive_cq: cq, capacities, ..init },
                QpType::XrcIni => QpInit { pd, send_cq: cq, capacities, ..init },
                QpType::XrcTgt => QpInit { xrcd: self.xrcd.clone(), ..init },
            })
            .unwrap()
    }

    pub(crate) fn listen(&self, at: IpAddr, qp_type: QpType, on: &Arc<dyn CmChannel>) -> Arc<dyn CmId> {
        let side = EndpointSide::Passive { local: SocketAddr::new(at, 0) };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let listener = self.device.connection_manager().create_endpoint(&request, on).unwrap();
        listener.listen(64).unwrap();
        listener
    }

    pub(crate) fn endpoint(&self, to: SocketAddr, qp_type: QpType, on: &Arc<dyn CmChannel>) -> Arc<dyn CmId> {
        self.device.connection_manager().create_endpoint(&active(to, qp_type), on).unwrap()
    }

    /// Requests a connection to `to`, with a QP attached.
    pub(crate) fn request(
        &self,
        to: SocketAddr,
        qp_type: QpType,
        on: &Arc<dyn CmChannel>,
        private_data: &[u8],
    ) -> (Arc<dyn CmId>, Arc<dyn QueuePair>) {
        let id = self.endpoint(to, qp_type, on);
        let qp = self.qp(qp_type);
        id.attach(Arc::clone(&qp)).unwrap();
        id.connect(&parameters(private_data)).unwrap();
        (id, qp)
    }

    /// Requests a connection for a QP that is named but not attached. The program handles the reply itself.
    pub(crate) fn request_by_hand(
        &self,
        to: SocketAddr,
        qp_type: QpType,
        on: &Arc<dyn CmChannel>,
    ) -> (Arc<dyn CmId>, Arc<dyn QueuePair>) {
        let id = self.endpoint(to, qp_type, on);
        let qp = self.qp(qp_type);
        id.connect(&ConnectParameters { qp_number: Some(qp.number()), ..parameters(b"") }).unwrap();
        (id, qp)
    }

    /// Accepts a request, with a QP attached.
    pub(crate) fn accept(
        &self,
        id: &Arc<dyn CmId>,
        qp_type: QpType,
        private_data: &[u8],
    ) -> Arc<dyn QueuePair> {
        let qp = self.qp(qp_type);
        id.attach(Arc::clone(&qp)).unwrap();
        id.accept(&parameters(private_data)).unwrap();
        qp
    }
}

pub(crate) fn active(remote: SocketAddr, qp_type: QpType) -> EndpointRequest {
    let side = EndpointSide::Active { remote, source: None };
    EndpointRequest { side, port_space: PortSpace::Ib, qp_type }
}

pub(crate) fn parameters(private_data: &[u8]) -> ConnectParameters {
    ConnectParameters {
        private_data: private_data.to_vec(),
        responder_resources: 4,
        initiator_depth: 4,
        ..ConnectParameters::default()
    }
}

/// Waits for the next event.
pub(crate) fn next(channel: &Arc<dyn CmChannel>) -> CmEvent {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(event) = channel.next_event() {
            return event;
        }
        let left = until.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "no event");
        wait_readable(&**channel, left);
    }
}

/// Waits until the channel's descriptor is readable.
pub(crate) fn wait_readable(channel: &(impl AsFd + ?Sized), limit: Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let timeout = PollTimeout::try_from(limit.as_millis().min(60_000)).unwrap();
    poll(&mut [PollFd::new(channel.as_fd(), PollFlags::POLLIN)], timeout).unwrap_or(0) > 0
}

/// Waits for a request.
pub(crate) fn next_request(channel: &Arc<dyn CmChannel>) -> (Arc<dyn CmId>, ConnectParameters, Vec<u8>) {
    match next(channel) {
        CmEvent { kind: CmEventKind::ConnectRequest { id, parameters }, private_data, .. } => {
            (id, parameters, private_data)
        }
        other => panic!("{other:?}"),
    }
}
