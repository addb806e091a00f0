//! The XRC calls of OFED 1.x over the software device (contract B). Two tables of registrations on one device stand
//! for two processes: what makes a process is its own table.

mod common;

#[cfg(test)]
mod tests {
    use super::common;
    use super::common::node::{Node, bring_up_with, post};
    use std::fmt::Debug;
    use std::os::fd::{AsFd, BorrowedFd};
    use std::sync::{Arc, Barrier};
    use trunkline_softrdma::device::SoftOptions;
    use trunkline_verbs::legacy::{LegacyError, LegacySrqInit, LegacyXrc};
    use trunkline_verbs::{
        Access, AddressVector, AsyncEvent, CompletionChannel, CompletionQueue, CompletionStatus,
        ConnectionManager, Counter, CqInit, Device, DeviceAttributes, DeviceCapabilities, Gid, GidEntry, Mtu,
        PortAttributes, ProtectionDomain, Psn, QpInit, QpModify, QpNumber, QpState, QpType, QueuePair,
        ReceiveRequest, SendOperation, SharedReceiveQueue, SrqInit, VerbsError, XrcDomain, XrcdFlags,
    };

    const EBUSY: i32 = 16;
    const EEXIST: i32 = 17;
    const EINVAL: i32 = 22;
    const ENOSYS: i32 = 38;

    fn node() -> Node {
        let [options, _] = common::in_process();
        Node::open(options, 4096)
    }

    fn process(node: &Node) -> LegacyXrc {
        LegacyXrc::new(Arc::clone(&node.device) as Arc<dyn Device>)
    }

    /// A file of its own in the temporary directory, without a name.
    fn file() -> std::fs::File {
        let path = std::env::temp_dir().join(format!(
            "trunkline-legacy-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        ));
        let file = std::fs::File::create(&path).expect("a file");
        std::fs::remove_file(path).expect("its name goes");
        file
    }

    #[track_caller]
    fn refused<T: Debug>(result: Result<T, LegacyError>, errno: i32) {
        let error = result.expect_err("it is refused");
        assert_eq!(error.errno(), errno, "{error}");
    }

    fn to_init() -> QpModify {
        QpModify {
            state: Some(QpState::Init),
            pkey_index: Some(0),
            port: Some(1),
            access: Some(Access::REMOTE_WRITE),
            ..QpModify::default()
        }
    }

    fn to_rtr(peer: QpNumber, at: &Node) -> QpModify {
        QpModify {
            state: Some(QpState::ReadyToReceive),
            address_vector: Some(AddressVector {
                source_gid_index: 0,
                destination: Gid::from(at.address),
                port: 1,
                flow_label: 0,
                hop_limit: 64,
                traffic_class: 0,
            }),
            path_mtu: Some(Mtu::Mtu1024),
            destination_qp: Some(peer),
            rq_psn: Some(Psn::new(0xff_fff0)),
            max_dest_rd_atomic: Some(1),
            min_rnr_timer: Some(12),
            ..QpModify::default()
        }
    }

    #[test]
    fn b2_a_domain_is_that_of_the_inode() {
        let node = node();
        let (a, b, file) = (process(&node), process(&node), file());
        refused(a.open_xrc_domain(Some(file.as_fd()), XrcdFlags::empty()), 11);
        let first = a.open_xrc_domain(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
        refused(b.open_xrc_domain(Some(file.as_fd()), XrcdFlags::CREATE | XrcdFlags::EXCLUSIVE), EINVAL);
        let second = b.open_xrc_domain(Some(file.as_fd()), XrcdFlags::empty()).unwrap();
        let number = a.create_xrc_rcv_qp(&first).unwrap();
        b.reg_xrc_rcv_qp(&second, number).unwrap();
    }

    #[test]
    fn b3_the_creator_is_registered_and_its_unregistering_destroys() {
        let node = node();
        let (a, b) = (process(&node), process(&node));
        let domain = a.open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let number = a.create_xrc_rcv_qp(&domain).unwrap();
        refused(a.reg_xrc_rcv_qp(&domain, number), EEXIST);
        assert_eq!(a.query_xrc_rcv_qp(&domain, number).unwrap().state, QpState::Reset);
        a.unreg_xrc_rcv_qp(&domain, number).unwrap();
        refused(a.reg_xrc_rcv_qp(&domain, number), EINVAL);
        refused(b.reg_xrc_rcv_qp(&domain, number), EINVAL);
        refused(a.unreg_xrc_rcv_qp(&domain, number), EINVAL);
    }

    /// A device without XRC; it must be asked nothing else.
    #[derive(Debug)]
    struct WithoutXrc(DeviceAttributes);

    impl Device for WithoutXrc {
        fn attributes(&self) -> &DeviceAttributes {
            &self.0
        }
        fn port(&self, _: u8) -> Result<PortAttributes, VerbsError> {
            unreachable!("asked for a port")
        }
        fn gid_table(&self) -> Vec<GidEntry> {
            unreachable!("asked for GIDs")
        }
        fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
            unreachable!("asked for a PD")
        }
        fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
            unreachable!("asked for a channel")
        }
        fn create_cq(&self, _: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
            unreachable!("asked for a CQ")
        }
        fn open_xrcd(
            &self,
            _: Option<BorrowedFd<'_>>,
            _: XrcdFlags,
        ) -> Result<Arc<dyn XrcDomain>, VerbsError> {
            unreachable!("asked for a domain")
        }
        fn create_srq(&self, _: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
            unreachable!("asked for an SRQ")
        }
        fn create_qp(&self, _: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("asked for a QP")
        }
        fn open_qp(&self, _: &Arc<dyn XrcDomain>, _: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("asked to open a QP")
        }
        fn connection_manager(&self) -> &dyn ConnectionManager {
            unreachable!("asked for its CM")
        }
        fn next_async_event(&self) -> Option<AsyncEvent> {
            unreachable!("asked for events")
        }
        fn async_event_fd(&self) -> BorrowedFd<'_> {
            unreachable!("asked for a descriptor")
        }
        fn counters(&self) -> Vec<Counter> {
            unreachable!("asked for counters")
        }
    }

