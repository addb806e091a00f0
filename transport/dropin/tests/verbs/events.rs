//! Asynchronous events of SRQs and QPs.

use super::lab::{Lab, Region, post_srq};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use std::os::fd::BorrowedFd;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// A basic SRQ of 16 receives, and an RC pair whose second QP uses it.
unsafe fn with_srq(lab: Lab, cq: *mut ibv_cq) -> (*mut ibv_srq, [*mut ibv_qp; 2]) {
    let attr = ibv_srq_attr { max_wr: 16, max_sge: 1, srq_limit: 0 };
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        let srq = ibv_create_srq(lab.pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr });
        let from = lab.qp(&mut super::lab::request(IBV_QPT_RC, lab.pd, cq));
        let mut init = super::lab::request(IBV_QPT_RC, lab.pd, cq);
        init.srq = srq;
        let to = lab.qp(&mut init);
        lab.connect(from, (*to).qp_num);
        lab.connect(to, (*from).qp_num);
        (srq, [from, to])
    }
}

fn next(lab: Lab) -> Option<ibv_async_event> {
    let mut event = ibv_async_event { element: ibv_async_element { port_num: 0 }, event_type: 99 };
    // SAFETY: the context is open, and the event is local.
    (unsafe { ibv_get_async_event(lab.context, &raw mut event) } == 0).then_some(event)
}

#[test]
fn an_srq_reports_its_limit_and_a_qp_its_last_receive() {
    let lab = Lab::open();
    let other = Lab::open();
    // SAFETY: the test's own objects, which it destroys at its end.
    unsafe {
        for context in [lab.context, other.context] {
            let fd = BorrowedFd::borrow_raw((*context).async_fd);
            let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL).unwrap());
            assert!(!flags.contains(OFlag::O_NONBLOCK));
            fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
        }
        assert!(next(lab).is_none());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN));
        let cq = lab.cq(null_mut());
        let (srq, [from, to]) = with_srq(lab, cq);
        let block = Region::new(lab.pd, &[0; 4096]);
        for wr_id in 0..4 {
            assert_eq!(post_srq(srq, wr_id, block.sge(0, 64)), 0);
        }
        let mut attr = ibv_srq_attr { max_wr: 0, max_sge: 0, srq_limit: 4 };
        assert_eq!(ibv_modify_srq(srq, &raw mut attr, IBV_SRQ_LIMIT.cast_signed()), 0);
        let mut sges = [block.sge(100, 10)];
        assert_eq!(super::lab::post(from, &mut [super::lab::send(9, &mut sges)]).0, 0);
        super::lab::completions(cq, 2);
        let events: Vec<ibv_async_event> = std::iter::from_fn(|| next(lab)).collect();
        let limit = events.iter().find(|event| event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED).unwrap();
        assert_eq!(limit.element.srq, srq, "contract D6");
        assert_eq!(ibv_query_srq(srq, &raw mut attr), 0);
        assert_eq!((attr.max_wr, attr.srq_limit), (16, 0), "the limit is disarmed after its event");
        super::lab::modify(
            to,
            &mut ibv_qp_attr { qp_state: IBV_QPS_ERR, ..ibv_qp_attr::default() },
            IBV_QP_STATE,
        );
        let last = next(lab).unwrap();
        assert_eq!((last.event_type, last.element.qp), (IBV_EVENT_QP_LAST_WQE_REACHED, to), "contract H4");
        assert!(next(other).is_none(), "another context of the process does not get it");
        // contract H6: the QP waits for the acknowledgement.
        let destroyer = std::thread::spawn({
            let qp = to.expose_provenance();
            move || ibv_destroy_qp(with_exposed_provenance_mut(qp))
        });
        assert!(!destroyer.is_finished());
        for mut event in events.into_iter().chain([last]) {
            ibv_ack_async_event(&raw mut event);
        }
        assert_eq!(destroyer.join().unwrap(), 0);
        assert_eq!(ibv_destroy_qp(from), 0);
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(ibv_destroy_cq(cq), 0);
        drop(block);
    }
    lab.close();
    other.close();
}
