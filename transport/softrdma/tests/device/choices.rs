//! The behaviour of the software device where the XRC contract allows several outcomes. The conformance suite
//! accepts all allowed outcomes; programs for this device may rely on the outcomes tested here.

#[cfg(test)]
mod tests {
    use crate::common::in_process;
    use crate::common::node::{Node, connect, post, steps};
    use std::net::IpAddr;
    use std::sync::Arc;
    use trunkline_softrdma::device::{SoftDevice, SoftOptions};
    use trunkline_verbs::{
        Access, CompletionStatus, Device, IoAddress, Mtu, QpModify, QpNumber, QpState, QpType, RemoteAddress,
        Rkey, SendOperation, Sge, VerbsError,
    };

    #[test]
    fn addresses_beyond_table_are_refused_by_number() {
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

    #[test]
    fn f5_depth_above_announced_limit_is_refused() {
        let nodes = nodes();
        let most = nodes[0].device.attributes().max_rd_atomic;
        let ini = nodes[0].qp(QpType::XrcIni);
        let [init, rtr, rts] = steps(nodes[1].address, QpNumber::new(0x4711), Mtu::Mtu1024);
        for step in [init, rtr] {
            ini.modify(&step).unwrap();
        }
        let above = QpModify { max_rd_atomic: Some(most + 1), ..rts };
        assert!(matches!(ini.modify(&above), Err(VerbsError::Invalid(_))));
        ini.modify(&QpModify { max_rd_atomic: Some(most), ..rts }).unwrap();
    }

    #[test]
    fn empty_write_counts_as_received_packet() {
        let nodes = nodes();
        let (ini, tgt) = connect(&nodes[0], &nodes[1]);
        assert_eq!((tgt.received_packets(), ini.received_packets()), (Some(0), None));
        let nowhere = RemoteAddress { address: IoAddress(0), rkey: Rkey(0) };
        post(&*ini, SendOperation::RdmaWrite(nowhere), &[], &*nodes[1].srq);
        assert!(nodes[0].completion().status.is_success());
        assert_eq!(tgt.received_packets(), Some(1));
    }

    #[test]
    fn g10_message_too_long_is_invalid_request() {
        let nodes = nodes();
        let (ini, tgt) = connect(&nodes[0], &nodes[1]);
        nodes[1].receive(1, 0, 64);
        post(&*ini, SendOperation::Send, &[nodes[0].sge(0, 65)], &*nodes[1].srq);
        assert_eq!(nodes[0].completion().status, CompletionStatus::RemoteInvalidRequest);
        assert!(!nodes[1].completion().status.is_success());
        assert_eq!(tgt.query().unwrap().state, QpState::Error);
    }

    #[test]
    fn g5_receive_with_key_of_another_domain_fails_at_responder() {
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