    #[test]
    fn b3_a_device_without_xrc_answers_enosys() {
        let node = node();
        let domain = process(&node).open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let mut attributes = node.device.attributes().clone();
        attributes.capabilities.remove(DeviceCapabilities::XRC);
        let (none, number) = (LegacyXrc::new(Arc::new(WithoutXrc(attributes))), QpNumber::new(5));
        let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
        refused(none.open_xrc_domain(None, XrcdFlags::CREATE), ENOSYS);
        refused(none.create_xrc_srq(&node.pd, &domain, &node.cq, init), ENOSYS);
        refused(none.create_xrc_rcv_qp(&domain), ENOSYS);
        refused(none.modify_xrc_rcv_qp(&domain, number, &to_init()), ENOSYS);
        refused(none.query_xrc_rcv_qp(&domain, number), ENOSYS);
        refused(none.reg_xrc_rcv_qp(&domain, number), ENOSYS);
        refused(none.unreg_xrc_rcv_qp(&domain, number), ENOSYS);
        refused(none.close_xrc_domain(&domain), ENOSYS);
    }

    #[test]
    fn b4_a_number_that_is_no_receive_qp_of_the_domain_is_refused() {
        let node = node();
        let (a, b) = (process(&node), process(&node));
        let domain = a.open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let other = b.open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let number = a.create_xrc_rcv_qp(&domain).unwrap();
        refused(b.reg_xrc_rcv_qp(&other, number), EINVAL);
        refused(b.reg_xrc_rcv_qp(&domain, QpNumber::new(number.get() ^ 0x80_0000)), EINVAL);
        refused(b.reg_xrc_rcv_qp(&domain, node.qp(QpType::XrcIni).number()), EINVAL);
        refused(b.unreg_xrc_rcv_qp(&domain, number), EINVAL);
        // Registered, but not in that domain.
        refused(a.reg_xrc_rcv_qp(&other, number), EINVAL);
        refused(a.unreg_xrc_rcv_qp(&other, number), EINVAL);
        refused(a.modify_xrc_rcv_qp(&other, number, &to_init()), EINVAL);
        refused(a.query_xrc_rcv_qp(&other, number), EINVAL);
    }

