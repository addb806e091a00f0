//! A device with the objects that a small XRC test needs.
#![expect(clippy::disallowed_methods, reason = "the clock only bounds waits of tests in real time")]

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trunkline_softrdma::device::{SoftDevice, SoftOptions};
use trunkline_testkit::{HandMadeConnection, wait_until};
use trunkline_verbs::{
    Access, CmChannel, CmEvent, Completion, CompletionChannel, CompletionQueue, CqInit, Device, Memory,
    MemoryRegion, Mtu, ProtectionDomain, QpInit, QpModify, QpNumber, QpType, QueueCapacities, QueuePair,
    ReceiveRequest, RemoteAddress, SendData, SendFlags, SendOperation, SendRequest, Sge, SharedReceiveQueue,
    SrqInit, SrqKind, VerbsError, XrcDomain, XrcdFlags,
};

/// The bound of every wait, for a loaded machine.
pub(crate) const BOUND: Duration = Duration::from_secs(60);
/// Number of outstanding READs and atomics of the connections, in both directions.
pub(crate) const READS: u8 = 128;

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
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_completion_channel().unwrap();
        let init = CqInit {
            capacity_cqe: 4096,
            channel: Some(Arc::clone(&channel)),
            context: 7,
            ..CqInit::default()
        };
        let cq = device.create_cq(init).unwrap();
        let xrcd = device.open_xrcd(None, XrcdFlags::CREATE).unwrap();
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

    /// Polls until a completion comes.
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

/// Waits until a descriptor is readable.
pub(crate) fn wait_readable(fd: &(impl AsFd + ?Sized)) {
    let mut poll = Poll::new().unwrap();
    let raw = fd.as_fd().as_raw_fd();
    poll.registry().register(&mut SourceFd(&raw), Token(0), Interest::READABLE).unwrap();
    let mut events = Events::with_capacity(1);
    // A process that was stopped is interrupted when it goes on.
    while poll.poll(&mut events, Some(BOUND)).is_err_and(|error| error.kind() == ErrorKind::Interrupted) {}
    assert!(!events.is_empty(), "the descriptor never became readable");
}

/// Waits for the next event of connections.
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

/// Connects with the given path MTU.
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

/// Repeats a call that uses the port of an address until the port is free. A process that another test starts meanwhile has
/// a copy of a closed socket until it runs its program.
pub(crate) fn when_free<T>(call: impl Fn() -> Result<T, VerbsError>) -> T {
    wait_until("the port is free", BOUND, || match call() {
        Err(error) if error.errno() == libc::EADDRINUSE => None,
        done => Some(done.unwrap()),
    })
}

/// The changes that take a QP from RESET to RTS.
pub(crate) fn steps(peer: IpAddr, peer_qp: QpNumber, mtu: Mtu) -> [QpModify; 3] {
    HandMadeConnection { mtu, rd_atomic: READS, ..HandMadeConnection::new(peer, peer_qp) }.steps()
}

/// Posts one signalled request.
pub(crate) fn post(
    ini: &dyn QueuePair,
    operation: SendOperation,
    scatter: &[Sge],
    to: &dyn SharedReceiveQueue,
) {
    post_to(ini, operation, SendData::Gather(scatter), to.number().unwrap());
}

/// Posts one signalled request to an SRQ known by its number.
pub(crate) fn post_to(
    ini: &dyn QueuePair,
    operation: SendOperation,
    data: SendData<'_>,
    remote_srq: trunkline_verbs::SrqNumber,
) {
    let request = SendRequest { wr_id: 42, operation, data, flags: SendFlags::SIGNALED, remote_srq };
    ini.post_send(&[request]).unwrap();
}
