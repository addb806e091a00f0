//! XRC by the functions in the tables of a context.

use super::lab::{Block, Lab, completions, modify, number, post, post_srq, request, send};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

fn errno() -> Option<i32> {
    std::io::Error::last_os_error().raw_os_error()
}

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
fn opening_a_domain_checks_its_mask() {
    // contract A8
    let lab = Lab::open();
    for comp_mask in 0..8 {
        let mut init = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is open, and the attributes are local.
        let xrcd = unsafe { lab.table().open_xrcd.unwrap()(lab.context, &raw mut init) };
        match comp_mask {
            3 => {
                assert!(!xrcd.is_null());
                // SAFETY: it was opened above.
                assert_eq!(unsafe { lab.table().close_xrcd.unwrap()(xrcd) }, 0);
            }
            0..3 => assert_eq!((xrcd.is_null(), errno()), (true, Some(libc::EINVAL))),
            _ => assert_eq!((xrcd.is_null(), errno()), (true, Some(libc::EOPNOTSUPP))),
        }
    }
    lab.close();
}

#[test]
fn a_domain_is_identified_by_the_inode_of_its_file() {
    // contract A5
    let lab = Lab::open();
    let path = std::env::temp_dir().join(format!("trunkline-dropin-{}", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let open = |fd, oflags| {
        let mut init = ibv_xrcd_init_attr { comp_mask: 3, fd, oflags };
        // SAFETY: the context is open, and the attributes are local.
        unsafe { lab.table().open_xrcd.unwrap()(lab.context, &raw mut init) }
    };
    let fd = file.as_raw_fd();
    assert_eq!((open(fd, 0).is_null(), errno()), (true, Some(libc::EAGAIN)));
    let first = open(fd, libc::O_CREAT | libc::O_RDWR);
    assert!(!first.is_null());
    assert_eq!((open(fd, libc::O_CREAT | libc::O_EXCL).is_null(), errno()), (true, Some(libc::EINVAL)));
    let second = open(fd, 0);
    assert!(!second.is_null());
    assert_eq!((open(-7, libc::O_CREAT).is_null(), errno()), (true, Some(libc::EBADF)));
    // SAFETY: both handles were opened above, and are not used after this.
    unsafe { assert_eq!([first, second].map(|xrcd| lab.table().close_xrcd.unwrap()(xrcd)), [0, 0]) };
    lab.close();
}

#[test]
fn an_xrc_srq_needs_a_domain_and_a_cq() {
    // contract D1
    let lab = Lab::open();
    let (cq, xrcd) = (lab.cq(null_mut()), domain(lab));
    let create = lab.table().create_srq_ex.unwrap();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        for missing in [IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ] {
            let mut init = srq_request(lab, xrcd, cq);
            init.comp_mask &= !missing;
            assert_eq!((create(lab.context, &raw mut init).is_null(), errno()), (true, Some(libc::EINVAL)));
        }
        let mut init = srq_request(lab, xrcd, cq);
        init.comp_mask |= IBV_SRQ_INIT_ATTR_RESERVED;
        assert_eq!((create(lab.context, &raw mut init).is_null(), errno()), (true, Some(libc::EOPNOTSUPP)));
        let srq = create(lab.context, &mut srq_request(lab, xrcd, cq));
        let mut number = 0;
        assert_eq!(lab.table().get_srq_num.unwrap()(srq, &raw mut number), 0);
        assert!(number > 0 && number <= 0x00ff_ffff, "contract D4");
        assert_eq!(lab.table().close_xrcd.unwrap()(xrcd), libc::EBUSY, "contract A11");
        assert_eq!(ibv_destroy_cq(cq), libc::EBUSY, "contract D2");
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(lab.table().close_xrcd.unwrap()(xrcd), 0);
    }
    lab.close();
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

#[test]
fn another_handle_shows_the_same_qp() {
    // contract C4 to C8
    let lab = Lab::open();
    let (xrcd, other) = (domain(lab), domain(lab));
    let mut init = request(IBV_QPT_XRC_RECV, null_mut(), null_mut());
    init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    init.xrcd = xrcd;
    let tgt = lab.qp(&mut init);
    let whole = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let open = |comp_mask, xrcd, qp_type| {
        let (qp_num, qp_context) = (number(tgt), null_mut());
        let mut attr = ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_context, qp_type };
        // SAFETY: the context is open, and the attributes are local.
        unsafe { lab.table().open_qp.unwrap()(lab.context, &raw mut attr) }
    };
    for missing in [IBV_QP_OPEN_ATTR_NUM, IBV_QP_OPEN_ATTR_XRCD, IBV_QP_OPEN_ATTR_TYPE] {
        assert_eq!(
            (open(whole & !missing, xrcd, IBV_QPT_XRC_RECV).is_null(), errno()),
            (true, Some(libc::EINVAL))
        );
    }
    assert!(open(whole, other, IBV_QPT_XRC_RECV).is_null(), "another domain");
    assert!(open(whole, xrcd, IBV_QPT_RC).is_null());
    assert_eq!((open(whole | 16, xrcd, IBV_QPT_XRC_RECV).is_null(), errno()), (true, Some(libc::EOPNOTSUPP)));
    let second = open(whole, xrcd, IBV_QPT_XRC_RECV);
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        assert_eq!(((*second).qp_num, (*second).state), (number(tgt), IBV_QPS_UNKNOWN), "contract C5");
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        modify(second, &mut attr, mask);
        assert_eq!(ibv_modify_qp(tgt, &raw mut attr, (mask | IBV_QP_DEST_QPN).cast_signed()), libc::EINVAL);
        let mut now = ibv_qp_attr::default();
        let mut made: ibv_qp_init_attr = std::mem::zeroed();
        assert_eq!(ibv_query_qp(tgt, &raw mut now, IBV_QP_STATE.cast_signed(), &raw mut made), 0);
        assert_eq!((now.qp_state, made.qp_type), (IBV_QPS_INIT, IBV_QPT_XRC_RECV), "contract C8");
        assert_eq!(ibv_destroy_qp(tgt), 0);
        assert_eq!(ibv_query_qp(second, &raw mut now, IBV_QP_STATE.cast_signed(), &raw mut made), 0);
        assert_eq!(lab.table().close_xrcd.unwrap()(xrcd), libc::EBUSY, "the TGT exists");
        assert_eq!(ibv_destroy_qp(second), 0);
        assert_eq!([xrcd, other].map(|xrcd| lab.table().close_xrcd.unwrap()(xrcd)), [0, 0]);
    }
    lab.close();
}
