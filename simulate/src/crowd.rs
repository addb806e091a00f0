//! Many pollers of other nodes at one node: all connect, and all make calls.
//!
//! A separate scenario, without faults: `cargo test -p trunkline-simulate crowd`. `TRUNKLINE_CROWD_NODES=63` makes 2,000
//! pollers, which take a minute.

#[cfg(test)]
mod tests {
    use crate::budgets;
    use crate::coverage::Coverage;
    use crate::credits;
    use crate::node::SimNode;
    use crate::oracle::Open;
    use crate::plan::NodePlan;
    use crate::scheduler::Scheduler;
    use crate::service::WorkClient;
    use crate::trace::Trace;
    use std::cell::Cell;
    use std::net::SocketAddr;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    /// Pollers of each calling node.
    const POLLERS: u16 = 32;
    /// Nodes that call the hub, unless `TRUNKLINE_CROWD_NODES` names another number.
    const NODES: usize = 7;
    /// Maximum time until all are connected, in simulated time.
    const JOINING: Duration = Duration::from_secs(20);

    fn plan(host: usize, pollers: u16) -> NodePlan {
        NodePlan { srq_depth: 64, rendezvous_bytes: 768 << 10, ..NodePlan::extra(host, pollers) }
    }

    /// Makes a call from each poller of a node. A client's calls go to its node's pollers in turn.
    fn call_from_each(
        scheduler: &mut Scheduler,
        node: &SimNode,
        server: SocketAddr,
        pollers: u16,
        replied: &Rc<Cell<usize>>,
    ) {
        let (process, handle) = node.running().expect("it runs");
        let client = WorkClient::connect(handle, server).expect("an address").with_timeout(JOINING);
        let client = Rc::new(client);
        for _ in 0..pollers {
            let (client, oracle, replied) =
                (Rc::clone(&client), scheduler.oracle.clone(), Rc::clone(replied));
            let id = oracle.made(process, server, "number, in a crowd", JOINING);
            scheduler.tasks.add(process, async move {
                let open = Open::new(&oracle, id);
                let outcome = client.number(id).await;
                open.ended();
                match outcome {
                    Ok(reply) => oracle.succeeded(id, reply, false),
                    Err(status) => oracle.fail(format!("a call failed in a crowd: {status}")),
                }
                replied.set(replied.get() + 1);
            });
        }
    }

    /// Runs a hub with an SRQ of 64 receives, and the nodes that call it.
    fn crowd(nodes: usize) {
        let mut scheduler = Scheduler::new(1, Trace::checksum_only(), Arc::new(Coverage::default()));
        let mut hub = SimNode::new(0, plan(0, 1), false);
        hub.start(&mut scheduler, None);
        let mut callers =
            // One shard each, for the same load at the hub with half as many machines.
            (1..=nodes).map(|index| SimNode::new(index, plan(index, POLLERS), false).with_shards(1)).collect::<Vec<_>>();
        for caller in &mut callers {
            caller.start(&mut scheduler, None);
        }
        let pollers = nodes * usize::from(POLLERS);
        let replied = Rc::new(Cell::new(0));
        // Once while they connect, and again when all are connected.
        for round in 1..=2 {
            for caller in &callers {
                call_from_each(&mut scheduler, caller, hub.address, POLLERS, &replied);
            }
            for caller in &callers {
                call_from_each(&mut scheduler, &hub, caller.address, 1, &replied);
            }
            let all = round * (pollers + nodes);
            let limit = scheduler.now() + JOINING;
            let done = scheduler.run_until(limit, |_| replied.get() == all);
            let broken = scheduler.oracle.verdict(scheduler.now());
            assert!(done && broken.is_none(), "{} of {all} calls ended: {broken:?}", replied.get());
        }
        let ledgers = scheduler.ledgers();
        assert_eq!(budgets::kept(&ledgers), Ok(()));
        assert!(credits::conserved(&ledgers).expect("credits are conserved") >= pollers);
        let (_, node) = hub.running().expect("it runs");
        let report = node.report();
        assert_eq!((report.tgt, report.rnr), (u32::try_from(pollers).unwrap(), 0));
        for node in callers.iter_mut().chain([&mut hub]) {
            node.kill(&mut scheduler);
        }
    }

    #[test]
    fn pollers_join_one_node() {
        let nodes = std::env::var("TRUNKLINE_CROWD_NODES");
        crowd(nodes.map_or(NODES, |nodes| nodes.parse().expect("a number of nodes")));
    }
}
