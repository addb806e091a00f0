//! Devices whose CQs are divided into groups, each with a separate shard.

use crate::common;
use common::node::{BOUND, Node, bring_up_with, next_event, next_request};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use trunkline_softrdma::device::{PathChoice, SoftOptions};
use trunkline_softrdma::link::{Datagram, LinkObserver};
use trunkline_verbs::{
    Access, AsyncEventKind, CmEventKind, CmOption, Completion, CompletionQueue, CompletionStatus,
    ConnectParameters, CqInit, Device as _, EndpointRequest, EndpointSide, Memory, OneFlow, PortSpace,
    QpInit, QpModify, QpState, QpType, QueueCapacities, QueuePair, ReceiveRequest, RemoteAddress, SendData,
    SendFlags, SendOperation, SendRequest, SharedReceiveQueue, SrqInit, SrqKind, SrqNumber, UdpPorts,
};

const GROUPS: u32 = 4;
const BYTES: u32 = 16;

/// CQ of a group, and an SRQ whose completions go to this CQ.
struct Poller {
    cq: Arc<dyn CompletionQueue>,
    srq: Arc<dyn SharedReceiveQueue>,
}

impl Poller {
    fn new(node: &Node, group: u32) -> Self {
        let init = CqInit { capacity_cqe: 4096, context: group.into(), group, ..CqInit::default() };
        let cq = node.device.create_cq(init).unwrap();
        let kind = SrqKind::Xrc { xrcd: Arc::clone(&node.xrcd), cq: Arc::clone(&cq) };
        let (pd, context) = (Arc::clone(&node.pd), group.into());
        let srq = node.device.create_srq(SrqInit { pd, kind, max_wr: 512, max_sge: 1, context }).unwrap();
        Self { cq, srq }
    }

    fn receive(&self, node: &Node, wr_ids: std::ops::Range<u64>) {
        for wr_id in wr_ids {
            let scatter = [node.sge(0, BYTES)];
            self.srq.post_receive(&[ReceiveRequest { wr_id, scatter: &scatter }]).unwrap();
        }
    }

    fn number(&self) -> SrqNumber {
        self.srq.number().unwrap()
    }

    /// Polls until the given number of completions have arrived.
    fn completions(&self, count: usize) -> Vec<Completion> {
        let until = Instant::now() + BOUND;
        let mut all = Vec::new();
        let mut some = [Completion::default(); 8];
        while all.len() < count {
            let got = self.cq.poll(&mut some);
            all.extend_from_slice(&some[..got]);
            assert!(Instant::now() < until, "{} of {count} completions", all.len());
            std::thread::yield_now();
        }
        all
    }
}

/// Connects an INI of one group to a TGT of another.
fn connect(near: (&Node, &Poller), far: (&Node, u32)) -> (Arc<dyn QueuePair>, Arc<dyn QueuePair>) {
    let capacities =
        QueueCapacities { max_send_wr: 1024, max_send_sge: 1, max_inline_data: BYTES, ..Default::default() };
    let send_cq = Some(Arc::clone(&near.1.cq));
    let pd = Some(Arc::clone(&near.0.pd));
    let init = QpInit { pd, send_cq, capacities, ..QpInit::new(QpType::XrcIni) };
    let ini = near.0.device.create_qp(init).unwrap();
    let xrcd = Some(Arc::clone(&far.0.xrcd));
    let tgt = far.0.device.create_qp(QpInit { xrcd, group: far.1, ..QpInit::new(QpType::XrcTgt) }).unwrap();
    bring_up_with(&*ini, far.0.address, tgt.number());
    bring_up_with(&*tgt, near.0.address, ini.number());
    (ini, tgt)
}

fn send(ini: &dyn QueuePair, to: SrqNumber, immediate: u32) {
    let operation = SendOperation::SendWithImmediate(immediate);
    let data = SendData::Inline(&[7; BYTES as usize]);
    let (wr_id, flags) = (immediate.into(), SendFlags::SIGNALED);
    ini.post_send(&[SendRequest { wr_id, operation, data, flags, remote_srq: to }]).unwrap();
}

fn open() -> [Node; 2] {
    open_with(PathChoice::Udp)
}

fn open_with(path: PathChoice) -> [Node; 2] {
    [(); 2].map(|()| Node::open(SoftOptions { path, ..common::udp() }, 4096))
}

fn pollers(node: &Node) -> Vec<Poller> {
    (0..GROUPS).map(|group| Poller::new(node, group)).collect()
}

#[test]
fn messages_reach_every_group_in_order_through_any_shard() {
    let [near, far] = open();
    every_group_sends_to_every_group(&near, &far);
    assert!(far.counter("handed_to_shards") > 0, "first packets come to port 4791");
}

/// The number of a QP names its shard, so each pair of shards has separate shared memory.
#[test]
fn shards_of_two_devices_share_memory() {
    let [near, far] = open_with(PathChoice::Shm);
    every_group_sends_to_every_group(&near, &far);
    assert_eq!(near.counter("shm_peers"), u64::from(GROUPS));
    assert_eq!([&near, &far].map(|node| node.counter("packets_sent")), [0; 2], "nothing goes by UDP");
}

