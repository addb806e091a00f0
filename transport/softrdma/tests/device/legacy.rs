//! The XRC calls of OFED 1.x on a device without XRC (contract B3). Their behaviour with XRC is section B of
//! the conformance suite.

#[cfg(test)]
mod tests {
    use crate::common;
    use crate::common::node::Node;
    use std::fmt::Debug;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use trunkline_verbs::legacy::{LegacyError, LegacySrqInit, LegacyXrc};
    use trunkline_verbs::{
        AsyncEvent, CompletionChannel, CompletionQueue, ConnectionManager, Counter, CqInit, Device,
        DeviceAttributes, DeviceCapabilities, GidEntry, PortAttributes, ProtectionDomain, QpInit, QpModify,
        QpNumber, QueuePair, SharedReceiveQueue, SrqInit, VerbsError, XrcDomain, XrcdFlags,
    };

    #[track_caller]
    fn refused<T: Debug>(result: Result<T, LegacyError>) {
        assert_eq!(result.expect_err("it is refused").errno(), 38);
    }

    /// A device without XRC, of which nothing else may be called.
    #[derive(Debug)]
    struct WithoutXrc(DeviceAttributes);

    impl Device for WithoutXrc {
        fn attributes(&self) -> &DeviceAttributes {
            &self.0
        }
        fn port(&self, _: u8) -> Result<PortAttributes, VerbsError> {
            unreachable!("called for a port")
        }
        fn gid_table(&self) -> Vec<GidEntry> {
            unreachable!("called for GIDs")
        }
        fn alloc_pd(&self) -> Result<Arc<dyn ProtectionDomain>, VerbsError> {
            unreachable!("called for a PD")
        }
        fn create_completion_channel(&self) -> Result<Arc<dyn CompletionChannel>, VerbsError> {
            unreachable!("called for a channel")
        }
        fn create_cq(&self, _: CqInit) -> Result<Arc<dyn CompletionQueue>, VerbsError> {
            unreachable!("called for a CQ")
        }
        fn open_xrcd(
            &self,
            _: Option<BorrowedFd<'_>>,
            _: XrcdFlags,
        ) -> Result<Arc<dyn XrcDomain>, VerbsError> {
            unreachable!("called for a domain")
        }
        fn create_srq(&self, _: SrqInit) -> Result<Arc<dyn SharedReceiveQueue>, VerbsError> {
            unreachable!("called for an SRQ")
        }
        fn create_qp(&self, _: QpInit) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("called for a QP")
        }
        fn open_qp(&self, _: &Arc<dyn XrcDomain>, _: QpNumber) -> Result<Arc<dyn QueuePair>, VerbsError> {
            unreachable!("called to open a QP")
        }
        fn connection_manager(&self) -> &dyn ConnectionManager {
            unreachable!("called for its CM")
        }
        fn next_async_event(&self) -> Option<AsyncEvent> {
            unreachable!("called for events")
        }
        fn async_event_fd(&self) -> BorrowedFd<'_> {
            unreachable!("called for a descriptor")
        }
        fn counters(&self) -> Vec<Counter> {
            unreachable!("called for counters")
        }
    }

    #[test]
    fn b3_a_device_without_xrc_returns_enosys() {
        let [options, _] = common::in_process();
        let node = Node::open(options, 4096);
        let domain = &node.xrcd;
        let mut attributes = node.device.attributes().clone();
        attributes.capabilities.remove(DeviceCapabilities::XRC);
        let (none, number) = (LegacyXrc::new(Arc::new(WithoutXrc(attributes))), QpNumber::new(5));
        let init = LegacySrqInit { max_wr: 8, max_sge: 1, context: 0 };
        refused(none.open_xrc_domain(None, XrcdFlags::CREATE));
        refused(none.create_xrc_srq(&node.pd, domain, &node.cq, init));
        refused(none.create_xrc_rcv_qp(domain));
        refused(none.modify_xrc_rcv_qp(domain, number, &QpModify::default()));
        refused(none.query_xrc_rcv_qp(domain, number));
        refused(none.reg_xrc_rcv_qp(domain, number));
        refused(none.unreg_xrc_rcv_qp(domain, number));
        refused(none.close_xrc_domain(domain));
    }
}
