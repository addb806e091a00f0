//! Support for the tests: one device per test process, at a separate address, and the usual steps of C programs.

pub(crate) use super::common::{BOUND, Region, completions, post, post_receive, receive, send};
use std::ffi::c_uint;
use std::mem::offset_of;
use std::ptr::{null_mut, with_exposed_provenance_mut};
use std::sync::Once;
use trunkline_dropin::abi::*;
use trunkline_dropin::verbs::*;

/// An open device. A test destroys the objects that it creates on the device.
#[derive(Clone, Copy)]
pub(crate) struct Lab {
    pub(crate) context: *mut ibv_context,
    pub(crate) pd: *mut ibv_pd,
}

fn name_the_address() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let address = trunkline_testkit::fresh_ip().to_string();
        // SAFETY: no thread of the process has read the environment for the device before, and the test
        // harness does not read it while tests run.
        unsafe { std::env::set_var("TRUNKLINE_ADDRESS", address) };
    });
}

impl Lab {
    pub(crate) fn open() -> Self {
        name_the_address();
        // SAFETY: the usual steps of a verbs program, with their results checked.
        unsafe {
            let mut count = 0;
            let list = ibv_get_device_list(&raw mut count);
            assert_eq!(count, 1);
            let context = ibv_open_device(*list);
            assert!(!context.is_null(), "open: {}", std::io::Error::last_os_error());
            ibv_free_device_list(list);
            let pd = ibv_alloc_pd(context);
            assert!(!pd.is_null());
            Self { context, pd }
        }
    }

    /// Returns the tables that the header's inline functions use.
    pub(crate) fn table(self) -> verbs_context {
        // SAFETY: the context is part of a verbs_context, as for `verbs_get_ctx`.
        unsafe { *self.context.byte_sub(offset_of!(verbs_context, context)).cast::<verbs_context>() }
    }

    pub(crate) fn cq(self, channel: *mut ibv_comp_channel) -> *mut ibv_cq {
        // SAFETY: the context is open.
        let cq = unsafe { ibv_create_cq(self.context, 256, with_exposed_provenance_mut(77), channel, 0) };
        assert!(!cq.is_null());
        cq
    }

    pub(crate) fn close(self) {
        // SAFETY: the lab's own objects, for the last time.
        unsafe {
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
            assert_eq!(ibv_close_device(self.context), 0);
        }
    }

    pub(crate) fn own_gid(self) -> ibv_gid {
        let mut gid = ibv_gid::default();
        // SAFETY: the context is open.
        assert_eq!(unsafe { ibv_query_gid(self.context, 1, 0, &raw mut gid) }, 0);
        gid
    }

    pub(crate) fn qp(self, init: &mut ibv_qp_init_attr_ex) -> *mut ibv_qp {
        // SAFETY: the context is open, and the attributes are local.
        unsafe { self.table().create_qp_ex.unwrap()(self.context, &raw mut *init) }
    }

    /// Moves a QP to RTS, connected to another QP of this device.
    pub(crate) fn connect(self, qp: *mut ibv_qp, peer: u32) {
        let rights = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
        let mut attr = ibv_qp_attr {
            qp_state: IBV_QPS_INIT,
            port_num: 1,
            qp_access_flags: rights,
            ..ibv_qp_attr::default()
        };
        modify(qp, &mut attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = 3;
        attr.dest_qp_num = peer;
        attr.max_dest_rd_atomic = 4;
        attr.min_rnr_timer = 1;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid = self.own_gid();
        attr.ah_attr.grh.hop_limit = 64;
        let rtr = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        modify(qp, &mut attr, rtr);
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 4;
        let rts = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        modify(qp, &mut attr, rts);
    }

    /// Returns two connected RC QPs that share a CQ.
    pub(crate) fn rc_pair(self, cq: *mut ibv_cq) -> [*mut ibv_qp; 2] {
        let pair = [0, 1].map(|_| {
            let qp = self.qp(&mut request(IBV_QPT_RC, self.pd, cq));
            assert!(!qp.is_null());
            qp
        });
        self.connect(pair[0], number(pair[1]));
        self.connect(pair[1], number(pair[0]));
        pair
    }
}

pub(crate) fn modify(qp: *mut ibv_qp, attr: &mut ibv_qp_attr, mask: c_uint) {
    // SAFETY: the QP is not destroyed yet.
    let status = unsafe { ibv_modify_qp(qp, &raw mut *attr, mask.cast_signed()) };
    assert_eq!(status, 0, "to state {}", attr.qp_state);
}

pub(crate) fn number(qp: *mut ibv_qp) -> u32 {
    // SAFETY: the QP is not destroyed yet.
    unsafe { (*qp).qp_num }
}

/// Returns the attributes of a QP of moderate size.
pub(crate) fn request(kind: c_uint, pd: *mut ibv_pd, cq: *mut ibv_cq) -> ibv_qp_init_attr_ex {
    let cap =
        ibv_qp_cap { max_send_wr: 64, max_recv_wr: 64, max_send_sge: 4, max_recv_sge: 4, max_inline_data: 0 };
    ibv_qp_init_attr_ex {
        qp_context: null_mut(),
        send_cq: cq,
        recv_cq: cq,
        srq: null_mut(),
        cap,
        qp_type: kind,
        sq_sig_all: 1,
        comp_mask: IBV_QP_INIT_ATTR_PD,
        pd,
        xrcd: null_mut(),
        create_flags: 0,
        max_tso_header: 0,
        rwq_ind_tbl: null_mut(),
        rx_hash_conf: ibv_rx_hash_conf {
            rx_hash_function: 0,
            rx_hash_key_len: 0,
            rx_hash_key: null_mut(),
            rx_hash_fields_mask: 0,
        },
        source_qpn: 0,
        send_ops_flags: 0,
    }
}
