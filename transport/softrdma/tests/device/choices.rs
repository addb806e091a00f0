//! The behaviour of the software device where the XRC contract allows several outcomes. The conformance suite
//! accepts every allowed outcome; programs for this device may rely on these.

#[cfg(test)]
mod tests {
    use crate::common::in_process;
    use crate::common::node::{Node, connect, post, steps};
    use std::net::IpAddr;
    use std::sync::Arc;
    use trunkline_softrdma::device::{SoftDevice, SoftOptions};
    use trunkline_verbs::{
        Access, CompletionStatus, Device, IoAddress, Mtu, QpModify, QpState, QpType, QueuePair,
        RemoteAddress, Rkey, SendData, SendFlags, SendOperation, SendRequest, Sge, VerbsError,
    };

    #[test]
    fn addresses_beyond_the_table_are_refused_by_number() {
        let [options, _] = in_process();
        let with = |count: u16| {
            let addresses = (0..count)
                .map(|number| IpAddr::from([10, 7, number.to_be_bytes()[0], number.to_be_bytes()[1]]));
            SoftDevice::open(SoftOptions { addresses: addresses.collect(), ..options.clone() })
        };
        let device = with(256).unwrap();
        assert_eq!(device.gid_table().len(), 256);
        drop(device);
        let error = with(257).unwrap_err().to_string();
        assert!(error.contains("257 addresses") && error.contains("at most 256"), "{error}");
    }

    fn nodes() -> [Node; 2] {
        in_process().map(|options| Node::open(options, 8192))
    }

    /// Moves a new INI and TGT to `state` and RTS, with one change to the usual attributes of both.
    fn joined(
        [near, far]: &[Node; 2],
        state: QpState,
        change: impl Fn(QpModify) -> QpModify,
    ) -> (Arc<dyn QueuePair>, Arc<dyn QueuePair>) {
        let (ini, tgt) = (near.qp(QpType::XrcIni), far.qp(QpType::XrcTgt));
        for step in steps(near.address, ini.number(), Mtu::Mtu1024) {
            tgt.modify(&change(step)).unwrap();
        }
        for step in steps(far.address, tgt.number(), Mtu::Mtu1024) {
            if ini.query().unwrap().state != state {
                ini.modify(&change(step)).unwrap();
            }
        }
        (ini, tgt)
    }

    /// Returns the cause for which a post was refused.
    fn refusal(
        [_, far]: &[Node; 2],
        ini: &dyn QueuePair,
        operation: SendOperation,
        data: &[Sge],
    ) -> VerbsError {
        let request = SendRequest {
            wr_id: 1,
            operation,
            data: SendData::Gather(data),
            flags: SendFlags::SIGNALED,
            remote_srq: far.srq.number().unwrap(),
        };
        ini.post_send(&[request]).expect_err("the post is refused").cause
    }

    #[test]
    fn e8_a_send_before_rts_is_refused() {
        let nodes = nodes();
        for state in [QpState::Reset, QpState::Init, QpState::ReadyToReceive] {
            let (ini, _tgt) = joined(&nodes, state, |step| step);
            let cause = refusal(&nodes, &*ini, SendOperation::Send, &[nodes[0].sge(0, 8)]);
            assert!(matches!(cause, VerbsError::Invalid(_)), "{state:?}: {cause}");
        }
    }

    #[test]
    fn f5_a_read_is_refused_where_none_may_be_outstanding() {
        let nodes = nodes();
        let none = |step: QpModify| QpModify { max_rd_atomic: step.max_rd_atomic.map(|_| 0), ..step };
        let (ini, _tgt) = joined(&nodes, QpState::ReadyToSend, none);
        let read = SendOperation::RdmaRead(nodes[1].remote(0));
        let cause = refusal(&nodes, &*ini, read, &[nodes[0].sge(0, 8)]);
        assert!(matches!(cause, VerbsError::Invalid(_)), "{cause}");
    }

    #[test]
    fn f5_a_depth_above_what_the_device_announces_is_refused() {
        let nodes = nodes();
        let most = nodes[0].device.attributes().max_rd_atomic;
        let (ini, tgt) = joined(&nodes, QpState::ReadyToReceive, |step| step);
        let [_, _, rts] = steps(nodes[1].address, tgt.number(), Mtu::Mtu1024);
        let above = QpModify { max_rd_atomic: Some(most + 1), ..rts };
        assert!(matches!(ini.modify(&above), Err(VerbsError::Invalid(_))));
        ini.modify(&QpModify { max_rd_atomic: Some(most), ..rts }).unwrap();
    }

    #[test]
    fn g4_an_atomic_of_wrong_length_is_refused_at_the_post() {
        let nodes = nodes();
        let (ini, _tgt) = connect(&nodes[0], &nodes[1]);
        let add = SendOperation::FetchAdd { remote: nodes[1].remote(0), add: 1 };
        let cause = refusal(&nodes, &*ini, add, &[nodes[0].sge(0, 4)]);
        assert!(matches!(cause, VerbsError::Invalid(_)), "{cause}");
    }

    #[test]
    fn e5_g4_a_right_that_the_tgt_lacks_makes_an_invalid_request() {
        let nodes = nodes();
        let none = |step: QpModify| QpModify { access: step.access.map(|_| Access::empty()), ..step };
        let (ini, _tgt) = joined(&nodes, QpState::ReadyToSend, none);
        let write = SendOperation::RdmaWrite(nodes[1].remote(0));
        post(&*ini, write, &[nodes[0].sge(0, 8)], &*nodes[1].srq);
        assert_eq!(nodes[0].completion().status, CompletionStatus::RemoteInvalidRequest);
    }

    #[test]
    fn a_write_of_no_bytes_counts_as_a_received_packet() {
        let nodes = nodes();
        let (ini, tgt) = connect(&nodes[0], &nodes[1]);
        assert_eq!((tgt.received_packets(), ini.received_packets()), (Some(0), None));
        let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
        post(&*ini, SendOperation::RdmaWrite(nowhere), &[], &*nodes[1].srq);
        assert!(nodes[0].completion().status.is_success());
        assert_eq!(tgt.received_packets(), Some(1));
    }

    #[test]
    fn g10_a_message_too_long_is_an_invalid_request() {
        let nodes = nodes();
        let (ini, tgt) = connect(&nodes[0], &nodes[1]);
        nodes[1].receive(1, 0, 64);
        post(&*ini, SendOperation::Send, &[nodes[0].sge(0, 65)], &*nodes[1].srq);
        assert_eq!(nodes[0].completion().status, CompletionStatus::RemoteInvalidRequest);
        assert!(!nodes[1].completion().status.is_success());
        assert_eq!(tgt.query().unwrap().state, QpState::Error);
    }

    #[test]
    fn g5_a_key_of_another_domain_in_a_receive_is_the_responder_s_failure() {
        let nodes = nodes();
        let (ini, _tgt) = connect(&nodes[0], &nodes[1]);
        let far = &nodes[1];
        let foreign =
            far.device.alloc_pd().unwrap().register(Arc::clone(&far.memory), Access::LOCAL_WRITE).unwrap();
        let scatter = [Sge { lkey: foreign.lkey(), ..far.sge(0, 64) }];
        far.srq.post_receive(&[trunkline_verbs::ReceiveRequest { wr_id: 1, scatter: &scatter }]).unwrap();
        post(&*ini, SendOperation::Send, &[nodes[0].sge(0, 8)], &*far.srq);
        assert_eq!(nodes[0].completion().status, CompletionStatus::RemoteOperationError);
    }
}