    #[test]
    fn b5_the_last_registration_keeps_the_qp() {
        let node = node();
        let (a, b) = (process(&node), process(&node));
        let domain = a.open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let number = a.create_xrc_rcv_qp(&domain).unwrap();
        b.reg_xrc_rcv_qp(&domain, number).unwrap();
        refused(b.reg_xrc_rcv_qp(&domain, number), EEXIST);
        a.unreg_xrc_rcv_qp(&domain, number).unwrap();
        refused(a.query_xrc_rcv_qp(&domain, number), EINVAL);
        assert_eq!(b.query_xrc_rcv_qp(&domain, number).unwrap().state, QpState::Reset);
        a.reg_xrc_rcv_qp(&domain, number).unwrap();
        drop(b);
        a.unreg_xrc_rcv_qp(&domain, number).unwrap();
        refused(a.reg_xrc_rcv_qp(&domain, number), EINVAL);
    }

    #[test]
    fn b2_a_domain_is_busy_while_this_process_has_something_in_it() {
        let node = node();
        let (a, b, file) = (process(&node), process(&node), file());
        let first = a.open_xrc_domain(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
        let second = b.open_xrc_domain(Some(file.as_fd()), XrcdFlags::CREATE).unwrap();
        let number = a.create_xrc_rcv_qp(&first).unwrap();
        b.reg_xrc_rcv_qp(&second, number).unwrap();
        refused(a.close_xrc_domain(&first), EBUSY);
        a.unreg_xrc_rcv_qp(&first, number).unwrap();
        a.close_xrc_domain(&first).unwrap();
        refused(b.close_xrc_domain(&second), EBUSY);
        let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
        let srq = b.create_xrc_srq(&node.pd, &second, &node.cq, init).unwrap();
        b.unreg_xrc_rcv_qp(&second, number).unwrap();
        refused(b.close_xrc_domain(&second), EBUSY);
        srq.destroy().unwrap();
        b.close_xrc_domain(&second).unwrap();
    }

    #[test]
    fn b6_ready_to_receive_is_enough_for_a_message() {
        let [sender, receiver] = common::in_process().map(|options: SoftOptions| Node::open(options, 4096));
        let a = process(&receiver);
        let domain = a.open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
        let srq = a.create_xrc_srq(&receiver.pd, &domain, &receiver.cq, init).unwrap();
        let number = a.create_xrc_rcv_qp(&domain).unwrap();
        let ini = sender.qp(QpType::XrcIni);
        a.modify_xrc_rcv_qp(&domain, number, &to_init()).unwrap();
        a.modify_xrc_rcv_qp(&domain, number, &to_rtr(ini.number(), &sender)).unwrap();
        bring_up_with(&*ini, receiver.address, number);
        let scatter = [receiver.sge(1024, 64)];
        srq.post_receive(&[ReceiveRequest { wr_id: 1, scatter: &scatter }]).unwrap();
        sender.memory.write(0, b"by the older calls").unwrap();
        post(&*ini, SendOperation::Send, &[sender.sge(0, 18)], &*srq);
        let done = receiver.completion();
        assert_eq!((done.status, done.qp_number), (CompletionStatus::Success, number));
        let mut got = [0; 18];
        receiver.memory.read(1024, &mut got).unwrap();
        assert_eq!(&got, b"by the older calls");
    }

    #[test]
    fn b10_of_two_that_race_one_gets_einval() {
        let node = node();
        let domain = process(&node).open_xrc_domain(None, XrcdFlags::CREATE).unwrap();
        for round in 0..50 {
            let (a, b) = (process(&node), process(&node));
            let number = a.create_xrc_rcv_qp(&domain).unwrap();
            b.reg_xrc_rcv_qp(&domain, number).unwrap();
            let start = Barrier::new(2);
            let race = |process: &LegacyXrc| {
                start.wait();
                process.modify_xrc_rcv_qp(&domain, number, &to_init())?;
                process.modify_xrc_rcv_qp(&domain, number, &to_rtr(QpNumber::new(7), &node))
            };
            let results = std::thread::scope(|scope| {
                let other = scope.spawn(|| race(&b));
                [race(&a), other.join().expect("no panic")]
            });
            let lost: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
            assert_eq!(lost.len(), 1, "round {round}: {results:?}");
            assert_eq!(lost[0].errno(), EINVAL);
            assert_eq!(b.query_xrc_rcv_qp(&domain, number).unwrap().state, QpState::ReadyToReceive);
        }
    }
}