#[test]
fn shards_of_one_device_share_memory() {
    let [node, _] = open_with(PathChoice::Shm);
    every_group_sends_to_every_group(&node, &node);
    assert_eq!(node.counter("packets_sent"), 0, "nothing goes by UDP");
}

/// Sends from one QP of each group to the SRQs of all groups, through a TGT of the next group.
fn every_group_sends_to_every_group(near: &Node, far: &Node) {
    const EACH: u32 = 60;
    let (senders, receivers) = (pollers(near), pollers(far));
    let links: Vec<_> = (0..GROUPS)
        .map(|group| connect((near, &senders[group as usize]), (far, (group + 1) % GROUPS)))
        .collect();
    let count = (EACH * GROUPS) as usize;
    for receiver in &receivers {
        receiver.receive(far, 0..count as u64);
    }
    std::thread::scope(|scope| {
        let taken: Vec<_> =
            receivers.iter().map(|receiver| scope.spawn(|| receiver.completions(count))).collect();
        for (sender, (ini, _)) in senders.iter().zip(&links) {
            let receivers = &receivers;
            scope.spawn(move || {
                for message in 0..EACH * GROUPS {
                    send(&**ini, receivers[(message % GROUPS) as usize].number(), message);
                }
                let sent = sender.completions((EACH * GROUPS) as usize);
                assert!(sent.iter().all(|completion| completion.status == CompletionStatus::Success));
            });
        }
        for taken in taken {
            let taken = taken.join().unwrap();
            let mut receives: Vec<u64> = taken.iter().map(|completion| completion.wr_id).collect();
            receives.sort_unstable();
            assert_eq!(receives, (0..count as u64).collect::<Vec<_>>(), "each receive once");
            for (_, tgt) in &links {
                let of_tgt = taken.iter().filter(|completion| completion.qp_number == tgt.number());
                let order: Vec<u32> = of_tgt.map(|completion| completion.immediate).collect();
                assert_eq!(order.len(), EACH as usize);
                assert!(order.is_sorted(), "{order:?}");
            }
        }
    });
    assert_eq!(far.counter("rnr_nak_sent"), 0);
}

#[test]
fn shards_use_all_receives_of_srq() {
    let [near, far] = open();
    let (senders, receivers) = (pollers(&near), pollers(&far));
    let links: Vec<_> = (0..3).map(|group| connect((&near, &senders[0]), (&far, group))).collect();
    receivers[3].receive(&far, 0..40);
    for message in 0..45 {
        send(&*links[message as usize % 3].0, receivers[3].number(), message);
    }
    let first = receivers[3].completions(40);
    assert_eq!(first.len(), 40, "none stays with a shard that does not need it");
    receivers[3].receive(&far, 40..45);
    let mut all: Vec<u64> = receivers[3].completions(5).iter().chain(&first).map(|it| it.wr_id).collect();
    all.sort_unstable();
    assert_eq!(all, (0..45).collect::<Vec<_>>());
    assert_eq!(senders[0].completions(45).len(), 45);
}

#[test]
fn srq_limit_counts_lent_receives() {
    let [near, far] = open();
    let (senders, receivers) = (pollers(&near), pollers(&far));
    let links: Vec<_> = (1..3).map(|group| connect((&near, &senders[0]), (&far, group))).collect();
    receivers[0].receive(&far, 0..64);
    let exchange = |messages: std::ops::Range<u32>| {
        let count = messages.len();
        messages.for_each(|message| send(&*links[message as usize % 2].0, receivers[0].number(), message));
        assert_eq!(receivers[0].completions(count).len(), count);
        senders[0].completions(count);
    };
    // Some receives are lent at this point.
    exchange(0..4);
    receivers[0].srq.arm_limit(50).unwrap();
    exchange(4..14);
    assert!(far.device.next_async_event().is_none(), "50 are left");
    exchange(14..15);
    let event = far.device.next_async_event().expect("49 are left");
    assert_eq!(event.kind, AsyncEventKind::SrqLimitReached);
    exchange(15..64);
    assert!(far.device.next_async_event().is_none(), "one event");
}

