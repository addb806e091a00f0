//! A peer that leaves work behind, is forgotten and comes back under its address keeps one budget.
//!
//! A separate scenario, without faults: `cargo test -p trunkline-simulate returns`.

#[cfg(test)]
mod tests {
    use crate::budgets;
    use crate::coverage::Coverage;
    use crate::node::{HANDLERS, SimNode};
    use crate::plan::NodePlan;
    use crate::scheduler::Scheduler;
    use crate::service::WorkClient;
    use crate::trace::Trace;
    use std::rc::Rc;
    use std::sync::Arc;
    use std::time::Duration;

    /// Time limit of the calls.
    const LONG: Duration = Duration::from_secs(3600);
    /// Time that is longer than it takes to forget a peer.
    const FORGOTTEN: Duration = Duration::from_secs(40);

    #[test]
    fn handlers_that_outlive_a_session_count_when_their_caller_is_back() {
        let plan = |host| NodePlan { srq_depth: 64, rendezvous_bytes: 768 << 10, ..NodePlan::extra(host, 2) };
        let mut scheduler = Scheduler::new(1, Trace::checksum_only(), Arc::new(Coverage::default()));
        let mut nodes = [SimNode::new(0, plan(0), false), SimNode::new(1, plan(1), false)];
        nodes[0].start(&mut scheduler, None);
        let server = nodes[0].address;
        for round in 0..2 {
            nodes[1].start(&mut scheduler, None);
            let (process, node) = nodes[1].running().expect("it runs");
            let client = Rc::new(WorkClient::connect(node, server).expect("an address").with_timeout(LONG));
            for _ in 0..2 * HANDLERS.per_peer {
                let client = Rc::clone(&client);
                scheduler.tasks.add(process, async move { assert_eq!(client.linger().await, Ok(())) });
            }
            drop(client);
            let limit = scheduler.now() + FORGOTTEN;
            assert!(scheduler.run_until(limit, |scheduler| scheduler.tasks.len() == 0), "round {round}");
            scheduler.run_until(scheduler.now() + Duration::from_millis(100), |_| false);
            let ledgers = scheduler.ledgers();
            assert_eq!(budgets::kept(&ledgers), Ok(()), "round {round}");
            let of_server = ledgers.iter().filter(|ledger| ledger.node == server);
            assert_eq!(of_server.map(|ledger| ledger.upper.handlers).sum::<usize>(), HANDLERS.per_peer);
            nodes[1].begin_shutdown(&scheduler);
            scheduler.run_until(scheduler.now() + FORGOTTEN, |_| false);
            nodes[1].settle(&mut scheduler);
            let known = scheduler.sessions().iter().map(|ledger| ledger.sessions.len()).sum::<usize>();
            assert_eq!(known, 0, "the session has ended");
        }
        nodes.iter_mut().for_each(|node| node.kill(&mut scheduler));
    }
}
