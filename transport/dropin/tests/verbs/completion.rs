//! Tests of extended completion queues, channels and resizing.

use super::lab::{BOUND, Lab, Region, completions, post, post_receive, request, send};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::time::Instant;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

fn extended(lab: Lab, wc_flags: u64) -> *mut ibv_cq_ex {
    let mut init = ibv_cq_init_attr_ex {
        cqe: 64,
        cq_context: null_mut(),
        channel: null_mut(),
        comp_vector: 0,
        wc_flags,
        comp_mask: 0,
        flags: 0,
        parent_domain: null_mut(),
    };
    // SAFETY: the context is open, and the attributes are local.
    unsafe { lab.table().create_cq_ex.unwrap()(lab.context, &raw mut init) }
}

#[test]
fn extended_cq_is_read_field_by_field() {
    let lab = Lab::open();
    assert!(extended(lab, IBV_WC_EX_WITH_COMPLETION_TIMESTAMP).is_null());
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EOPNOTSUPP));
    let ex = extended(lab, IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM);
    let cq: *mut ibv_cq = ex.cast();
    let [from, to] = lab.rc_pair(cq);
    let block = Region::new(lab.pd, &[0; 4096]);
    assert_eq!(post_receive(to, 21, block.sge(0, 64)), 0);
    let mut sges = [block.sge(100, 10)];
    let mut list = [send(20, &mut sges)];
    list[0].opcode = IBV_WR_SEND_WITH_IMM;
    list[0].imm_data = 5_u32.to_be();
    assert_eq!(post(from, &mut list).0, 0);
    let deadline = Instant::now() + BOUND;
    let mut seen = Vec::new();
    // SAFETY: the test's own CQ, with its functions called in the order that the manual demands.
    unsafe {
        assert!((*ex).read_slid.is_none(), "not asked for");
        while seen.len() < 2 {
            assert!(Instant::now() < deadline);
            if (*ex).start_poll.unwrap()(ex, &mut ibv_poll_cq_attr { comp_mask: 0 }) != 0 {
                continue;
            }
            loop {
                let opcode = (*ex).read_opcode.unwrap()(ex);
                seen.push(((*ex).wr_id, (*ex).status, opcode, (*ex).read_qp_num.unwrap()(ex)));
                if opcode == IBV_WC_RECV {
                    assert_eq!((*ex).read_byte_len.unwrap()(ex), 10);
                    assert_eq!((*ex).read_imm_data.unwrap()(ex), 5_u32.to_be());
                    assert_eq!((*ex).read_wc_flags.unwrap()(ex), IBV_WC_WITH_IMM | IBV_WC_GRH);
                }
                if (*ex).next_poll.unwrap()(ex) != 0 {
                    break;
                }
            }
            (*ex).end_poll.unwrap()(ex);
        }
        seen.sort_unstable();
        let sent = (20, IBV_WC_SUCCESS, IBV_WC_SEND, super::lab::number(from));
        let received = (21, IBV_WC_SUCCESS, IBV_WC_RECV, super::lab::number(to));
        assert_eq!(seen, [sent, received]);
        let mut bad = ibv_poll_cq_attr { comp_mask: 1 };
        assert_eq!((*ex).start_poll.unwrap()(ex, &raw mut bad), libc::EINVAL);
        assert_eq!([from, to].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    drop(block);
    lab.close();
}

#[test]
fn channel_blocks_unless_its_descriptor_is_non_blocking() {
    let lab = Lab::open();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        let channel = ibv_create_comp_channel(lab.context);
        let cq = lab.cq(channel);
        let [from, to] = lab.rc_pair(cq);
        let block = Region::new(lab.pd, &[0; 4096]);
        let flags_of = |fd| OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap());
        let [events, fd] = [(*lab.context).async_fd, (*channel).fd].map(|fd| BorrowedFd::borrow_raw(fd));
        let flags = flags_of(fd);
        assert!(!(flags | flags_of(events)).contains(OFlag::O_NONBLOCK), "blocking is the default");
        fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
        let (mut fired, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
        assert_eq!(ibv_get_cq_event(channel, &raw mut fired, &raw mut context), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        let notify = lab.table().context.ops.req_notify_cq.unwrap();
        assert_eq!(notify(cq, 0), 0);
        assert_eq!(post_receive(to, 1, block.sge(0, 64)), 0);
        let mut sges = [block.sge(100, 10)];
        assert_eq!(post(from, &mut [send(2, &mut sges)]).0, 0);
        assert_eq!(poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::from(60_000_u16)), Ok(1));
        assert_eq!(ibv_get_cq_event(channel, &raw mut fired, &raw mut context), 0);
        assert_eq!((fired, context), (cq, with_exposed_provenance_mut(77)));
        completions(cq, 2);
        fcntl(fd, FcntlArg::F_SETFL(flags)).unwrap();
        assert_eq!(notify(cq, 0), 0);
        let waiter = std::thread::spawn({
            let channel = channel.expose_provenance();
            move || {
                let (mut fired, mut context): (*mut ibv_cq, *mut c_void) = (null_mut(), null_mut());
                let channel = with_exposed_provenance_mut(channel);
                ibv_get_cq_event(channel, &raw mut fired, &raw mut context)
            }
        });
        assert_eq!(post_receive(to, 1, block.sge(0, 64)), 0);
        assert_eq!(post(from, &mut [send(2, &mut sges)]).0, 0);
        assert_eq!(waiter.join().unwrap(), 0);
        completions(cq, 2);
        assert_eq!([from, to].map(|qp| ibv_destroy_qp(qp)), [0, 0]);
        // Two events have been taken, so destroying the CQ waits for their acknowledgement.
        let destroyer = std::thread::spawn({
            let cq = cq.expose_provenance();
            move || ibv_destroy_cq(with_exposed_provenance_mut(cq))
        });
        ibv_ack_cq_events(cq, 1);
        assert!(!destroyer.is_finished());
        ibv_ack_cq_events(cq, 1);
        assert_eq!(destroyer.join().unwrap(), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        drop(block);
    }
    lab.close();
}

#[test]
fn events_of_destroyed_cq_are_discarded() {
    let lab = Lab::open();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        let channel = ibv_create_comp_channel(lab.context);
        let cq = lab.cq(channel);
        let qp = lab.qp(&mut request(IBV_QPT_RC, lab.pd, cq));
        assert_eq!(lab.table().context.ops.req_notify_cq.unwrap()(cq, 0), 0);
        // A flushed receive raises an event.
        let block = Region::new(lab.pd, &[0; 64]);
        let mut attr = ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, ..ibv_qp_attr::default() };
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        super::lab::modify(qp, &mut attr, mask);
        assert_eq!(post_receive(qp, 1, block.sge(0, 64)), 0);
        attr.qp_state = IBV_QPS_ERR;
        super::lab::modify(qp, &mut attr, IBV_QP_STATE);
        let fd = BorrowedFd::borrow_raw((*channel).fd);
        let readable = || poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], PollTimeout::ZERO).unwrap();
        assert_eq!(readable(), 1);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        assert_eq!(readable(), 0);
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
        drop(block);
    }
    lab.close();
}

#[test]
fn cq_can_be_resized() {
    let lab = Lab::open();
    let cq = lab.cq(null_mut());
    // SAFETY: the test's own objects, for the last time.
    unsafe {
        assert_eq!(ibv_resize_cq(cq, 1000), 0);
        assert!((*cq).cqe >= 1000);
        assert_eq!(ibv_resize_cq(cq, 0), libc::EINVAL);
        assert_eq!(ibv_resize_cq(cq, -1), libc::EINVAL);
        assert_eq!(ibv_destroy_cq(cq), 0);
    }
    lab.close();
}
