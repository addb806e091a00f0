//! A device with the objects that a small XRC test needs.
#![expect(clippy::disallowed_methods, reason = "the clock only bounds waits of tests in real time")]

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{HandMadeConnection, wait_until};
use trunkline_verbs::{
    Access, CmChannel, CmEvent, CmEventKind, CmId, Completion, CompletionChannel, CompletionQueue,
    CompletionStatus, ConnectParameters, CqInit, Device, EndpointRequest, EndpointSide, Memory, MemoryRegion,
    Mtu, PortSpace, ProtectionDomain, QpInit, QpModify, QpNumber, QpType, QueueCapacities, QueuePair,
    ReceiveRequest, RemoteAddress, SendData, SendFlags, SendOperation, SendRequest, Sge, SharedReceiveQueue,
    SrqInit, SrqKind, VerbsError, XrcDomain, XrcdFlags,
};

/// Time limit of all waits, long enough for a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// Number of outstanding READs and atomics of the connections, in each direction.
pub(crate) const READS: u8 = 128;
/// ACK timeout of connections, which is 4.096 us * 2^14 = 67 ms.
const ACK_TIMEOUT: u8 = 14;

/// A device with a PD, a CQ with a channel, an XRC domain with an SRQ, and registered memory.
pub(crate) struct Node {
    pub(crate) device: Arc<SoftDevice>,
    pub(crate) address: IpAddr,
    pub(crate) pd: Arc<dyn ProtectionDomain>,
    pub(crate) channel: Arc<dyn CompletionChannel>,
    pub(crate) cq: Arc<dyn CompletionQueue>,
    pub(crate) xrcd: Arc<dyn XrcDomain>,
    pub(crate) srq: Arc<dyn SharedReceiveQueue>,
    pub(crate) memory: Arc<Memory>,
    pub(crate) region: Arc<dyn MemoryRegion>,
}

impl Node {
    pub(crate) fn open(options: SoftOptions, memory_bytes: usize) -> Self {
        let address = options.addresses[0];
        let device = SoftDevice::open(options).expect("the device opens");
        Self::with_device(device, address, memory_bytes)
    }

    pub(crate) fn with_device(device: Arc<SoftDevice>, address: IpAddr, memory_bytes: usize) -> Self {
        Self::in_domain(device, address, memory_bytes, None)
    }

    /// Creates a node whose XRC domain belongs to a file or is private.
    pub(crate) fn in_domain(
        device: Arc<SoftDevice>,
        address: IpAddr,
        memory_bytes: usize,
        file: Option<BorrowedFd<'_>>,
    ) -> Self {
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_completion_channel().unwrap();
        let init = CqInit {
            capacity_cqe: 4096,
            channel: Some(Arc::clone(&channel)),
            context: 7,
            ..CqInit::default()
        };
        let cq = device.create_cq(init).unwrap();
        let xrcd = device.open_xrcd(file, XrcdFlags::CREATE).unwrap();
        let kind = SrqKind::Xrc { xrcd: Arc::clone(&xrcd), cq: Arc::clone(&cq) };
        let srq = device
            .create_srq(SrqInit { pd: Arc::clone(&pd), kind, max_wr: 1024, max_sge: 2, context: 9 })
            .unwrap();
        let memory = Memory::zeroed(memory_bytes).unwrap();
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let region = pd.register(Arc::clone(&memory), rights).unwrap();
        Self { device, address, pd, channel, cq, xrcd, srq, memory, region }
    }

    pub(crate) fn qp(&self, qp_type: QpType) -> Arc<dyn QueuePair> {
        let mut init = QpInit::new(qp_type);
        if qp_type == QpType::XrcTgt {
            init.xrcd = Some(Arc::clone(&self.xrcd));
        } else {
            init.pd = Some(Arc::clone(&self.pd));
            init.send_cq = Some(Arc::clone(&self.cq));
            init.capacities = QueueCapacities {
                max_send_wr: 256,
                max_send_sge: 2,
                max_inline_data: 64,
                ..QueueCapacities::default()
            };
        }
        if qp_type == QpType::Rc {
            init.receive_cq = Some(Arc::clone(&self.cq));
            (init.capacities.max_receive_wr, init.capacities.max_receive_sge) = (64, 1);
        }
        self.device.create_qp(init).unwrap()
    }

