//! Tests of posting with request lists and with `ibv_wr_*`.

use super::lab::{Lab, Region, completions, post, post_receive, receive, request, send};
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

#[test]
fn list_is_posted_up_to_bad_request() {
    let lab = Lab::open();
    let cq = lab.cq(null_mut());
    let [from, to] = lab.rc_pair(cq);
    let block = Region::new(lab.pd, &[0; 4096]);
    for wr_id in 0..3 {
        assert_eq!(post_receive(to, wr_id, block.sge(2048, 64)), 0);
    }
    let mut sges = [block.sge(0, 16)];
    let mut list = [send(10, &mut sges), send(11, &mut sges), send(12, &mut sges), send(13, &mut sges)];
    list[2].opcode = IBV_WR_LOCAL_INV;
    assert_eq!(post(from, &mut list), (libc::EOPNOTSUPP, 2));
    let mut many = [block.sge(0, 1); 5];
    let mut list = [send(14, &mut sges), send(15, &mut many)];
    assert_eq!(post(from, &mut list), (libc::EINVAL, 1), "max_send_sge is 4");
    let mut list = [send(16, &mut sges)];
    list[0].send_flags |= 1 << 20;
    assert_eq!(post(from, &mut list), (libc::EINVAL, 0));
    let all = completions(cq, 6);
    let mut sent: Vec<u64> = all.iter().filter(|wc| wc.opcode == IBV_WC_SEND).map(|wc| wc.wr_id).collect();
    sent.sort_unstable();
    assert_eq!(sent, [10, 11, 14]);
    assert!(all.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    finish(lab, cq, [from, to], block);
}

/// libiscsi posts such lists, which are in a packed structure.
#[test]
fn gather_and_scatter_lists_may_lie_at_any_address() {
    #[repr(C, packed)]
    struct Packed {
        head: u8,
        sge: ibv_sge,
    }
    let lab = Lab::open();
    let cq = lab.cq(null_mut());
    let [from, to] = lab.rc_pair(cq);
    let mut block = Region::new(lab.pd, &[0; 4096]);
    block.bytes[..4].copy_from_slice(b"here");
    let mut source = Packed { head: 0, sge: block.sge(0, 4) };
    let mut sink = Packed { head: source.head, sge: block.sge(2048, 4) };
    let mut receive = receive(1, &mut []);
    (receive.sg_list, receive.num_sge) = (&raw mut sink.sge, 1);
    let mut bad = null_mut();
    // SAFETY: the request and its list live until the call has returned.
    assert_eq!(unsafe { (*(*to).context).ops.post_recv.unwrap()(to, &raw mut receive, &raw mut bad) }, 0);
    let mut request = send(2, &mut []);
    (request.sg_list, request.num_sge) = (&raw mut source.sge, 1);
    assert_eq!(post(from, &mut [request]).0, 0);
    assert!(completions(cq, 2).iter().all(|wc| wc.status == IBV_WC_SUCCESS));
    assert_eq!(&block.bytes[2048..2052], b"here");
    finish(lab, cq, [from, to], block);
}

/// Destroys the objects of a test.
fn finish(lab: Lab, cq: *mut ibv_cq, qps: [*mut ibv_qp; 2], block: Region) {
    // SAFETY: the test's own objects, for the last time.
    unsafe {
        assert_eq!(qps.map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(block);
    lab.close();
}

#[test]
fn wr_calls_post_all_or_none() {
    let lab = Lab::open();
    let cq = lab.cq(null_mut());
    let mut init = request(IBV_QPT_RC, lab.pd, cq);
    init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    init.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE;
    init.cap.max_send_wr = 2;
    let from = lab.qp(&mut init);
    let to = lab.qp(&mut request(IBV_QPT_RC, lab.pd, cq));
    lab.connect(from, super::lab::number(to));
    lab.connect(to, super::lab::number(from));
    let block = Region::new(lab.pd, &[0; 4096]);
    for wr_id in 0..4 {
        assert_eq!(post_receive(to, wr_id, block.sge(0, 64)), 0);
    }
    // SAFETY: the test's own objects, with their functions called in the order that the manual demands.
    unsafe {
        assert!(ibv_qp_to_qp_ex(to).is_null(), "made without send_ops_flags");
        let ex = ibv_qp_to_qp_ex(from);
        let send_one = |wr_id| {
            (*ex).wr_id = wr_id;
            (*ex).wr_flags = IBV_SEND_SIGNALED;
            (*ex).wr_send.unwrap()(ex);
            (*ex).wr_set_sge.unwrap()(ex, block.key(), block.address() + 1000, 8);
        };
        (*ex).wr_start.unwrap()(ex);
        [1, 2, 3].into_iter().for_each(send_one);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::ENOMEM, "the queue holds two");
        (*ex).wr_start.unwrap()(ex);
        send_one(4);
        (*ex).wr_abort.unwrap()(ex);
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_rdma_read.unwrap()(ex, 0, 0);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EOPNOTSUPP, "not among its operations");
        (*ex).wr_start.unwrap()(ex);
        send_one(5);
        (*ex).wr_id = 6;
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_set_inline_data.unwrap()(ex, block.bytes.as_ptr().cast_mut().cast(), 12);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
    }
    let all = completions(cq, 4);
    let of = |opcode| all.iter().filter(move |wc| wc.opcode == opcode);
    assert_eq!(of(IBV_WC_SEND).map(|wc| wc.wr_id).collect::<Vec<_>>(), [5, 6]);
    assert_eq!(of(IBV_WC_RECV).map(|wc| wc.byte_len).collect::<Vec<_>>(), [8, 12]);
    finish(lab, cq, [from, to], block);
}
