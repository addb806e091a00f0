//! Cases that the conformance suite does not cover: long lists of requests, the delivery of events to openings, and objects
//! that are dropped in any order.
//!
//! The tests run in real time, because the device belongs to the kernel or another library.
#![cfg(feature = "rdma-core")]

#[cfg(test)]
mod common;

#[cfg(test)]
mod tests {
    use super::common::OnHost;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use trunkline_verbs::{
        Access, AddressVector, AsyncEvent, AsyncEventKind, AsyncSubject, Completion, CompletionQueue,
        CompletionStatus, CqInit, Device, Memory, MemoryRegion, Mtu, Notify, Psn, QpInit, QpModify, QpState,
        QpType, QueueCapacities, QueuePair, ReceiveRequest, SendData, SendFlags, SendOperation, SendRequest,
        Sge, SharedReceiveQueue, SrqInit, SrqKind, SrqNumber,
    };

    const WAIT_AT_MOST: Duration = Duration::from_secs(60);
    /// Number of requests. It exceeds two batches and is not a multiple of the batch size.
    const MANY: u32 = 75;

    /// Returns the host's device. Without a device, the test is skipped with a message.
    fn device() -> Option<OnHost> {
        OnHost::find().inspect_err(|why| println!("skip: {why}")).ok()
    }

    /// A QP with the objects that it needs.
    struct Station {
        device: Arc<dyn Device>,
        cq: Arc<dyn CompletionQueue>,
        region: Arc<dyn MemoryRegion>,
        srq: Option<Arc<dyn SharedReceiveQueue>>,
        qp: Arc<dyn QueuePair>,
    }

    impl Station {
        fn new(host: &OnHost) -> Self {
            Self::with(host, None)
        }

        /// Creates a station, with an SRQ if a context number is given for it.
        fn with(host: &OnHost, srq: Option<u64>) -> Self {
            let device = host.open().unwrap();
            let pd = device.alloc_pd().unwrap();
            let channel = Some(device.create_completion_channel().unwrap());
            let cq = device
                .create_cq(CqInit { capacity_cqe: 256, channel, context: 77, ..CqInit::default() })
                .unwrap();
            let region = pd.register(Memory::zeroed(4096).unwrap(), Access::LOCAL_WRITE).unwrap();
            let srq = srq.map(|context| {
                let pd = Arc::clone(&pd);
                let init = SrqInit { pd, kind: SrqKind::Basic, max_wr: 16, max_sge: 1, context };
                device.create_srq(init).unwrap()
            });
            let capacities = QueueCapacities {
                max_send_wr: 100,
                max_receive_wr: 100,
                max_send_sge: 1,
                max_receive_sge: 1,
                max_inline_data: 32,
            };
            let qp = device.create_qp(QpInit {
                pd: Some(pd),
                send_cq: Some(Arc::clone(&cq)),
                receive_cq: Some(Arc::clone(&cq)),
                srq: srq.clone(),
                capacities,
                ..QpInit::new(QpType::Rc)
            });
            Self { device, cq, region, srq, qp: qp.unwrap() }
        }

        fn join(&self, host: &OnHost, peer: &Self) {
            let to = |state| QpModify { state: Some(state), ..QpModify::default() };
            let steps = [
                QpModify {
                    pkey_index: Some(0),
                    port: Some(1),
                    access: Some(Access::empty()),
                    ..to(QpState::Init)
                },
                QpModify {
                    address_vector: Some(AddressVector {
                        source_gid_index: host.gid.index,
                        destination: host.gid.gid,
                        port: 1,
                        flow_label: 0,
                        hop_limit: 64,
                        traffic_class: 0,
                    }),
                    path_mtu: Some(Mtu::Mtu1024),
                    destination_qp: Some(peer.qp.number()),
                    rq_psn: Some(Psn::new(7)),
                    max_dest_rd_atomic: Some(1),
                    min_rnr_timer: Some(12),
                    ..to(QpState::ReadyToReceive)
                },
                QpModify {
                    timeout: Some(14),
                    retry_count: Some(6),
                    rnr_retry: Some(7),
                    sq_psn: Some(Psn::new(7)),
                    max_rd_atomic: Some(1),
                    ..to(QpState::ReadyToSend)
                },
            ];
            for step in steps {
                self.qp.modify(&step).unwrap();
            }
        }

        fn sge(&self) -> Sge {
            Sge { address: self.region.memory().address(0), length: 64, lkey: self.region.lkey() }
        }

        fn completions(&self, count: usize) -> Vec<Completion> {
            let end = Instant::now() + WAIT_AT_MOST;
            let mut got = Vec::new();
            while got.len() < count {
                assert!(Instant::now() < end, "{} of {count} completions came", got.len());
                let mut some = [Completion::default(); 100];
                let taken = self.cq.poll(&mut some);
                got.extend_from_slice(&some[..taken]);
            }
            got
        }
    }