    pub(crate) fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { address: self.memory.address(offset), length, lkey: self.region.lkey() }
    }

    pub(crate) fn remote(&self, offset: usize) -> RemoteAddress {
        RemoteAddress { address: self.memory.address(offset), rkey: self.region.rkey() }
    }

    pub(crate) fn receive(&self, wr_id: u64, offset: usize, length: u32) {
        let scatter = [self.sge(offset, length)];
        self.srq.post_receive(&[ReceiveRequest { wr_id, scatter: &scatter }]).unwrap();
    }

    pub(crate) fn completion(&self) -> Completion {
        let until = Instant::now() + BOUND;
        let mut one = [Completion::default()];
        while self.cq.poll(&mut one) == 0 {
            assert!(Instant::now() < until, "no completion: {:#?}", self.device.counters());
            std::thread::yield_now();
        }
        one[0]
    }

    pub(crate) fn device_counters(&self) -> Vec<trunkline_verbs::Counter> {
        self.device.counters()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let all = self.device.counters();
        all.iter()
            .find(|counter| counter.name == name)
            .map(|counter| counter.value)
            .expect("the counter exists")
    }
}

/// Connections through the connection manager. They use XRC unless a type is given.
impl Node {
    pub(crate) fn cm_channel(&self) -> Arc<dyn CmChannel> {
        self.device.connection_manager().create_channel().unwrap()
    }

    /// Creates a listener for TGTs.
    pub(crate) fn listen(
        &self,
        at: SocketAddr,
        on: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        self.listen_for(QpType::XrcTgt, at, on)
    }

    fn listen_for(
        &self,
        qp_type: QpType,
        at: SocketAddr,
        on: &Arc<dyn CmChannel>,
    ) -> Result<Arc<dyn CmId>, VerbsError> {
        let side = EndpointSide::Passive { local: at };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let listener = self.device.connection_manager().create_endpoint(&request, on)?;
        listener.listen(8).map(|()| listener)
    }

    /// Requests a connection for a new INI.
    pub(crate) fn ask(
        &self,
        remote: SocketAddr,
        on: &Arc<dyn CmChannel>,
    ) -> (Arc<dyn CmId>, Arc<dyn QueuePair>) {
        self.ask_with(remote, on, ACK_TIMEOUT)
    }

    /// Requests a connection with this ACK timeout, 4.096 us * 2^n.
    pub(crate) fn ask_with(
        &self,
        remote: SocketAddr,
        on: &Arc<dyn CmChannel>,
        ack_timeout: u8,
    ) -> (Arc<dyn CmId>, Arc<dyn QueuePair>) {
        self.ask_for(QpType::XrcIni, remote, on, ack_timeout)
    }

    fn ask_for(
        &self,
        qp_type: QpType,
        remote: SocketAddr,
        on: &Arc<dyn CmChannel>,
        ack_timeout: u8,
    ) -> (Arc<dyn CmId>, Arc<dyn QueuePair>) {
        let side = EndpointSide::Active { remote, source: None };
        let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type };
        let id = self.device.connection_manager().create_endpoint(&request, on).unwrap();
        let ini = self.qp(qp_type);
        id.attach(Arc::clone(&ini)).unwrap();
        id.connect(&ConnectParameters { ack_timeout, ..ConnectParameters::default() }).unwrap();
        (id, ini)
    }

    /// Accepts a request with a new TGT.
    pub(crate) fn accept(&self, id: &dyn CmId) -> Arc<dyn QueuePair> {
        self.accept_with(id, self.qp(QpType::XrcTgt))
    }

    fn accept_with(&self, id: &dyn CmId, tgt: Arc<dyn QueuePair>) -> Arc<dyn QueuePair> {
        id.attach(Arc::clone(&tgt)).unwrap();
        id.accept(&ConnectParameters::default()).unwrap();
        tgt
    }
}

/// An INI and a TGT that the connection manager has connected.
pub(crate) struct Joined {
    pub(crate) ini: Arc<dyn QueuePair>,
    pub(crate) tgt: Arc<dyn QueuePair>,
    pub(crate) near_id: Arc<dyn CmId>,
    pub(crate) far_id: Arc<dyn CmId>,
    pub(crate) far_channel: Arc<dyn CmChannel>,
    _near_channel: Arc<dyn CmChannel>,
    _listener: Arc<dyn CmId>,
}

/// Connects an INI of `near` to a TGT of `far`.
pub(crate) fn join(near: &Node, far: &Node) -> Joined {
    join_at(near, far, far.address, far.address)
}

/// Connects to `to`, while `far` listens at `listens_at`.
pub(crate) fn join_at(near: &Node, far: &Node, listens_at: IpAddr, to: IpAddr) -> Joined {
    join_by([QpType::XrcIni, QpType::XrcTgt], near, far, listens_at, to)
}

pub(crate) fn join_rc(near: &Node, far: &Node) -> Joined {
    join_by([QpType::Rc; 2], near, far, far.address, far.address)
}

