//! A test in which several threads share one QP and one CQ.

use super::lab::{Lab, Region, completions, post, post_receive, request, send};
use std::collections::HashSet;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

const THREADS: u64 = 4;
const EACH: u64 = 500;

#[test]
fn threads_share_qp_and_cq() {
    let lab = Lab::open();
    let cq = lab.cq(null_mut());
    let mut init = request(IBV_QPT_RC, lab.pd, cq);
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND;
    let from = lab.qp(&mut init);
    let to = lab.qp(&mut request(IBV_QPT_RC, lab.pd, cq));
    lab.connect(from, super::lab::number(to));
    lab.connect(to, super::lab::number(from));
    let block = Region::new(lab.pd, &[0; 4096]);
    let (qps, key, address) = ([from, to].map(|qp| qp.expose_provenance()), block.key(), block.address());
    let cq_address = cq.expose_provenance();
    // Each thread posts a receive and a send, and then takes any two completions. The number of outstanding requests
    // therefore never exceeds the capacity of the queues.
    let seen: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn(move || {
                    let [from, to]: [*mut ibv_qp; 2] = qps.map(with_exposed_provenance_mut);
                    let mut seen = Vec::new();
                    for round in 0..EACH {
                        let wr_id = thread * EACH + round;
                        let sge = ibv_sge { addr: address, length: 8, lkey: key };
                        assert_eq!(post_receive(to, wr_id, sge), 0);
                        if thread % 2 == 0 {
                            assert_eq!(post(from, &mut [send(wr_id, &mut [sge])]).0, 0);
                        } else {
                            send_ex(from, wr_id, sge);
                        }
                        let cq = with_exposed_provenance_mut(cq_address);
                        let two = completions(cq, 2);
                        assert!(two.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
                        seen.extend(two.iter().map(|wc| wc.wr_id << 1 | u64::from(wc.opcode == IBV_WC_RECV)));
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let different: HashSet<u64> = seen.iter().copied().collect();
    assert_eq!(different.len() as u64, THREADS * EACH * 2, "each request completed once");
    // SAFETY: the test's own objects, for the last time.
    unsafe {
        assert_eq!([from, to].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(block);
    lab.close();
}

fn send_ex(qp: *mut ibv_qp, wr_id: u64, sge: ibv_sge) {
    // SAFETY: the test's own QP, with its functions called in the order that the manual demands.
    unsafe {
        let ex = ibv_qp_to_qp_ex(qp);
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = wr_id;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_set_sge.unwrap()(ex, sge.lkey, sge.addr, sge.length);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
    }
}