    fn inline(wr_id: u32, bytes: &[u8]) -> SendRequest<'_> {
        SendRequest {
            wr_id: wr_id.into(),
            operation: SendOperation::SendWithImmediate(0x0102_0304),
            data: SendData::Inline(bytes),
            flags: SendFlags::SIGNALED,
            remote_srq: SrqNumber::new(0),
        }
    }

    #[test]
    fn lists_longer_than_batch_arrive_completely_and_in_order() {
        let Some(host) = device() else { return };
        let (near, far) = (Station::new(&host), Station::new(&host));
        near.join(&host, &far);
        far.join(&host, &near);
        let scatter = [far.sge()];
        let receives: Vec<_> =
            (0..MANY).map(|index| ReceiveRequest { wr_id: index.into(), scatter: &scatter }).collect();
        far.qp.post_receive(&receives).unwrap();
        let bytes: Vec<[u8; 4]> = (0..MANY).map(u32::to_be_bytes).collect();
        let sends: Vec<_> = (0..).zip(&bytes).map(|(index, bytes)| inline(index, bytes)).collect();
        near.qp.post_send(&sends).unwrap();
        for (station, length) in [(&near, None), (&far, Some(4))] {
            for (index, completion) in station.completions(MANY as usize).iter().enumerate() {
                assert_eq!((completion.wr_id, completion.status), (index as u64, CompletionStatus::Success));
                assert_eq!(completion.qp_number, station.qp.number());
                if let Some(length) = length {
                    assert_eq!((completion.byte_length, completion.immediate), (length, 0x0102_0304));
                }
            }
        }
        let mut last = [0; 4];
        far.region.memory().read(0, &mut last).unwrap();
        assert_eq!(u32::from_be_bytes(last), MANY - 1);
    }

    #[test]
    fn refused_request_is_reported_by_its_index_in_whole_list() {
        let Some(host) = device() else { return };
        let (near, far) = (Station::new(&host), Station::new(&host));
        near.join(&host, &far);
        far.join(&host, &near);
        let two = [far.sge(); 64];
        let one = [far.sge()];
        let wrong = 40;
        let receives: Vec<_> = (0..60)
            .map(|index| {
                let scatter: &[Sge] = if index == wrong { &two } else { &one };
                ReceiveRequest { wr_id: index as u64, scatter }
            })
            .collect();
        let refused = far.qp.post_receive(&receives).unwrap_err();
        assert_eq!(refused.index, wrong, "{refused}");
        // The requests before the refused request are posted, but not the requests after it.
        far.qp.modify(&QpModify { state: Some(QpState::Error), ..QpModify::default() }).unwrap();
        let flushed = far.completions(wrong);
        assert!(flushed.iter().all(|entry| entry.status == CompletionStatus::WorkRequestFlushed));
        assert_eq!(far.cq.poll(&mut [Completion::default()]), 0);
    }

    #[test]
    fn async_event_reaches_opening_of_its_object_through_any_reader() {
        let Some(host) = device() else { return };
        let (other, own) = (Station::new(&host), Station::with(&host, Some(0x5253)));
        other.join(&host, &own);
        own.join(&host, &other);
        let srq = own.srq.clone().unwrap();
        srq.post_receive(&[ReceiveRequest { wr_id: 1, scatter: &[own.sge()] }]).unwrap();
        srq.arm_limit(4).unwrap();
        other.qp.post_send(&[inline(1, b"takes the last")]).unwrap();
        own.completions(1);
        let end = Instant::now() + WAIT_AT_MOST;
        // The other opening reads the descriptor that both share.
        while !is_readable(&own.device, PollTimeout::ZERO) {
            assert!(Instant::now() < end, "no event came");
            std::thread::yield_now();
        }
        assert_eq!(other.device.next_async_event(), None, "the event is not of its object");
        assert!(is_readable(&own.device, PollTimeout::ZERO), "the event that was read for it is lost");
        let event = own.device.next_async_event();
        let subject = AsyncSubject::Srq(0x5253);
        assert_eq!(event, Some(AsyncEvent { kind: AsyncEventKind::SrqLimitReached, subject }));
        assert_eq!(own.device.next_async_event(), None);
        assert!(!is_readable(&own.device, PollTimeout::ZERO));
        // The event has been acknowledged, so the destruction does not wait.
        own.qp.destroy().unwrap();
        srq.destroy().unwrap();
    }

    fn is_readable(device: &Arc<dyn Device>, timeout: PollTimeout) -> bool {
        let mut fds = [PollFd::new(device.async_event_fd(), PollFlags::POLLIN)];
        poll(&mut fds, timeout).unwrap() > 0
    }

    #[test]
    fn device_may_be_dropped_before_its_objects() {
        let Some(host) = device() else { return };
        let Station { device, cq, region, qp, .. } = Station::new(&host);
        cq.request_notify(Notify::Any).unwrap();
        drop(device);
        drop(cq);
        assert_eq!(qp.query().unwrap().state, QpState::Reset);
        drop(region);
        drop(qp);
    }
}
