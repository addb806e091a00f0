//! Section L of the XRC contract: how many queue pairs a cluster needs, counted on devices.

#[cfg(test)]
mod tests {
    use crate::common;
    use crate::common::node::{BOUND, bring_up_with};
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::sync::Arc;
    use std::time::Instant;
    use trunkline_softrdma::device::{LinkChoice, SoftDevice, SoftOptions};
    use trunkline_softrdma::link::Hub;
    use trunkline_verbs::{
        Access, Completion, CompletionQueue, CompletionStatus, CqInit, Device, Memory, MemoryRegion,
        ProtectionDomain, QpInit, QpType, QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags,
        SendOperation, SendRequest, Sge, SharedReceiveQueue, SrqInit, SrqKind, XrcDomain, XrcdFlags,
    };

    const NODES: usize = 4;
    const PROCESSES: usize = 3;

    /// The objects of one process of a node: its own CQ, SRQ and memory, and an INI for each other node.
    struct Process {
        cq: Arc<dyn CompletionQueue>,
        srq: Arc<dyn SharedReceiveQueue>,
        memory: Arc<Memory>,
        region: Arc<dyn MemoryRegion>,
        inis: Vec<Option<Arc<dyn QueuePair>>>,
        pd: Arc<dyn ProtectionDomain>,
    }

    struct Node {
        device: Arc<SoftDevice>,
        address: IpAddr,
        xrcd: Arc<dyn XrcDomain>,
        processes: Vec<Process>,
        tgts: Vec<Arc<dyn QueuePair>>,
    }

    fn node(hub: &Arc<Hub>) -> Node {
        let options = SoftOptions { link: LinkChoice::InProcess(Arc::clone(hub)), ..common::udp() };
        let address = options.addresses[0];
        let device = SoftDevice::open(options).unwrap();
        let xrcd = device.open_xrcd(None, XrcdFlags::CREATE).unwrap();
        let processes = (0..PROCESSES)
            .map(|_| {
                let pd = device.alloc_pd().unwrap();
                let cq = device.create_cq(CqInit { capacity_cqe: 256, ..CqInit::default() }).unwrap();
                let kind = SrqKind::Xrc { xrcd: Arc::clone(&xrcd), cq: Arc::clone(&cq) };
                let init = SrqInit { pd: Arc::clone(&pd), kind, max_wr: 64, max_sge: 1, context: 0 };
                let srq = device.create_srq(init).unwrap();
                let memory = Memory::zeroed(4096).unwrap();
                let region = pd.register(Arc::clone(&memory), Access::LOCAL_WRITE).unwrap();
                Process { cq, srq, memory, region, inis: vec![None; NODES], pd }
            })
            .collect();
        Node { device, address, xrcd, processes, tgts: Vec::new() }
    }

    #[test]
    fn l_a_node_needs_two_queue_pairs_per_process_and_peer_node() {
        let hub = Hub::new();
        let mut nodes: Vec<Node> = (0..NODES).map(|_| node(&hub)).collect();
        for (from, to) in pairs() {
            for process in 0..PROCESSES {
                let sender = &nodes[from].processes[process];
                let init = QpInit {
                    pd: Some(Arc::clone(&sender.pd)),
                    send_cq: Some(Arc::clone(&sender.cq)),
                    capacities: QueueCapacities {
                        max_send_wr: 16,
                        max_send_sge: 1,
                        max_inline_data: 16,
                        ..QueueCapacities::default()
                    },
                    ..QpInit::new(QpType::XrcIni)
                };
                let ini = nodes[from].device.create_qp(init).unwrap();
                let target =
                    QpInit { xrcd: Some(Arc::clone(&nodes[to].xrcd)), ..QpInit::new(QpType::XrcTgt) };
                let tgt = nodes[to].device.create_qp(target).unwrap();
                bring_up_with(&*tgt, nodes[from].address, ini.number());
                bring_up_with(&*ini, nodes[to].address, tgt.number());
                nodes[from].processes[process].inis[to] = Some(ini);
                nodes[to].tgts.push(tgt);
            }
        }
        for node in &nodes {
            let inis: usize =
                node.processes.iter().map(|process| process.inis.iter().flatten().count()).sum();
            let numbers: BTreeSet<_> = node.tgts.iter().map(|tgt| tgt.number()).collect();
            assert_eq!(inis, (NODES - 1) * PROCESSES);
            assert_eq!(inis + numbers.len(), 2 * (NODES - 1) * PROCESSES, "RC: (n-1) p p, which is more");
        }
        everybody_reaches_everybody(&nodes);
    }

    fn pairs() -> impl Iterator<Item = (usize, usize)> {
        (0..NODES).flat_map(|from| (0..NODES).filter(move |to| *to != from).map(move |to| (from, to)))
    }

    /// Each process sends to each process of each other node through these QPs.
    fn everybody_reaches_everybody(nodes: &[Node]) {
        let due = (NODES - 1) * PROCESSES;
        for node in nodes {
            for process in &node.processes {
                for wr_id in 0..due {
                    let address = process.memory.address(wr_id * 16);
                    let scatter = [Sge { address, length: 16, lkey: process.region.lkey() }];
                    let request = ReceiveRequest { wr_id: wr_id as u64, scatter: &scatter };
                    process.srq.post_receive(&[request]).unwrap();
                }
            }
        }
        for (from, to) in pairs() {
            for sender in 0..PROCESSES {
                for receiver in &nodes[to].processes {
                    let name = u32::try_from(from * PROCESSES + sender).unwrap();
                    let request = SendRequest {
                        wr_id: u64::MAX,
                        operation: SendOperation::SendWithImmediate(name),
                        data: SendData::Inline(b"from the peers"),
                        flags: SendFlags::empty(),
                        remote_srq: receiver.srq.number().unwrap(),
                    };
                    let ini = nodes[from].processes[sender].inis[to].as_ref().unwrap();
                    ini.post_send(&[request]).unwrap();
                }
            }
        }
        for (index, node) in nodes.iter().enumerate() {
            for process in &node.processes {
                let senders: BTreeSet<u32> = (0..due).map(|_| received(node, process)).collect();
                assert_eq!(senders.len(), due, "each sender once");
                let own = index * PROCESSES..(index + 1) * PROCESSES;
                assert!(senders.iter().all(|name| !own.contains(&(*name as usize))));
            }
        }
    }

    fn received(node: &Node, process: &Process) -> u32 {
        let until = Instant::now() + BOUND;
        let mut one = [Completion::default()];
        while process.cq.poll(&mut one) == 0 {
            assert!(Instant::now() < until, "no completion: {:#?}", node.device.counters());
            std::thread::yield_now();
        }
        assert_eq!(one[0].status, CompletionStatus::Success);
        one[0].immediate
    }
}