fn join_by(types: [QpType; 2], near: &Node, far: &Node, listens_at: IpAddr, to: IpAddr) -> Joined {
    let [near_channel, far_channel] = [near, far].map(Node::cm_channel);
    let listener = far.listen_for(types[1], SocketAddr::new(listens_at, 0), &far_channel).unwrap();
    let remote = SocketAddr::new(to, listener.local_address().port());
    let (near_id, ini) = near.ask_for(types[0], remote, &near_channel, ACK_TIMEOUT);
    let far_id = next_request(&*far_channel);
    let tgt = far.accept_with(&*far_id, far.qp(types[1]));
    for channel in [&near_channel, &far_channel] {
        let event = next_event(&**channel);
        assert!(matches!(event.kind, CmEventKind::Established), "{event:?}");
    }
    Joined { ini, tgt, near_id, far_id, far_channel, _near_channel: near_channel, _listener: listener }
}

pub(crate) fn next_request(channel: &dyn CmChannel) -> Arc<dyn CmId> {
    match next_event(channel).kind {
        CmEventKind::ConnectRequest { id, .. } => id,
        other => panic!("{other:?}"),
    }
}

/// Sends a message that both sides complete.
pub(crate) fn exchange(ini: &dyn QueuePair, near: &Node, far: &Node, length: u32) {
    far.receive(1, 0, length);
    post(ini, SendOperation::Send, &[near.sge(0, length)], &*far.srq);
    assert_eq!(near.completion().status, CompletionStatus::Success);
    assert_eq!(far.completion().status, CompletionStatus::Success);
}

/// Waits until a descriptor is readable.
pub(crate) fn wait_readable(fd: &(impl AsFd + ?Sized)) {
    let mut poll = Poll::new().unwrap();
    let raw = fd.as_fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&raw), Token(0), Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(1);
    // A stopped process is interrupted when it continues, so repeat the wait.
    while poll.poll(&mut events, Some(BOUND)).is_err_and(|error| error.kind() == ErrorKind::Interrupted) {}
    assert!(!events.is_empty(), "the descriptor never became readable");
}

pub(crate) fn next_event(channel: &dyn CmChannel) -> CmEvent {
    let until = Instant::now() + BOUND;
    loop {
        if let Some(event) = channel.next_event() {
            return event;
        }
        assert!(Instant::now() < until, "no event");
        wait_readable(channel);
    }
}

/// Connects an INI at `near` to a TGT at `far` without the connection manager.
#[allow(dead_code, reason = "each test binary uses its own part")]
pub(crate) fn connect(near: &Node, far: &Node) -> (Arc<dyn QueuePair>, Arc<dyn QueuePair>) {
    connect_at(near, far, Mtu::Mtu1024)
}

pub(crate) fn connect_at(near: &Node, far: &Node, mtu: Mtu) -> (Arc<dyn QueuePair>, Arc<dyn QueuePair>) {
    let (ini, tgt) = (near.qp(QpType::XrcIni), far.qp(QpType::XrcTgt));
    bring_up_at(&*ini, far.address, tgt.number(), mtu);
    bring_up_at(&*tgt, near.address, ini.number(), mtu);
    (ini, tgt)
}

pub(crate) fn bring_up(qp: &dyn QueuePair, peer: &Node, peer_qp: &dyn QueuePair) {
    bring_up_with(qp, peer.address, peer_qp.number());
}

/// Moves a QP from RESET to RTS.
pub(crate) fn bring_up_with(qp: &dyn QueuePair, peer: IpAddr, peer_qp: QpNumber) {
    bring_up_at(qp, peer, peer_qp, Mtu::Mtu1024);
}

fn bring_up_at(qp: &dyn QueuePair, peer: IpAddr, peer_qp: QpNumber, mtu: Mtu) {
    for step in steps(peer, peer_qp, mtu) {
        when_free(|| qp.modify(&step));
    }
}

/// Repeats a call that binds the port at an address until the port is free. A process that another test starts
/// keeps a copy of a closed socket until it executes its program.
pub(crate) fn when_free<T>(call: impl Fn() -> Result<T, VerbsError>) -> T {
    wait_until("the port is free", BOUND, || match call() {
        Err(error) if error.errno() == libc::EADDRINUSE => None,
        done => Some(done.unwrap()),
    })
}

/// Returns the modifications that move a QP from RESET to RTS.
pub(crate) fn steps(peer: IpAddr, peer_qp: QpNumber, mtu: Mtu) -> [QpModify; 3] {
    HandMadeConnection { mtu, rd_atomic: READS, ..HandMadeConnection::new(peer, peer_qp) }.steps()
}

pub(crate) fn post(
    ini: &dyn QueuePair,
    operation: SendOperation,
    scatter: &[Sge],
    to: &dyn SharedReceiveQueue,
) {
    post_to(ini, operation, SendData::Gather(scatter), to.number().unwrap());
}

/// Posts one signalled request to the SRQ with a number.
pub(crate) fn post_to(
    ini: &dyn QueuePair,
    operation: SendOperation,
    data: SendData<'_>,
    remote_srq: trunkline_verbs::SrqNumber,
) {
    let request = SendRequest { wr_id: 42, operation, data, flags: SendFlags::SIGNALED, remote_srq };
    ini.post_send(&[request]).unwrap();
}