#[test]
fn shards_do_not_access_memory_after_its_deregistration() {
    let [near, far] = open();
    let (senders, receivers) = (pollers(&near), pollers(&far));
    let (ini, _tgt) = connect((&near, &senders[1]), (&far, 2));
    let memory = Memory::zeroed(4096).unwrap();
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let region = far.pd.register(Arc::clone(&memory), rights).unwrap();
    let remote = RemoteAddress { address: memory.address(0), rkey: region.rkey() };
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut some = [Completion::default(); 8];
            while !ended.load(Ordering::Acquire) {
                receivers[2].cq.poll(&mut some);
            }
        });
        let write = |byte: u8| {
            let data = SendData::Inline(&[byte; BYTES as usize]);
            let operation = SendOperation::RdmaWrite(remote);
            let flags = SendFlags::SIGNALED;
            ini.post_send(&[SendRequest {
                wr_id: 1,
                operation,
                data,
                flags,
                remote_srq: receivers[0].number(),
            }])
        };
        write(1).unwrap();
        assert_eq!(senders[1].completions(1)[0].status, CompletionStatus::Success);
        for byte in 2..200 {
            write(byte).unwrap();
        }
        region.destroy().unwrap();
        // The memory is no longer written to.
        memory.write(0, &[255; BYTES as usize]).unwrap();
        let last = senders[1].completions(198);
        let outcomes = [
            CompletionStatus::Success,
            CompletionStatus::RemoteAccessError,
            CompletionStatus::WorkRequestFlushed,
        ];
        assert!(last.iter().all(|completion| outcomes.contains(&completion.status)), "{last:?}");
        let mut bytes = [0; BYTES as usize];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [255; BYTES as usize]);
        ended.store(true, Ordering::Release);
    });
}

/// Source and destination ports of the packets that a device has sent to other addresses.
#[derive(Debug, Default)]
struct SentPorts(Mutex<BTreeSet<(u16, u16)>>);

impl LinkObserver for SentPorts {
    fn sent(&self, datagram: Datagram<'_>) {
        self.0.lock().unwrap().insert((datagram.source.port(), datagram.destination.port()));
    }

    fn received(&self, _: usize) {}
}

/// Neither device holds the device port at its address, and the QPs belong to shards other than the first.
#[test]
fn all_packets_of_one_flow_have_one_pair_of_ports() {
    const PORT: u16 = 5790;
    let host = common::host::Host::new();
    let open = |port: Option<u16>, address, sent: &Arc<SentPorts>| {
        let observer = Some(Arc::clone(sent) as Arc<dyn LinkObserver>);
        let udp_port = port.and_then(NonZeroU16::new);
        Node::open(SoftOptions { addresses: vec![address], udp_port, observer, ..host.options() }, 64)
    };
    let [near_address, far_address] = [(); 2].map(|()| common::address());
    let all = [(); 4].map(|()| Arc::<SentPorts>::default());
    let holders =
        [(None, near_address), (Some(PORT), far_address)].map(|(port, address)| open(port, address, &all[0]));
    let channels = holders.iter().map(Node::cm_channel).collect::<Vec<_>>();
    let held = holders
        .iter()
        .zip(&channels)
        .map(|(holder, on)| holder.listen(SocketAddr::new(holder.address, 0), on).unwrap())
        .collect::<Vec<_>>();
    let (near, far) = (open(None, near_address, &all[1]), open(Some(PORT), far_address, &all[2]));
    let [pollers, far_pollers] = [&near, &far].map(|node| [0, 1, 2].map(|group| Poller::new(node, group)));
    let [near_channel, far_channel] = [&near, &far].map(Node::cm_channel);
    let listener = far.listen(SocketAddr::new(far_address, 0), &far_channel).unwrap();
    let side = EndpointSide::Active { remote: listener.local_address(), source: None };
    let request = EndpointRequest { side, port_space: PortSpace::Ib, qp_type: QpType::XrcIni };
    let id = near.device.connection_manager().create_endpoint(&request, &near_channel).unwrap();
    id.set_option(CmOption::UdpPorts(UdpPorts::new(PORT))).unwrap();
    id.set_option(CmOption::OneFlow(OneFlow::Yes)).unwrap();
    let (ini, _) = connect((&near, &pollers[1]), (&far, 0));
    ini.modify(&QpModify { state: Some(QpState::Reset), ..QpModify::default() }).unwrap();
    id.attach(Arc::clone(&ini)).unwrap();
    id.connect(&ConnectParameters::default()).unwrap();
    let accepted = next_request(&*far_channel);
    let xrcd = Some(Arc::clone(&far.xrcd));
    let tgt = far.device.create_qp(QpInit { xrcd, group: 2, ..QpInit::new(QpType::XrcTgt) }).unwrap();
    accepted.attach(tgt).unwrap();
    accepted.accept(&ConnectParameters::default()).unwrap();
    assert!(matches!(next_event(&*near_channel).kind, CmEventKind::Established));
    far_pollers[2].receive(&far, 0..100);
    for number in 0..100 {
        send(&*ini, far_pollers[2].number(), number);
    }
    assert!(
        pollers[1].completions(100).iter().all(|completion| completion.status == CompletionStatus::Success)
    );
    assert_eq!(far_pollers[2].completions(100).len(), 100);
    let ports = |sent: &SentPorts| sent.0.lock().unwrap().iter().copied().collect::<Vec<_>>();
    let near_ports = ports(&all[1]);
    let &[(own, PORT)] = &near_ports[..] else { panic!("{near_ports:?}") };
    assert_ne!(own, 4791);
    assert_eq!(ports(&all[2]), [(PORT, own)]);
    assert_eq!(accepted.udp_ports(), Some(UdpPorts { own: Some(PORT), ..UdpPorts::new(own) }));
    assert!(holders[1].counter("sent_for_members") > 0);
    drop(held);
}
