//! XRC by the functions in the tables of a context.

use super::lab::{Block, Lab, completions, number, post, post_srq, request, send};
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// A private domain (contract A6).
fn domain(lab: Lab) -> *mut ibv_xrcd {
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
    // SAFETY: the context is open, and the attributes are local.
    unsafe { lab.table().open_xrcd.unwrap()(lab.context, &raw mut init) }
}

fn srq_request(lab: Lab, xrcd: *mut ibv_xrcd, cq: *mut ibv_cq) -> ibv_srq_init_attr_ex {
    ibv_srq_init_attr_ex {
        srq_context: null_mut(),
        attr: ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 },
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ,
        srq_type: IBV_SRQT_XRC,
        pd: lab.pd,
        xrcd,
        cq,
        max_num_tags: 0,
        max_ops: 0,
    }
}

#[test]
fn an_initiator_reaches_an_srq_by_both_interfaces_of_posting() {
    let lab = Lab::open();
    let (send_cq, cq, xrcd) = (lab.cq(null_mut()), lab.cq(null_mut()), domain(lab));
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        let srq = lab.table().create_srq_ex.unwrap()(lab.context, &mut srq_request(lab, xrcd, cq));
        let mut srqn = 0;
        assert_eq!(lab.table().get_srq_num.unwrap()(srq, &raw mut srqn), 0);
        let mut init = request(IBV_QPT_XRC_SEND, lab.pd, send_cq);
        init.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        init.send_ops_flags = IBV_QP_EX_WITH_SEND;
        let ini = lab.qp(&mut init);
        assert_eq!(init.cap.max_recv_wr, 0, "contract C2");
        let mut init = request(IBV_QPT_XRC_RECV, null_mut(), null_mut());
        assert!(lab.qp(&mut init).is_null(), "contract C1");
        init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = xrcd;
        let tgt = lab.qp(&mut init);
        lab.connect(ini, number(tgt));
        lab.connect(tgt, number(ini));
        let block = Block::new(lab.pd, 4096);
        for wr_id in 0..2 {
            assert_eq!(post_srq(srq, wr_id, block.sge(0, 64)), 0);
        }
        let mut sges = [block.sge(100, 10)];
        let mut list = [send(5, &mut sges)];
        list[0].remote_srqn = srqn;
        assert_eq!(post(tgt, &mut list), (libc::EINVAL, 0), "contract C10");
        assert_eq!(post(ini, &mut list).0, 0);
        let ex = ibv_qp_to_qp_ex(ini);
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_id = 6;
        (*ex).wr_flags = IBV_SEND_SIGNALED;
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_set_xrc_srqn.unwrap()(ex, srqn);
        (*ex).wr_set_inline_data.unwrap()(ex, block.bytes.as_ptr().cast_mut().cast(), 12);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        let received = completions(cq, 2);
        assert_eq!(received.iter().map(|wc| wc.byte_len).collect::<Vec<_>>(), [10, 12]);
        assert!(received.iter().all(|wc| wc.qp_num == number(tgt)), "contract G2");
        assert_eq!(completions(send_cq, 2).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [5, 6]);
        assert_eq!([ini, tgt].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!([cq, send_cq].map(|cq| ibv_destroy_cq(cq)), [0, 0]);
        assert_eq!(lab.table().close_xrcd.unwrap()(xrcd), 0);
        block.free();
    }
    lab.close();
}
